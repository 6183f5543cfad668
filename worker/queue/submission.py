"""Bringing a job into the queue."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from h3farm.engine.durable import disk_errors, sync_folder
from h3farm.engine.spec import RenderSpec, SpecError
from h3farm.worker.queue.batches import Batches
from h3farm.worker.queue.core import store_errors
from h3farm.worker.queue.errors import UnknownModel
from h3farm.worker.queue.job import RenderJob, stamp
from h3farm.worker.queue.manifests import submitting
from h3farm.worker.queue.room import check_room
from h3farm.worker.queue.same import Same
from h3farm.worker.queue.schedule import AT_ONCE, Schedule
from h3farm.worker.queue.states import Priority

MAX_KEY = 200


class Submission(Batches, Same):
    """The part of the queue that takes jobs in, and knows the models they may name."""

    def submit(
        self,
        spec: RenderSpec,
        *,
        priority: str = Priority.NORMAL,
        key: str | None = None,
        again: bool = False,
        anyway: bool = False,
        schedule: Schedule = AT_ONCE,
    ) -> RenderJob:
        """Queue a render behind all jobs of the same or a higher priority; returns the stored job.

        A seed of -1 is drawn now, so that what is stored can be made again. UnknownModel names the
        models there are. The job is on disk first, and then in the store in one step.

        key: the same one again queues nothing and returns the first job. again: render what has
        been rendered; without it the new job is done at once, `same_as` the one with the video.
        anyway: without NotEnoughDisk; a render that finds the disk full waits until it has room.
        schedule: when it may run; until then it is `scheduled`.
        """
        with store_errors(self.settings), submitting(self.settings.submit_lock):
            if (first := self._first(key)) is not None:
                return self._first_job(first)
            self._check_model(spec.model)
            moment = self._clock()
            job = RenderJob(
                id=self._new_id(moment),
                spec=spec.with_seed(),
                state=schedule.state(moment),
                priority=Priority(priority),
                created_at=stamp(moment),
                not_before=schedule.not_before,
                window=schedule.window,
                key=key,
                order=self.records.next_orders()[0],
            )
            with self._prepared([job.id]):
                if not again:
                    job = self.known([job])[0]
                if not anyway:
                    self._check_room([job])
                self.folders.prepare(job.id, job.durable())
            first = self.take_in([job], key=key)
            if first is not None:  # another submit with this key was faster
                self.folders.release(job.id)
                return self._first_job(first)
            self._accept(job.id)
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
            self.records.insert(job.id, pipeline)
            pipeline.execute()

    @contextlib.contextmanager
    def _prepared(self, job_ids: Sequence[str], batch_id: str | None = None) -> Iterator[None]:
        """Takes everything off the disk again when the block fails.

        The call to the store is not in it: when that fails nobody knows whether the store has the
        jobs, and it is left to `settle`, which asks.
        """
        try:
            yield
        except BaseException:
            self._release(job_ids, batch_id)
            raise

    def _release(self, job_ids: Sequence[str], batch_id: str | None) -> None:
        if batch_id is not None:
            self.manifests.release(batch_id)
        for job_id in job_ids:
            self.folders.release(job_id)

    def _accept(self, job_id: str) -> None:
        self.folders.accept(job_id)
        with disk_errors("cannot keep the job"):
            sync_folder(self.folders.path(job_id))

    def _first(self, key: str | None) -> str | None:
        """What the key was first given for."""
        if key is None:
            return None
        if not key.strip() or len(key) > MAX_KEY or not key.isprintable():
            allowed = f"a text of 1 to {MAX_KEY} characters on one line"
            raise SpecError("key", key, allowed)
        return self.first_with(key)

    def _first_job(self, job_id: str) -> RenderJob:
        """The job that a key was first given for, now acknowledged, if it was not before."""
        if self.records.exists(job_id):
            self._accept(job_id)
            return self.get(job_id)
        sentence = f"key was given for {job_id}, which is no job: take another one"
        raise SpecError("key", job_id, "a key of its own", sentence)

    def _new_id(self, moment: datetime) -> str:
        """Short, sortable within a year, readable: local date and time, and a few random digits."""
        start = moment.astimezone().strftime("%m%d-%H%M")
        while not self.folders.reserve(job_id := f"{start}-{self._suffix()}"):
            pass
        return job_id

    def _check_room(self, jobs: Sequence[RenderJob]) -> None:
        if specs := [job.spec for job in jobs if not job.over]:
            check_room(self.connection, self.settings, specs, self.machine)

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
