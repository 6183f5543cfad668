"""Another chance for jobs that failed."""

from collections.abc import Mapping, Sequence
from typing import Any

from h3farm.worker.queue.control import Control
from h3farm.worker.queue.core import store_errors
from h3farm.worker.queue.errors import NotFailed
from h3farm.worker.queue.job import RenderJob
from h3farm.worker.queue.states import State

# As if it had not failed yet: what it was tried with before does not count against it.
FRESH: Mapping[str, Any] = {
    "error": None,
    "ended_at": None,
    "progress": None,
    "crashes": 0,
    "crash_places": [],
    "rung": None,
    "retries": [],
}


class Retrying(Control):
    """The part of the queue that brings failed jobs back."""

    def retry(self, job_id: str) -> RenderJob:
        """Queue a job that failed once more; it starts over.

        It stands in front of those of its priority. NotFailed when it has not.
        """
        if not self.retry_many([job_id]):
            raise NotFailed(job_id, self.get(job_id).state)
        return self.get(job_id)

    def retry_many(self, job_ids: Sequence[str]) -> list[str]:
        """Queue those of the jobs that failed once more; their ids, in the order given."""
        with store_errors(self.settings):
            failed = [job for job in self._known(job_ids) if job.state is State.FAILED]
            with self.connection.pipeline() as pipeline:
                for job in failed:
                    rq_job = self.fetch_rq_job(job.id) or self.make_rq_job(job)
                    self.rq_queue.failed_job_registry.remove(rq_job, pipeline=pipeline)
                    self.rq_queue._prepare_for_queue(rq_job)
                    self.rq_queue._persist_job(rq_job, pipeline)
                    self.records.move_in(pipeline, job.id, State.QUEUED, **FRESH)
                self.records.line_up([job.id for job in failed], pipeline)
                pipeline.execute()
            self.records.save_folders(job.id for job in failed)
        return [job.id for job in failed]
