"""submit with many jobs at once, and the commands of `h3farm batch`."""

import argparse
import sys

from h3farm.engine.geometry import FPS
from h3farm.worker.cli import exits, words
from h3farm.worker.cli.batch_options import described, schedule_of
from h3farm.worker.queue import RenderQueue, Settings, State, quantities
from h3farm.worker.queue.batch import Batch
from h3farm.worker.queue.expansion import expand
from h3farm.worker.queue.job import utc_now
from h3farm.worker.queue.plan import Plan
from h3farm.worker.queue.schedule import parse_moment
from h3farm.worker.queue.wordlists import Wordlists

PLANNED_SHOWN = 50


def submit_batch(arguments: argparse.Namespace, settings: Settings) -> int:
    """Queue a batch, or with --plan say what it would be."""
    with RenderQueue.connect(settings) as queue:
        models = list(queue.models())
        description = described(arguments, models or ["none"])
        specs = expand(description, Wordlists(settings.wordlists).lines)
        if arguments.plan:
            plan = queue.plan(
                specs,
                name=description.name,
                draw_seed=description.draw_seed,
                again=arguments.again,
            )
            _tell_plan(plan, settings, as_json=arguments.json)
            return exits.OK
        batch = queue.submit_many(
            specs,
            name=description.name,
            priority=arguments.priority,
            key=arguments.key,
            again=arguments.again,
            anyway=arguments.anyway,
            schedule=schedule_of(arguments),
        )
        if queue.worker() is None:
            print("note: no worker is running; the batch waits for one", file=sys.stderr)
        if arguments.wait:
            if not arguments.json:
                print(batch.id, flush=True)
            batch = _follow(queue, batch)
    if arguments.json:
        words.print_json(batch.to_json())
    elif not arguments.wait:
        print(batch.id)
        print(
            f"{batch.name}: {_progress(batch)}: `h3farm batch show {batch.id}` tells of it",
            file=sys.stderr,
        )
    if not arguments.wait:
        return exits.OK
    return exits.OK if batch.done == batch.jobs else exits.FAILED


def _follow(queue: RenderQueue, batch: Batch) -> Batch:
    """Show the batch's progress until all of it is over. Ctrl-C ends the waiting, not the jobs."""
    line = words.ProgressLine()
    try:
        with queue.watch() as events:
            batch = queue.batch(batch.id)
            while not batch.over:
                line.show(f"{batch.name}: {_progress(batch)}")
                for event in events:
                    if event is None or event.kind == "state":
                        break
                batch = queue.batch(batch.id)
    except KeyboardInterrupt:
        line.end()
        print(
            f"Batch {batch.id} goes on without you; `h3farm batch cancel {batch.id}` ends it.",
            file=sys.stderr,
        )
        raise
    line.end()
    print(f"{batch.name}: {_progress(batch)}", file=sys.stderr)
    return batch


def _tell_plan(plan: Plan, settings: Settings, *, as_json: bool) -> None:
    if as_json:
        words.print_json(plan.to_json())
        return
    rows = [
        [
            str(number),
            f"same as {job.same_as}" if job.same_as else "",
            f"{job.spec.width}x{job.spec.height}",
            str(job.spec.frames),
            str(job.spec.steps),
            str(job.spec.seed),
            words.one_line(job.spec.prompt),
        ]
        for number, job in enumerate(plan.jobs[:PLANNED_SHOWN], start=1)
    ]
    head = ["", "DONE ALREADY", "CANVAS", "FRAMES", "STEPS", "SEED", "PROMPT"]
    if not any(row[1] for row in rows):
        head, rows = [head[0], *head[2:]], [[row[0], *row[2:]] for row in rows]
    print("\n".join(words.table(head, rows)))
    if more := len(plan.jobs) - len(rows):
        print(f"(and {more} more: --json has them all)")
    known = len(plan.jobs) - len(plan.rendered)
    counts = [f"{len(plan.rendered)} to render"]
    counts += [f"{known} done already"] if known else []
    counts += [f"{plan.left_out} left out, equal to others in it"] if plan.left_out else []
    print(f"\nname        {plan.name}")
    print(f"jobs        {', '.join(counts)}")
    print(f"frames      {plan.frames} ({quantities.seconds(plan.frames / FPS)} of video)")
    print(
        f"disk        at most {quantities.size(plan.output_bytes)} of outputs, "
        f"{quantities.size(plan.work_bytes)} while the largest runs"
    )
    print(f"draw seed   {plan.draw_seed} (--draw-seed {plan.draw_seed} queues exactly these)")
    for warning in plan.warnings:
        print(f"note: {warning}", file=sys.stderr)
    print("Nothing has been queued.", file=sys.stderr)


def _progress(batch: Batch) -> str:
    """ "3 of 40 done, 1 running, 36 queued"."""
    others = [f"{count} {state}" for state, count in batch.counts.items() if state != State.DONE]
    return ", ".join([f"{batch.done} of {batch.jobs} done", *others])


def list_batches(arguments: argparse.Namespace, settings: Settings) -> int:
    """All batches, newest last."""
    with RenderQueue.connect(settings) as queue:
        batches = queue.batches()
    if arguments.json:
        words.print_json([batch.to_json() for batch in batches])
    elif not batches:
        print("No batches yet: `h3farm submit --prompts FILE` queues one.")
    else:
        rows = [
            [batch.id, words.moment(batch.created_at), _progress(batch), batch.name]
            for batch in batches
        ]
        print("\n".join(words.table(["BATCH", "SUBMITTED", "", "NAME"], rows)))
    return exits.OK


def show_batch(arguments: argparse.Namespace, settings: Settings) -> int:
    """A batch and its jobs."""
    with RenderQueue.connect(settings) as queue:
        batch = queue.batch(arguments.batch)
        jobs = queue.batch_jobs(batch.id)
    if arguments.json:
        words.print_json(batch.to_json() | {"of": [job.to_json() for job in jobs]})
        return exits.OK
    rows = [
        ("batch", batch.id),
        ("name", batch.name),
        ("submitted", words.moment(batch.created_at)),
        ("priority", batch.priority),
        ("jobs", _progress(batch)),
        ("frames", f"{batch.frames_done} of {batch.frames} done"),
    ]
    for name, value in rows:
        print(f"{name:<11} {value}")
    table = [
        [
            job.id,
            f"{job.state}, same as {job.same_as}" if job.same_as else str(job.state),
            words.detail(job),
            words.one_line(job.spec.prompt),
        ]
        for job in jobs
    ]
    print("\n" + "\n".join(words.table(["JOB", "STATE", "", "PROMPT"], table)))
    return exits.OK


def cancel_batch(arguments: argparse.Namespace, settings: Settings) -> int:
    """Cancel what is not over of a batch."""
    with RenderQueue.connect(settings) as queue:
        return _told(queue.cancel_batch(arguments.batch), as_json=arguments.json)


def pause_batch(arguments: argparse.Namespace, settings: Settings) -> int:
    """Pause what is not over of a batch."""
    until = parse_moment(arguments.until, utc_now(), "until") if arguments.until else None
    with RenderQueue.connect(settings) as queue:
        return _told(queue.pause_batch(arguments.batch, until=until), as_json=arguments.json)


def resume_batch(arguments: argparse.Namespace, settings: Settings) -> int:
    """Let what is paused of a batch go on."""
    with RenderQueue.connect(settings) as queue:
        return _told(queue.resume_batch(arguments.batch), as_json=arguments.json)


def retry_batch(arguments: argparse.Namespace, settings: Settings) -> int:
    """Queue what failed of a batch once more."""
    with RenderQueue.connect(settings) as queue:
        return _told(queue.retry_batch(arguments.batch), as_json=arguments.json)


def _told(batch: Batch, *, as_json: bool) -> int:
    if as_json:
        words.print_json(batch.to_json())
    else:
        print(f"{batch.id} {batch.name}: {_progress(batch)}")
    return exits.OK
