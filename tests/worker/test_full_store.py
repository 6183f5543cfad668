"""A store whose disk is full: it can be read, takes nothing, and nobody is harmed by it."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from farmtest import WorkerProcess, eventually, run_to_end, spec, wait_until_running

from h3farm.engine.machine import Machine
from h3farm.worker import ballast
from h3farm.worker.queue import RenderQueue, Settings, State, StoreUnavailable

Start = Callable[..., WorkerProcess]


class FullDisk:
    """Has the server refuse writes as it does with a full disk: a snapshot of it must fail."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.store_folder / "dump.rdb"  # where the snapshot is to go
        self._connection = redis.Redis.from_url(settings.store_url)

    def fill(self) -> None:
        self._connection.config_set("save", "100000 100000")
        self._folder.mkdir()
        self._snapshot("err")
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            self._connection.ping()

    def free(self) -> None:
        self._folder.rmdir()
        self._snapshot("ok")
        self._folder.unlink()

    def _snapshot(self, status: str) -> None:
        self._connection.execute_command("BGSAVE")
        eventually(lambda: self._connection.info("persistence")["rdb_last_bgsave_status"] == status)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def disk(queue: RenderQueue) -> Iterator[FullDisk]:
    made = FullDisk(queue.settings)
    yield made
    made.close()


def test_a_full_store_can_be_read_and_says_why_it_takes_nothing(
    queue: RenderQueue, disk: FullDisk
) -> None:
    job = queue.submit(spec())
    disk.fill()
    queue.ping()
    assert [each.id for each in queue.list()] == [job.id]
    with pytest.raises(StoreUnavailable, match="takes nothing: its disk is full"):
        queue.submit(spec())
    disk.free()
    assert queue.submit(spec()).position == 1


@pytest.mark.slow
def test_a_worker_waits_for_a_full_store_when_it_begins_when_idle_and_at_the_end_of_a_job(
    queue: RenderQueue, disk: FullDisk, start_worker: Start
) -> None:
    """It does not die of it, and the render that runs is put down when there is room."""
    disk.fill()
    worker = start_worker(ready=False)
    eventually(lambda: "waiting until it has room" in worker.output())
    disk.free()
    job = queue.submit(spec("wait"))
    wait_until_running(queue, job.id)
    disk.fill()
    (queue.settings.home / "go").touch()
    eventually(lambda: not queue.writable())
    disk.free()
    assert run_to_end(queue, job.id).state is State.DONE
    eventually(lambda: queue.worker().state == "idle")
    disk.fill()
    disk.free()
    assert run_to_end(queue, queue.submit(spec("render")).id).state is State.DONE
    assert worker.process.poll() is None
    assert "Traceback" not in worker.output()


class Roomy(Machine):
    def free_disk(self, folder: Path) -> tuple[int, int]:
        return 0, 10**12


class Short(Machine):
    def free_disk(self, folder: Path) -> tuple[int, int]:
        return 0, ballast.SIZE_BYTES


def test_ballast_is_laid_down_where_there_is_plenty_and_can_be_dropped(settings: Settings) -> None:
    settings.state.mkdir(parents=True)
    ballast.keep(settings, Short())
    assert list(settings.state.iterdir()) == []
    ballast.keep(settings, Roomy())
    (made,) = settings.state.iterdir()
    assert made.stat().st_size == ballast.SIZE_BYTES
    assert made.stat().st_blocks * 512 >= ballast.SIZE_BYTES  # no hole
    ballast.drop(settings)
    ballast.drop(settings)
    assert list(settings.state.iterdir()) == []


def test_half_a_ballast_is_none(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.state.mkdir(parents=True)

    def half(path: Path, content: bytes) -> None:
        path.open("wb").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    ballast.keep(settings, Roomy())
    assert list(settings.state.iterdir()) == []
