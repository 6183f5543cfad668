"""The queue as its clients see it: submit, look, cancel, follow."""

import contextlib
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import redis
from rq import Queue
from rq.command import send_stop_job_command
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job

from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue.disk import JobFolders
from h3farm.worker.queue.errors import (
    InvalidTransition,
    StoreUnavailable,
    UnknownJob,
    UnknownModel,
)
from h3farm.worker.queue.job import RenderJob, WorkerStatus, stamp, utc_now
from h3farm.worker.queue.records import Records, as_text
from h3farm.worker.queue.settings import Settings
from h3farm.worker.queue.states import OVER, Priority, State
from h3farm.worker.queue.watch import Watch

# With a second RQ queue RQ pops without its intermediate list, and a crash can lose a job.
QUEUE_NAME = "h3farm"
JOB_FUNCTION = "h3farm.worker.jobs.render"
WORKER_NAME = "h3farm"
SERIALIZER = "json"  # whoever can write to the store must not be able to run code by unpickling
DESCRIPTION_LENGTH = 80


def open_connection(settings: Settings) -> redis.Redis:
    """A connection to the store that gives up instead of waiting for ever; nothing is sent yet."""
    return redis.Redis.from_url(settings.store_url, socket_connect_timeout=2, socket_timeout=10)


@contextlib.contextmanager
def store_errors(settings: Settings) -> Iterator[None]:
    """Turn the client library's errors into StoreUnavailable, with the way to start the farm."""
    try:
        yield
    except redis.AuthenticationError as error:
        sentence = f"The store at {settings.store_name} wants another password than REDIS_URL has."
        raise StoreUnavailable(sentence) from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise StoreUnavailable(unreachable(settings)) from error


def unreachable(settings: Settings) -> str:
    """The sentence for a store that does not answer."""
    if settings.redis_url:
        return (
            f"No store answers at {settings.store_name} (REDIS_URL): start it, or unset REDIS_URL."
        )
    name = settings.store_name
    return f"The farm is not running ({name} does not answer): start it with `h3farm run`."


class RenderQueue:
    """The one queue. Threads and processes may each use their own or share one."""

    def __init__(
        self,
        settings: Settings,
        *,
        connection: redis.Redis | None = None,
        clock: Callable[[], datetime] = utc_now,
        suffix: Callable[[], str] = lambda: secrets.token_hex(2),
    ) -> None:
        """Nothing is sent yet: see `connect`. `suffix` gives the last part of job ids."""
        self.settings = settings
        self.connection = connection or open_connection(settings)
        self.folders = JobFolders(settings.jobs)
        self.records = Records(self.connection, self.folders, clock=clock)
        self.rq_queue = Queue(QUEUE_NAME, connection=self.connection, serializer=SERIALIZER)
        self._clock = clock
        self._suffix = suffix

    @classmethod
    def connect(cls, settings: Settings | None = None) -> Self:
        """The queue of a farm that runs; StoreUnavailable when it does not."""
        queue = cls(settings or Settings.from_env())
        queue.ping()
        return queue

    def ping(self) -> None:
        """StoreUnavailable unless the store answers."""
        with store_errors(self.settings):
            self.connection.ping()

    def close(self) -> None:
        """Close the connections."""
        self.connection.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

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

    def get(self, job_id: str) -> RenderJob:
        """One job; UnknownJob."""
        with store_errors(self.settings):
            job = self._settle_strays([self.records.get(job_id)])[0]
            return job.at(self._positions().get(job_id)) if job.state is State.QUEUED else job

    def list(
        self, states: Collection[str] | None = None, limit: int | None = None
    ) -> list[RenderJob]:
        """The jobs as a line of time, newest last: those that are over (by their end), those that
        run, those that wait (in the order in which they will run).

        states: only these. limit: of the jobs that are over at most so many, the newest; the others
        are always all there.
        """
        wanted = [state for state in State if states is None or state in states]
        with store_errors(self.settings):
            over = [
                row for state in wanted if state in OVER for row in self.records.ids(state, limit)
            ]
            over.sort(key=lambda row: row[1])
            kept = over if limit is None else over[len(over) - min(limit, len(over)) :]
            positions = self._positions()
            live = [row for state in wanted if state not in OVER for row in self.records.ids(state)]
            jobs = self.records.get_many(job_id for job_id, _ in [*kept, *live])
            jobs = [job.at(positions.get(job.id)) for job in self._settle_strays(jobs, positions)]
        # A job may have moved on while we read: what it is now decides.
        return sorted((job for job in jobs if job.state in wanted), key=_time_line)

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state; every state has a key."""
        with store_errors(self.settings):
            return {str(state): count for state, count in self.records.counts().items()}

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

    def models(self) -> dict[str, dict[str, Any]]:
        """The models that jobs may name, with what `h3farm model info` says of them; empty when
        there are none or no worker has looked yet.
        """
        with store_errors(self.settings):
            return self.records.models() or {}

    def publish_models(self, models: Mapping[str, Mapping[str, Any]]) -> None:
        """For the worker: replace the list of models that jobs may name."""
        with store_errors(self.settings):
            self.records.publish_models(models)

    def worker(self) -> WorkerStatus | None:
        """The worker, or None when none runs."""
        with store_errors(self.settings):
            raw = self.connection.hgetall(f"rq:worker:{WORKER_NAME}")
        row = {as_text(name): as_text(value) for name, value in raw.items()}
        if "pid" not in row or "death" in row:
            return None
        return WorkerStatus(
            name=WORKER_NAME,
            host=row.get("hostname", ""),
            pid=int(row["pid"]),
            state={"started": "starting"}.get(row.get("state", ""), row.get("state", "starting")),
            job_id=row.get("current_job"),
            heartbeat_at=row.get("last_heartbeat", ""),
        )

    def watch(self, timeout_s: float = 1.0) -> Watch:
        """Follow what happens to the jobs; see Watch."""
        return Watch(self.connection, timeout_s, self.settings.store_name)

    def folder(self, job_id: str) -> Path:
        """The job's folder in the farm's state."""
        return self.folders.path(job_id)

    def log(self, job_id: str) -> Path:
        """The job's log file; there is none before a worker has begun it."""
        return self.folders.log(job_id)

    def fetch_rq_job(self, job_id: str) -> Job | None:
        """RQ's half of a job."""
        with contextlib.suppress(NoSuchJobError):
            return Job.fetch(job_id, connection=self.connection, serializer=SERIALIZER)
        return None

    def make_rq_job(self, job: RenderJob) -> Job:
        """RQ's half of a job, not stored yet: never timed out, never expired."""
        return self.rq_queue.create_job(
            JOB_FUNCTION,
            args=(job.id,),
            job_id=job.id,
            timeout=-1,
            result_ttl=-1,
            failure_ttl=-1,
            description=job.spec.prompt[:DESCRIPTION_LENGTH],
        )

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

    def _take_out(self, job_id: str) -> bool:
        """Take a job out of the list; False when it is not in it (any more)."""
        if not self.connection.lrem(self.rq_queue.key, 1, job_id):
            return False
        rq_job = self.fetch_rq_job(job_id)
        if rq_job is not None and not rq_job.is_canceled:
            rq_job.cancel()
        return True

    def _positions(self) -> dict[str, int]:
        ids = self.connection.lrange(self.rq_queue.key, 0, -1)
        return {as_text(job_id): place for place, job_id in enumerate(ids)}

    def _settle_strays(
        self, jobs: Sequence[RenderJob], positions: dict[str, int] | None = None
    ) -> Sequence[RenderJob]:
        """Take over what RQ's own tools did: a job of ours that waits, but which RQ has cancelled
        or deleted, is cancelled.
        """
        if not any(job.state is State.QUEUED for job in jobs):
            return jobs
        placed = self._positions() if positions is None else positions
        return [
            self._settled(job) if job.state is State.QUEUED and job.id not in placed else job
            for job in jobs
        ]

    def _settled(self, job: RenderJob) -> RenderJob:
        rq_job = self.fetch_rq_job(job.id)
        if rq_job is not None and not rq_job.is_canceled:
            return job  # just popped, and about to run
        with contextlib.suppress(InvalidTransition):
            return self.records.move(job.id, State.CANCELLED, ended_at=stamp(self._clock()))
        return self.records.get(job.id)

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


def _time_line(job: RenderJob) -> tuple[int, str, int]:
    """Over, running, waiting in the order of the queue, waiting outside of it."""
    if job.over:
        return 0, job.ended_at or job.created_at, 0
    if job.state is State.RUNNING:
        return 1, job.started_at or "", 0
    if job.position is not None:
        return 2, "", job.position
    return (2, "", -1) if job.state is State.QUEUED else (3, job.created_at, 0)


__all__ = ["JOB_FUNCTION", "QUEUE_NAME", "SERIALIZER", "WORKER_NAME", "RenderQueue", "UnknownJob"]
