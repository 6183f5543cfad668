"""A job as everybody sees it: a spec and its life."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Self

from h3farm.engine.progress import Progress
from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue.states import OVER, Priority, State

# Fields that are found on reading, or mean nothing after a restart.
PASSING = frozenset({"position", "waits", "progress"})


def utc_now() -> datetime:
    """The clock of the queue."""
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """A moment as it is stored: UTC, ISO 8601, milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderJob:
    """A spec and its life. Times are UTC ISO 8601 strings (see `stamp`).

    position: 0 for the job that runs next; None unless it waits in the queue.
    order: its place in line among the waiting jobs of its priority, a decimal number as text that
    sorts as text.
    waits: why it waits, a sentence; None unless it waits. Both are found on reading, never stored.
    result: what the engine made (`folder`, `video`, `poster`, `sidecar`, ...); only when done.
    error: `sentence`, `kind` (a word for programs) and `remedy` (what to do); only when failed.
    attempts: how often a worker began it. crashes: how often one died over it.
    execution: the token of the running execution; every wish and every end must name it.
    wish: what is asked of the running job: "cancel", "pause" (both at once) or "yield" (at its next
    resume point, back into the queue).
    not_before, paused_until: moments; window: "22:00-07:00", local time, may cross midnight.
    start_over: what was rendered of it does not fit it any more and is dropped when it begins.
    place: where the last resume point stands ("denoise 12 of 20"). crash_places: the place at each
    crash. interruptions: `at`, `place`, `reason`, `resumed_at`, for the sidecar.
    batch, batch_index: the batch it came with, and its number there. key: the idempotency key.
    same_as: the job that made the same video. rung: the named change it is rendered with after a
    failure, or as such jobs needed it. retries: the rungs it was tried again with.
    hold: what a paused job waits for by itself: `kind` ("disk" or "memory"), `sentence`, `since`.
    """

    id: str
    state: State
    priority: Priority
    position: int | None = None
    waits: str | None = None
    order: str = ""
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    progress: Progress | None = None
    result: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    attempts: int = 0
    crashes: int = 0
    execution: str | None = None
    wish: str | None = None
    not_before: str | None = None
    window: str | None = None
    start_over: bool = False
    paused_until: str | None = None
    place: str | None = None
    crash_places: list[str] = field(default_factory=list)
    interruptions: list[dict[str, Any]] = field(default_factory=list)
    batch: str | None = None
    batch_index: int | None = None
    key: str | None = None
    same_as: str | None = None
    rung: str | None = None
    retries: list[str] = field(default_factory=list)
    hold: dict[str, Any] | None = None
    spec: RenderSpec

    @property
    def over(self) -> bool:
        """Whether the job is done, failed or cancelled."""
        return self.state in OVER

    @property
    def cancel_requested(self) -> bool:
        """Whether it is about to be cancelled."""
        return self.wish == "cancel"

    def at(self, position: int | None) -> Self:
        """The same job at another place of the queue."""
        return replace(self, position=position)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        record = {each.name: getattr(self, each.name) for each in fields(self)}
        return record | {
            "state": str(self.state),
            "priority": str(self.priority),
            "progress": self.progress.to_json() if self.progress else None,
            "spec": self.spec.to_json(),
        }

    def durable(self) -> dict[str, Any]:
        """What the job's folder keeps: everything that means something after a restart."""
        return {name: value for name, value in self.to_json().items() if name not in PASSING}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; what a record lacks gets its default, and what it has that we
        do not know (of another version) is left alone.
        """
        known = {each.name: record[each.name] for each in fields(cls) if each.name in record}
        progress = record.get("progress")
        return cls(
            **known
            | {
                "spec": RenderSpec.from_json(record["spec"]),
                "state": State(record["state"]),
                "priority": Priority(record["priority"]),
                "progress": Progress.from_json(progress) if progress else None,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """Something that happened to a job: `kind` is "state" or "progress"."""

    job_id: str
    kind: str
    state: State
    progress: Progress | None = None
    at: str

    def to_json(self) -> dict[str, Any]:
        """The event as JSON, as it goes over the store's channel."""
        return {
            "job_id": self.job_id,
            "kind": self.kind,
            "state": str(self.state),
            "progress": self.progress.to_json() if self.progress else None,
            "at": self.at,
        }

    @classmethod
    def from_message(cls, data: bytes) -> Self:
        """Parse what the channel carried."""
        event = json.loads(data)
        progress = event["progress"]
        return cls(
            job_id=event["job_id"],
            kind=event["kind"],
            state=State(event["state"]),
            progress=Progress.from_json(progress) if progress else None,
            at=event["at"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """The worker as the store knows it. state: "starting", "idle", "busy" or "suspended"."""

    name: str
    host: str
    pid: int
    state: str
    job_id: str | None
    heartbeat_at: str

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "name": self.name,
            "host": self.host,
            "pid": self.pid,
            "state": self.state,
            "job_id": self.job_id,
            "heartbeat_at": self.heartbeat_at,
        }
