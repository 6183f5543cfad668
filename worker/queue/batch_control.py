"""What users want of a whole batch: cancel, pause, resume, retry what failed."""

from collections.abc import Collection
from datetime import datetime

from h3farm.worker.queue.batch import Batch
from h3farm.worker.queue.batches import Batches
from h3farm.worker.queue.retrying import Retrying
from h3farm.worker.queue.states import OVER, State

LIVE = frozenset(State) - frozenset(OVER)


class BatchControl(Batches, Retrying):
    """The part of the queue that carries wishes for batches, told by their id or name.

    Each is one call to the store for all of its jobs; those that it does not concern stay as they
    are, so that a second time changes nothing. UnknownBatch. The answer is the batch afterwards.
    """

    def cancel_batch(self, given: str) -> Batch:
        """Cancel those of its jobs that are not over; the one that runs stops within a second."""
        batch = self.batch(given)
        self.cancel_many(self._those(batch, LIVE))
        return self.batch(batch.id)

    def pause_batch(self, given: str, *, until: datetime | None = None) -> Batch:
        """Pause those of its jobs that are not over, until they are resumed or the moment comes."""
        batch = self.batch(given)
        self.pause_many(self._those(batch, LIVE), until=until)
        return self.batch(batch.id)

    def resume_batch(self, given: str) -> Batch:
        """Let those of its jobs that are paused go on."""
        batch = self.batch(given)
        self.resume_many(self._those(batch, LIVE))
        return self.batch(batch.id)

    def retry_batch(self, given: str) -> Batch:
        """Queue those of its jobs that failed once more, each from its start."""
        batch = self.batch(given)
        self.retry_many(self._those(batch, {State.FAILED}))
        return self.batch(batch.id)

    def _those(self, batch: Batch, states: Collection[State]) -> list[str]:
        jobs = self.records.get_many(self.batch_job_ids(batch.id))
        return [job.id for job in jobs if job.state in states]
