"""What is asked of the job that runs: by a user, the farm, the clock, or the job that is next."""

from dataclasses import dataclass
from datetime import datetime, tzinfo

from h3farm.worker.queue import Priority, RenderJob, State
from h3farm.worker.queue.farm_state import FarmRecord
from h3farm.worker.queue.records import Look
from h3farm.worker.queue.schedule import held

CANCEL = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The job is to stop, at once or at its next resume point; `to` is what becomes of it, `reason`
    a clause that its record keeps.
    """

    to: State
    at_once: bool
    reason: str


def demand_of(
    job: RenderJob, look: Look, now: datetime, zone: tzinfo | None = None
) -> Demand | None:
    """The strongest demand, if there is any. `job` as it was begun."""
    farm = FarmRecord.parse(look.farm)
    if look.wish == "cancel":
        return Demand(to=State.CANCELLED, at_once=True, reason=CANCEL)
    if look.wish == "pause":
        return Demand(to=State.PAUSED, at_once=True, reason="it was paused")
    if farm.is_paused(now):
        if farm.finish_current:
            return None
        return Demand(to=State.QUEUED, at_once=True, reason="the farm was paused")
    if held(job.not_before, job.window, now, zone):
        reason = f"its nightly window {job.window} closed" if job.window else "it was rescheduled"
        return Demand(to=State.SCHEDULED, at_once=False, reason=reason)
    if farm.closed(now, zone):
        reason = f"the farm's nightly window {farm.window} closed"
        return Demand(to=State.QUEUED, at_once=False, reason=reason)
    if look.wish == "yield":
        return Demand(to=State.QUEUED, at_once=False, reason="it was asked to let others go first")
    if look.next_priority == Priority.URGENT and job.priority is not Priority.URGENT:
        return Demand(to=State.QUEUED, at_once=False, reason="an urgent job goes first")
    return None
