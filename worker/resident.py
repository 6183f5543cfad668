"""The RQ worker that keeps the model: RQ's SimpleWorker with what it lacks for jobs of hours.

What RQ's own does wrong here, and where it is put right: no heartbeat during a job (`beat`), a
timeout by SIGALRM (`NoDeathPenalty`), a stop command that stops nothing (`kill_horse`), signals
that wait for the job or turn it into a failure (`request_stop`, `perform_job`), a job taken up
while suspended (`execute_job`), a registry cleanup that fails jobs (`run_maintenance_tasks`).
"""

import logging
import signal
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

import redis
from redis.client import Pipeline
from rq import SimpleWorker
from rq.exceptions import InvalidJobOperation, StopRequested
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.suspension import is_suspended
from rq.timeouts import BaseDeathPenalty
from rq.utils import now
from rq.worker.base import WorkerStatus

from h3farm.worker import ballast
from h3farm.worker.executions import Failed, Held, Interrupted, Stopped
from h3farm.worker.identity import process_start
from h3farm.worker.queue import RenderQueue, StoreUnavailable
from h3farm.worker.queue.core import (
    JOB_FUNCTION,
    QUEUE_NAME,
    SERIALIZER,
    WORKER_NAME,
    store_is_full,
)
from h3farm.worker.queue.errors import Superseded
from h3farm.worker.queue.job import utc_now
from h3farm.worker.queue.returning import put_back
from h3farm.worker.recovery import START_FIELD
from h3farm.worker.runner import Runner

logger = logging.getLogger(__name__)

HEARTBEAT_S = 30
HEARTBEAT_GRACE_S = 60
IDLE_TTL_S = 30
IDLE_TICK_S = 1  # so late may a worker without a job see that the clock or a user wants something
MAINTENANCE_S = 10
FULL_STORE_S = 1.0


class NoDeathPenalty(BaseDeathPenalty):
    """Deadlines belong into the engine's poll: a signal cannot interrupt a C call."""

    def setup_death_penalty(self) -> None:
        """Nothing."""

    def cancel_death_penalty(self) -> None:
        """Nothing."""


class RenderRqJob(Job):
    """RQ's half of a job. It may call nothing but our function.

    A job names its function and its callbacks: whoever can write to the store could name any that
    is installed here. So callbacks are not called at all; what happens to jobs is told by events.
    """

    def perform(self) -> Any:
        """The render function's result; PermissionError when the job names another function."""
        if self.func_name != JOB_FUNCTION:
            raise PermissionError(f"this worker calls {JOB_FUNCTION} only, not {self.func_name}")
        return super().perform()


class ResidentWorker(SimpleWorker):
    """Works through the one queue with one Runner, in this process, never forking."""

    death_penalty_class = NoDeathPenalty
    max_connection_wait_time = 2.0

    def __init__(
        self,
        queue: RenderQueue,
        connection: redis.Redis,
        runner: Runner,
        *,
        look_around: Callable[[], None] = lambda: None,
        heartbeat_s: float = HEARTBEAT_S,
        heartbeat_grace_s: float = HEARTBEAT_GRACE_S,
    ) -> None:
        """connection: RQ's own, whose timeout it raises to minutes. look_around: called every few
        seconds while idle. The heartbeats' times are parameters for the tests.
        """
        super().__init__(
            [
                Queue(
                    QUEUE_NAME,
                    connection=connection,
                    serializer=SERIALIZER,
                    job_class=RenderRqJob,
                )
            ],
            name=WORKER_NAME,
            job_class=RenderRqJob,
            connection=connection,
            serializer=SERIALIZER,
            worker_ttl=IDLE_TTL_S,
            maintenance_interval=MAINTENANCE_S,
            log_job_description=False,
        )
        self._queue = queue
        self._runner = runner
        self._look_around = look_around
        self._heartbeat_s = heartbeat_s
        self._heartbeat_grace_s = heartbeat_grace_s
        self._next_beat = 0.0
        self._current: Job | None = None
        runner.beat = self.beat

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        """Registers and listens; from here on clients and RQ's commands find this worker."""
        super().bootstrap(*args, **kwargs)
        logger.info("ready (process %d)", self.pid)

    def serialize(self) -> dict[str, Any]:
        """With the start of this process, by which a later one knows that this one is dead."""
        return {**super().serialize(), START_FIELD: process_start(self.pid or 0) or ""}

    def get_heartbeat_ttl(self, job: Job) -> int:
        """How long a job may be silent before others may think that its worker died."""
        return max(1, round(self._heartbeat_s + self._heartbeat_grace_s))

    def beat(self) -> None:
        """Keep worker, execution and registry entry alive; called while a job runs."""
        if self._current is None or time.monotonic() < self._next_beat:
            return
        self._next_beat = time.monotonic() + self._heartbeat_s
        try:
            self.maintain_heartbeats(self._current)
        except redis.RedisError as error:
            logger.warning("the store did not take a heartbeat: %s", error)

    def run_maintenance_tasks(self) -> None:
        """Instead of RQ's cleaning, which fails jobs that a recovery would save."""
        self.last_cleaned_at = now()  # type: ignore[assignment]  # declared as None only
        self._look_around()

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """The next job, when the farm lets one be begun; meanwhile the clock is looked at.

        With nothing in hand, what lies in the intermediate list was popped into a lost reply. A
        store whose disk is full takes nothing, a pop included: it is waited for.
        """
        while True:
            try:
                for job_id in self._queue.rq_queue.intermediate_queue.get_job_ids():
                    put_back(self._queue, job_id)
                if (popped := self._next_job()) is not None:
                    return popped
            except redis.ResponseError as error:
                if not store_is_full(error):
                    raise
                ballast.drop(self._queue.settings)
                time.sleep(FULL_STORE_S)

    def _next_job(self) -> tuple[Job, Queue] | None:
        """One look of a second: None when there was no job, or none may be begun."""
        self.check_for_suspension(burst=False)
        if self._stop_requested:
            raise StopRequested
        if self._may_begin():
            return super().dequeue_job_and_maintain_ttl(IDLE_TICK_S, IDLE_TICK_S)
        self.set_state(WorkerStatus.IDLE)
        self.heartbeat()
        if self.should_run_maintenance_tasks:
            self.run_maintenance_tasks()
        time.sleep(IDLE_TICK_S)
        return None

    def _may_begin(self) -> bool:
        """Do what the clock asks for, and see whether a job may be begun now."""
        try:
            self._queue.promote_due()
            farm, now_ = self._queue.farm(), utc_now()
        except (StoreUnavailable, redis.RedisError):
            return True  # RQ's own loop waits for a store that is away
        if farm.is_paused(now_) and farm.free_memory:
            self._runner.free_memory()
        return farm.closed(now_) is None

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run one job here."""
        if is_suspended(self.connection) or self._queue.closed():
            # A worker that already waited for a job when the pause came did not see it.
            put_back(self._queue, job.id)
            return
        self.prepare_execution(job)
        self._current = job
        self._next_beat = time.monotonic() + self._heartbeat_s
        try:
            self.perform_job(job, queue)
        finally:
            self._current = None
        self.set_state(WorkerStatus.IDLE)

    def perform_job(self, job: Job, queue: Queue) -> bool:
        """As RQ does it, but a wish and a shutdown are no failures, and SystemExit passes."""
        self.prepare_job_execution(job, remove_from_intermediate_queue=True)
        job.started_at = now()
        try:
            value = job.perform()
        except Interrupted as end:
            put_back(
                self._queue,
                job.id,
                also=lambda p: self.cleanup_execution(job, p),
                to=end.to,
                **end.fields,
            )
        except Superseded as error:
            logger.error("%s: %s", job.id, error)
            self._leave(job)
        except Held:
            self._leave(job)
            self.last_cleaned_at = None  # look around at once: how short is the room now?
        except Stopped:
            self._end_stopped(job, queue)
        except Exception as error:  # noqa: BLE001 - the outermost loop of this process
            self._end_failed(job, queue, error)
        else:
            self._end_done(job, queue, value)
            return True
        return False

    def kill_horse(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """RQ's stop command; runs in the thread that listens."""
        if self._stopped_job_id is not None:
            self._runner.stop(self._stopped_job_id)

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM, the first and every further one: nothing here may wait or write."""
        first, self._stop_requested = not self._stop_requested, True
        self._runner.interrupt()
        if first and self.get_state() != WorkerStatus.BUSY:
            raise StopRequested

    def request_force_stop(self, signum: int, frame: FrameType | None) -> None:
        """RQ's second signal would fail the job; ours is being put back already."""

    @property
    def stop_requested(self) -> bool:
        """Whether this worker ends because it was told to."""
        return self._stop_requested

    def _end_done(self, job: Job, queue: Queue, value: object) -> None:
        self.handle_execution_ended(job, queue, job.success_callback_timeout)
        job._result = value
        job._status = JobStatus.FINISHED
        self.handle_job_success(job, queue, queue.started_job_registry)
        # Somebody's cleanup may have called it abandoned, after a sleep: the result counts.
        queue.failed_job_registry.remove(job)

    def _end_failed(self, job: Job, queue: Queue, error: Exception) -> None:
        if not isinstance(error, Failed):
            logger.error("%s: could not be run: %s", job.id, error)
        self.handle_execution_ended(job, queue, job.failure_callback_timeout)
        job._status = JobStatus.FAILED
        text = "".join(traceback.format_exception(error))
        self.handle_job_failure(job, queue, queue.started_job_registry, exc_string=text)

    def _leave(self, job: Job) -> None:
        """The execution is over, and RQ's half stands in no list and no registry from now on."""
        with self.connection.pipeline() as pipeline:
            self.cleanup_execution(job, pipeline)
            pipeline.execute()

    def _end_stopped(self, job: Job, queue: Queue) -> None:
        self.handle_execution_ended(job, queue, job.stopped_callback_timeout)
        if self._ended_by_rq(job):
            self._leave(job)
            return
        self._stopped_job_id = job.id  # makes the next call say "stopped", not "failed"
        self.handle_job_failure(job, queue, queue.started_job_registry, exc_string="Cancelled.")

    def _ended_by_rq(self, job: Job) -> bool:
        """Whether RQ's own `cancel` or `delete` has already brought the job to its end."""
        try:
            return job.get_status(refresh=True) == JobStatus.CANCELED
        except InvalidJobOperation:
            return True

    def cleanup_execution(self, job: Job, pipeline: Pipeline) -> None:
        """The execution is gone from here on: no beat may look for it."""
        self._current = None
        super().cleanup_execution(job, pipeline)
