"""Dropping what is over from the store; its files are the caller's to delete."""

from h3farm.worker.queue.batches import Batches
from h3farm.worker.queue.core import store_errors
from h3farm.worker.queue.intake import BATCHES
from h3farm.worker.queue.records import record_key
from h3farm.worker.queue.scripts import FORGET, FORGET_BATCH
from h3farm.worker.queue.states import OVER


class Forgetting(Batches):
    """The part of the queue that forgets."""

    def forget(self, job_id: str) -> bool:
        """Drop a job that is over; False when it has been taken up again."""
        with store_errors(self.settings):
            script = self.connection.register_script(FORGET)
            if not script(keys=[record_key(job_id)], args=[job_id, f",{','.join(OVER)},"]):
                return False
            if (rq_job := self.fetch_rq_job(job_id)) is not None:
                rq_job.delete()
            return True

    def forget_batch(self, batch_id: str) -> bool:
        """Drop a batch of which no job is left; False when one is."""
        keys = [f"h3farm:batch:{batch_id}", f"h3farm:batch-frames:{batch_id}", BATCHES]
        with store_errors(self.settings):
            script = self.connection.register_script(FORGET_BATCH)
            return bool(script(keys=keys, args=[batch_id]))
