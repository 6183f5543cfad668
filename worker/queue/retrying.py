"""Another chance for jobs that failed."""

from collections.abc import Mapping, Sequence
from typing import Any

from h3farm.worker.queue.control import Control
from h3farm.worker.queue.core import store_errors
from h3farm.worker.queue.errors import InvalidTransition
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
        """Queue a job that failed once more; it goes on from its resume point if it has one.

        It stands in front of those of its priority. InvalidTransition when it has not failed.
        """
        if not self.retry_many([job_id]):
            raise InvalidTransition(job_id, self.get(job_id).state, State.QUEUED)
        return self.get(job_id)

    def retry_many(self, job_ids: Sequence[str]) -> list[str]:
        """Queue those of the jobs that failed once more; their ids, in the order given."""
        with store_errors(self.settings):
            jobs = [self.records.get(job_id) for job_id in job_ids]
            failed = [job for job in jobs if job.state is State.FAILED]
            with self.connection.pipeline() as pipeline:
                # Each goes in front of those that were begun: the last first keeps their order.
                for job in reversed(failed):
                    rq_job = self.fetch_rq_job(job.id) or self.make_rq_job(job)
                    self.rq_queue.failed_job_registry.remove(rq_job, pipeline=pipeline)
                    self.rq_queue._prepare_for_queue(rq_job)
                    self.rq_queue._persist_job(rq_job, pipeline)
                    self.records.move_in(pipeline, job.id, State.QUEUED, line=True, **FRESH)
                pipeline.execute()
            for job in failed:
                self.records.save_folder(job.id)
        return [job.id for job in failed]
