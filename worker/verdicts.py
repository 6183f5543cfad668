"""What becomes of a job whose render ended with an error: tried again, held, or failed."""

from dataclasses import dataclass, field
from typing import Any

from h3farm.engine.errors import DiskFull, MemoryShort, OutOfMemory
from h3farm.worker.failures import explain
from h3farm.worker.ladder import climbed_down
from h3farm.worker.queue import RenderJob, State
from h3farm.worker.queue.job import stamp, utc_now
from h3farm.worker.watchdog import Stalled


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The state a job comes to, what changes with it, and why, in words.

    QUEUED: tried again at once, with another `rung`. PAUSED: held until there is room again, for
    which `hold` says what it waits for. FAILED: with its `error`.
    """

    state: State
    reason: str
    changes: dict[str, Any] = field(default_factory=dict)


def judge(job: RenderJob, error: Exception, room: str | None = None) -> Verdict:
    """What becomes of the job. room: what its disks lack, in words, as far as that can be seen.

    A full disk and memory that others have are waited out: nothing is wrong with the job. One that
    does not get by with this machine's memory, or stands still, has one more try, with one change.
    """
    if isinstance(error, DiskFull):
        return _held("disk", room or f"disk full: {error}")
    if isinstance(error, MemoryShort):
        return _held("memory", str(error), needed_bytes=error.needed_bytes)
    # A crash has its own tries.
    first = len(job.retries) <= job.crashes
    if isinstance(error, OutOfMemory | Stalled) and first and (down := climbed_down(job)):
        reason = f"{error}: it is tried again with {down['rung']}"
        return Verdict(state=State.QUEUED, reason=reason, changes=down)
    failed = explain(error)
    if job.retries:
        failed["sentence"] += f" (it was tried again with {', then with '.join(job.retries)})"
    return Verdict(state=State.FAILED, reason=failed["sentence"], changes={"error": failed})


def _held(kind: str, sentence: str, **more: Any) -> Verdict:
    hold = {"kind": kind, "sentence": sentence, "since": stamp(utc_now()), **more}
    return Verdict(state=State.PAUSED, reason=sentence, changes={"hold": hold})
