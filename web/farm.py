"""What the views work with: the queue, the outputs and the hub of one farm."""

from dataclasses import dataclass, field
from pathlib import Path

from flask import current_app

from h3farm.web.hub import Hub
from h3farm.web.outputs import Outputs, Render
from h3farm.worker.queue import (
    WAITING,
    RenderJob,
    RenderQueue,
    State,
    StoreUnavailable,
    WorkerStatus,
)

EXTENSION = "h3farm"
NOT_READY = {"starting": "Worker starting", "suspended": "Suspended"}
SHOWN_WAITING = 100
SHOWN_RECENT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Farm:
    """One farm, as the dashboard sees it."""

    queue: RenderQueue
    outputs: Outputs
    hub: Hub


@dataclass(slots=True, kw_only=True)
class Board:
    """The state of the farm that pages show. `problem` says why there is nothing else."""

    running: list[RenderJob] = field(default_factory=list)
    waiting: list[RenderJob] = field(default_factory=list)
    waiting_in_all: int = 0
    recent: list[RenderJob] = field(default_factory=list)
    worker: WorkerStatus | None = None
    problem: str = ""


def farm() -> Farm:
    """The farm of the current application."""
    found: Farm = current_app.extensions[EXTENSION]
    return found


def board() -> Board:
    """The farm's state now; a store that is away is a state too."""
    queue = farm().queue
    try:
        jobs = queue.list(limit=SHOWN_RECENT, waiting=SHOWN_WAITING)
        worker, counts = queue.worker(), queue.counts()
    except StoreUnavailable as error:
        return Board(problem=str(error))
    waiting = [job for job in jobs if job.state in WAITING]
    return Board(
        running=[job for job in jobs if job.state is State.RUNNING],
        waiting=waiting[:SHOWN_WAITING],
        waiting_in_all=max(len(waiting), sum(counts[state] for state in WAITING)),
        recent=[job for job in reversed(jobs) if job.over],
        worker=worker,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """The farm in a few words, for the top of every page; tone: "good", "busy", "warn" or "bad"."""

    sentence: str
    tone: str


def pulse() -> Pulse:
    """How the farm is now."""
    queue = farm().queue
    try:
        worker, counts = queue.worker(), queue.counts()
        held = queue.held() if counts[State.PAUSED] else ()
    except StoreUnavailable:
        return Pulse(sentence="Farm not running", tone="bad")
    waiting = counts[State.QUEUED]
    behind = f", {waiting} waiting" if waiting else ""
    if worker is None:
        return Pulse(sentence=f"No worker{behind}", tone="warn")
    if counts[State.RUNNING]:
        return Pulse(sentence=f"Rendering{behind}", tone="busy")
    if worker.state in NOT_READY:
        return Pulse(sentence=f"{NOT_READY[worker.state]}{behind}", tone="warn")
    if held:
        on_disk = any(job.hold and job.hold["kind"] == "disk" for job in held)
        reason = "the disk is full" if on_disk else "memory is short"
        return Pulse(sentence=f"{len(held)} held: {reason}", tone="warn")
    return Pulse(sentence=f"Ready{behind}", tone="good")


def render_of(job: RenderJob) -> Render | None:
    """What a job made; None when it is not done, or its folder is gone."""
    if job.state is not State.DONE or not job.result or "folder" not in job.result:
        return None
    return farm().outputs.at(Path(job.result["folder"]))


def model_names() -> list[str]:
    """The models that can be chosen; none while the store is away."""
    try:
        return list(farm().queue.models())
    except StoreUnavailable:
        return []
