"""submit, list, show, cancel, status: the commands that talk to the farm."""

import argparse
import sys
import time

from h3farm.worker.cli import exits, words
from h3farm.worker.cli.batch_commands import submit_batch
from h3farm.worker.cli.batch_options import is_batch, schedule_of
from h3farm.worker.cli.control_commands import farm_words
from h3farm.worker.cli.spec_options import given_fields, make_spec
from h3farm.worker.queue import (
    OVER,
    InvalidTransition,
    RenderJob,
    RenderQueue,
    Settings,
    State,
    StoreUnavailable,
    quantities,
)
from h3farm.worker.supervisor import read_supervisor_file

CANCEL_WAIT_S = 5.0


def submit(arguments: argparse.Namespace, settings: Settings) -> int:
    """Queue a render, or many; with --wait follow them to their end."""
    if is_batch(arguments) or arguments.plan:
        return submit_batch(arguments, settings)
    fields = given_fields(arguments)
    with RenderQueue.connect(settings) as queue:
        # Without models any name will do: the queue then says why there are none.
        spec = make_spec(fields, list(queue.models()) or ["none"])
        job = queue.submit(
            spec,
            priority=arguments.priority,
            key=arguments.key,
            again=arguments.again,
            anyway=arguments.anyway,
            schedule=schedule_of(arguments),
        )
        for warning in job.spec.warnings():
            print(f"note: {warning}", file=sys.stderr)
        if job.same_as:
            print(
                f"note: same as job {job.same_as}, so it is done; --again renders it once more",
                file=sys.stderr,
            )
        elif queue.worker() is None:
            print("note: no worker is running; the job waits for one", file=sys.stderr)
        if not arguments.wait:
            return _submitted(job, as_json=arguments.json)
        if not arguments.json:
            print(job.id, flush=True)
        job = _follow(queue, job)
    if arguments.json:
        words.print_json(job.to_json())
    else:
        _tell_end(job)
    return exits.OK if job.state is State.DONE else exits.FAILED


def _submitted(job: RenderJob, *, as_json: bool) -> int:
    if as_json:
        words.print_json(job.to_json())
    else:
        print(job.id)
        state = f"{job.state}, {words.detail(job)}"
        print(f"{state}: `h3farm show {job.id}` tells of it", file=sys.stderr)
    return exits.OK


def _follow(queue: RenderQueue, job: RenderJob) -> RenderJob:
    """Show the job's progress until it is over. Ctrl-C ends the waiting, not the job."""
    line = words.ProgressLine()
    try:
        with queue.watch() as events:
            job = queue.get(job.id)
            while not job.over:
                if job.state is State.RUNNING and job.progress:
                    line.show(f"{job.id}: {words.progress(job.progress)}", job.progress)
                else:
                    line.show(f"{job.id}: {job.state}, {words.detail(job)}")
                for event in events:
                    if event is None or event.job_id == job.id or event.kind == "state":
                        break
                job = queue.get(job.id)
    except KeyboardInterrupt:
        line.end()
        print(
            f"Job {job.id} goes on without you; `h3farm cancel {job.id}` ends it.", file=sys.stderr
        )
        raise
    except StoreUnavailable:
        line.end()
        print(f"Job {job.id} stays in the queue.", file=sys.stderr)
        raise
    line.end()
    return job


def _tell_end(job: RenderJob) -> None:
    if job.result:
        print(job.result.get("video", ""))
    elif job.error:
        print(f"failed: {job.error['sentence']}\n{job.error['remedy']}", file=sys.stderr)
    else:
        print(str(job.state), file=sys.stderr)


def list_jobs(arguments: argparse.Namespace, settings: Settings) -> int:
    """The jobs as a line of time."""
    with RenderQueue.connect(settings) as queue:
        jobs = queue.list(arguments.state, arguments.limit)
        counts = queue.counts()
    if arguments.json:
        words.print_json([job.to_json() for job in jobs])
        return exits.OK
    if not jobs:
        print("No such jobs." if arguments.state else "No jobs yet: `h3farm submit` queues one.")
        return exits.OK
    rows = [
        [
            job.id,
            str(job.state) if job.priority == "normal" else f"{job.state} ({job.priority})",
            words.detail(job),
            words.one_line(job.spec.prompt),
        ]
        for job in jobs
    ]
    print("\n".join(words.table(["JOB", "STATE", "", "PROMPT"], rows)))
    shown = sum(job.over for job in jobs)
    wanted = [state for state in OVER if not arguments.state or state in arguments.state]
    earlier = sum(counts[state] for state in wanted) - shown
    if earlier > 0:
        print(f"({earlier} earlier ones: --limit {shown + earlier} shows them)")
    return exits.OK


def show(arguments: argparse.Namespace, settings: Settings) -> int:
    """Everything about one job."""
    with RenderQueue.connect(settings) as queue:
        job = queue.get(arguments.job)
        log = queue.log(job.id)
    if arguments.json:
        words.print_json(job.to_json() | {"log": str(log)})
        return exits.OK
    spec = job.spec
    canvas = f"{spec.width}x{spec.height}, {spec.frames} frames ({spec.duration_s:.2f} s)"
    rows = [
        ("job", job.id),
        ("state", f"{job.state}{_aside(words.detail(job) if not job.over else '')}"),
        ("waits for", job.waits or ""),
        ("prompt", words.one_line(spec.prompt)),
        ("model", spec.model),
        ("canvas", canvas),
        ("sampling", f"{spec.steps} steps, seed {spec.seed}, {spec.preset}"),
        ("priority", str(job.priority)),
        ("submitted", words.moment(job.created_at)),
        ("started", words.moment(job.started_at)),
        ("ended", words.moment(job.ended_at)),
        ("same as", job.same_as or ""),
        ("batch", job.batch or ""),
        ("attempts", str(job.attempts) if job.attempts > 1 else ""),
        ("reached", job.place if job.place and job.state is not State.DONE else ""),
        ("changed", words.rung(job)),
    ]
    if job.result:
        rows += [(name, str(job.result.get(name, ""))) for name in ("folder", "video", "sidecar")]
    if job.error:
        rows += [("reason", job.error["sentence"]), ("what to do", job.error["remedy"])]
    if log.exists():
        rows.append(("log", str(log)))
    for name, value in rows:
        if value:
            print(f"{name:<11} {value}")
    return exits.OK


def _aside(text: str) -> str:
    return f" ({text})" if text else ""


def cancel(arguments: argparse.Namespace, settings: Settings) -> int:
    """Cancel jobs, and see it happen."""
    with RenderQueue.connect(settings) as queue:
        jobs = [queue.get(job_id) for job_id in arguments.jobs]  # a wrong id cancels nothing
        for job in jobs:
            try:
                queue.cancel(job.id)
            except InvalidTransition:
                if len(jobs) == 1:
                    raise  # among others it is too late for this one only
        jobs = [queue.get(job.id) for job in jobs]
        give_up_at = time.monotonic() + CANCEL_WAIT_S
        with queue.watch(0.2) as events:
            while any(not job.over for job in jobs) and time.monotonic() < give_up_at:
                next(events)
                jobs = [queue.get(job.id) for job in jobs]
    if arguments.json:
        words.print_json([job.to_json() for job in jobs])
    else:
        for job in jobs:
            print(f"{job.id} {job.state if job.over else 'is still stopping'}")
    return exits.OK if all(job.state is State.CANCELLED for job in jobs) else exits.FAILED


def retry(arguments: argparse.Namespace, settings: Settings) -> int:
    """Queue jobs that failed once more."""
    with RenderQueue.connect(settings) as queue:
        if len(arguments.jobs) == 1:
            jobs = [queue.retry(arguments.jobs[0])]
        else:
            queue.retry_many(arguments.jobs)  # a wrong id changes nothing
            jobs = [queue.get(job_id) for job_id in arguments.jobs]
    if arguments.json:
        words.print_json([job.to_json() for job in jobs])
    else:
        for job in jobs:
            print(f"{job.id} {job.state}")
    return exits.OK


def status(arguments: argparse.Namespace, settings: Settings) -> int:
    """The farm as a whole."""
    supervisor = read_supervisor_file(settings)
    with RenderQueue.connect(settings) as queue:
        worker, counts, models = queue.worker(), queue.counts(), list(queue.models())
        held = {job.id: job.waits for job in queue.held()}
        saved, farm = queue.saved(), queue.farm()
    dashboard = supervisor.get("dashboard", settings.dashboard)
    if arguments.json:
        words.print_json(
            {
                "pid": supervisor.get("pid"),
                "dashboard": dashboard,
                "store": settings.store_name,
                "worker": worker.to_json() if worker else None,
                "counts": counts,
                "farm": farm.to_json(),
                "held": held,
                "saved": saved,
                "models": models,
            }
        )
        return exits.OK
    busy = f"{worker.state}{_aside(worker.job_id or '')}" if worker else "not running"
    jobs = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    print(f"dashboard   {dashboard}\nstore       {settings.store_name}")
    print(f"farm        {farm_words(farm)}")
    print(f"worker      {busy}\njobs        {jobs or 'none'}")
    if saved["opens"]:
        size = quantities.size(saved["bytes"])
        print(f"saved       {saved['opens']} readings of a text encoder, {size} of weights")
    for job_id, reason in held.items():
        print(f"held        {job_id}: {reason}; it goes on by itself")
    print(f"models      {', '.join(models) or 'none'}")
    return exits.OK
