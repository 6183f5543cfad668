"""What the queue stands on: the store, the job folders, and RQ's half of each job."""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Self

import redis
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job

from h3farm.engine.machine import Machine
from h3farm.worker.queue.disk import JobFolders
from h3farm.worker.queue.errors import StoreUnavailable
from h3farm.worker.queue.job import RenderJob, utc_now
from h3farm.worker.queue.records import Records
from h3farm.worker.queue.settings import Settings

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
    except redis.ResponseError as error:
        if not store_is_full(error):
            raise
        raise StoreUnavailable(
            f"The store at {settings.store_name} takes nothing: its disk is full. Free some space; "
            "the farm goes on by itself then."
        ) from error


def store_is_full(error: redis.RedisError) -> bool:
    """Whether the store refused to write because it cannot write to its disk; reading works."""
    return str(error).startswith("MISCONF")


def unreachable(settings: Settings) -> str:
    """The sentence for a store that does not answer."""
    if settings.redis_url:
        return (
            f"No store answers at {settings.store_name} (REDIS_URL): start it, or unset REDIS_URL."
        )
    name = settings.store_name
    return f"The farm is not running ({name} does not answer): start it with `h3farm run`."


class QueueCore:
    """The connections and folders of one farm's queue, and what every part of it needs."""

    def __init__(
        self,
        settings: Settings,
        *,
        connection: redis.Redis | None = None,
        clock: Callable[[], datetime] = utc_now,
        suffix: Callable[[], str] = lambda: secrets.token_hex(2),
        machine: Machine | None = None,
    ) -> None:
        """Nothing is sent yet: see `connect`. `suffix` gives the last part of job ids; `machine`
        says how much room the disks have.
        """
        self.settings = settings
        self.connection = connection or open_connection(settings)
        self.folders = JobFolders(settings.jobs)
        self.rq_queue = Queue(QUEUE_NAME, connection=self.connection, serializer=SERIALIZER)
        self.records = Records(self.connection, self.folders, self.rq_queue.key, clock=clock)
        self._clock = clock
        self._suffix = suffix
        self.machine = machine or Machine()

    @classmethod
    def connect(cls, settings: Settings | None = None) -> Self:
        """The queue of a farm that runs; StoreUnavailable when it does not."""
        queue = cls(settings or Settings.from_env())
        queue.ping()
        return queue

    def ping(self) -> None:
        """StoreUnavailable unless the store answers: one whose disk is full does."""
        with store_errors(self.settings):
            self.writable()

    def writable(self) -> bool:
        """Whether the store can write to its disk; RedisError when it does not answer."""
        try:
            self.connection.ping()
        except redis.ResponseError as error:
            if store_is_full(error):
                return False
            raise
        return True

    def close(self) -> None:
        """Close the connections."""
        self.connection.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

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
