"""What may be deleted, when, and what never: the worker's sweeping and `h3farm clean`."""

import fcntl
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from farmtest import spec

from h3farm.worker.queue import RenderJob, RenderQueue, State
from h3farm.worker.queue.job import stamp, utc_now
from h3farm.worker.retention import Retention, Sweeper, jobs_on_disk, stored_jobs

DAY = timedelta(days=1)
LEFT = ".1842-fox-3f2a.0123456789abcdef.partial"


@pytest.fixture
def retention(queue: RenderQueue) -> Retention:
    return Retention(queue.settings, stored_jobs(queue))


def over(queue: RenderQueue, state: State, days: float, **fields: object) -> RenderJob:
    """A job that came to its end so long ago, with work files."""
    job = queue.submit(spec())
    queue.connection.lrem(queue.rq_queue.key, 1, job.id)
    queue.records.move(job.id, State.RUNNING)
    ended = stamp(utc_now() - days * DAY)
    job = queue.records.move(job.id, state, ended_at=ended, **fields)
    work(queue, job)
    return job


def work(queue: RenderQueue, job: RenderJob) -> Path:
    folder = queue.folder(job.id) / "work"
    folder.mkdir()
    (folder / "latents").write_bytes(b"x" * 1000)
    return folder


def abandoned(path: Path) -> Path:
    """A folder whose writer was killed some time ago."""
    path.mkdir(parents=True)
    (path / "video.mp4").write_bytes(b"half")
    os.utime(path, (0, 0))
    return path


@pytest.fixture
def held() -> Iterator[list[int]]:
    locks: list[int] = []
    yield locks
    for lock in locks:
        os.close(lock)


def hold(path: Path, held: list[int]) -> None:
    held.append(os.open(path, os.O_RDONLY))
    fcntl.flock(held[-1], fcntl.LOCK_EX)


@pytest.mark.parametrize(
    ("state", "days", "goes"),
    [
        (State.DONE, 0, True),
        (State.CANCELLED, 0, True),
        (State.FAILED, 6.9, False),
        (State.FAILED, 7.1, True),
    ],
)
def test_work_files_go_when_nobody_can_go_on_from_them(
    queue: RenderQueue, retention: Retention, state: State, days: float, goes: bool
) -> None:
    """A failed job can be tried again from its resume point, for some days."""
    job = over(queue, state, days)
    assert [item.job for item in retention.work()] == [job.id] * goes


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.PAUSED])
def test_a_job_that_is_not_over_keeps_its_work_files(
    queue: RenderQueue, retention: Retention, state: State
) -> None:
    job = queue.submit(spec())
    if state is not State.QUEUED:
        queue.records.move(job.id, state)
    work(queue, job)
    assert list(retention.work(0)) == []


def test_a_record_stays_as_long_as_its_video(queue: RenderQueue, retention: Retention) -> None:
    output = queue.settings.outputs / "2026-01-01" / "fox"
    output.mkdir(parents=True)
    job = over(queue, State.DONE, 1000, result={"folder": str(output)})
    assert list(retention.records(0)) == []
    output.rmdir()
    (item,) = retention.records()
    assert item.job == job.id
    assert item.reason == "the job was done 1000 days ago, and its video is gone"


def test_a_record_without_a_video_stays_90_days(queue: RenderQueue, retention: Retention) -> None:
    over(queue, State.FAILED, 89)
    old = over(queue, State.FAILED, 91)
    assert [item.job for item in retention.records()] == [old.id]


def test_what_a_killed_writer_left_goes_and_a_living_ones_stays(
    queue: RenderQueue, retention: Retention, held: list[int]
) -> None:
    outputs = queue.settings.outputs
    dead = [abandoned(outputs / "2026-01-01" / LEFT), abandoned(outputs / ".work-ab_12xyz")]
    living = [abandoned(outputs / "2026-01-02" / LEFT), abandoned(outputs / ".work-abcdefgh")]
    for path in living:
        hold(path, held)
    assert sorted(item.path for item in retention.leftovers()) == sorted(dead)


@pytest.mark.parametrize(
    "name",
    ["2026-01-01/1842-fox-3f2a", "2026-01-01/.mine.partial", ".work-in-progress-of-mine", "work"],
)
def test_nothing_else_in_the_outputs_is_ours(
    queue: RenderQueue, retention: Retention, name: str
) -> None:
    abandoned(queue.settings.outputs / name)
    assert list(retention.leftovers()) == []


def test_a_young_folder_may_not_be_locked_yet(queue: RenderQueue, retention: Retention) -> None:
    (queue.settings.outputs / ".work-abcdefgh").mkdir(parents=True)
    assert list(retention.leftovers()) == []


def test_a_writer_that_took_it_meanwhile_keeps_it(
    queue: RenderQueue, retention: Retention, held: list[int]
) -> None:
    path = abandoned(queue.settings.outputs / "2026-01-01" / LEFT)
    (item,) = retention.leftovers()
    hold(path, held)
    retention.delete(item)
    assert (path / "video.mp4").exists()


def test_the_worker_sweeps_work_files_and_remains_and_no_record(queue: RenderQueue) -> None:
    job = over(queue, State.FAILED, 1000)
    path = abandoned(queue.settings.outputs / "2026-01-01" / LEFT)
    now = 0.0
    sweeper = Sweeper(queue, now=lambda: now, every_s=3600)
    sweeper.tick()
    assert not path.parent.exists()
    assert [each.name for each in queue.folder(job.id).iterdir()] == ["job.json"]
    assert queue.get(job.id) == job
    later = over(queue, State.DONE, 1)
    sweeper.tick()
    assert (queue.folder(later.id) / "work").exists()  # it is not time yet
    now = 3601.0
    sweeper.tick()
    assert not (queue.folder(later.id) / "work").exists()


def test_a_cleaning_that_was_killed_is_finished_by_the_next(
    queue: RenderQueue, retention: Retention
) -> None:
    trash = queue.settings.state / "trash" / "1"
    trash.mkdir(parents=True)
    (item,) = retention.leftovers()
    retention.delete(item)
    assert not trash.parent.exists()


def test_a_symbolic_link_is_not_followed(
    queue: RenderQueue, retention: Retention, tmp_path: Path
) -> None:
    (tmp_path / "video.mp4").touch()
    link = queue.settings.outputs / "2026-01-01" / LEFT
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path)
    os.utime(tmp_path, (0, 0))
    assert list(retention.leftovers()) == []


def test_a_record_that_cannot_be_read_is_not_ours_to_delete(queue: RenderQueue) -> None:
    """Without a store its folder is all there is; it may be of a later version."""
    job = over(queue, State.DONE, 1000)
    find = jobs_on_disk(queue.settings)
    assert find(job.id) == job
    (queue.folder(job.id) / "job.json").write_text('{"id": "x", "state": "archived"}')
    assert list(Retention(queue.settings, find).work(0)) == []


def test_a_job_that_was_taken_up_again_is_not_forgotten(queue: RenderQueue) -> None:
    job = over(queue, State.FAILED, 1000)
    queue.records.move(job.id, State.QUEUED)
    assert not queue.forget(job.id)
    assert queue.records.get(job.id).state is State.QUEUED
