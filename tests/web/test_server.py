"""The process: where it listens, and how it ends."""

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

READY = "The dashboard is at"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A farm of its own, without a store: the dashboard starts anyway."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("H3FARM")}
    kept.pop("REDIS_URL", None)
    return kept | {"H3FARM_HOME": str(tmp_path), "H3FARM_PORT": str(free_port())}


@pytest.fixture
def server(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "h3farm.web"], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert any(READY in line for line in process.stderr)
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_with_open_streams_and_half_read_videos(
    server: subprocess.Popen[str], environment: dict[str, str], number: int
) -> None:
    """No thread may wait for a stream, or for a paused player that stopped reading."""
    port = int(environment["H3FARM_PORT"])
    folder = Path(environment["H3FARM_HOME"], "outputs", "2026-11-30", "1842-fox-3f2a")
    folder.mkdir(parents=True)
    (folder / "render.json").write_text("{}")
    with (folder / "video.mp4").open("wb") as video:
        video.truncate(64 * 1024 * 1024)
    connections = []
    for path, headers in (
        ("/api/events", {}),
        ("/api/events", {}),
        ("/media/2026-11-30/1842-fox-3f2a/video.mp4", {"Range": "bytes=1000-"}),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.status in (200, 206)
        assert answer.read(10)
        connections.append((connection, answer))
    server.send_signal(number)
    # Waitress gives threads 5 s to end and then says that some are still running.
    _, log = server.communicate(timeout=30)
    assert server.returncode == 0
    assert "still running" not in log
    for connection, answer in connections:
        answer.close()
        connection.close()


def test_ranges_are_sent_by_the_server_itself_and_whole(
    server: subprocess.Popen[str], environment: dict[str, str]
) -> None:
    content = os.urandom(300_000)
    folder = Path(environment["H3FARM_HOME"], "outputs", "2026-11-30", "1842-fox-3f2a")
    folder.mkdir(parents=True)
    (folder / "render.json").write_text("{}")
    (folder / "video.mp4").write_bytes(content)
    connection = http.client.HTTPConnection(
        "127.0.0.1", int(environment["H3FARM_PORT"]), timeout=20
    )
    for start, end in ((0, 299_999), (1, 1), (100_000, 250_000), (299_999, 299_999)):
        headers = {"Range": f"bytes={start}-{end}"}
        connection.request("GET", "/media/2026-11-30/1842-fox-3f2a/video.mp4", headers=headers)
        answer = connection.getresponse()
        assert answer.read() == content[start : end + 1]
        assert answer.headers["Content-Range"] == f"bytes {start}-{end}/300000"
    connection.close()


def test_it_listens_on_loopback_only(
    server: subprocess.Popen[str], environment: dict[str, str]
) -> None:
    """Other addresses of this machine stand for the outside; macOS has only one in 127/8."""
    for other in ("::1", "127.0.0.2") if sys.platform == "linux" else ("::1",):
        with pytest.raises(OSError):
            socket.create_connection((other, int(environment["H3FARM_PORT"])), timeout=5).close()
    assert server.poll() is None


def test_a_port_that_is_taken_is_one_sentence(environment: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(environment["H3FARM_PORT"])))
        taken.listen()
        done = subprocess.run(
            [sys.executable, "-m", "h3farm.web"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "H3FARM_PORT chooses another port" in done.stderr


def test_wrong_settings_are_one_sentence(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "h3farm.web"],
        env=environment | {"H3FARM_PORT": "http"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "H3FARM_PORT is 'http': it must be a whole number from 1 to 65535.\n"


def test_it_ends_when_its_supervisor_was_killed(environment: dict[str, str]) -> None:
    """Else the next farm would find its port taken."""
    start = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'h3farm.web'])"
    with subprocess.Popen(
        [sys.executable, "-c", start], env=environment, stderr=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stderr is not None
        assert any(READY in line for line in supervisor.stderr)
        supervisor.kill()
        supervisor.communicate(timeout=30)  # until the last process that holds stderr has ended


def test_it_logs_where_the_farm_does(
    server: subprocess.Popen[str], environment: dict[str, str]
) -> None:
    server.terminate()
    server.communicate(timeout=30)
    log = Path(environment["H3FARM_HOME"], "state", "logs", "web.log").read_text()
    assert READY in log
