"""The life of a job: its states, and the one function that knows every allowed transition."""

from collections.abc import Mapping
from enum import StrEnum

from h3farm.worker.queue.errors import InvalidTransition


class State(StrEnum):
    """Where a job is in its life."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    INTERRUPTED = "interrupted"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Priority(StrEnum):
    """Where a job goes in the queue: behind all of its own and higher priorities."""

    URGENT = "urgent"
    NORMAL = "normal"
    IDLE = "idle"


WAITING = (State.SCHEDULED, State.QUEUED, State.PAUSED, State.INTERRUPTED)
OVER = (State.DONE, State.FAILED, State.CANCELLED)

ALLOWED: Mapping[State, frozenset[State]] = {
    State.SCHEDULED: frozenset({State.QUEUED, State.PAUSED, State.CANCELLED}),
    State.QUEUED: frozenset({State.SCHEDULED, State.RUNNING, State.PAUSED, State.CANCELLED}),
    State.RUNNING: frozenset(
        {State.DONE, State.FAILED, State.CANCELLED, State.INTERRUPTED, State.PAUSED}
    ),
    State.PAUSED: frozenset({State.QUEUED, State.SCHEDULED, State.CANCELLED}),
    # Crash, sleep, shutdown, a job that goes first: back to the front, or to where it waits for its
    # time; unless a crash has now happened too often.
    State.INTERRUPTED: frozenset(
        {State.QUEUED, State.SCHEDULED, State.PAUSED, State.FAILED, State.CANCELLED}
    ),
    State.DONE: frozenset(),
    # RQ's own `requeue` gives a failed job another chance.
    State.FAILED: frozenset({State.QUEUED}),
    State.CANCELLED: frozenset(),
}


def sources(to: State) -> tuple[State, ...]:
    """The states from which a job may become `to`."""
    return tuple(state for state in State if to in ALLOWED[state])


def check_transition(job_id: str, state: State, to: State) -> None:
    """Raise InvalidTransition when a job that is `state` may not become `to`."""
    if to not in ALLOWED[state]:
        raise InvalidTransition(job_id, state, to)
