"""The disk is asked for room for everything that waits, before more is taken in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from farmtest import spec

from h3farm.engine.disk_sizes import disk_for_output, disk_for_work
from h3farm.engine.machine import Machine
from h3farm.worker.queue import RenderQueue, Settings, State
from h3farm.worker.queue.errors import NotEnoughDisk
from h3farm.worker.queue.room import RESERVE_BYTES
from h3farm.worker.store import Store

OUTPUT, WORK = disk_for_output(spec()), disk_for_work(spec())


class Disks(Machine):
    """The outputs' disk has `outputs` bytes free, that of the jobs `jobs`; None: it is the same."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.outputs = 10**15
        self.jobs: int | None = None

    def free_disk(self, folder: Path) -> tuple[int, int]:
        if folder == self._settings.outputs or self.jobs is None:
            return 1, self.outputs
        return 2, self.jobs


@pytest.fixture
def disks(settings: Settings) -> Disks:
    return Disks(settings)


@pytest.fixture
def farm(settings: Settings, store: Store, disks: Disks) -> Iterator[RenderQueue]:
    with RenderQueue(settings, machine=disks) as queue:
        queue.records.publish_models({"tiny": {}})
        yield queue


def test_all_that_waits_and_the_new_one_must_fit(farm: RenderQueue, disks: Disks) -> None:
    disks.outputs = 3 * OUTPUT + WORK + RESERVE_BYTES
    for number in range(3):
        farm.submit(spec(str(number)))
    with pytest.raises(NotEnoughDisk) as caught:
        farm.submit(spec("4"))
    needed = (4 * OUTPUT + WORK + RESERVE_BYTES) / 1e6
    assert str(caught.value) == (
        f"There is not enough room at {farm.settings.outputs}: 3 jobs that wait and this one can "
        f"take {needed:.0f} MB, and {disks.outputs / 1e6:.0f} MB are free. Free some space, or "
        "submit with `anyway`: a render that finds the disk full waits until there is room."
    )
    assert len(farm.list()) == 3
    assert len(list(farm.settings.jobs.iterdir())) == 3
    assert farm.submit(spec("4"), anyway=True).state is State.QUEUED


def test_what_is_over_needs_no_room_any_more(farm: RenderQueue, disks: Disks) -> None:
    disks.outputs = OUTPUT + WORK + RESERVE_BYTES
    first = farm.submit(spec("1"))
    with pytest.raises(NotEnoughDisk):
        farm.submit(spec("2"))
    farm.cancel(first.id)
    farm.submit(spec("2"))


def test_a_batch_is_refused_as_a_whole(farm: RenderQueue, disks: Disks) -> None:
    disks.outputs = 3 * OUTPUT
    with pytest.raises(NotEnoughDisk, match="the 40 new ones can take") as caught:
        farm.submit_many([spec(str(number)) for number in range(40)])
    assert str(farm.settings.outputs) in str(caught.value)
    assert farm.list() == []
    assert list(farm.settings.jobs.iterdir()) == []
    assert farm.batches() == []
    assert farm.submit_many([spec(str(n)) for n in range(40)], anyway=True).jobs == 40


@pytest.mark.parametrize("short", ["outputs", "jobs"])
def test_state_and_outputs_may_be_on_different_disks(
    farm: RenderQueue, disks: Disks, short: str
) -> None:
    disks.outputs, disks.jobs = OUTPUT + RESERVE_BYTES, WORK + RESERVE_BYTES
    setattr(disks, short, getattr(disks, short) - 1)
    with pytest.raises(NotEnoughDisk, match=str(getattr(farm.settings, short))):
        farm.submit(spec())
    setattr(disks, short, getattr(disks, short) + 1)
    farm.submit(spec())


def test_a_render_that_was_made_before_needs_no_room(farm: RenderQueue, disks: Disks) -> None:
    output = farm.settings.outputs / "fox"
    output.mkdir(parents=True)
    (output / "video.mp4").touch()
    first = farm.submit(spec(seed=7))
    farm.connection.lrem(farm.rq_queue.key, 1, first.id)
    farm.records.move(first.id, State.RUNNING)
    result = {"folder": str(output), "video": str(output / "video.mp4")}
    farm.records.move(first.id, State.DONE, result=result)
    disks.outputs = 0
    assert farm.submit(spec(seed=7)).same_as == first.id


def test_a_plan_warns_where_a_submit_refuses(farm: RenderQueue, disks: Disks) -> None:
    specs = [spec("a", seed=1), spec("b", seed=2)]
    assert not farm.plan(specs).warnings
    disks.outputs = OUTPUT
    with pytest.raises(NotEnoughDisk) as caught:
        farm.submit_many(specs)
    assert farm.plan(specs).warnings == [str(caught.value)]
