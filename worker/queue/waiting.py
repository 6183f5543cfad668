"""Why a job waits, in a sentence."""

from dataclasses import dataclass
from datetime import datetime, tzinfo

from h3farm.worker.queue.farm_state import FarmState
from h3farm.worker.queue.job import RenderJob
from h3farm.worker.queue.schedule import held, shown
from h3farm.worker.queue.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What all waiting jobs wait for alike. running: how many jobs run. suspended: by RQ's own
    `rq suspend`.
    """

    farm: FarmState
    worker: bool
    suspended: bool
    running: int
    now: datetime
    zone: tzinfo | None = None

    @property
    def hindrance(self) -> str | None:
        """Why no job is begun at all, a clause."""
        if closed := self.farm.closed(self.now, self.zone):
            return closed
        if self.suspended:
            return "the worker was suspended with RQ's own command (`rq resume` lets it go on)"
        return None if self.worker else "no worker is running"


def why(job: RenderJob, situation: Situation) -> str | None:
    """Why `job`, with its position, waits; None when it does not."""
    now, zone = situation.now, situation.zone
    if job.state is State.PAUSED:
        if job.hold:
            return str(job.hold["sentence"])
        if job.paused_until:
            return f"paused until {shown(datetime.fromisoformat(job.paused_until), now, zone)}"
        return "paused"
    own = held(job.not_before, job.window, now, zone)
    if job.state is State.SCHEDULED:
        return own or "about to get in line"
    if job.state is not State.QUEUED:
        return None
    if job.position is None:
        return "about to start"
    parts = [_place(job.position, situation.running), own, situation.hindrance]
    return "; ".join(part for part in parts if part)


def _place(position: int, running: int) -> str:
    if position:
        return f"behind {position} other{'s' if position > 1 else ''}"
    return "next, behind the one that runs" if running else "next"
