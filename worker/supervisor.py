"""`h3farm run`: starts store, worker and dashboard, keeps them running, ends them in order.

Everything that happens (a child ended, a signal came, the dashboard answers) arrives in one inbox,
and the main thread alone acts on it.
"""

import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from h3farm.engine.durable import write_durably
from h3farm.engine.errors import EngineError
from h3farm.worker.identity import ProcessLock, Taken
from h3farm.worker.queue import RenderQueue, Settings, StoreUnavailable
from h3farm.worker.queue.job import stamp, utc_now
from h3farm.worker.queue.process import log_to
from h3farm.worker.store import end_orphan

logger = logging.getLogger(__name__)

START_ORDER = ("store", "worker", "web")
STOP_GROUPS = (("worker", "web"), ("store",))
# Since the signal; Ctrl-C may take five seconds. The store ends at once when the worker is gone.
STOP_TIMEOUT_S = {"worker": 3.5, "web": 1.5, "store": 4.8}
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
STEADY_S = 30.0  # who lived so long is started again at once
LOOP_COUNT = 3
STORE_WAIT_S = 25.0
WEB_WAIT_S = 30.0
POLL_S = 0.05


class CannotRun(Exception):  # noqa: N818 - says why
    """The farm cannot be started; the text is a sentence for the user."""


def default_commands(settings: Settings) -> dict[str, list[str]]:
    """The command line of each process; no store when REDIS_URL names one."""
    modules = {"store": "worker.store", "worker": "worker", "web": "web"}
    if settings.redis_url:
        del modules["store"]
    return {name: [sys.executable, "-m", f"h3farm.{module}"] for name, module in modules.items()}


@dataclass(frozen=True, slots=True)
class _Message:
    """kind: "exit" (name, process, code), "signal" or "answers"."""

    kind: str
    name: str = ""
    process: subprocess.Popen[bytes] | None = None


class Child:
    """One process of the farm: its command, its life, and when it is to be started again."""

    def __init__(
        self, name: str, command: Sequence[str], inbox: "queue.SimpleQueue[_Message]"
    ) -> None:
        """Nothing is started yet."""
        self.name = name
        self._command = command
        self._inbox = inbox
        self.process: subprocess.Popen[bytes] | None = None
        self.restart_at: float | None = None
        self._started_at = 0.0
        self._quick_ends = 0

    def start(self) -> None:
        """Start it in a session of its own: a Ctrl-C in the terminal is ours to pass on."""
        self.restart_at = None
        self._started_at = time.monotonic()
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, start_new_session=True
        )
        threading.Thread(target=self._tell_end, args=(self.process,), name=self.name).start()

    def _tell_end(self, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        self._inbox.put(_Message("exit", self.name, process))

    @property
    def running(self) -> bool:
        """Whether it has been started and not ended."""
        return self.process is not None and self.process.poll() is None

    def plan_restart(self) -> str:
        """It ended by itself: when it is started again, in words."""
        code = self.process.returncode if self.process else 0
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        now = time.monotonic()
        self._quick_ends = 0 if now - self._started_at > STEADY_S else self._quick_ends + 1
        wait_s = min(FIRST_WAIT_S * 2 ** max(0, self._quick_ends - 1), LONGEST_WAIT_S)
        self.restart_at = now + wait_s
        if self._quick_ends >= LOOP_COUNT:
            return (
                f"{ended}, {self._quick_ends} times in a row soon after its start: the lines above "
                f"say why. It is tried again in {wait_s:.0f} s"
            )
        return f"{ended}; it is started again in {wait_s:.1f} s"

    def signal(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """Runs the processes until a signal. `commands` is a seam for the tests."""

    def __init__(
        self, settings: Settings, commands: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Nothing is started yet."""
        self._settings = settings
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        commands = default_commands(settings) if commands is None else commands
        self._children = {
            name: Child(name, commands[name], self._inbox)
            for name in START_ORDER
            if name in commands
        }
        self._started_at = stamp(utc_now())

    def run(self) -> int:
        """Run until SIGINT, SIGTERM or SIGHUP, then end everything in order; 0. CannotRun."""
        try:
            lock = ProcessLock(self._settings.state / "supervisor.lock")
        except Taken as taken:
            raise CannotRun(self._already_runs(taken.holder)) from None
        except OSError as error:
            raise CannotRun(f"The farm cannot use {self._settings.home}: {error}.") from error
        with lock:
            check_port(self._settings.port)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # under nohup the farm outlives its terminal
                signal.signal(number, lambda *_: self._inbox.put(_Message("signal")))
            log_to("farm", self._settings.logs)
            try:
                if self._start():
                    self._watch()
            finally:
                self._stop()
                self._settings.supervisor_file.unlink(missing_ok=True)
        return 0

    def _start(self) -> bool:
        """Start the processes in order; False when a signal came meanwhile."""
        if "store" in self._children:
            self._children["store"].start()
        if not self._await_store():
            return False
        for child in self._children.values():
            if not child.running:
                child.start()
        self._write_down()
        threading.Thread(target=self._await_dashboard, name="dashboard", daemon=True).start()
        return True

    def _await_store(self) -> bool:
        store = self._children.get("store")
        give_up_at = time.monotonic() + STORE_WAIT_S
        with RenderQueue(self._settings) as farm:
            while True:
                try:
                    farm.ping()
                except StoreUnavailable as error:
                    if store is None or not store.running or time.monotonic() > give_up_at:
                        reason = "its lines above say why" if store else str(error)
                        raise CannotRun(f"The store did not start: {reason}") from error
                else:
                    return True
                with suppress(queue.Empty):
                    if self._inbox.get(timeout=POLL_S).kind == "signal":
                        return False

    def _await_dashboard(self) -> None:
        """Tell the address once somebody listens there."""
        give_up_at = time.monotonic() + WEB_WAIT_S
        while time.monotonic() < give_up_at:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self._settings.port), timeout=1).close()
                self._inbox.put(_Message("answers"))
                return
            time.sleep(POLL_S * 2)

    def _watch(self) -> None:
        """Act on what happens until a signal comes."""
        while True:
            due = [c.restart_at for c in self._children.values() if c.restart_at is not None]
            timeout = max(0.0, min(due) - time.monotonic()) if due else None
            with suppress(queue.Empty):
                message = self._inbox.get(timeout=timeout)
                if message.kind == "signal":
                    return
                self._act(message)
            for child in self._children.values():
                if child.restart_at is not None and child.restart_at <= time.monotonic():
                    child.start()
                    self._write_down()

    def _act(self, message: _Message) -> None:
        if message.kind == "answers":
            logger.info("the farm runs; dashboard: %s (Ctrl-C ends it)", self._settings.dashboard)
            return
        child = self._children[message.name]
        if message.process is child.process:
            logger.warning("%s %s", child.name, child.plan_restart())

    def _stop(self) -> None:
        """The worker puts its job back while the store is there, so the store goes last."""
        running = [child for child in self._children.values() if child.running]
        if running:
            logger.info("ending the farm")
        began = time.monotonic()
        for group in STOP_GROUPS:
            children = [self._children[name] for name in group if name in self._children]
            for child in children:
                child.signal(signal.SIGTERM)
            for child in children:
                self._await_end(child, began + STOP_TIMEOUT_S[child.name])
        if "store" in self._children:
            end_orphan(self._settings)  # its keeper may have been killed a moment ago
        if running:
            logger.info("the farm has ended")

    def _await_end(self, child: Child, deadline: float) -> None:
        """Wait for its end; a second signal, or the deadline, has it killed."""
        while child.running and time.monotonic() < deadline:
            with suppress(queue.Empty):
                if self._inbox.get(timeout=POLL_S).kind == "signal":
                    break
        if child.running:
            logger.warning("%s does not end and is killed", child.name)
            child.signal(signal.SIGKILL)
        if child.process is not None:
            child.process.wait()

    def _write_down(self) -> None:
        """For a second `run`, and for anyone who looks for the dashboard."""
        record = {
            "pid": os.getpid(),
            "dashboard": self._settings.dashboard,
            "store": self._settings.store_name,
            "started_at": self._started_at,
            "processes": {c.name: c.process.pid for c in self._children.values() if c.process},
        }
        try:
            write_durably(self._settings.supervisor_file, json.dumps(record, indent=1).encode())
        except EngineError as error:
            logger.warning("%s", error)

    def _already_runs(self, holder: Mapping[str, Any]) -> str:
        dashboard = read_supervisor_file(self._settings).get("dashboard", self._settings.dashboard)
        pid = holder.get("pid", "unknown")
        return f"The farm already runs (process {pid}): its dashboard is at {dashboard}"


def check_port(port: int) -> None:
    """CannotRun when somebody else listens there: found out before anything is started."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT does not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CannotRun(
                f"Port {port} is in use by another program: set H3FARM_PORT to a free one."
            ) from error


def read_supervisor_file(settings: Settings) -> dict[str, Any]:
    """What the supervisor wrote down; empty when there is nothing to read."""
    try:
        record = json.loads(settings.supervisor_file.read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def run(settings: Settings) -> int:
    """`h3farm run`. CannotRun says why it could not be started."""
    return Supervisor(settings).run()
