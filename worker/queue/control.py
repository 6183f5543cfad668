"""What users want of jobs: cancel, pause, resume.

Each is one call to the store, whatever the number of jobs: those that wait come to the new state in
it, the one that runs gets the wish, which its worker sees within a second.
"""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from rq.exceptions import InvalidJobOperation

from h3farm.worker.queue.core import store_errors
from h3farm.worker.queue.errors import InvalidTransition, Superseded, UnknownJob
from h3farm.worker.queue.job import RenderJob, stamp
from h3farm.worker.queue.reading import Reading
from h3farm.worker.queue.records import as_text
from h3farm.worker.queue.schedule import held
from h3farm.worker.queue.states import State

NOTHING: Mapping[str, Any] = {}


class Control(Reading):
    """The part of the queue that carries the user's wishes."""

    def cancel(self, job_id: str, *, execution: str | None = None) -> RenderJob:
        """Cancel a job that waits or runs. A running one stops within a second: until then it is
        `running` with the wish "cancel". InvalidTransition when it is done or failed; cancelling a
        cancelled job changes nothing.

        execution: only while the job is in this one, else Superseded.
        """
        return self._one(job_id, State.CANCELLED, self.cancel_many([job_id], execution=execution))

    def cancel_many(self, job_ids: Sequence[str], *, execution: str | None = None) -> list[str]:
        """Cancel jobs; what came of each: "done", "asked" (it runs), "over" or "other". UnknownJob
        when one does not exist: then nothing is changed.
        """
        ended = {"ended_at": stamp(self._clock())}
        results = self._wish(job_ids, "cancel", State.CANCELLED, execution=execution, at_end=ended)
        for job_id, result in zip(job_ids, results, strict=True):
            rq_job = self.fetch_rq_job(job_id) if result == "done" else None
            if rq_job is not None and not rq_job.is_canceled:
                with contextlib.suppress(InvalidJobOperation):
                    rq_job.cancel()
        return results

    def pause(
        self, job_id: str, *, until: datetime | None = None, execution: str | None = None
    ) -> RenderJob:
        """Pause a job that waits or runs, until it is resumed or the moment has come. A running one
        stops within a second, to start over when resumed; until then it has the wish "pause".
        InvalidTransition when it is over. Of a paused job the moment changes.
        """
        results = self.pause_many([job_id], until=until, execution=execution)
        return self._one(job_id, State.PAUSED, results)

    def pause_many(
        self,
        job_ids: Sequence[str],
        *,
        until: datetime | None = None,
        execution: str | None = None,
    ) -> list[str]:
        """Pause jobs; what came of each, as for `cancel_many`."""
        fields = {"paused_until": stamp(until) if until else None}
        return self._wish(job_ids, "pause", State.PAUSED, execution=execution, at_once=fields)

    def resume(self, job_id: str) -> RenderJob:
        """Let a paused job go on: where it was in line, or in front of those of its priority when
        it had been begun. One that is not paused stays as it is; InvalidTransition when it is over.
        """
        if not self.resume_many([job_id]):
            job = self.get(job_id)
            if job.over or job.wish == "cancel":
                raise InvalidTransition(job_id, job.state, State.QUEUED)
        return self.get(job_id)

    def resume_many(self, job_ids: Sequence[str]) -> list[str]:
        """Let those of the jobs that are paused go on; their ids. UnknownJob as `cancel_many`."""
        with store_errors(self.settings):
            resumed = self._resume(self._known(job_ids))
            # One that was just coming to rest has come to it by now.
            rest = [job for job in self._known(job_ids) if job.id not in resumed]
            resumed |= self._resume([job for job in rest if job.state is State.PAUSED])
        return [job_id for job_id in job_ids if job_id in resumed]

    def let_go(self, job: RenderJob, **fields: Any) -> bool:
        """Bring a waiting job to where its schedule wants it, into the line or out of it; False
        when it is there, or has got another state meanwhile.
        """
        to = self._place(job)
        if to is job.state:
            return False
        with contextlib.suppress(InvalidTransition):
            line = "in" if to is State.QUEUED else "out" if job.state is State.QUEUED else ""
            self.records.move(job.id, to, line=line, **fields)
            return True
        return False

    def promote_due(self) -> None:
        """Let those go on whose time has come. For the worker, every second.

        Everything is judged anew by what the clock shows now: one that jumps leaves nothing behind.
        """
        now = self._clock()
        with store_errors(self.settings):
            for job_id, state, not_before, window, paused_until in self.records.timed():
                if state is State.PAUSED:
                    if paused_until and datetime.fromisoformat(paused_until) <= now:
                        self.resume_many([job_id])
                elif not held(not_before, window, now):
                    self.let_go(self.records.get(job_id))

    def _resume(self, jobs: Sequence[RenderJob]) -> set[str]:
        """Let the paused ones go on, in one step: a worker that is idle then takes the first of
        them, not the one that came back first.
        """
        paused = [job for job in jobs if job.state is State.PAUSED]
        with self.connection.pipeline() as pipeline:
            for job in jobs:
                self.records.unpause(pipeline, job.id)
            for job in paused:
                to = self._place(job)
                self.records.move_in(pipeline, job.id, to, paused_until=None, hold=None)
            self.records.line_up([job.id for job in paused], pipeline)
            *answers, _ = pipeline.execute()
        unpaused, moved = answers[: len(jobs)], answers[len(jobs) :]
        done = {job.id for job, answer in zip(jobs, unpaused, strict=True) if answer == 1}
        done |= {job.id for job, answer in zip(paused, moved, strict=True) if answer[0] == 1}
        self.records.save_folders(done)
        return done

    def _place(self, job: RenderJob) -> State:
        """Where a job belongs that waits, by its schedule."""
        return State.SCHEDULED if held(job.not_before, job.window, self._clock()) else State.QUEUED

    def _known(self, job_ids: Sequence[str]) -> list[RenderJob]:
        """The jobs; UnknownJob when one of them does not exist."""
        jobs = self.records.get_many(job_ids)
        if missing := set(job_ids) - {job.id for job in jobs}:
            raise UnknownJob(min(missing))
        return jobs

    def _wish(
        self,
        job_ids: Sequence[str],
        wish: str,
        state: State,
        *,
        execution: str | None,
        at_once: Mapping[str, Any] = NOTHING,
        at_end: Mapping[str, Any] = NOTHING,
    ) -> list[str]:
        with store_errors(self.settings):
            self._known(job_ids)
            with self.connection.pipeline() as pipeline:
                for job_id in job_ids:
                    self.records.wish(
                        pipeline,
                        job_id,
                        wish,
                        state,
                        execution=execution,
                        at_once=at_once,
                        at_end=at_end,
                    )
                answers = cast("list[tuple[bytes, bytes]]", pipeline.execute())
            results = [as_text(answer[0]) for answer in answers]
            changed = zip(job_ids, results, strict=True)
            self.records.save_folders(
                job_id for job_id, result in changed if result in ("done", "asked")
            )
            return results

    def _one(self, job_id: str, wanted: State, results: Sequence[str]) -> RenderJob:
        """The job after a wish that was for it alone, or why there was none."""
        job = self.get(job_id)
        if results == ["other"]:
            raise Superseded(job_id)
        if results == ["over"] and job.state is not wanted:
            raise InvalidTransition(job_id, job.state, wanted)
        return job
