"""pause, resume, move, priority, schedule, edit: what may be wanted of jobs that wait or run."""

import argparse
from collections.abc import Callable, Sequence
from datetime import datetime

from h3farm.engine.spec import SpecError
from h3farm.worker.cli import exits, words
from h3farm.worker.cli.spec_options import add_spec_options, given_fields
from h3farm.worker.queue import InvalidTransition, Priority, RenderJob, RenderQueue, Settings
from h3farm.worker.queue.farm_state import FarmState
from h3farm.worker.queue.job import utc_now
from h3farm.worker.queue.schedule import parse_moment

WHEN = "a moment, e.g. 22:00, +8h or 2026-12-24 22:00"
NONE = "none"  # lifts a restriction


def pause(arguments: argparse.Namespace, settings: Settings) -> int:
    """Pause jobs, or the whole farm."""
    until = parse_moment(arguments.until, utc_now(), "until") if arguments.until else None
    if arguments.jobs and (arguments.finish or arguments.free_memory):
        option = "--finish" if arguments.finish else "--free-memory"
        raise SpecError("job", arguments.jobs[0], "absent", f"{option} is for the whole farm")
    with RenderQueue.connect(settings) as queue:
        if not arguments.jobs:
            state = queue.pause_farm(
                until=until, finish_current=arguments.finish, free_memory=arguments.free_memory
            )
            return _told_farm(state, as_json=arguments.json)
        return _each(queue, arguments, lambda job_id: queue.pause(job_id, until=until))


def resume(arguments: argparse.Namespace, settings: Settings) -> int:
    """Let jobs go on, or the whole farm."""
    with RenderQueue.connect(settings) as queue:
        if not arguments.jobs:
            return _told_farm(queue.resume_farm(), as_json=arguments.json)
        return _each(queue, arguments, queue.resume)


def move(arguments: argparse.Namespace, settings: Settings) -> int:
    """Give a waiting job another place."""
    with RenderQueue.connect(settings) as queue:
        job = queue.move(
            queue.resolve(arguments.job),
            front=arguments.front,
            before=queue.resolve(arguments.before) if arguments.before else None,
            after=queue.resolve(arguments.after) if arguments.after else None,
            to=arguments.to,
        )
        return _told([job], as_json=arguments.json)


def priority(arguments: argparse.Namespace, settings: Settings) -> int:
    """Give jobs another priority."""
    with RenderQueue.connect(settings) as queue:
        return _each(
            queue, arguments, lambda job_id: queue.set_priority(job_id, arguments.priority)
        )


def schedule(arguments: argparse.Namespace, settings: Settings) -> int:
    """Say when jobs, or all jobs, may run."""
    changes: dict[str, datetime | str | None] = {}
    if arguments.not_before is not None:
        given = arguments.not_before
        changes["not_before"] = (
            None if given == NONE else parse_moment(given, utc_now(), "not_before")
        )
    if arguments.window is not None:
        changes["window"] = None if arguments.window == NONE else arguments.window
    if not changes:
        raise SpecError("window", None, "", "nothing is given: say --not-before or --window")
    with RenderQueue.connect(settings) as queue:
        if arguments.jobs:
            ids = [queue.resolve(given) for given in arguments.jobs]
            jobs = queue.schedule(ids, **changes)  # type: ignore[arg-type]  # by name above
            return _told(jobs, as_json=arguments.json)
        if "not_before" in changes:
            raise SpecError("job", None, "", "--not-before is for jobs: name them")
        window = changes["window"]
        state = queue.set_farm_window(str(window) if window else None)
        return _told_farm(state, as_json=arguments.json)


def edit(arguments: argparse.Namespace, settings: Settings) -> int:
    """Give a waiting job other settings."""
    fields = given_fields(arguments)
    if not fields:
        raise SpecError("", None, "", "nothing is given: say what to change")
    with RenderQueue.connect(settings) as queue:
        job, dropped = queue.edit(queue.resolve(arguments.job), fields)
    if dropped and not arguments.json:
        print(f"{job.id}: what had been rendered of it does not fit any more: it starts over")
    return _told([job], as_json=arguments.json)


def _each(
    queue: RenderQueue, arguments: argparse.Namespace, call: Callable[[str], RenderJob]
) -> int:
    """Do it to each of the jobs; a wrong id changes none. Among others one may be too late."""
    ids = [queue.get(queue.resolve(given)).id for given in arguments.jobs]
    jobs, late = [], False
    for job_id in ids:
        try:
            jobs.append(call(job_id))
        except InvalidTransition:
            if len(ids) == 1:
                raise
            jobs.append(queue.get(job_id))
            late = True
    _told(jobs, as_json=arguments.json)
    return exits.FAILED if late else exits.OK


def _told(jobs: Sequence[RenderJob], *, as_json: bool) -> int:
    if as_json:
        words.print_json([job.to_json() for job in jobs])
    else:
        for job in jobs:
            print(f"{job.id} {job.state}, {job.waits or words.detail(job)}")
    return exits.OK


def _told_farm(state: FarmState, *, as_json: bool) -> int:
    if as_json:
        words.print_json(state.to_json())
    else:
        print(f"the farm {farm_words(state)}")
    return exits.OK


def farm_words(state: FarmState) -> str:
    """What holds for the whole farm, to go on from "the farm"."""
    closed = state.closed(utc_now())
    return (closed or "runs").removeprefix("the farm ")


def add_control(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    command: Callable[..., argparse.ArgumentParser],
) -> None:
    """The parsers; `command` makes one."""
    pausing = command(
        commands,
        "pause",
        pause,
        "pause jobs, or the whole farm",
        more="A running job stops\nwithin a second. Without a job the farm is paused, over "
        "restarts too, until\n`h3farm resume`.",
        examples="  h3farm pause 1130-1842-3f2a --until 22:00\n  h3farm pause --finish\n",
    )
    pausing.add_argument("jobs", metavar="JOB", nargs="*", help="a job's id, or its beginning")
    pausing.add_argument("--until", metavar="WHEN", help=WHEN)
    pausing.add_argument(
        "--finish", action="store_true", help="the farm finishes the job that runs, then stops"
    )
    pausing.add_argument(
        "--free-memory", action="store_true", help="the farm's worker closes its model"
    )
    resuming = command(
        commands,
        "resume",
        resume,
        "let paused jobs, or the paused farm, go on",
        examples="  h3farm resume 1130-1842-3f2a\n  h3farm resume\n",
    )
    resuming.add_argument("jobs", metavar="JOB", nargs="*", help="a job's id, or its beginning")
    moving = command(
        commands,
        "move",
        move,
        "give a waiting job another place in the queue",
        more="Beside a job\nof another priority it gets that priority.",
        examples="  h3farm move 1130-1842-3f2a --front\n",
    )
    moving.add_argument("job", metavar="JOB", help="a job's id, or its beginning")
    place = moving.add_mutually_exclusive_group(required=True)
    place.add_argument("--front", action="store_true", help="before all of its priority")
    place.add_argument("--before", metavar="JOB", help="before this job")
    place.add_argument("--after", metavar="JOB", help="behind this job")
    place.add_argument(
        "--to", type=int, metavar="N", help="the place among those of its priority, from 1"
    )
    ranking = command(
        commands,
        "priority",
        priority,
        "give jobs another priority",
        examples="  h3farm priority urgent 1130-1842-3f2a\n",
    )
    ranking.add_argument("priority", choices=[str(each) for each in Priority])
    ranking.add_argument("jobs", metavar="JOB", nargs="+", help="a job's id, or its beginning")
    scheduling = command(
        commands,
        "schedule",
        schedule,
        "say when jobs may run",
        more="Without a job --window holds\nfor the whole farm.",
        examples="  h3farm schedule 1130-1842-3f2a --not-before +8h\n"
        "  h3farm schedule --window 22:00-07:00\n",
    )
    scheduling.add_argument("jobs", metavar="JOB", nargs="*", help="a job's id, or its beginning")
    scheduling.add_argument("--not-before", metavar="WHEN", help=f'{WHEN}; or "{NONE}"')
    scheduling.add_argument(
        "--window", metavar="FROM-TO", help=f'e.g. 22:00-07:00, local time; or "{NONE}"'
    )
    editing = command(
        commands,
        "edit",
        edit,
        "give a waiting job other settings; it keeps its place",
        examples="  h3farm edit 1130-1842-3f2a --steps 30 --seed 7\n",
    )
    editing.add_argument("job", metavar="JOB", help="the job's id, or its beginning")
    add_spec_options(editing)
