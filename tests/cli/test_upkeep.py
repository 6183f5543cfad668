"""logs and clean."""

import json
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from clitest import Answer
from farmtest import BOUND_S, WorkerProcess, eventually, run_to_end, spec, wait_until_running

from h3farm.worker.job_log import job_log
from h3farm.worker.queue import RenderJob, RenderQueue, State
from h3farm.worker.queue.job import stamp, utc_now
from h3farm.worker.queue.log_reader import LogReader
from h3farm.worker.store import Store

H3farm = Callable[..., Answer]
Start = Callable[..., WorkerProcess]
Process = Callable[..., "subprocess.Popen[str]"]


def failed(queue: RenderQueue, days: int) -> RenderJob:
    """A job that failed so long ago, with work files."""
    job = queue.submit(spec())
    queue.connection.lrem(queue.rq_queue.key, 1, job.id)
    queue.records.move(job.id, State.RUNNING)
    ended = stamp(utc_now() - timedelta(days=days))
    queue.records.move(job.id, State.FAILED, ended_at=ended)
    work = queue.folder(job.id) / "work"
    work.mkdir()
    (work / "latents").write_bytes(b"x" * 2000)
    return job


def test_logs_prints_what_the_log_says_without_a_farm(
    queue: RenderQueue, store: Store, h3farm: H3farm
) -> None:
    job = queue.submit(spec())
    queue.log(job.id).write_text("a fox\x1b[31m\nzwei Füchse\n", encoding="utf-8")
    store.stop()
    assert h3farm("logs", job.id) == Answer(0, "a fox [31m\nzwei Füchse\n", "")
    as_json = json.loads(h3farm("logs", job.id, "--json").out)
    assert as_json == {
        "job": job.id,
        "log": str(queue.log(job.id)),
        "text": "a fox\x1b[31m\nzwei Füchse\n",
    }


def test_logs_of_a_job_that_no_worker_has_begun(queue: RenderQueue, h3farm: H3farm) -> None:
    answer = h3farm("logs", queue.submit(spec()).id)
    assert answer == Answer(0, "", "There is no log yet: no worker has begun the job.\n")


@pytest.mark.parametrize("name", ["nope", "../logs", ".", "a\0b"])
def test_logs_of_an_unknown_job_is_code_4(queue: RenderQueue, h3farm: H3farm, name: str) -> None:
    assert h3farm("logs", name).code == 4


@pytest.mark.slow
def test_logs_follows_to_the_end_of_the_job(
    queue: RenderQueue, start_worker: Start, start_h3farm: Process
) -> None:
    job = queue.submit(spec("wait"))
    process = start_h3farm("logs", job.id, "--follow")
    start_worker()
    wait_until_running(queue, job.id)
    assert process.poll() is None
    (queue.settings.home / "go").touch()
    run_to_end(queue, job.id)
    out, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0
    assert "attempt 1: wait" in out.splitlines()[0]
    assert f"{job.id}: done" in out.splitlines()[-1]


def test_a_reader_follows_a_log_that_becomes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest lines are kept, and none of them is read twice or missed."""
    import logging

    monkeypatch.setattr("h3farm.worker.job_log.LOG_BYTES", 1000)
    logger, path = logging.getLogger("h3farm.test"), tmp_path / "log.txt"
    logger.setLevel(logging.INFO)
    reader, read = LogReader(path), ""
    with job_log(path):
        for number in range(100):
            logger.info("line %d ä", number)
            read += reader.read()
    assert [line.split()[-2] for line in read.splitlines()] == [str(n) for n in range(100)]
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 2000
    assert LogReader(path).read().endswith(read[-200:])


def test_clean_says_what_would_go_and_then_does_it(queue: RenderQueue, h3farm: H3farm) -> None:
    young, old, ancient = (failed(queue, days) for days in (1, 8, 100))
    listed = h3farm("clean", "--dry-run")
    assert listed.code == 0
    lines = listed.out.splitlines()
    assert lines[1].split()[:4] == ["work", "files", "2.0", "kB"]
    assert str(queue.folder(old.id) / "work") in lines[1]
    assert lines[1].endswith("the job failed 8 days ago")
    assert lines[2].startswith("record, log")
    assert "in 2 places would be deleted. Videos are never touched." in lines[3]
    assert queue.folder(ancient.id).exists()
    done = h3farm("clean")
    assert done.out.splitlines()[:3] == lines[:3]
    assert done.out.endswith(" in 2 places deleted.\n")
    assert not queue.folder(ancient.id).exists()
    assert [job.id for job in queue.list()] == [old.id, young.id]
    assert queue.fetch_rq_job(ancient.id) is None
    assert not (queue.folder(old.id) / "work").exists()
    assert (queue.folder(young.id) / "work").exists()
    assert h3farm("clean") == Answer(0, "Nothing is past its time.\n", "")


def test_a_batch_goes_with_the_last_of_its_jobs_and_keys_can_be_given_again(
    queue: RenderQueue, h3farm: H3farm
) -> None:
    kept = queue.submit_many([spec("1"), spec("2")], key="a")
    gone = queue.submit_many([spec("3"), spec("4")], key="b")
    alone = queue.submit(spec("5"), key="c")
    for job_id in [*queue.batch_job_ids(gone.id), queue.batch_job_ids(kept.id)[0], alone.id]:
        queue.cancel(job_id)
    listed = json.loads(h3farm("clean", "--older-than", "0", "--dry-run", "--json").out)["items"]
    assert [item["job"] for item in listed if item["kind"] == "batch"] == [gone.id]
    assert h3farm("clean", "--older-than", "0").code == 0
    assert [batch.id for batch in queue.batches()] == [kept.id]
    assert queue.batch(kept.id).counts == {"queued": 1, "gone": 1}
    assert queue.submit_many([spec("6")], key="b").id != gone.id
    assert queue.submit(spec("7"), key="c").id != alone.id
    assert queue.submit_many([spec("8")], key="a").id == kept.id
    assert not queue.forget_batch(kept.id)


def test_clean_chooses(queue: RenderQueue, h3farm: H3farm) -> None:
    job = failed(queue, 0)
    cancelled = queue.cancel(queue.submit(spec()).id)

    def kinds(*options: str) -> list[tuple[str, str]]:
        answer = h3farm("clean", "--dry-run", "--json", *options)
        return [(item["kind"], item["job"]) for item in json.loads(answer.out)["items"]]

    assert kinds() == []
    assert sorted(kinds("--older-than", "0")) == sorted(
        [("record", job.id), ("record", cancelled.id)]
    )
    assert kinds("--older-than", "0", "--work", "--failed") == [("work", job.id)]
    assert h3farm("clean", "--older-than", "-1").code == 2


def test_without_a_farm_clean_frees_work_files_and_leaves_records(
    queue: RenderQueue, store: Store, h3farm: H3farm
) -> None:
    """A full disk may be the reason why the farm does not start."""
    job = failed(queue, 100)
    store.stop()
    answer = h3farm("clean")
    assert answer.code == 0
    assert "records of jobs stay" in answer.err
    assert [path.name for path in queue.folder(job.id).iterdir()] == ["job.json"]


@pytest.mark.slow
def test_a_direct_render_that_was_killed_leaves_what_clean_finds(
    queue: RenderQueue, h3farm: H3farm, start_h3farm: Process
) -> None:
    import os

    tiny = Path(__file__).parent.parent / "golden" / "tiny-h3"
    process = start_h3farm("render", "fox", "--model", str(tiny), "--steps", "200")
    outputs = queue.settings.outputs
    eventually(lambda: list(outputs.glob(".work-*/*")), "render begun")
    (work,) = outputs.glob(".work-*")
    os.utime(work, (0, 0))
    assert h3farm("clean").out == "Nothing is past its time.\n"
    process.kill()
    process.wait()
    os.utime(work, (0, 0))
    assert "the render that wrote it was killed" in h3farm("clean").out
    assert list(outputs.iterdir()) == []
