"""The embedded store's process."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from farmtest import BOUND_S, eventually, spec

from h3farm.worker.identity import ProcessLock, Taken, process_start
from h3farm.worker.queue import RenderQueue, Settings, State, StoreUnavailable
from h3farm.worker.queue.process import LOG_BYTES
from h3farm.worker.store import Store, StoreFailed, log_file

pytestmark = pytest.mark.slow  # each test has processes of its own


def store_process(settings: Settings) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-m", "h3farm.worker.store"],
        env={**os.environ, "H3FARM_HOME": str(settings.home), "REDIS_URL": ""},
        stderr=subprocess.DEVNULL,
    )
    with RenderQueue(settings) as queue:
        eventually(lambda: answers(queue), "store answers")
    return process


def answers(queue: RenderQueue) -> bool:
    try:
        queue.ping()
    except StoreUnavailable:
        return False
    return True


@pytest.fixture
def server_pid(settings: Settings) -> Iterator[int]:
    process = store_process(settings)
    with RenderQueue(settings) as queue:
        pid = queue.connection.info("server")["process_id"]
    yield pid
    process.kill()
    process.wait()
    if process_start(pid):
        os.kill(pid, signal.SIGKILL)


def test_only_the_user_reaches_it(settings: Settings, store: Store) -> None:
    assert stat.S_IMODE(settings.socket.stat().st_mode) == 0o700
    assert stat.S_IMODE(settings.state.stat().st_mode) == 0o700


def test_it_keeps_every_write(settings: Settings, queue: RenderQueue, store: Store) -> None:
    config = queue.connection.config_get("append*")
    assert (config["appendonly"], config["appendfsync"]) == ("yes", "everysec")
    job = queue.submit(spec())
    store.stop()
    again = Store(settings)
    try:
        assert queue.get(job.id).state is State.QUEUED
    finally:
        again.stop()


def test_the_servers_log_is_bounded(settings: Settings) -> None:
    """It is begun anew at a start when it has become long."""
    settings.logs.mkdir(parents=True)
    log_file(settings).write_bytes(b"x" * (LOG_BYTES + 1))
    Store(settings).stop()
    Store(settings).stop()
    sizes = {path.name: path.stat().st_size for path in settings.logs.iterdir()}
    assert sizes["valkey.log.1"] == LOG_BYTES + 1
    assert sizes["valkey.log"] < LOG_BYTES


def test_a_second_one_on_the_same_folder_is_refused(settings: Settings, store: Store) -> None:
    with pytest.raises(Taken) as caught:
        Store(settings)
    assert caught.value.holder == {"pid": os.getpid()}


def test_one_that_cannot_start_says_why(settings: Settings) -> None:
    settings.store_folder.mkdir(parents=True)
    (settings.store_folder / "appendonlydir").mkdir()
    (settings.store_folder / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(StoreFailed, match=r"the store did not start: .*AOF manifest"):
        Store(settings)
    assert log_file(settings).exists()


def is_free(path: Path) -> bool:
    try:
        with ProcessLock(path):
            return True
    except Taken:
        return False


def test_a_server_whose_keeper_was_killed_is_replaced(settings: Settings, server_pid: int) -> None:
    """Its data is taken over, and two servers never write into one folder."""
    keeper = int((settings.state / "store.lock").read_text().split(":")[1].strip(" }"))
    with RenderQueue(settings) as queue:
        queue.records.publish_models({"tiny": {}})
        job = queue.submit(spec())
        os.kill(keeper, signal.SIGKILL)
        eventually(lambda: process_start(keeper) is None)
        eventually(lambda: is_free(settings.state / "store.lock"))  # its files close a little later
        assert process_start(server_pid)
        store = Store(settings)
        try:
            assert queue.get(job.id).state is State.QUEUED
            eventually(lambda: process_start(server_pid) is None)
        finally:
            store.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_keeper_and_server(settings: Settings, number: int) -> None:
    process = store_process(settings)
    with RenderQueue(settings) as queue:
        pid = queue.connection.info("server")["process_id"]
    process.send_signal(number)
    assert process.wait(BOUND_S) == 0
    assert process_start(pid) is None
    assert not settings.socket.exists()


def test_with_a_store_of_the_users_it_only_waits(settings: Settings) -> None:
    """A line of a Procfile that ends would end all the others."""
    process = subprocess.Popen(
        [sys.executable, "-m", "h3farm.worker.store"],
        env={
            **os.environ,
            "H3FARM_HOME": str(settings.home),
            "REDIS_URL": "redis://127.0.0.1:1/0",
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr:
        assert "none is started" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(BOUND_S) == 0
    assert not settings.store_folder.exists()
