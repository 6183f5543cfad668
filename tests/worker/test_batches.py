"""Batches in a real store: all or none, once for each key, nothing twice."""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from farmtest import BOUND_S, spec
from invariants import assert_invariants

from h3farm.engine.spec import RenderSpec, SpecError
from h3farm.worker.queue import RenderQueue, State, StoreUnavailable, batch_submission, disk
from h3farm.worker.queue.batch import batch_name
from h3farm.worker.queue.errors import JobNotSaved, UnknownBatch, UnknownModel
from h3farm.worker.queue.faults import BatchError
from h3farm.worker.queue.job import RenderJob, stamp, utc_now
from h3farm.worker.queue.manifests import submitting
from h3farm.worker.queue.schedule import Schedule

KILLED = Path(__file__).parent / "killed_submit.py"
BUSY = Path(__file__).parent / "busy_submit.py"


FRAMES = 22
SMALL = {"width": 64, "height": 96, "frames": FRAMES}  # thousands of them fit any disk


def specs(count: int, **fields: object) -> list[RenderSpec]:
    given = SMALL | fields
    return [spec(f"prompt {number}", seed=number, **given) for number in range(count)]


def finish(queue: RenderQueue, job: RenderJob) -> RenderJob:
    """What a worker does to a job that it renders, as far as the queue sees it."""
    video = queue.settings.outputs / job.id / "video.mp4"
    video.parent.mkdir(parents=True)
    video.write_bytes(b"video")
    queue.connection.lrem(queue.rq_queue.key, 0, job.id)
    queue.records.move(job.id, State.RUNNING, started_at=job.created_at)
    result = {"folder": str(video.parent), "video": str(video)}
    return queue.records.move(job.id, State.DONE, ended_at=job.created_at, result=result)


def left_on_disk(queue: RenderQueue) -> list[str]:
    places = (queue.settings.jobs, queue.settings.batches)
    return [path.name for place in places if place.exists() for path in place.iterdir()]


def test_a_batch_is_its_jobs_in_their_order(queue: RenderQueue) -> None:
    batch = queue.submit_many(specs(12), name="numbers")
    jobs = queue.batch_jobs(batch.id)
    assert [job.spec.prompt for job in jobs] == [f"prompt {number}" for number in range(12)]
    assert [job.position for job in jobs] == list(range(12))
    assert [job.batch_index for job in jobs] == list(range(12))
    assert {job.batch for job in jobs} == {batch.id}
    assert [job.id for job in queue.list()] == [job.id for job in jobs]
    assert (batch.name, batch.jobs, batch.counts) == ("numbers", 12, {"queued": 12})
    assert (batch.frames, batch.frames_done, batch.over) == (12 * FRAMES, 0, False)
    assert_invariants(queue, [job.id for job in jobs])


def test_rq_has_of_a_batch_what_it_would_have_written_itself(queue: RenderQueue) -> None:
    job = queue.batch_jobs(queue.submit_many(specs(1)).id)[0]
    ours = queue.connection.hgetall(f"rq:job:{job.id}")
    queue.connection.delete(f"rq:job:{job.id}")
    queue.rq_queue.enqueue_job(queue.make_rq_job(job))
    theirs = queue.connection.hgetall(f"rq:job:{job.id}")
    times = (b"created_at", b"enqueued_at")
    assert {k: v for k, v in ours.items() if k not in times} == {
        k: v for k, v in theirs.items() if k not in times
    }
    assert ours.keys() == theirs.keys()


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_any_number_of_jobs_is_one_call_to_the_store(queue: RenderQueue, count: int) -> None:
    def calls() -> dict[str, int]:
        stats = queue.connection.info("commandstats")
        return {name: row["calls"] for name, row in stats.items()}

    queue.submit_many(specs(2))  # loads the scripts
    before = calls()
    batch = queue.submit_many(specs(count))
    after = calls()
    sent = {
        name: after[name] - before.get(name, 0)
        for name in ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_exec")
        if after.get(name, 0) > before.get(name, 0)
    }
    # What is done already, what waits, the one that brings them in, and the answer.
    assert sent == {"cmdstat_evalsha": 4}
    assert batch.counts == {"queued": count}
    trips = queue.connection.info("stats")["total_commands_processed"]
    assert len(queue.list()) == count + 2
    assert queue.connection.info("stats")["total_commands_processed"] - trips < count + 20


@pytest.mark.slow
def test_looking_at_five_thousand_waiting_jobs_reads_only_what_is_shown(
    queue: RenderQueue,
) -> None:
    batches = [queue.submit_many(specs(1000, steps=steps + 1)) for steps in range(5)]

    def calls(name: str) -> int:
        return int(queue.connection.info("commandstats")[f"cmdstat_{name}"]["calls"])

    scripts, records = calls("evalsha"), calls("hgetall")
    seen = queue.batches()
    assert calls("evalsha") - scripts == 1
    assert [batch.counts for batch in seen] == [{"queued": 1000}] * 5
    assert [batch.id for batch in seen] == [batch.id for batch in batches]
    assert [batch.id for batch in queue.batches(2)] == [batch.id for batch in batches[3:]]
    records = calls("hgetall")
    commands = queue.connection.info("stats")["total_commands_processed"]
    jobs = queue.list(limit=12, waiting=100)
    assert calls("hgetall") - records == 100 + 1  # the worker: why they wait
    assert queue.connection.info("stats")["total_commands_processed"] - commands < 120
    assert [job.id for job in jobs] == queue.batch_job_ids(batches[0].id)[:100]
    assert [job.position for job in jobs] == list(range(100))


def test_a_batch_stands_behind_its_own_and_before_lower_priorities(queue: RenderQueue) -> None:
    queue.submit(spec("idle"), priority="idle")
    queue.submit(spec("normal"))
    queue.submit_many([spec("n1"), spec("n2")])
    queue.submit_many([spec("u1"), spec("u2")], priority="urgent")
    queue.submit_many([spec("i1")], priority="idle")
    order = [job.spec.prompt for job in queue.list()]
    assert order == ["u1", "u2", "normal", "n1", "n2", "idle", "i1"]


@pytest.mark.slow
def test_an_urgent_batch_keeps_a_long_queue_behind_it_in_order(queue: RenderQueue) -> None:
    first = queue.submit_many(specs(1500))
    urgent = queue.submit_many([spec("u1"), spec("u2")], priority="urgent")
    wanted = queue.batch_job_ids(urgent.id) + queue.batch_job_ids(first.id)
    assert [job.id for job in queue.list()] == wanted


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"model": "huge"}, UnknownModel)],
)
def test_one_wrong_job_queues_none(
    queue: RenderQueue, fields: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        queue.submit_many([*specs(3), spec("wrong", **fields)])
    assert queue.list() == []
    assert left_on_disk(queue) == []


def test_an_empty_batch_is_refused(queue: RenderQueue) -> None:
    with pytest.raises(BatchError, match="a batch must have at least one render"):
        queue.submit_many([])


def test_a_disk_that_refuses_in_the_middle_leaves_nothing(
    queue: RenderQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, done = queue.folders.prepare, []

    def full(job_id: str, *arguments: object, **named: bool) -> None:
        if len(done) == 3:
            raise JobNotSaved("the disk is full")
        done.append(job_id)
        prepare(job_id, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(queue.folders, "prepare", full)
    with pytest.raises(JobNotSaved):
        queue.submit_many(specs(5))
    assert queue.list() == []
    assert left_on_disk(queue) == []


def test_the_names_of_new_folders_are_on_the_disk_before_the_store_hears_of_them(
    queue: RenderQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is on the disk in a folder whose name is not would be lost with it."""
    done: list[object] = []
    sync, take_in = disk.sync_folder, queue.take_in
    monkeypatch.setattr(disk, "sync_folder", lambda path: (done.append(path), sync(path)))
    many = batch_submission.sync_many
    monkeypatch.setattr(
        batch_submission, "sync_many", lambda paths: (done.append(list(paths)), many(paths))
    )

    def taken(*arguments: object, **named: object) -> object:
        done.append("store")
        return take_in(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(queue, "take_in", taken)
    queue.submit(spec())
    assert done == [queue.settings.jobs, "store"]
    done.clear()
    batch = queue.submit_many(specs(3))
    paths = [queue.folder(job_id) / "prepared.json" for job_id in queue.batch_job_ids(batch.id)]
    assert done == [paths, "store"]


STEPS = ["reserve", "prepare", "sync", "manifest", "store", "accept the batch", "accept"]


def kill_in_submit(queue: RenderQueue, number: str, step: str, when: str) -> None:
    done = subprocess.run(
        [sys.executable, str(KILLED), str(queue.settings.home), number, step, when],
        timeout=BOUND_S,
        check=False,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.parametrize("wiped", [False, True], ids=["store lives", "store wiped"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_submit_killed_at_any_step_leaves_all_or_nothing(
    queue: RenderQueue, step: str, when: str, wiped: bool
) -> None:
    """And the same key then queues the same once, whatever had come of the first."""
    kill_in_submit(queue, "many", step, when)
    reached = (STEPS.index(step), when == "after")
    taken = reached >= (STEPS.index("store"), True)
    named = reached >= (STEPS.index("accept the batch"), True)
    assert len(queue.list()) == (5 if taken else 0)
    if wiped:
        queue.connection.flushall()
        queue.records.publish_models({"tiny": {}})
    queue.settle()
    kept = named if wiped else taken
    assert len(list(queue.settings.jobs.glob("*/job.json"))) == (5 if kept else 0)
    assert len(left_on_disk(queue)) == (6 if kept else 0)
    assert len(queue.batches()) == (1 if kept else 0)
    if not wiped:
        assert_invariants(queue)
        again = queue.submit_many([spec(str(number), seed=1) for number in range(5)], key="the key")
        assert len(queue.list()) == 5
        assert [batch.id for batch in queue.batches()] == [again.id]


@pytest.mark.slow
@pytest.mark.parametrize("wiped", [False, True], ids=["store lives", "store wiped"])
def test_a_submitter_killed_at_any_moment_loses_nothing_acknowledged(
    queue: RenderQueue, wiped: bool
) -> None:
    """Whole batches only, every acknowledged one, and at most one that was about to be."""
    dice = random.Random(7)  # noqa: S311 - not a secret
    acknowledged: list[str] = []
    for turn in range(10):
        process = subprocess.Popen(
            [sys.executable, str(BUSY), str(queue.settings.home), str(1000 * turn)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        acknowledged.append(process.stdout.readline().strip())
        time.sleep(dice.random() / 20)
        process.kill()
        acknowledged += process.stdout.read().split()
        process.stdout.close()
        process.wait()
        if wiped:
            queue.connection.flushall()
            queue.records.publish_models({"tiny": {}})
        queue.settle()
        found = {manifest["id"]: manifest["job_ids"] for manifest in queue.manifests.all()}
        assert set(acknowledged) <= found.keys()
        assert len(found) - len(acknowledged) <= turn + 1
        folders = {path.parent.name for path in queue.settings.jobs.glob("*/job.json")}
        assert folders == {job_id for job_ids in found.values() for job_id in job_ids}
        assert len(left_on_disk(queue)) == len(found) + len(folders)
        assert all(len(job_ids) == 20 for job_ids in found.values())
    if not wiped:
        assert_invariants(queue, folders)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["reserve", "prepare", "store", "accept"])
def test_a_single_submit_killed_at_any_step_leaves_one_job_or_none(
    queue: RenderQueue, step: str, when: str
) -> None:
    kill_in_submit(queue, "one", step, when)
    taken = (step, when) in {("store", "after"), ("accept", "before"), ("accept", "after")}
    queue.settle()
    assert len(queue.list()) == taken
    assert [path.parent.name for path in queue.settings.jobs.glob("*/job.json")] == [
        job.id for job in queue.list()
    ]
    queue.submit(spec("0", seed=1), key="the key")
    assert len(queue.list()) == 1
    assert_invariants(queue)


@pytest.mark.parametrize("number", ["one", "many"])
def test_what_a_second_submit_acknowledges_outlives_the_store(
    queue: RenderQueue, number: str
) -> None:
    """The first was killed when the store had it; its key brings the answer that it did not get."""
    kill_in_submit(queue, number, "store", "after")
    wanted = [spec(str(each), seed=1) for each in range(5)]
    if number == "one":
        acknowledged = [queue.submit(wanted[0], key="the key").id]
    else:
        acknowledged = queue.batch_job_ids(queue.submit_many(wanted, key="the key").id)
    queue.connection.flushall()
    queue.settle()
    assert [path.parent.name for path in sorted(queue.settings.jobs.glob("*/job.json"))] == (
        acknowledged
    )


def test_a_worker_that_was_faster_than_the_submitter_is_not_overwritten(
    queue: RenderQueue,
) -> None:
    """The job may have begun before its submitter has given its record a name."""
    kill_in_submit(queue, "many", "accept the batch", "before")
    job = queue.list()[0]
    queue.connection.lrem(queue.rq_queue.key, 0, job.id)
    queue.records.move(job.id, State.RUNNING)
    queue.settle()
    assert queue.folders.read(job.id)["state"] == "running"


def test_nothing_is_settled_while_somebody_submits(queue: RenderQueue) -> None:
    queue.folders.prepare("theirs", {"batch": None})
    with submitting(queue.settings.submit_lock):
        queue.settle()
        assert queue.folders.unsettled() == ["theirs"]
    queue.settle()
    assert queue.folders.unsettled() == []


def test_an_outcome_that_nobody_knows_is_settled_by_asking_the_store(queue: RenderQueue) -> None:
    """The answer was lost on the way: the batch is queued, its submitter was told nothing."""
    take_in = queue.take_in

    def lost(*arguments: object, **named: object) -> None:
        take_in(*arguments, **named)  # type: ignore[arg-type]
        raise redis.TimeoutError("no answer")

    queue.take_in = lost  # type: ignore[method-assign,assignment]
    with pytest.raises(StoreUnavailable):
        queue.submit_many(specs(3))
    queue.settle()
    assert_invariants(queue)
    assert [batch.counts for batch in queue.batches()] == [{"queued": 3}]


def test_a_key_queues_once_and_answers_with_the_first(queue: RenderQueue) -> None:
    batch = queue.submit_many(specs(3), key="night")
    assert queue.submit_many(specs(2), key="night").id == batch.id
    job = queue.submit(spec("a", seed=1), key="one")
    assert queue.submit(spec("b", seed=2), key="one") == job
    assert len(queue.list()) == 4
    assert len(left_on_disk(queue)) == 4 + 1
    assert queue.folders.read(job.id)["key"] == "one"


def test_of_many_who_submit_with_one_key_at_once_one_queues(queue: RenderQueue) -> None:
    together, answers = threading.Barrier(8), []

    def submit() -> None:
        with RenderQueue(queue.settings) as own:
            together.wait()
            answers.append(own.submit_many(specs(20), key="k").id)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 1
    assert len(answers) == 8
    assert len(queue.list()) == 20
    assert_invariants(queue)


def test_a_key_of_a_job_is_none_for_a_batch(queue: RenderQueue) -> None:
    queue.submit(spec(), key="k")
    with pytest.raises(SpecError, match="key was given for the job"):
        queue.submit_many(specs(2), key="k")
    queue.submit_many(specs(2), key="b")
    with pytest.raises(SpecError, match=r"key was given for b.*, which is no job"):
        queue.submit(spec(), key="b")


@pytest.mark.parametrize("key", ["", "  ", "x" * 201, "a\nb"])
def test_what_can_be_no_key_is_refused(queue: RenderQueue, key: str) -> None:
    with pytest.raises(SpecError, match="key must be a text of 1 to 200 characters"):
        queue.submit(spec(), key=key)


def test_keys_outlive_the_store(queue: RenderQueue) -> None:
    batch = queue.submit_many(specs(3), key="night")
    job = queue.submit(spec("a"), key="one")
    queue.connection.flushall()
    queue.records.publish_models({"tiny": {}})
    queue.push(job)  # as a recovery does
    queue.settle()
    assert queue.submit_many(specs(3), key="night").id == batch.id
    assert queue.submit(spec("b"), key="one").id == job.id


def test_what_is_done_already_is_done_at_once(queue: RenderQueue) -> None:
    first = finish(queue, queue.submit(spec("fox", seed=1)))
    job = queue.submit(spec("fox", seed=1))
    assert (job.state, job.same_as, job.result) == (State.DONE, first.id, first.result)
    assert queue.folders.read(job.id)["same_as"] == first.id
    assert queue.submit(spec("fox", seed=1), again=True).state is State.QUEUED
    assert queue.submit(spec("fox", seed=2)).state is State.QUEUED
    assert queue.submit(spec("fox", seed=-1)).state is State.QUEUED
    assert_invariants(queue)


def test_a_copy_of_a_copy_names_the_job_that_was_rendered(queue: RenderQueue) -> None:
    first = finish(queue, queue.submit(spec("fox", seed=1)))
    queue.submit(spec("fox", seed=1))
    assert queue.submit(spec("fox", seed=1)).same_as == first.id


def test_a_video_that_was_removed_is_rendered_again(queue: RenderQueue) -> None:
    first = finish(queue, queue.submit(spec("fox", seed=1)))
    Path(first.result["video"]).unlink()
    assert queue.submit(spec("fox", seed=1)).state is State.QUEUED


def test_a_batch_knows_what_is_done_and_what_is_in_it_twice(queue: RenderQueue) -> None:
    first = finish(queue, queue.submit(spec("fox", seed=1)))
    wanted = [spec("hare", seed=1), spec("fox", seed=1), spec("hare", seed=1)]
    batch = queue.submit_many(wanted)
    assert (batch.jobs, batch.left_out, batch.done, batch.counts) == (
        2,
        1,
        1,
        {"queued": 1, "done": 1},
    )
    assert [job.same_as for job in queue.batch_jobs(batch.id)] == [None, first.id]
    assert batch.frames_done == 124
    again = queue.submit_many(wanted, again=True)
    assert again.counts == {"queued": 3}
    assert_invariants(queue)


def test_a_batch_is_found_by_its_id_and_by_its_name(queue: RenderQueue) -> None:
    first = queue.submit_many(specs(1), name="foxes")
    second = queue.submit_many(specs(1), name="foxes")
    assert second.name == "foxes 2"
    assert queue.batch("foxes").id == queue.batch(first.id).id == first.id
    assert queue.batch("foxes 2").id == second.id
    for given in ("nope", "", "../x"):
        with pytest.raises(UnknownBatch, match="There is no batch"):
            queue.batch(given)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("", "A red fox trots through"),
        ("foxes", "foxes"),
        ("{jobs} foxes", "2 foxes"),
        ("f {date} {time}", f"f {utc_now().astimezone():%Y-%m-%d %H%M}"),
    ],
)
def test_a_name_may_be_filled_in(template: str, expected: str) -> None:
    prompts = [spec("A red fox, trots through snow."), spec("b")]
    assert batch_name(template, prompts, utc_now())[:15] == expected[:15]


def test_a_name_with_unknown_braces_is_refused() -> None:
    with pytest.raises(BatchError, match=r"name has {day} in it: known are {date}, {time}, {jobs}"):
        batch_name("{day}", [spec()], utc_now())


def test_the_manifest_on_disk_names_the_jobs(queue: RenderQueue) -> None:
    batch = queue.submit_many(specs(2), name="foxes", key="k")
    manifest = json.loads((queue.settings.batches / f"{batch.id}.json").read_text())
    assert manifest["job_ids"] == queue.batch_job_ids(batch.id)
    assert (manifest["name"], manifest["key"], manifest["jobs"]) == ("foxes", "k", 2)


def test_a_batch_may_wait_for_its_time(queue: RenderQueue) -> None:
    moment = stamp(utc_now() + timedelta(hours=8))
    batch = queue.submit_many(specs(2), schedule=Schedule(not_before=moment))
    job = queue.submit(spec("one", seed=1), schedule=Schedule(not_before=moment))
    assert batch.counts == {"scheduled": 2}
    assert (job.state, job.position, job.not_before) == (State.SCHEDULED, None, moment)
    queue.promote_due()
    assert queue.get(job.id).state is State.SCHEDULED
    for job_id in (*queue.batch_job_ids(batch.id), job.id):
        past = stamp(utc_now() - timedelta(seconds=1))
        queue.connection.hset(f"h3farm:job:{job_id}", "not_before", f'"{past}"')
    queue.promote_due()
    assert [each.spec.prompt for each in queue.list({"queued"})] == ["prompt 0", "prompt 1", "one"]
    assert_invariants(queue)
