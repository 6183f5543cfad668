"""Fixtures and helpers: a real store and real worker processes, each in a folder of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue import RenderJob, RenderQueue, Settings
from h3farm.worker.store import Store

BOUND_S = 20.0
STANDIN = Path(__file__).parent / "standin_worker.py"


def eventually(condition: Callable[[], object], what: str = "", bound_s: float = BOUND_S) -> None:
    """Wait until the condition holds; the bound only ends a test that would fail anyway."""
    deadline = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what or condition}"
        time.sleep(0.01)


@pytest.fixture
def home() -> Iterator[Path]:
    """Short enough for a socket's path; with a space and a letter that is not ASCII."""
    with tempfile.TemporaryDirectory(prefix="h3 fä", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings(home=home, outputs=home / "outputs", models=(home / "models",))


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    running = Store(settings)
    yield running
    running.stop()


@pytest.fixture
def queue(settings: Settings, store: Store) -> Iterator[RenderQueue]:
    with RenderQueue(settings) as farm:
        farm.records.publish_models({"tiny": {}})
        yield farm


def spec(prompt: str = "a fox", **fields: object) -> RenderSpec:
    return RenderSpec.from_json({"prompt": prompt, "model": "tiny", **fields})


def run_to_end(queue: RenderQueue, job_id: str) -> RenderJob:
    """The job, once it is over."""
    eventually(lambda: queue.get(job_id).over, f"{job_id} over")
    return queue.get(job_id)


def wait_until_running(queue: RenderQueue, job_id: str) -> None:
    """Until the engine has reported something: it is inside of the render."""
    eventually(lambda: queue.get(job_id).progress, f"{job_id} running")


class WorkerProcess:
    """A worker process; by default with the stand-in engine, which does what the prompt says."""

    def __init__(
        self, settings: Settings, *arguments: str, command: Sequence[str] = (str(STANDIN),)
    ) -> None:
        self.log = settings.home / f"worker-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command, *arguments],
                env={
                    **os.environ,
                    "H3FARM_HOME": str(settings.home),
                    "H3FARM_MODELS": os.pathsep.join(map(str, settings.models)),
                    "REDIS_URL": "",
                },
                stdout=log,
                stderr=log,
            )

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(BOUND_S)

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start_worker(settings: Settings, queue: RenderQueue) -> Iterator[Callable[..., WorkerProcess]]:
    started: list[WorkerProcess] = []

    def start(*arguments: str, ready: bool = True) -> WorkerProcess:
        worker = WorkerProcess(settings, *arguments)
        started.append(worker)
        if ready:
            eventually(lambda: "ready" in worker.output(), "worker ready")
        return worker

    with contextlib.ExitStack() as stack:
        yield start
        for worker in started:
            stack.callback(worker.end)
