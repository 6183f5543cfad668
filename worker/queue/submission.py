"""Bringing jobs into the queue."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue.core import store_errors
from h3farm.worker.queue.errors import UnknownModel
from h3farm.worker.queue.job import RenderJob, stamp
from h3farm.worker.queue.reading import Reading
from h3farm.worker.queue.states import Priority, State


class Submission(Reading):
    """The part of the queue that takes jobs in, and knows the models they may name."""

    def submit(self, spec: RenderSpec, *, priority: str = Priority.NORMAL) -> RenderJob:
        """Queue a render behind all jobs of the same or a higher priority; returns the stored job.

        A seed of -1 is drawn now, so that what is stored can be made again. UnknownModel names the
        models there are. The job is on disk first, and then in the store in one step.
        """
        with store_errors(self.settings):
            self._check_model(spec.model)
            moment = self._clock()
            job = RenderJob(
                id=self._new_id(moment),
                spec=spec.with_seed(),
                state=State.QUEUED,
                priority=Priority(priority),
                created_at=stamp(moment),
            )
            try:
                self.folders.write(job.id, job.durable())
                self.push(job)
            except BaseException:
                # Not acknowledged, so nothing may bring it back from the disk later.
                self.folders.release(job.id)
                raise
            return self.get(job.id)

    def publish_models(self, models: Mapping[str, Mapping[str, Any]]) -> None:
        """For the worker: replace the list of models that jobs may name."""
        with store_errors(self.settings):
            self.records.publish_models(models)

    def push(self, job: RenderJob) -> None:
        """Put a job into both halves of the store and at its place in the list, in one step."""
        rq_job = self.make_rq_job(job)
        with self.connection.pipeline() as pipeline:
            self.rq_queue._prepare_for_queue(rq_job)
            pipeline.sadd(self.rq_queue.redis_queues_keys, self.rq_queue.key)
            self.rq_queue._persist_job(rq_job, pipeline)
            self.records.create(job, pipeline)
            self.records.insert(self.rq_queue.key, job, pipeline)
            pipeline.execute()

    def _new_id(self, moment: datetime) -> str:
        """Short, sortable within a year, readable: local date and time, and a few random digits."""
        start = moment.astimezone().strftime("%m%d-%H%M")
        while not self.folders.reserve(job_id := f"{start}-{self._suffix()}"):
            pass
        return job_id

    def _check_model(self, name: str) -> None:
        models = self.records.models()
        if models is not None and name in models:
            return
        if models is None:
            sentence = "no worker has said yet which models there are: start one with `h3farm run`"
        elif not models:
            folders = ", ".join(str(folder) for folder in self.settings.models)
            sentence = (
                f"the farm has no model: put a checkpoint folder into {folders} (H3FARM_MODELS)"
            )
        else:
            sentence = f"model must be one of {', '.join(models)}, got {name!r}"
        raise UnknownModel(name, tuple(models or ()), sentence)
