"""Runs one job at a time on the resident engine, and keeps the main thread free for signals.

The render runs in a helper thread. Its end, RQ's stop command and the worker's own end arrive in
one inbox, whose `put` may be called from any thread and from a signal handler; what users and the
clock want is looked up in the store every tick. The main thread alone acts on it. A message names
the execution that it means, so that one that comes late is dropped: it cannot hit the next job, nor
the same job when it has been begun again.
"""

import logging
import queue
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import redis
from rq.job import Job

from h3farm.engine.errors import Cancelled, CheckpointError, DiskFull
from h3farm.engine.progress import Progress
from h3farm.worker import ballast
from h3farm.worker.demands import CANCEL, Demand, demand_of
from h3farm.worker.executions import (
    Failed,
    Held,
    Interrupted,
    RenderEngine,
    Result,
    Stopped,
    begun,
    place_of,
)
from h3farm.worker.holds import missing_room
from h3farm.worker.job_log import job_log
from h3farm.worker.ladder import Ladder, limits_of
from h3farm.worker.queue import RenderJob, RenderQueue, State, StoreUnavailable, quantities
from h3farm.worker.queue.errors import JobNotSaved, Superseded
from h3farm.worker.queue.job import stamp, utc_now
from h3farm.worker.queue.schedule import held
from h3farm.worker.verdicts import Verdict, judge
from h3farm.worker.watchdog import Alarm, Stalled, Watchdog

logger = logging.getLogger(__name__)

TICK_S = 0.2  # progress is stored at most five times a second
GIVE_UP_S = 3.0  # an engine that ignores a shutdown for so long is left behind
STORE_PATIENCE_S = 20.0
AHEAD = 200  # jobs whose prompts are encoded along when memory is short
WHERE_TO = {
    State.QUEUED: "it goes back to the front of the queue",
    State.PAUSED: "it stays paused",
    State.SCHEDULED: "it waits for its time",
}


@dataclass(frozen=True, slots=True)
class _Message:
    """Something for the main thread. kind: "end", "stop", "closing" or "tick"."""

    kind: str
    execution: str | None = None
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
        clock: Callable[[], datetime] = utc_now,
        token: Callable[[], str] = lambda: secrets.token_hex(8),
        tick_s: float = TICK_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        """`beat` is called every tick while a job runs. token: draws the names of executions."""
        self._queue = queue_
        self._engine = engine
        self._find_models = find_models
        self.beat = beat
        self._clock = clock
        self._token = token
        self._tick_s = tick_s
        self._give_up_s = give_up_s
        self.watchdog: Callable[[], Watchdog] = Watchdog  # a seam for the tests
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._ladder = Ladder(queue_.settings.ladder)
        self._closing = False
        self._running: tuple[str, str | None] | None = None
        self._progress: Progress | None = None

    def stop(self, job_id: str) -> None:
        """Cancel this job if it is the one that runs now."""
        running = self._running
        if running is not None and running[0] == job_id:
            self._inbox.put(_Message("stop", running[1]))

    def interrupt(self) -> None:
        """The worker ends: give the running job back. Safe in a signal handler."""
        self._closing = True
        self._inbox.put(_Message("closing"))

    def free_memory(self) -> None:
        """Close the model; between two jobs only."""
        self._engine.close_model()

    def run(self, job_id: str) -> dict[str, Any]:
        """Render a job from its record; its result. Raises Interrupted, Stopped, Held, Failed, or
        Superseded when the job has been taken away: then nothing may be done with it.
        """
        job = self._begin(job_id)
        self._running = (job.id, job.execution)
        try:
            with job_log(self._queue.log(job_id)):
                logger.info("%s: attempt %d: %s", job_id, job.attempts, job.spec.prompt)
                demand, end = self._render(job)
                return self._finish(job, demand, end)
        finally:
            self._running = None

    def _begin(self, job_id: str) -> RenderJob:
        """Take the job from queued to running, unless somebody was faster."""
        records = self._queue.records
        job = records.get(job_id)
        if job.state is State.FAILED:  # RQ's own requeue
            fresh: dict[str, Any] = {"error": None, "ended_at": None, "crashes": 0, "retries": []}
            job = records.move(job_id, State.QUEUED, **fresh)
        now = self._clock()
        if job.cancel_requested:
            records.move(job_id, State.CANCELLED, ended_at=stamp(now))
            raise Stopped(job_id)
        if job.wish == "pause":
            raise Interrupted(job_id, State.PAUSED)
        if held(job.not_before, job.window, now):
            raise Interrupted(job_id, State.SCHEDULED)
        if job.start_over:
            shutil.rmtree(self._work(job), ignore_errors=True)
        return records.move(
            job_id,
            State.RUNNING,
            **begun(job, now, self._token()),
            rung=job.rung or self._ladder.first(job.spec),
        )

    def _render(self, job: RenderJob) -> tuple[Demand | None, _Message]:
        """Run the render beside the main thread; what was asked of it, and how it ended."""
        self._progress = None
        thread = threading.Thread(
            target=self._run_engine, args=(job, self._ahead(job)), name=f"render {job.id}"
        )
        thread.daemon = True  # an engine that hangs must not keep the process alive
        thread.start()
        stopped = False
        dog = self.watchdog()
        demand, reported = None, None
        give_up_at: float | None = None
        while True:
            message = self._next_message()
            if message.kind == "end" and message.execution == job.execution:
                thread.join()
                break
            if self._closing and give_up_at is None:
                give_up_at = time.monotonic() + self._give_up_s
            if give_up_at is not None and time.monotonic() > give_up_at:
                logger.warning("%s: the engine did not stop in time and is left behind", job.id)
                return demand, _Message("end", job.execution, error=Cancelled("left behind"))
            stopped |= message.kind == "stop" and message.execution == job.execution
            progress = self._progress
            demand = self._look(job, progress if progress is not reported else None, demand)
            if stopped:
                demand = Demand(to=State.CANCELLED, at_once=True, reason=CANCEL)
            reported = progress
            asked = self._press(demand)
            self._heed(job, dog, dog.look(progress, asked=asked))
            self.beat()
        demand = self._look(job, self._progress, demand)
        if dog.stopped and demand is None and isinstance(message.error, Cancelled):
            place = place_of(self._progress) or "its beginning"
            quiet = quantities.seconds(dog.quiet_s)
            sentence = f"the render stood still at {place}: nothing came of it for {quiet}"
            message = replace(message, error=Stalled(sentence))
        return demand, message

    def _heed(self, job: RenderJob, dog: Watchdog, alarm: Alarm | None) -> None:
        """What the watchdog calls for."""
        if alarm is Alarm.KILL:
            logger.critical(
                "%s: the engine does not stop: the worker ends itself, to be started again", job.id
            )
            dog.kill()
        elif alarm is Alarm.STOP:
            self._engine.cancel()

    def _press(self, demand: Demand | None) -> bool:
        """Every tick again: what came just before the render began was wiped by it. Whether the
        engine is to stop at once.
        """
        at_once = self._closing or (demand is not None and demand.at_once)
        if at_once:
            self._engine.cancel()
        elif demand is not None:
            self._engine.stop_at_resume_point()
        return at_once

    def _look(
        self, job: RenderJob, progress: Progress | None, demand: Demand | None
    ) -> Demand | None:
        """Store progress, and see what is asked of the job; the render itself needs no store.

        What has been asked once has stopped the engine, or will: taken back, it means that the job
        waits again. Only a cancel cannot be taken back.
        """
        if demand is not None and demand.to is State.CANCELLED:
            return demand
        records = self._queue.records
        try:
            look = records.report(job.id, str(job.execution), progress, Job.key_for(job.id))
        except redis.RedisError:
            return demand
        if look is None:
            return Demand(to=State.RUNNING, at_once=True, reason="it is in other hands")
        asked = demand_of(job, look, self._clock())
        return asked or (demand and replace(demand, to=State.QUEUED))

    def _work(self, job: RenderJob) -> Path:
        return self._queue.folder(job.id) / "work"

    def _ahead(self, job: RenderJob) -> list[str]:
        """Prompts of the jobs that come next with the same model."""
        try:
            waiting = self._queue.first_in_line(AHEAD)
        except (StoreUnavailable, redis.RedisError):
            return []
        same = (job.spec.model, job.spec.task)
        return [each.spec.prompt for each in waiting if (each.spec.model, each.spec.task) == same]

    def _run_engine(self, job: RenderJob, ahead: list[str]) -> None:
        """The helper thread."""
        try:
            result = self._engine.render(
                job.spec,
                model=self._model(job.spec.model),
                outputs=self._queue.settings.outputs,
                work=self._work(job),
                job_id=job.id,
                on_progress=self._take_progress,
                limits=limits_of(job.rung, self._queue.settings.threads),
                ahead=ahead,
            )
        except Exception as error:  # noqa: BLE001 - becomes the job's reason
            self._inbox.put(_Message("end", job.execution, error=error))
        else:
            self._inbox.put(_Message("end", job.execution, result=result))

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

    def _finish(self, job: RenderJob, demand: Demand | None, end: _Message) -> dict[str, Any]:
        """Bring the record to its end, or raise what the worker is to do with the job."""
        if isinstance(end.error, DiskFull):
            ballast.drop(self._queue.settings)
        self._await_store()
        if end.result is not None:
            result = end.result.to_json()
            self._end(job, State.DONE, result=result)
            self._ladder.learn(job)
            self._count_saved(result.get("saved") or {})
            logger.info("%s: done: %s", job.id, result.get("video"))
            return result
        error = end.error or RuntimeError("the render ended without a result")
        room = missing_room(self._queue, job) if isinstance(error, DiskFull) else None
        verdict = judge(job, error, room)
        held_back = verdict.state is State.PAUSED
        to = demand.to if demand else None
        if to is State.RUNNING:
            raise Superseded(job.id)
        if to is State.CANCELLED and (held_back or isinstance(error, Cancelled)):
            shutil.rmtree(self._work(job), ignore_errors=True)  # nobody will go on from there
            self._end(job, State.CANCELLED)
            logger.info("%s: cancelled", job.id)
            raise Stopped(job.id)
        if isinstance(error, Cancelled) and (to or self._closing):
            reason = demand.reason if demand else "the worker was stopped"
            logger.info("%s: interrupted: %s: %s", job.id, reason, WHERE_TO[to or State.QUEUED])
            raise Interrupted(job.id, to or State.QUEUED, **self._interruption(job, reason))
        if verdict.state is State.QUEUED:
            logger.warning("%s: %s", job.id, verdict.reason)
            fields = verdict.changes | self._interruption(job, verdict.reason)
            raise Interrupted(job.id, State.QUEUED, **fields)
        if held_back:
            logger.warning("%s: held until there is room: %s", job.id, verdict.reason)
            self._hold(job, verdict)
            raise Held(job.id) from error
        logger.error("%s: failed: %s", job.id, verdict.reason, exc_info=error)
        place = place_of(self._progress) or job.place
        self._end(job, State.FAILED, place=place, **verdict.changes)
        raise Failed(verdict.reason) from error

    def _count_saved(self, saved: Mapping[str, int]) -> None:
        try:
            self._queue.records.add_saved(saved)
        except redis.RedisError as error:
            logger.warning("what was saved could not be counted: %s", error)

    def _hold(self, job: RenderJob, verdict: Verdict) -> None:
        try:
            self._queue.records.move(
                job.id,
                State.PAUSED,
                by=job.execution,
                progress=None,
                **verdict.changes,
                **self._interruption(job, verdict.reason),
            )
        except JobNotSaved as error:
            # The store has it; the disk will, with the next change, when there is room again.
            logger.warning("%s: %s", job.id, error)

    def _interruption(self, job: RenderJob, reason: str) -> dict[str, Any]:
        """What the record keeps of an interruption: from `place` on the render will be repeated."""
        place = place_of(self._progress) or job.place
        this = {"at": stamp(self._clock()), "place": place, "reason": reason, "resumed_at": None}
        return {"place": place, "interruptions": [*job.interruptions, this]}

    def _end(self, job: RenderJob, state: State, **fields: Any) -> None:
        """The end is put down, however long the disk has no room for it."""
        ended = stamp(self._clock())
        while True:
            try:
                self._queue.records.move(job.id, state, by=job.execution, ended_at=ended, **fields)
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
