"""Changing what jobs are to do: cancel."""

import contextlib

from rq.command import send_stop_job_command
from rq.exceptions import InvalidJobOperation, NoSuchJobError

from h3farm.worker.queue.core import SERIALIZER, store_errors
from h3farm.worker.queue.errors import InvalidTransition
from h3farm.worker.queue.job import RenderJob, stamp
from h3farm.worker.queue.reading import Reading
from h3farm.worker.queue.states import State


class Control(Reading):
    """The part of the queue that carries the user's wishes."""

    def cancel(self, job_id: str) -> RenderJob:
        """Cancel a job that waits or runs. A running one stops within a second: until then it is
        `running` with `cancel_requested`. InvalidTransition when it is done or failed; cancelling
        a cancelled job changes nothing.
        """
        with store_errors(self.settings):
            job = self.records.get(job_id)
            if job.state is State.CANCELLED:
                return job
            if job.over:
                raise InvalidTransition(job_id, job.state, State.CANCELLED)
            # The wish first: if the job is taken up in this moment, the worker finds it.
            self.records.request_cancel(job_id)
            if self._take_out(job_id) or job.state in (State.SCHEDULED, State.PAUSED):
                return self.records.move(job_id, State.CANCELLED, ended_at=stamp(self._clock()))
            with contextlib.suppress(InvalidJobOperation, NoSuchJobError):
                send_stop_job_command(self.connection, job_id, serializer=SERIALIZER)
            return self.get(job_id)

    def forget(self, job_id: str) -> bool:
        """Drop a job that is over from the store; its folder is the caller's to delete. False when
        it has been taken up again.
        """
        with store_errors(self.settings):
            if not self.records.forget(job_id):
                return False
            if (rq_job := self.fetch_rq_job(job_id)) is not None:
                rq_job.delete()
            return True

    def _take_out(self, job_id: str) -> bool:
        """Take a job out of the list; False when it is not in it (any more)."""
        if not self.connection.lrem(self.rq_queue.key, 1, job_id):
            return False
        rq_job = self.fetch_rq_job(job_id)
        if rq_job is not None and not rq_job.is_canceled:
            rq_job.cancel()
        return True
