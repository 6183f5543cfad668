"""A batch is cancelled, paused, resumed and retried as a whole."""

import random
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from farmtest import WorkerProcess, eventually, run_to_end, spec, wait_until_running
from invariants import assert_invariants

from h3farm.worker.queue import InvalidTransition, Priority, RenderQueue, State
from h3farm.worker.queue.batch import Batch
from h3farm.worker.queue.errors import UnknownBatch
from h3farm.worker.queue.job import RenderJob, utc_now

Start = Callable[..., WorkerProcess]


def submit(queue: RenderQueue, *prompts: str, **options: str) -> Batch:
    return queue.submit_many([spec(prompt, seed=1) for prompt in prompts], **options)  # type: ignore[arg-type]


def states(queue: RenderQueue, batch: Batch) -> list[State]:
    return [job.state for job in queue.batch_jobs(batch.id)]


def end(queue: RenderQueue, job: RenderJob, state: State) -> None:
    queue.connection.lrem(queue.rq_queue.key, 0, job.id)
    queue.records.move(job.id, State.RUNNING, started_at=job.created_at, attempts=1)
    fields = {"error": {"sentence": "x", "kind": "x", "remedy": ""}} if state == "failed" else {}
    if state is State.DONE:
        fields = {"result": {}}
    queue.records.move(job.id, state, ended_at=job.created_at, **fields)


def test_cancel_takes_what_waits_and_leaves_the_rest(queue: RenderQueue) -> None:
    batch = submit(queue, "a", "b", "c", "d", name="foxes")
    other = queue.submit(spec("other"))
    done, failed, *_ = queue.batch_jobs(batch.id)
    end(queue, done, State.DONE)
    end(queue, failed, State.FAILED)
    answer = queue.cancel_batch("foxes")
    assert answer.counts == {"done": 1, "failed": 1, "cancelled": 2}
    assert answer.over
    assert queue.cancel_batch("foxes") == answer
    assert queue.get(other.id).position == 0


def test_pause_and_resume_keep_the_places_in_line(queue: RenderQueue) -> None:
    batch = submit(queue, "a", "b")
    later = queue.submit(spec("later"))
    assert queue.pause_batch(batch.id).counts == {"paused": 2}
    assert queue.get(later.id).position == 0
    assert queue.pause_batch(batch.id).counts == {"paused": 2}
    assert queue.resume_batch(batch.id).counts == {"queued": 2}
    assert [job.spec.prompt for job in queue.list()] == ["a", "b", "later"]
    assert_invariants(queue)


@pytest.mark.parametrize("seed", range(8))
def test_any_number_that_go_on_stand_where_they_stood(queue: RenderQueue, seed: int) -> None:
    """Those that have been begun in front of their priority; each kind in its order as before."""
    dice = random.Random(seed)  # noqa: S311 - not a secret
    batches = [
        submit(
            queue, *(f"{number} {each}" for each in range(dice.randint(1, 5))), priority=priority
        )
        for number, priority in enumerate(dice.choices(list(Priority), k=5))
    ]
    before = [job.id for job in queue.list()]
    paused = dice.sample(before, dice.randint(1, len(before)))
    queue.pause_many(paused)
    begun = set(dice.sample(paused, dice.randint(0, len(paused))))
    for job_id in begun:
        queue.connection.hset(f"h3farm:job:{job_id}", "attempts", "1")
    wanted = [job_id for job_id in before if job_id in paused]
    assert queue.resume_many(wanted) == wanted
    jobs = {job.id: job for job in queue.list()}
    rank = list(Priority)
    expected = sorted(
        before,
        key=lambda job_id: (
            rank.index(jobs[job_id].priority),
            job_id not in begun,
            before.index(job_id),
        ),
    )
    assert list(jobs) == expected
    orders = [(rank.index(job.priority), job.order) for job in jobs.values()]
    assert orders == sorted(set(orders))
    assert len(batches) == 5
    assert_invariants(queue)


def test_a_pause_until_a_moment_ends_by_itself(queue: RenderQueue) -> None:
    batch = submit(queue, "a", "b")
    queue.pause_batch(batch.id, until=utc_now() - timedelta(seconds=1))
    queue.promote_due()
    assert states(queue, batch) == [State.QUEUED] * 2


def test_retry_brings_back_what_failed_and_nothing_else(queue: RenderQueue) -> None:
    batch = submit(queue, "a", "b", "c", "d", "e")
    jobs = queue.batch_jobs(batch.id)
    for job, state in zip(jobs, ("failed", "done", "failed", "cancelled"), strict=False):
        if state == "cancelled":
            queue.cancel(job.id)
        else:
            end(queue, job, State(state))
    answer = queue.retry_batch(batch.id)
    assert answer.counts == {"queued": 3, "done": 1, "cancelled": 1}
    assert [job.spec.prompt for job in queue.list({"queued"})] == ["a", "c", "e"]
    again = queue.get(jobs[0].id)
    assert (again.error, again.ended_at, again.crashes, again.retries) == (None, None, 0, [])
    assert queue.folders.read(again.id)["state"] == "queued"
    assert queue.retry_batch(batch.id) == answer
    # RQ's half is as if it were new: its own tools see a queued job.
    assert queue.fetch_rq_job(again.id).get_status() == "queued"
    assert again.id not in queue.rq_queue.failed_job_registry.get_job_ids(cleanup=False)


def test_only_what_failed_can_be_retried(queue: RenderQueue) -> None:
    job = queue.submit(spec())
    with pytest.raises(InvalidTransition, match="is queued"):
        queue.retry(job.id)


@pytest.mark.parametrize("action", ["cancel", "pause", "resume", "retry"])
def test_an_unknown_batch_changes_nothing(queue: RenderQueue, action: str) -> None:
    job = queue.submit(spec())
    with pytest.raises(UnknownBatch):
        getattr(queue, f"{action}_batch")("nope")
    assert queue.get(job.id).state is State.QUEUED


@pytest.mark.slow
def test_a_batch_that_runs_stops_and_goes_on(queue: RenderQueue, start_worker: Start) -> None:
    start_worker()
    batch = submit(queue, "hold", "render b", "render c")
    first = queue.batch_jobs(batch.id)[0]
    wait_until_running(queue, first.id)
    queue.pause_batch(batch.id)
    eventually(lambda: states(queue, batch) == [State.PAUSED] * 3, "all paused")
    queue.resume_batch(batch.id)
    # The idle worker takes the first of them, though all came back at once.
    eventually(lambda: queue.get(first.id).state is State.RUNNING, "the first runs again")
    assert states(queue, batch)[1:] == [State.QUEUED] * 2
    queue.cancel_batch(batch.id)
    eventually(lambda: states(queue, batch) == [State.CANCELLED] * 3, "all cancelled")


@pytest.mark.slow
def test_a_retried_job_runs_again(queue: RenderQueue, start_worker: Start) -> None:
    start_worker()
    batch = submit(queue, "fail", "render b")
    for job in queue.batch_jobs(batch.id):
        run_to_end(queue, job.id)
    assert queue.batch(batch.id).counts == {"done": 1, "failed": 1}
    failed = queue.batch_jobs(batch.id)[0]
    queue.retry_batch(batch.id)
    job = run_to_end(queue, failed.id)
    # Tried as often again: what it was tried with before does not count against it.
    assert (job.state, job.attempts) == (State.FAILED, 2 * failed.attempts)


def test_many_who_control_one_batch_at_once_do_not_disturb_each_other(queue: RenderQueue) -> None:
    batch = submit(queue, "a", "b", "c", "d")
    faults: list[Exception] = []

    def control() -> None:
        with RenderQueue(queue.settings) as own:
            try:
                for _ in range(5):
                    own.pause_batch(batch.id)
                    own.resume_batch(batch.id)
            except Exception as error:  # noqa: BLE001 - told below
                faults.append(error)

    threads = [threading.Thread(target=control) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    queue.resume_batch(batch.id)
    assert states(queue, batch) == [State.QUEUED] * 4
    assert_invariants(queue)
