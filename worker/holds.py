"""Jobs that are held until there is room for them again, on the disk or in memory.

The worker looks now and then, with no job in hand, and lets them go on by themselves.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from h3farm.engine.disk_sizes import disk_for_output, disk_for_work
from h3farm.worker.queue import (
    RenderJob,
    RenderQueue,
    State,
    StoreUnavailable,
    quantities,
)
from h3farm.worker.queue.job import utc_now
from h3farm.worker.queue.room import shortages
from h3farm.worker.retention import size_of

logger = logging.getLogger(__name__)

# Of a job for which there seems to be room: its disk may be full in a way that nobody can see (a
# quota), and it must not be begun over and over.
PATIENCE = timedelta(seconds=60)


class Holds:
    """Looks after the jobs that are held."""

    def __init__(
        self,
        queue: RenderQueue,
        *,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """Nothing is looked at yet."""
        self._queue = queue
        self._clock = clock
        self._seen_short: set[str] = set()

    def tick(self) -> None:
        """Let those go on for which there is room now; they stand in front, the oldest first."""
        ids = [job_id for job_id, _ in self._queue.records.ids(State.PAUSED)]
        held = [job for job in self._queue.records.get_many(ids) if job.hold]
        self._seen_short &= {job.id for job in held}
        for job in sorted(held, key=lambda job: job.created_at, reverse=True):
            if self._may_go_on(job):
                self._let_go(job)

    def _let_go(self, job: RenderJob) -> None:
        try:
            # Checked by the store: it may have been cancelled or resumed in this moment.
            gone_on = self._queue.let_go(job, hold=None)
        except StoreUnavailable as error:
            logger.warning("%s is let go on later: %s", job.id, error)
            return
        if gone_on:
            logger.info("%s: there is room again: it goes on", job.id)

    def _may_go_on(self, job: RenderJob) -> bool:
        hold = job.hold or {}
        if self._is_short(job, hold):
            self._seen_short.add(job.id)
            return False
        since = datetime.fromisoformat(hold["since"])
        return job.id in self._seen_short or self._clock() - since >= PATIENCE

    def _is_short(self, job: RenderJob, hold: dict[str, object]) -> bool:
        if hold["kind"] == "memory":
            free = self._queue.machine.available_memory()
            return free is not None and free < int(str(hold["needed_bytes"]))
        return missing_room(self._queue, job) is not None


def missing_room(queue: RenderQueue, job: RenderJob) -> str | None:
    """What the job's disks lack for the rest of it, in words; None when they have it."""
    written = size_of(queue.folder(job.id) / "work")
    work = max(0, disk_for_work(job.spec) - written)
    outputs = disk_for_output(job.spec)
    short = shortages(queue.settings, queue.machine, outputs=outputs, work=work)
    if not short:
        return None
    needed, free, folder = short[0]
    return (
        f"disk full: {quantities.size(needed)} are needed at {folder}, and "
        f"{quantities.size(free)} are free"
    )
