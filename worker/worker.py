"""The worker process: lock, recovery, models, then job after job."""

import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import redis

from h3farm.engine.errors import EngineError
from h3farm.engine.machine import Machine
from h3farm.worker import ballast
from h3farm.worker.executions import RenderEngine
from h3farm.worker.holds import Holds
from h3farm.worker.identity import ProcessLock, Taken
from h3farm.worker.jobs import RUNNER
from h3farm.worker.queue import RenderQueue, Settings, SettingsError, StoreUnavailable
from h3farm.worker.queue.core import store_errors
from h3farm.worker.queue.process import end_with_parent, log_to
from h3farm.worker.recovery import live_workers, recover
from h3farm.worker.resident import HEARTBEAT_GRACE_S, HEARTBEAT_S, ResidentWorker
from h3farm.worker.retention import Sweeper
from h3farm.worker.runner import Runner

logger = logging.getLogger(__name__)

STORE_WAIT_S = 15.0
OK, FAILED, BAD_SETTINGS, NO_STORE = 0, 1, 2, 3

FindModels = Callable[[Sequence[Path]], Mapping[str, Path]]
Describe = Callable[[Path], dict[str, Any]]


class _Told(Exception):  # noqa: N818 - not an error
    """A signal came before the work began."""


def main() -> int:
    """Run the worker with the real engine; the exit code (0, 1, 2 settings, 3 no store)."""
    try:
        settings = Settings.from_env()
    except SettingsError as error:
        print(error, file=sys.stderr)  # noqa: T201 - there is no log yet
        return BAD_SETTINGS
    log_to("worker", settings.logs)
    end_with_parent()
    from h3farm.engine.checkpoints import describe, find_models  # noqa: PLC0415 - after settings
    from h3farm.engine.embeddings import Embeddings  # noqa: PLC0415
    from h3farm.engine.measurements import Measurements  # noqa: PLC0415
    from h3farm.engine.render import Engine  # noqa: PLC0415

    def make_engine() -> Engine:
        return Engine(
            threads=settings.threads,
            measurements=Measurements(settings.measurements),
            embeddings=Embeddings(settings.embeddings),
        )

    return serve(settings, make_engine, find_models, describe)


def serve(
    settings: Settings,
    make_engine: Callable[[], RenderEngine],
    find_models: FindModels,
    describe: Describe,
    *,
    heartbeat_s: float = HEARTBEAT_S,
    heartbeat_grace_s: float = HEARTBEAT_GRACE_S,
    machine: Machine | None = None,
) -> int:
    """Work until told to stop; the exit code. Engine, times and machine are seams for the tests."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _tell)
    try:
        with (
            ProcessLock(settings.worker_lock),
            contextlib.closing(RenderQueue(settings, machine=machine)) as queue,
        ):
            _await_store(queue)
            with contextlib.closing(make_engine()) as engine, _connection(settings) as connection:
                runner = Runner(queue, engine, find_models)
                RUNNER.set(runner)
                models = ModelList(queue, find_models, describe)
                sweeper, holds = Sweeper(queue), Holds(queue)

                def look_around() -> None:
                    models.publish()
                    holds.tick()
                    ballast.keep(settings, queue.machine)
                    sweeper.tick()

                worker = ResidentWorker(
                    queue,
                    connection,
                    runner,
                    look_around=look_around,
                    heartbeat_s=heartbeat_s,
                    heartbeat_grace_s=heartbeat_grace_s,
                )
                return _work(queue, worker, models)
    except _Told:
        return OK
    except Taken as taken:
        logger.error("a worker already runs here (process %s)", taken.holder.get("pid", "unknown"))
    except StoreUnavailable as error:
        logger.error("%s", error)
        return NO_STORE
    return FAILED


class ModelList:
    """Tells the clients which models there are; looks at the folders again when asked."""

    def __init__(self, queue: RenderQueue, find_models: FindModels, describe: Describe) -> None:
        """Nothing is read yet."""
        self._queue = queue
        self._find_models = find_models
        self._describe = describe
        self._known: dict[str, Path] | None = None

    def publish(self) -> None:
        """Publish the list if it is another one than last time."""
        found = dict(self._find_models(self._queue.settings.models))
        if found == self._known:
            return
        self._queue.records.publish_models({n: self._about(p) for n, p in found.items()})
        self._known = found
        logger.info("models: %s", ", ".join(found) or "none yet")

    def _about(self, model: Path) -> dict[str, Any]:
        """A damaged model is listed with what is wrong with it."""
        try:
            return self._describe(model)
        except (EngineError, OSError) as error:
            return {"problems": [str(error)]}


def _work(queue: RenderQueue, worker: ResidentWorker, models: ModelList) -> int:
    with store_errors(queue.settings):
        for other in live_workers(queue.connection):
            if other.get("hostname") != socket.gethostname():
                logger.error("a worker on %s already serves this store", other.get("hostname"))
                return FAILED
        recover(queue)
        models.publish()
    try:
        worker.work(logging_level="WARNING")
    except redis.RedisError as error:
        logger.warning("the store was gone at the end: %s", error)
    with contextlib.suppress(redis.RedisError):
        recover(queue)  # a job that was popped in the moment of the signal
    logger.info("ended")
    return OK if worker.stop_requested else FAILED


def _tell(signum: int, frame: FrameType | None) -> None:
    raise _Told


def _await_store(queue: RenderQueue) -> None:
    """The store may be starting beside us, and its disk may be full."""
    give_up_at = time.monotonic() + STORE_WAIT_S
    told = False
    while True:
        try:
            with store_errors(queue.settings):
                if queue.writable():
                    return
        except StoreUnavailable:
            if time.monotonic() > give_up_at:
                raise
        except redis.BusyLoadingError:
            pass
        else:
            if not told:
                logger.warning("the store's disk is full: waiting until it has room")
            told = True
            ballast.drop(queue.settings)
        time.sleep(0.1)


@contextlib.contextmanager
def _connection(settings: Settings) -> Iterator[redis.Redis]:
    """RQ's connection: it sets a timeout of its own, longer than it waits for a job."""
    connection = redis.Redis.from_url(settings.store_url, socket_connect_timeout=2)
    try:
        yield connection
    finally:
        connection.close()
