"""What becomes of jobs whose worker died."""

import os
import signal
import socket
from collections.abc import Callable

import pytest
from farmtest import WorkerProcess, eventually, run_to_end, spec, wait_until_running
from rq import worker_registration

from h3farm.worker.identity import process_start
from h3farm.worker.ladder import FEWER_THREADS, ONE_NETWORK
from h3farm.worker.queue import RenderQueue, Settings, State
from h3farm.worker.queue.job import stamp, utc_now
from h3farm.worker.recovery import MAX_CRASHES, live_workers, recover

pytestmark = pytest.mark.slow  # each test has processes of its own

Start = Callable[..., WorkerProcess]


def killed_while_running(queue: RenderQueue, start_worker: Start, prompt: str = "hold") -> str:
    worker = start_worker()
    job = queue.submit(spec(prompt))
    wait_until_running(queue, job.id)
    worker.send(signal.SIGKILL)
    worker.wait()
    return job.id


def test_a_killed_workers_job_stands_at_the_front_again(
    queue: RenderQueue, start_worker: Start
) -> None:
    job_id = killed_while_running(queue, start_worker)
    other = queue.submit(spec())
    urgent = queue.submit(spec(), priority="urgent")
    recover(queue)
    assert [(job.id, job.state) for job in queue.list()] == [
        (urgent.id, State.QUEUED),
        (job_id, State.QUEUED),
        (other.id, State.QUEUED),
    ]
    assert queue.get(job_id).crashes == 1
    assert queue.get(job_id).rung == ONE_NETWORK  # never as it was
    assert queue.connection.zcard("rq:wip:h3farm") == 0
    assert queue.folders.read(job_id)["state"] == "queued"


def test_recovering_twice_is_recovering_once(queue: RenderQueue, start_worker: Start) -> None:
    job_id = killed_while_running(queue, start_worker)
    recover(queue)
    once = queue.list()
    recover(queue)
    assert queue.list() == once
    assert [job.id for job in once] == [job_id]


def test_a_job_that_kills_its_worker_three_times_is_failed(
    queue: RenderQueue, start_worker: Start
) -> None:
    job = queue.submit(spec("die"))
    after = queue.submit(spec("render"))
    for _ in range(MAX_CRASHES):
        assert start_worker(ready=False).wait() == -signal.SIGKILL
    start_worker()
    failed = run_to_end(queue, job.id)
    assert failed.state is State.FAILED
    assert failed.error is not None
    assert failed.error["kind"] == "worker_died"
    assert failed.retries == [ONE_NETWORK, FEWER_THREADS]
    assert failed.error["sentence"] == "the worker died 3 times while it rendered this job"
    assert run_to_end(queue, after.id).state is State.DONE
    assert queue.rq_queue.failed_job_registry.get_job_ids(cleanup=False) == [job.id]


def test_orderly_ends_do_not_count_as_crashes(queue: RenderQueue, start_worker: Start) -> None:
    job = queue.submit(spec("hold"))
    for attempt in range(1, MAX_CRASHES + 2):
        worker = start_worker()
        eventually(lambda attempt=attempt: queue.get(job.id).attempts == attempt)
        wait_until_running(queue, job.id)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    assert (queue.get(job.id).state, queue.get(job.id).crashes) == (State.QUEUED, 0)


def test_an_end_that_reached_only_the_disk_counts(queue: RenderQueue, start_worker: Start) -> None:
    """The worker died between job.json and the store: the render is not done a second time."""
    job_id = killed_while_running(queue, start_worker)
    record = queue.folders.read(job_id)
    ended = stamp(utc_now())
    queue.folders.write(
        job_id, record | {"state": "done", "result": {"video": "v.mp4"}, "ended_at": ended}
    )
    recover(queue)
    done = queue.get(job_id)
    assert (done.state, done.result, done.ended_at) == (State.DONE, {"video": "v.mp4"}, ended)
    assert queue.fetch_rq_job(job_id).get_status() == "finished"
    assert queue.connection.llen(queue.rq_queue.key) == 0


def test_a_job_whose_cancel_the_worker_did_not_live_to_see_is_cancelled(
    queue: RenderQueue, start_worker: Start
) -> None:
    job_id = killed_while_running(queue, start_worker)
    assert queue.cancel(job_id).cancel_requested
    recover(queue)
    assert queue.get(job_id).state is State.CANCELLED


def test_a_job_in_no_list_is_queued_again(queue: RenderQueue) -> None:
    """As after a store that lost its last second."""
    stray, other = queue.submit(spec("one"), priority="urgent"), queue.submit(spec("two"))
    queue.connection.lrem(queue.rq_queue.key, 1, stray.id)
    recover(queue)
    assert [job.id for job in queue.list()] == [stray.id, other.id]


def test_a_job_that_only_rq_lost_is_made_again(queue: RenderQueue, start_worker: Start) -> None:
    job_id = killed_while_running(queue, start_worker)
    queue.connection.delete(f"rq:job:{job_id}")
    recover(queue)
    assert [(job.id, job.state) for job in queue.list()] == [(job_id, State.QUEUED)]


def worker_row(queue: RenderQueue, **fields: object) -> str:
    key = "rq:worker:h3farm"
    row = {"hostname": socket.gethostname(), "queues": "h3farm", **fields}
    queue.connection.hset(key, mapping=row)
    queue.connection.sadd(worker_registration.REDIS_WORKER_KEYS, key)
    return key


def test_a_living_workers_key_stays(queue: RenderQueue) -> None:
    key = worker_row(queue, pid=os.getpid(), process_start=process_start(os.getpid()))
    assert len(live_workers(queue.connection)) == 1
    assert queue.connection.exists(key)


def test_a_reused_pid_does_not_keep_a_dead_workers_key(queue: RenderQueue) -> None:
    key = worker_row(queue, pid=os.getpid(), process_start="another time")
    assert live_workers(queue.connection) == []
    assert not queue.connection.exists(key)


def test_another_machines_worker_is_not_judged(queue: RenderQueue) -> None:
    worker_row(queue, pid=2**22 + 1, hostname="another.example")
    assert len(live_workers(queue.connection)) == 1


def test_a_second_worker_of_the_same_home_is_refused(
    queue: RenderQueue, settings: Settings, start_worker: Start
) -> None:
    first = start_worker()
    second = start_worker(ready=False)
    assert second.wait() == 1
    assert f"a worker already runs here (process {first.process.pid})" in second.output()
    assert run_to_end(queue, queue.submit(spec("render")).id).state is State.DONE
