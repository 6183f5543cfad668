"""`h3farm run`, with processes that are stand-ins or the real ones."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from farmtest import BOUND_S, STANDIN, eventually, run_to_end, spec, wait_until_running

from h3farm.worker.identity import process_start
from h3farm.worker.queue import RenderQueue, Settings, State, StoreUnavailable

pytestmark = pytest.mark.slow  # each test has processes of its own

# The supervisor around a stand-in worker and a stand-in dashboard, as a process of its own.
SUPERVISOR = """
import json, sys
from h3farm.worker.queue import Settings
from h3farm.worker.supervisor import CannotRun, Supervisor, default_commands
settings = Settings.from_env()
commands = default_commands(settings) | json.loads(sys.argv[1])
try:
    sys.exit(Supervisor(settings, commands).run())
except CannotRun as error:
    print(error)
    sys.exit(1)
"""
# Listens on the dashboard's port and ends with its parent, like the real one.
WEB = """
import os, socket, threading, time
from h3farm.worker.queue.process import end_with_parent

end_with_parent()
server = socket.create_server(("127.0.0.1", int(os.environ["H3FARM_PORT"])))
while True:
    server.accept()[0].close()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Farm:
    def __init__(self, settings: Settings, **commands: list[str]) -> None:
        self.settings = settings
        self.port = free_port()
        defaults = {
            "worker": [sys.executable, str(STANDIN)],
            "web": [sys.executable, "-c", WEB],
        }
        self.log = settings.home / f"farm-{self.port}.log"
        self._commands = defaults | commands
        self.process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", SUPERVISOR, json.dumps(self._commands)],
                env={
                    **os.environ,
                    "H3FARM_HOME": str(self.settings.home),
                    "H3FARM_PORT": str(self.port),
                    "REDIS_URL": "",
                },
                stdout=log,
                stderr=log,
            )

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def record(self) -> dict[str, Any]:
        return json.loads(self.settings.supervisor_file.read_bytes())

    def pids(self) -> list[int]:
        """The children's, and the server's."""
        with RenderQueue(self.settings) as queue:
            server = queue.connection.info("server")["process_id"]
        return [server, *self.record()["processes"].values()]

    def wait_until_ready(self) -> None:
        eventually(lambda: "the farm runs" in self.output(), "the farm runs")
        eventually(lambda: "ready (process" in self.output(), "worker ready")

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(BOUND_S)


@pytest.fixture
def start_farm(settings: Settings) -> Iterator[Callable[..., Farm]]:
    farms: list[Farm] = []

    def start(**commands: list[str]) -> Farm:
        farms.append(Farm(settings, **commands))
        return farms[-1]

    yield start
    for farm in farms:
        farm.end()


def gone(pids: list[int]) -> bool:
    return all(process_start(pid) is None for pid in pids)


def test_ctrl_c_ends_everything_and_the_job_is_at_the_front(
    settings: Settings, start_farm: Callable[..., Farm]
) -> None:
    farm = start_farm()
    farm.wait_until_ready()
    pids = farm.pids()
    with RenderQueue(settings) as queue:
        running, waiting = queue.submit(spec("hold")), queue.submit(spec("render"))
        wait_until_running(queue, running.id)
    assert farm.end() == 0
    assert gone(pids)
    assert not settings.supervisor_file.exists()
    assert "killed" not in farm.output()
    order = [line for line in farm.output().splitlines() if "ended" in line]
    assert [line.split()[1] for line in order][-3:] == ["worker", "store", "farm"]
    again = start_farm()
    again.wait_until_ready()
    with RenderQueue(settings) as queue:
        eventually(lambda: queue.get(running.id).attempts == 2)
        assert queue.get(waiting.id).position == 0
        queue.cancel(running.id)
        assert run_to_end(queue, waiting.id).state is State.DONE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_it_too(start_farm: Callable[..., Farm], number: int) -> None:
    farm = start_farm()
    farm.wait_until_ready()
    pids = farm.pids()
    farm.process.send_signal(number)
    assert farm.process.wait(BOUND_S) == 0
    assert gone(pids)


def test_under_nohup_it_outlives_its_terminal(start_farm: Callable[..., Farm]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does; children inherit it
    try:
        farm = start_farm()
    finally:
        signal.signal(signal.SIGHUP, before)
    farm.wait_until_ready()
    farm.process.send_signal(signal.SIGHUP)
    worker = farm.record()["processes"]["worker"]
    os.kill(worker, signal.SIGKILL)  # somebody must still be there to start it again
    eventually(lambda: farm.record()["processes"]["worker"] != worker, "worker started again")
    assert farm.process.poll() is None


def test_a_second_run_says_where_the_first_is(start_farm: Callable[..., Farm]) -> None:
    first = start_farm()
    first.wait_until_ready()
    second = start_farm()
    assert second.process.wait(BOUND_S) == 1
    assert second.output() == (
        f"The farm already runs (process {first.process.pid}): its dashboard is at "
        f"http://127.0.0.1:{first.port}/\n"
    )
    assert first.process.poll() is None


def test_a_busy_port_is_told_before_anything_starts(
    settings: Settings, start_farm: Callable[..., Farm], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(f"{__name__}.free_port", lambda: port)
        farm = start_farm()
        assert farm.process.wait(BOUND_S) == 1
    assert farm.output() == (
        f"Port {port} is in use by another program: set H3FARM_PORT to a free one.\n"
    )
    assert not settings.store_folder.exists()


def test_nothing_outlives_a_killed_supervisor_and_the_next_run_works(
    settings: Settings, start_farm: Callable[..., Farm]
) -> None:
    farm = start_farm()
    farm.wait_until_ready()
    pids = farm.pids()
    with RenderQueue(settings) as queue:
        job = queue.submit(spec("hold"))
        wait_until_running(queue, job.id)
    farm.process.kill()
    farm.process.wait()
    eventually(lambda: gone(pids), "orphans gone")
    assert settings.supervisor_file.exists()  # stale, and no obstacle
    again = start_farm()
    again.wait_until_ready()
    with RenderQueue(settings) as queue:
        eventually(lambda: queue.get(job.id).attempts == 2)
        assert queue.get(job.id).crashes == 0  # it was put back in order


@pytest.mark.parametrize("name", ["worker", "web", "store"])
def test_a_dead_process_is_started_again(
    settings: Settings, start_farm: Callable[..., Farm], name: str
) -> None:
    farm = start_farm()
    farm.wait_until_ready()
    dead = farm.record()["processes"][name]
    os.kill(dead, signal.SIGKILL)
    eventually(lambda: farm.record()["processes"][name] != dead, f"{name} again")
    assert f"{name} was ended by signal 9; it is started again in 0.5 s" in farm.output()
    with RenderQueue(settings) as queue:
        eventually(lambda: answers(queue) and queue.worker(), "worker is there")
        assert run_to_end(queue, queue.submit(spec("render")).id).state is State.DONE


def test_a_server_whose_keeper_has_just_been_killed_is_ended_too(
    start_farm: Callable[..., Farm],
) -> None:
    farm = start_farm()
    farm.wait_until_ready()
    pids = farm.pids()
    os.kill(farm.record()["processes"]["store"], signal.SIGKILL)
    eventually(lambda: "store was ended by signal 9" in farm.output())
    assert farm.end() == 0
    assert gone(pids)


def answers(queue: RenderQueue) -> bool:
    try:
        queue.ping()
    except StoreUnavailable:
        return False
    return True


def test_a_killed_workers_job_is_taken_up_again(
    settings: Settings, start_farm: Callable[..., Farm]
) -> None:
    farm = start_farm()
    farm.wait_until_ready()
    with RenderQueue(settings) as queue:
        job = queue.submit(spec("hold"))
        wait_until_running(queue, job.id)
        os.kill(farm.record()["processes"]["worker"], signal.SIGKILL)
        eventually(lambda: queue.get(job.id).attempts == 2)
        assert queue.get(job.id).crashes == 1


def test_a_crash_loop_says_so(start_farm: Callable[..., Farm]) -> None:
    farm = start_farm(web=[sys.executable, "-c", "raise SystemExit('no dashboard today')"])
    eventually(lambda: "web ended with exit code 1, 3 times in a row" in farm.output())
    assert "no dashboard today" in farm.output()
    assert farm.end() == 0


def test_a_store_that_does_not_start_ends_the_run(
    settings: Settings, start_farm: Callable[..., Farm]
) -> None:
    (settings.store_folder / "appendonlydir").mkdir(parents=True)
    (settings.store_folder / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    farm = start_farm()
    assert farm.process.wait(BOUND_S) == 1
    assert "The store did not start" in farm.output()


def test_a_worker_that_does_not_end_is_killed(
    settings: Settings, start_farm: Callable[..., Farm]
) -> None:
    stubborn = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up')\ntime.sleep(60)"
    farm = start_farm(worker=[sys.executable, "-u", "-c", stubborn])
    eventually(lambda: "the farm runs" in farm.output() and "up" in farm.output())
    pids = farm.pids()
    assert farm.end() == 0
    assert "worker does not end and is killed" in farm.output()
    assert gone(pids)


def test_the_procfile_starts_the_same_processes() -> None:
    """And each of its lines hands its process over to the program, so that signals reach it."""
    lines = (Path(__file__).parents[2] / "Procfile").read_text(encoding="utf-8").splitlines()
    assert lines == [
        f"{name}: exec ${{PYTHON:-.venv/bin/python}} -m h3farm.{module}"
        for name, module in (("store", "worker.store"), ("worker", "worker"), ("web", "web"))
    ]
