"""The farm with its own engine: a prompt in, a video out, and everything that may come between."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from farmtest import BOUND_S, WorkerProcess, eventually, run_to_end, wait_until_running
from test_supervisor import free_port

from h3farm.engine.spec import RenderSpec
from h3farm.worker.identity import process_start
from h3farm.worker.queue import RenderQueue, Settings, State, StoreUnavailable

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "golden" / "tiny-h3"
Start = Callable[..., WorkerProcess]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, models=(TINY,))


def spec(prompt: str, **fields: object) -> RenderSpec:
    """Small: a fraction of a second."""
    small = {"width": 64, "height": 96, "frames": 22, "steps": 2, "model": "tiny-h3"}
    return RenderSpec.from_json({"prompt": prompt, **small, **fields})


def long_spec() -> RenderSpec:
    """A minute, many steps of a fraction of a second."""
    return spec("a long one", width=512, height=512, frames=56, steps=200)


@pytest.fixture
def worker(settings: Settings, queue: RenderQueue) -> Iterator[WorkerProcess]:
    running = WorkerProcess(settings, command=["-m", "h3farm.worker"])
    eventually(lambda: "ready (process" in running.output(), "worker ready")
    yield running
    running.end()


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_prompt_becomes_a_video(queue: RenderQueue, worker: WorkerProcess) -> None:
    job = run_to_end(queue, queue.submit(spec("Füchse im Schnee")).id)
    assert (job.state, job.error) == (State.DONE, None)
    assert job.result is not None
    folder = Path(job.result["folder"])
    assert files(folder) == ["log.txt", "poster.jpg", "render.json", "video.mp4"]
    assert b"ftyp" in Path(job.result["video"]).read_bytes()[:16]
    sidecar = json.loads(Path(job.result["sidecar"]).read_text(encoding="utf-8"))
    assert sidecar["spec"] == job.spec.to_json()
    assert job.progress is not None
    assert job.progress.phase == "assemble"


def test_the_model_stays_open_between_jobs(queue: RenderQueue, worker: WorkerProcess) -> None:
    for prompt in ("one", "two", "three"):
        assert run_to_end(queue, queue.submit(spec(prompt)).id).state is State.DONE
    assert worker.output().count(f"opening {TINY}") == 1


@pytest.mark.parametrize("phase", ["check", "denoise"])
def test_a_cancel_leaves_nothing_half_written(
    queue: RenderQueue, worker: WorkerProcess, phase: str
) -> None:
    job = queue.submit(long_spec())
    wait_until_running(queue, job.id)
    if phase == "denoise":
        eventually(lambda: queue.get(job.id).progress.phase == phase)
    queue.cancel(job.id)
    assert run_to_end(queue, job.id).state is State.CANCELLED
    assert not queue.settings.outputs.exists() or files(queue.settings.outputs) == []
    assert files(queue.folder(job.id)) == ["job.json", "log.txt"]
    assert run_to_end(queue, queue.submit(spec("next")).id).state is State.DONE


def test_a_signal_puts_the_job_back_and_the_next_worker_renders_it(
    queue: RenderQueue, settings: Settings, worker: WorkerProcess
) -> None:
    job = queue.submit(long_spec())
    second = queue.submit(spec("second"))
    wait_until_running(queue, job.id)
    worker.send(signal.SIGINT)
    assert worker.wait() == 0
    assert [(j.id, j.state) for j in queue.list()] == [
        (job.id, State.QUEUED),
        (second.id, State.QUEUED),
    ]
    again = WorkerProcess(settings, command=["-m", "h3farm.worker"])
    try:
        eventually(lambda: queue.get(job.id).attempts == 2)
        queue.cancel(job.id)
        assert run_to_end(queue, second.id).state is State.DONE
    finally:
        again.end()


def test_a_damaged_model_is_a_reason_in_words(
    settings: Settings, queue: RenderQueue, home: Path
) -> None:
    broken = home / "models" / "broken"
    for path in TINY.rglob("*"):
        if path.is_file():
            copy = broken / path.relative_to(TINY)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(path)
    shard = next(iter((broken / "FL2VA" / "transformer").glob("*.safetensors")))
    content = shard.read_bytes()[:1000]
    shard.unlink()
    shard.write_bytes(content)
    worker = WorkerProcess(replace(settings, models=(broken,)), command=["-m", "h3farm.worker"])
    try:
        eventually(lambda: "ready (process" in worker.output())
        assert queue.models()["broken"]["problems"]
        job = run_to_end(queue, queue.submit(spec("a fox", model="broken")).id)
        assert job.error is not None
        assert (job.state, job.error["kind"]) == (State.FAILED, "checkpoint")
        assert shard.name in job.error["sentence"]
    finally:
        worker.end()


def test_the_procfile_ends_cleanly_with_a_job_at_work(settings: Settings) -> None:
    """honcho signals all processes at once: the store must outlive the worker."""
    log = settings.home / "honcho.log"
    with log.open("wb") as output:
        honcho = subprocess.Popen(
            [Path(sys.executable).with_name("honcho"), "-f", str(ROOT / "Procfile"), "start"],
            cwd=ROOT,
            env={
                **os.environ,
                "H3FARM_HOME": str(settings.home),
                "H3FARM_MODELS": str(TINY),
                "H3FARM_PORT": str(free_port()),
                "REDIS_URL": "",
                "PYTHON": sys.executable,
            },
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    with RenderQueue(settings) as queue:
        try:
            eventually(lambda: "ready (process" in log.read_text(), "worker ready", 60)
            job = queue.submit(long_spec())
            wait_until_running(queue, job.id)
            server = queue.connection.info("server")["process_id"]
        finally:
            honcho.send_signal(signal.SIGINT)
            honcho.wait(BOUND_S)
    output_text = log.read_text()
    assert "goes back to the front of the queue" in output_text
    assert "Traceback" not in output_text
    assert process_start(server) is None
    with pytest.raises(StoreUnavailable):
        RenderQueue.connect(settings)
    record = json.loads((settings.jobs / job.id / "job.json").read_text())
    assert (record["state"], record["crashes"]) == ("queued", 0)


def test_progress_reaches_other_processes(queue: RenderQueue, worker: WorkerProcess) -> None:
    phases: list[str] = []
    with queue.watch(1) as events:
        job = queue.submit(spec("a fox", steps=8, width=256, height=256))
        while (event := next(events)) is None or event.state is not State.DONE:
            if event and event.progress and event.progress.phase not in phases:
                phases.append(event.progress.phase)
    assert phases[-1] == "assemble"
    assert queue.get(job.id).state is State.DONE
