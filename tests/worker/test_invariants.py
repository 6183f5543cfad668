"""The invariants' own tests: each planted fault is found, and a sound farm has none."""

import json
from pathlib import Path

import pytest
from farmtest import spec
from invariants import (
    Work,
    history_problems,
    life_problems,
    order_problems,
    problems_at_rest,
    repetition_problems,
)

from h3farm.worker.queue import RenderQueue, State
from h3farm.worker.queue.job import stamp, utc_now


def test_a_sound_farm_has_no_problems(queue: RenderQueue) -> None:
    kept, gone = queue.submit(spec()), queue.submit(spec())
    queue.cancel(gone.id)
    assert problems_at_rest(queue, [kept.id, gone.id]) == []


def only(problems: list[str], start: str) -> None:
    assert [problem for problem in problems if not problem.startswith(start)] == []
    assert problems != []


def test_a_lost_job_is_found(queue: RenderQueue) -> None:
    only(problems_at_rest(queue, ["1201-0000-aaaa"]), "I2 1201-0000-aaaa: acknowledged")


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("lrem", "rq:queue:h3farm", 1, "JOB"), "queued, and not in line"),
        (("rpush", "rq:queue:h3farm", "JOB"), "stands 2 times in line"),
        (("zadd", "h3farm:state:done", 1, "JOB"), "is in 2 states"),
        (("hset", "h3farm:job:JOB", "state", "running"), "running, and nothing runs"),
        (("hset", "h3farm:job:JOB", "state", "paused"), "paused, and in line"),
        (("rpush", "rq:queue:h3farm:intermediate", "JOB"), "in RQ's intermediate list"),
        (("hset", "h3farm:job:JOB", "result", "{}"), "queued with the result {}"),
    ],
)
def test_a_store_that_contradicts_itself_is_found(
    queue: RenderQueue, command: tuple[object, ...], problem: str
) -> None:
    job = queue.submit(spec())
    queue.connection.execute_command(
        *(job.id if c == "JOB" else str(c).replace("JOB", job.id) for c in command)
    )
    assert problem in str(problems_at_rest(queue))


def test_a_disk_that_says_something_else_is_found(queue: RenderQueue) -> None:
    job, other = queue.submit(spec()), queue.submit(spec())
    record = queue.folders.read(job.id)
    assert record is not None
    queue.folders.write(job.id, record | {"state": "done"})
    (queue.folder(other.id) / "job.json").write_text("{")
    (queue.settings.jobs / "1201-0000-aaaa").mkdir()
    assert problems_at_rest(queue) == [
        "I2 1201-0000-aaaa: a folder without a job",
        f"I2 {job.id}: queued, on disk done",
        f"I2 {other.id}: no record on disk",
    ]


def output(queue: RenderQueue, name: str, **sidecar: object) -> Path:
    folder = queue.settings.outputs / "2026-12-01" / name
    folder.mkdir(parents=True)
    (folder / "render.json").write_text(json.dumps(sidecar))
    return folder


def test_outputs_that_should_not_be_are_found(queue: RenderQueue) -> None:
    waiting, done = queue.submit(spec()), queue.submit(spec())
    queue.records.move(done.id, State.RUNNING)
    folder = output(queue, "one", job_id=done.id, spec=done.spec.to_json())
    result = {"folder": str(folder), "sidecar": str(folder / "render.json")}
    queue.records.move(done.id, State.DONE, result=result, ended_at=stamp(utc_now()))
    queue.connection.lrem(queue.rq_queue.key, 1, done.id)
    output(queue, "two", job_id=waiting.id)
    output(queue, "three", job_id=done.id, spec={})
    (folder.parent / ".four.partial").mkdir()
    assert problems_at_rest(queue) == [
        "I3 one: lacks video.mp4, poster.jpg, log.txt",
        f"I3 three: the sidecar has another spec than job {done.id}",
        f"I3 two: output of {waiting.id}, which is queued",
        f"I1 {done.id}: has 2 outputs",
        "I3 .four.partial: a half-made output",
    ]


def test_what_is_over_stays_over() -> None:
    seen = [("a", "running"), ("a", "done"), ("b", "cancelled"), ("c", "failed"), ("c", "queued")]
    assert life_problems(seen) == []
    assert life_problems([*seen, ("a", "done"), ("b", "queued"), ("c", "failed")]) == [
        "I1 a: done after done",
        "I6 b: queued after cancelled",
    ]


def test_an_order_that_changed_by_itself_is_found() -> None:
    assert order_problems("abcd", "acbd", touched="b") == []
    assert order_problems("abcd", "bd", touched="") == []
    assert order_problems("abcd", "acbd", touched="d") != []


def test_a_history_that_shrinks_is_found() -> None:
    rows = [{"done": n, "failed": 1, "cancelled": 0} for n in (0, 1, 2)]
    assert history_problems(rows) == []
    assert history_problems([*rows, rows[0]]) == ["I8 3 jobs were over, then 1"]


def test_work_that_is_done_again_is_found() -> None:
    def work(execution: str, *steps: int) -> list[Work]:
        return [Work("a", execution, "denoise", step) for step in steps]

    assert repetition_problems([*work("x", 1, 2, 3), *work("y", 3, 4), *work("z", 5)]) == []
    again = [*work("x", 1, 2, 3), *work("y", 2, 3)]
    assert repetition_problems(again) == ["I5 a: denoise 2 again, 3 was finished"]
    assert repetition_problems(again, excused="a") == []
