"""A job as everybody sees it: a spec and its life."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

from h3farm.engine.progress import Progress
from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue.states import OVER, Priority, State


def utc_now() -> datetime:
    """The clock of the queue."""
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """A moment as it is stored: UTC, ISO 8601, milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderJob:
    """A spec and its life. Times are UTC ISO 8601 strings.

    position: 0 for the job that runs next; None unless it waits in the queue.
    result: what the engine made (`folder`, `video`, `poster`, `sidecar`, ...); only when done.
    error: `sentence`, `kind` (a word for programs) and `remedy` (what to do); only when failed.
    attempts: how often a worker began it. cancel_requested: running, but about to be cancelled.
    """

    id: str
    spec: RenderSpec
    state: State
    priority: Priority
    position: int | None = None
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    progress: Progress | None = None
    result: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    attempts: int = 0
    crashes: int = 0
    cancel_requested: bool = False

    @property
    def over(self) -> bool:
        """Whether the job is done, failed or cancelled."""
        return self.state in OVER

    def at(self, position: int | None) -> Self:
        """The same job at another place of the queue."""
        return replace(self, position=position)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "id": self.id,
            "state": str(self.state),
            "priority": str(self.priority),
            "position": self.position,
            "created_at": self.created_at,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "attempts": self.attempts,
            "crashes": self.crashes,
            "cancel_requested": self.cancel_requested,
            "progress": self.progress.to_json() if self.progress else None,
            "result": self.result,
            "error": self.error,
            "spec": self.spec.to_json(),
        }

    def durable(self) -> dict[str, Any]:
        """What the job's folder keeps: everything that means something after a restart."""
        record = self.to_json()
        del record["position"], record["progress"]
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; what a record of a job folder lacks gets its default."""
        progress = record.get("progress")
        return cls(
            id=record["id"],
            spec=RenderSpec.from_json(record["spec"]),
            state=State(record["state"]),
            priority=Priority(record["priority"]),
            position=record.get("position"),
            created_at=record["created_at"],
            started_at=record.get("started_at"),
            ended_at=record.get("ended_at"),
            progress=Progress.from_json(progress) if progress else None,
            result=record.get("result"),
            error=record.get("error"),
            attempts=record.get("attempts", 0),
            crashes=record.get("crashes", 0),
            cancel_requested=bool(record.get("cancel_requested")),
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
