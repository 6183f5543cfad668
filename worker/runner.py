"""Runs one job at a time on the resident engine, and keeps the main thread free for signals.

The render runs in a helper thread. Everything that may happen meanwhile (its end, a wish to cancel,
the worker's own end) arrives in one inbox, whose `put` may be called from any thread and from a
signal handler; the main thread alone acts on it. So a wish that comes late names a job that no
longer runs, and is dropped: it cannot hit the next one.
"""

import logging
import queue
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import redis
from rq.job import Job

from h3farm.engine.errors import Cancelled, CheckpointError, DiskFull
from h3farm.engine.progress import Progress
from h3farm.engine.spec import RenderSpec
from h3farm.worker import ballast
from h3farm.worker.job_log import job_log
from h3farm.worker.queue import RenderJob, RenderQueue, State
from h3farm.worker.queue.errors import JobNotSaved
from h3farm.worker.queue.job import stamp, utc_now
from h3farm.worker.verdicts import Verdict, judge

logger = logging.getLogger(__name__)

TICK_S = 0.2  # progress is stored at most five times a second
GIVE_UP_S = 3.0  # an engine that ignores a shutdown for so long is left behind
STORE_PATIENCE_S = 20.0


class Result(Protocol):
    """What a render gives back."""

    def to_json(self) -> dict[str, Any]:
        """As JSON."""


class RenderEngine(Protocol):
    """What the worker needs of `h3farm.engine.render.Engine`."""

    def render(
        self,
        spec: RenderSpec,
        *,
        model: Path,
        outputs: Path,
        work: Path,
        job_id: str | None,
        on_progress: Callable[[Progress], None],
    ) -> Result:
        """Render; clears the cancel flag first. `work` is the engine's, to make and remove."""

    def cancel(self) -> None:
        """Stop the render that runs, from any thread."""

    def close(self) -> None:
        """Free everything."""


class Interrupted(Exception):  # noqa: N818 - nothing is wrong with the job
    """The worker ends: the job goes back to the front of the queue."""


class Stopped(Exception):  # noqa: N818 - a wish
    """Somebody cancelled the job."""


class Held(Exception):  # noqa: N818 - nothing is wrong with the job
    """The job waits for room, on the disk or in memory."""


class Failed(Exception):  # noqa: N818 - the job's outcome
    """The job failed, and its record says why."""


@dataclass(frozen=True, slots=True)
class _Message:
    """Something for the main thread. kind: "end", "stop" or "closing"."""

    kind: str
    job_id: str = ""
    result: Result | None = None
    error: Exception | None = None


class Runner:
    """Owns the engine. `run` belongs to the main thread; `stop` and `interrupt` to anyone."""

    def __init__(
        self,
        queue_: RenderQueue,
        engine: RenderEngine,
        find_models: Callable[[Sequence[Path]], Mapping[str, Path]],
        *,
        beat: Callable[[], None] = lambda: None,
        tick_s: float = TICK_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        """`beat` is called every tick while a job runs."""
        self._queue = queue_
        self._engine = engine
        self._find_models = find_models
        self.beat = beat
        self._tick_s = tick_s
        self._give_up_s = give_up_s
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._closing = False
        self._progress: Progress | None = None

    def stop(self, job_id: str) -> None:
        """Cancel this job if it is the one that runs."""
        self._inbox.put(_Message("stop", job_id))

    def interrupt(self) -> None:
        """The worker ends: give the running job back. Safe in a signal handler."""
        self._closing = True
        self._inbox.put(_Message("closing"))

    def run(self, job_id: str) -> dict[str, Any]:
        """Render a job from its record; its result. Raises Interrupted, Stopped, Held or Failed."""
        job = self._begin(job_id)
        with job_log(self._queue.log(job_id)):
            logger.info("%s: attempt %d: %s", job_id, job.attempts, job.spec.prompt)
            stopped, end = self._render(job)
            return self._finish(job, stopped, end)

    def _begin(self, job_id: str) -> RenderJob:
        """Take the job from queued to running, unless somebody was faster."""
        records = self._queue.records
        job = records.get(job_id)
        if job.state is State.FAILED:  # RQ's own requeue
            job = records.move(job_id, State.QUEUED, error=None, ended_at=None, crashes=0)
        if job.cancel_requested:
            records.move(job_id, State.CANCELLED, ended_at=stamp(utc_now()))
            raise Stopped(job_id)
        return records.move(
            job_id,
            State.RUNNING,
            started_at=stamp(utc_now()),
            attempts=job.attempts + 1,
            progress=None,
            hold=None,
        )

    def _render(self, job: RenderJob) -> tuple[bool, _Message]:
        """Run the render beside the main thread; whether it was to be stopped, and how it ended."""
        self._progress = None
        thread = threading.Thread(target=self._run_engine, args=(job,), name=f"render {job.id}")
        thread.daemon = True  # an engine that hangs must not keep the process alive
        thread.start()
        stopped, reported = False, None
        give_up_at: float | None = None
        while True:
            message = self._next_message()
            if message.kind == "end" and message.job_id == job.id:
                thread.join()
                break
            if self._closing and give_up_at is None:
                give_up_at = time.monotonic() + self._give_up_s
            if give_up_at is not None and time.monotonic() > give_up_at:
                logger.warning("%s: the engine did not stop in time and is left behind", job.id)
                return stopped, _Message("end", job.id, error=Cancelled("left behind"))
            stopped |= message.kind == "stop" and message.job_id == job.id
            if stopped or self._closing:
                # Every tick again: a wish that came just before the render began was wiped by it.
                self._engine.cancel()
            progress = self._progress
            stopped |= self._report(job, progress if progress is not reported else None)
            reported = progress
            self.beat()
        if self._progress is not reported:
            self._report(job, self._progress)
        return stopped, message

    def _work(self, job: RenderJob) -> Path:
        return self._queue.folder(job.id) / "work"

    def _run_engine(self, job: RenderJob) -> None:
        """The helper thread."""
        try:
            result = self._engine.render(
                job.spec,
                model=self._model(job.spec.model),
                outputs=self._queue.settings.outputs,
                work=self._work(job),
                job_id=job.id,
                on_progress=self._take_progress,
            )
        except Exception as error:  # noqa: BLE001 - becomes the job's reason
            self._inbox.put(_Message("end", job.id, error=error))
        else:
            self._inbox.put(_Message("end", job.id, result=result))

    def _take_progress(self, progress: Progress) -> None:
        self._progress = progress

    def _model(self, name: str) -> Path:
        folders = self._queue.settings.models
        found = self._find_models(folders)
        if name not in found:
            places = ", ".join(str(folder) for folder in folders)
            raise CheckpointError(f"the model {name} is no longer in {places}")
        return found[name]

    def _next_message(self) -> _Message:
        try:
            return self._inbox.get(timeout=self._tick_s)
        except queue.Empty:
            return _Message("tick")

    def _report(self, job: RenderJob, progress: Progress | None) -> bool:
        """Store progress; True when the job is to be stopped. The render needs no store."""
        try:
            return self._queue.records.report(job.id, progress, Job.key_for(job.id))
        except redis.RedisError:
            return False

    def _finish(self, job: RenderJob, stopped: bool, end: _Message) -> dict[str, Any]:
        """Bring the record to its end, or raise what the worker is to do with the job."""
        if isinstance(end.error, DiskFull):
            ballast.drop(self._queue.settings)
        self._await_store()
        if end.result is not None:
            result = end.result.to_json()
            self._end(job, State.DONE, result=result)
            logger.info("%s: done: %s", job.id, result.get("video"))
            return result
        error = end.error or RuntimeError("the render ended without a result")
        verdict = judge(error)
        held = verdict.state is State.PAUSED
        if stopped and (held or isinstance(error, Cancelled)):
            shutil.rmtree(self._work(job), ignore_errors=True)  # nobody will go on from there
            self._end(job, State.CANCELLED)
            logger.info("%s: cancelled", job.id)
            raise Stopped(job.id)
        if isinstance(error, Cancelled) and self._closing:
            logger.info("%s: interrupted: it goes back to the front of the queue", job.id)
            raise Interrupted(job.id)
        if held:
            logger.warning("%s: held until there is room: %s", job.id, verdict.reason)
            self._hold(job, verdict)
            raise Held(job.id) from error
        logger.error("%s: failed: %s", job.id, verdict.reason, exc_info=error)
        self._end(job, State.FAILED, **verdict.changes)
        raise Failed(verdict.reason) from error

    def _hold(self, job: RenderJob, verdict: Verdict) -> None:
        try:
            self._queue.records.move(job.id, State.PAUSED, progress=None, **verdict.changes)
        except JobNotSaved as error:
            # The store has it; the disk will, with the next change, when there is room again.
            logger.warning("%s: %s", job.id, error)

    def _end(self, job: RenderJob, state: State, **fields: Any) -> None:
        """The end is put down, however long the disk has no room for it."""
        ended_at = stamp(utc_now())
        while True:
            try:
                self._queue.records.move(job.id, state, ended_at=ended_at, **fields)
            except JobNotSaved as error:
                if self._closing or not isinstance(error.__cause__, DiskFull):
                    raise
                logger.warning("%s", error)
                ballast.drop(self._queue.settings)
                self._next_message()
            else:
                return

    def _await_store(self) -> None:
        """A store that is being started again gets some time; after that the disk must do. One
        whose disk is full gets all the time it needs.
        """
        give_up_at = time.monotonic() + STORE_PATIENCE_S
        while not self._closing:
            try:
                if self._queue.writable():
                    return
                ballast.drop(self._queue.settings)
            except redis.RedisError:
                if time.monotonic() > give_up_at:
                    return
            self._next_message()
