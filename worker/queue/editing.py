"""Changing jobs that wait: their settings, and when they may run."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import redis
from rq.job import Job

from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue.control import Control
from h3farm.worker.queue.core import DESCRIPTION_LENGTH, store_errors
from h3farm.worker.queue.errors import CannotChange
from h3farm.worker.queue.job import RenderJob, stamp
from h3farm.worker.queue.ordering import IN_LINE
from h3farm.worker.queue.records import encode, record_key, spec_fields
from h3farm.worker.queue.schedule import Window
from h3farm.worker.queue.states import State
from h3farm.worker.queue.submission import Submission

UNCHANGED: Any = object()


class Editing(Submission, Control):
    """The part of the queue that changes jobs before they run."""

    def edit(self, job_id: str, fields: Mapping[str, Any]) -> tuple[RenderJob, bool]:
        """Give a waiting job other values for some fields of its spec; it keeps its place. With it,
        whether something that had been rendered of it does not fit any more and will be dropped.

        SpecError and UnknownModel as for a submit; CannotChange when it runs or is over.
        """
        with store_errors(self.settings), self.connection.pipeline() as pipeline:
            while True:
                self._watch(pipeline, job_id)
                job = self.records.get(job_id)
                self._check_waiting(job, "edited")
                spec = edited(job.spec, fields)
                self._check_model(spec.model)
                begun = spec.hash != job.spec.hash and (self.folder(job_id) / "work").exists()
                changes = spec_fields(spec) | ({"start_over": True, "place": None} if begun else {})
                pipeline.multi()
                self.records.announce(job_id, pipeline)
                pipeline.hset(record_key(job_id), mapping=encode(changes))
                description = spec.prompt[:DESCRIPTION_LENGTH]
                pipeline.hset(Job.key_for(job_id), "description", description)
                if job.batch:
                    pipeline.hset(f"h3farm:batch-frames:{job.batch}", job_id, spec.frames)
                try:
                    pipeline.execute()
                except redis.WatchError:
                    continue
                break
        self.records.save_folder(job_id)
        return self.get(job_id), begun

    def schedule(
        self,
        job_ids: Sequence[str],
        *,
        not_before: datetime | None = UNCHANGED,
        window: str | None = UNCHANGED,
    ) -> list[RenderJob]:
        """Say when jobs may run: from a moment on, inside of a nightly window ("22:00-07:00"); None
        lifts the restriction, what is not given stays. A job that runs stops at its next resume
        point when it may not. BadSchedule; CannotChange when one is over: then none is changed.
        """
        changes: dict[str, Any] = {}
        if not_before is not UNCHANGED:
            changes["not_before"] = stamp(not_before) if not_before else None
        if window is not UNCHANGED:
            changes["window"] = str(Window.parse(window)) if window is not None else None
        with store_errors(self.settings):
            jobs = [self.records.get(job_id) for job_id in job_ids]
            for job in jobs:
                if job.over:
                    raise CannotChange(job.id, job.state, "scheduled")
            for job in jobs:
                with self.connection.pipeline() as pipeline:
                    pipeline.hset(record_key(job.id), mapping=encode(changes))
                    self.records.announce(job.id, pipeline)
                    pipeline.execute()
                self._settle_schedule(job.id)
                self.records.save_folder(job.id)
            return [self.get(job.id) for job in jobs]

    def _settle_schedule(self, job_id: str) -> None:
        """Into the line, or out of it. Of one that is being begun its worker sees it."""
        job = self.records.get(job_id)
        listed = job.state is State.QUEUED and job_id in self._positions()
        if listed or job.state is State.SCHEDULED:
            self.let_go(job)

    def _check_waiting(self, job: RenderJob, wanted: str) -> None:
        if job.state not in IN_LINE:
            raise CannotChange(job.id, job.state, wanted)
        if job.state is State.QUEUED and job.id not in self._positions():
            raise CannotChange(job.id, "about to start", wanted)


def edited(spec: RenderSpec, fields: Mapping[str, Any]) -> RenderSpec:
    """The spec with other values; SpecError. A length in frames takes the place of one in seconds,
    and the other way round; a seed of -1 is drawn.
    """
    record = spec.to_json()
    if {"frames", "seconds"} & fields.keys():
        for name in ("frames", "seconds", "frames_asked", "seconds_asked"):
            record.pop(name, None)
    return RenderSpec.from_json({**record, **fields}).with_seed()
