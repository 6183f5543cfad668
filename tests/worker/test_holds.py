"""Jobs that wait for room, and go on by themselves when there is some."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from farmtest import BOUND_S, WorkerProcess, eventually, run_to_end, spec

from h3farm.engine.disk_sizes import disk_for_output, disk_for_work
from h3farm.engine.machine import Machine
from h3farm.worker.holds import PATIENCE, Holds
from h3farm.worker.queue import RenderJob, RenderQueue, State, StoreUnavailable
from h3farm.worker.queue.job import stamp
from h3farm.worker.queue.room import RESERVE_BYTES

START = datetime(2026, 12, 1, 3, tzinfo=UTC)


class Fake(Machine):
    """A machine whose rooms the test sets. disks: device and free bytes by folder."""

    def __init__(self) -> None:
        self.disks: dict[Path, tuple[int, int]] = {}
        self.memory = 0

    def free_disk(self, folder: Path) -> tuple[int, int]:
        return self.disks[folder]

    def available_memory(self) -> int:
        return self.memory


@pytest.fixture
def machine(queue: RenderQueue) -> Fake:
    queue.machine = fake = Fake()
    fake.disks = {queue.settings.jobs: (1, 0), queue.settings.outputs: (1, 0)}
    return fake


def held(queue: RenderQueue, kind: str = "disk", **more: object) -> RenderJob:
    job = queue.submit(spec(), anyway=True)
    queue.connection.lrem(queue.rq_queue.key, 1, job.id)
    queue.records.move(job.id, State.RUNNING, attempts=1)
    hold = {"kind": kind, "sentence": "full", "since": stamp(START), **more}
    return queue.records.move(job.id, State.PAUSED, hold=hold)


def test_a_job_goes_on_in_front_when_its_disk_has_room(queue: RenderQueue, machine: Fake) -> None:
    other, job = queue.submit(spec(), anyway=True), held(queue)
    holds = Holds(queue, clock=lambda: START)
    holds.tick()
    assert queue.get(job.id).state is State.PAUSED
    needed = disk_for_output(job.spec) + disk_for_work(job.spec) + RESERVE_BYTES
    machine.disks = dict.fromkeys(machine.disks, (1, needed - 1))
    holds.tick()
    assert queue.get(job.id).state is State.PAUSED
    machine.disks = dict.fromkeys(machine.disks, (1, needed))
    holds.tick()
    assert [each.id for each in queue.list()] == [job.id, other.id]
    assert queue.get(job.id).hold is None
    assert queue.folders.read(job.id)["state"] == "queued"


@pytest.mark.parametrize("short", ["jobs", "outputs"])
def test_each_disk_is_asked_for_its_own_part(queue: RenderQueue, machine: Fake, short: str) -> None:
    """State and outputs may be on different disks."""
    job = held(queue)
    rooms = {
        queue.settings.jobs: (1, disk_for_work(job.spec) + RESERVE_BYTES),
        queue.settings.outputs: (2, disk_for_output(job.spec) + RESERVE_BYTES),
    }
    folder = getattr(queue.settings, short)
    machine.disks = rooms | {folder: (rooms[folder][0], rooms[folder][1] - 1)}
    holds = Holds(queue, clock=lambda: START)
    holds.tick()
    assert queue.get(job.id).state is State.PAUSED
    machine.disks = rooms
    holds.tick()
    assert queue.get(job.id).state is State.QUEUED


def test_what_its_work_files_have_already_is_not_needed_again(
    queue: RenderQueue, machine: Fake
) -> None:
    job = held(queue)
    rest = disk_for_output(job.spec) + disk_for_work(job.spec) + RESERVE_BYTES - 5000
    machine.disks = dict.fromkeys(machine.disks, (1, rest))
    holds = Holds(queue, clock=lambda: START)
    holds.tick()
    assert queue.get(job.id).state is State.PAUSED
    work = queue.folder(job.id) / "work"
    work.mkdir()
    (work / "frames.rgb").write_bytes(b"x" * 5000)
    holds.tick()
    assert queue.get(job.id).state is State.QUEUED


def test_a_disk_that_only_seems_to_have_room_is_not_tried_over_and_over(
    queue: RenderQueue, machine: Fake
) -> None:
    """A quota is not seen from outside."""
    machine.disks = dict.fromkeys(machine.disks, (1, 10**15))
    job, now = held(queue), START
    holds = Holds(queue, clock=lambda: now)
    holds.tick()
    assert queue.get(job.id).state is State.PAUSED
    now = START + PATIENCE
    holds.tick()
    assert queue.get(job.id).state is State.QUEUED


def test_memory_is_waited_for(queue: RenderQueue, machine: Fake) -> None:
    job = held(queue, "memory", needed_bytes=1000)
    holds = Holds(queue, clock=lambda: START)
    holds.tick()
    assert queue.get(job.id).state is State.PAUSED
    machine.memory = 1000
    holds.tick()
    assert queue.get(job.id).state is State.QUEUED


def test_a_store_that_is_away_in_that_moment_is_asked_again(
    queue: RenderQueue, machine: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = held(queue, "memory", needed_bytes=1000)
    holds = Holds(queue, clock=lambda: START)
    holds.tick()
    machine.memory = 1000

    def away(*_: object, **__: object) -> bool:
        raise StoreUnavailable("The farm is not running.")

    with monkeypatch.context() as patch:
        patch.setattr(type(queue), "let_go", away)
        holds.tick()
    assert queue.get(job.id).state is State.PAUSED
    holds.tick()
    assert queue.get(job.id).state is State.QUEUED


def test_what_the_user_paused_stays_paused(queue: RenderQueue, machine: Fake) -> None:
    machine.disks = dict.fromkeys(machine.disks, (1, 10**15))
    job = queue.submit(spec())
    queue.connection.lrem(queue.rq_queue.key, 1, job.id)
    queue.records.move(job.id, State.PAUSED)
    Holds(queue, clock=lambda: START + timedelta(days=1)).tick()
    assert queue.get(job.id).state is State.PAUSED


def test_a_held_job_can_be_cancelled(queue: RenderQueue, machine: Fake) -> None:
    job = held(queue)
    assert queue.cancel(job.id).state is State.CANCELLED
    machine.disks = dict.fromkeys(machine.disks, (1, 10**15))
    Holds(queue, clock=lambda: START + timedelta(days=1)).tick()
    assert queue.get(job.id).state is State.CANCELLED


@pytest.mark.slow
def test_a_full_disk_holds_its_job_and_not_the_others(
    queue: RenderQueue, start_worker: Callable[..., WorkerProcess]
) -> None:
    """The worker renders what fits meanwhile, and goes on with the other by itself."""
    full, small = queue.submit(spec("full")), queue.submit(spec("render"))
    start_worker()
    assert run_to_end(queue, small.id).state is State.DONE
    waits = queue.get(full.id).waits or ""
    assert waits.startswith("disk full: ")
    assert waits.endswith(f" are needed at {queue.settings.outputs}, and 0 bytes are free")
    started = queue.rq_queue.started_job_registry.get_job_ids(cleanup=False)
    assert (started, queue.rq_queue.failed_job_registry.get_job_ids(cleanup=False)) == ([], [])
    eventually(lambda: queue.worker().state == "idle")
    (queue.settings.home / "room").touch()
    eventually(lambda: queue.get(full.id).over, "it went on", 3 * BOUND_S)  # looks when idle
    assert queue.get(full.id).state is State.DONE
    assert queue.get(full.id).attempts == 2
