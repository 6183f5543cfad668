"""What the farm relies on in RQ, and each trap of RQ that it must not fall into."""

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from farmtest import WorkerProcess, eventually, run_to_end, spec, wait_until_running
from rq import Queue
from rq.command import send_shutdown_command, send_stop_job_command
from rq.job import Job
from rq.suspension import resume, suspend

from h3farm.worker.queue import RenderQueue, Settings, State
from h3farm.worker.store import Store

pytestmark = pytest.mark.slow  # each test has processes of its own

Start = Callable[..., WorkerProcess]
WIP = "rq:wip:h3farm"


def rq_job(queue: RenderQueue, job_id: str) -> Job:
    job = queue.fetch_rq_job(job_id)
    assert job is not None
    return job


def rq_status(queue: RenderQueue, job_id: str) -> str:
    return rq_job(queue, job_id).get_status(refresh=True)


def test_nothing_in_the_store_is_pickled(queue: RenderQueue) -> None:
    job = queue.submit(spec())
    data = queue.connection.hget(f"rq:job:{job.id}", "data")
    assert json.loads(zlib.decompress(data)) == ["h3farm.worker.jobs.render", None, [job.id], {}]


def test_a_job_has_no_timeout_and_never_expires(queue: RenderQueue, start_worker: Start) -> None:
    start_worker()
    done, failed = queue.submit(spec("render")), queue.submit(spec("fail"))
    run_to_end(queue, done.id), run_to_end(queue, failed.id)
    for job_id in (done.id, failed.id):
        eventually(lambda job_id=job_id: rq_status(queue, job_id) in ("finished", "failed"))
        job = rq_job(queue, job_id)
        assert (job.timeout, job.result_ttl, job.failure_ttl, job.ttl) == (-1, -1, -1, None)
        assert queue.connection.ttl(job.key) == -1
    assert rq_job(queue, done.id).return_value() == queue.get(done.id).result


def test_there_is_one_rq_queue(queue: RenderQueue, start_worker: Start) -> None:
    """With two, RQ pops without its intermediate list, and a crash loses a job."""
    start_worker()
    queue.submit(spec(), priority="urgent")
    queue.submit(spec(), priority="idle")
    assert queue.connection.hget("rq:worker:h3farm", "queues") == b"h3farm"
    assert [q.name for q in Queue.all(connection=queue.connection)] == ["h3farm"]


def test_a_job_longer_than_every_time_to_live_is_not_abandoned(
    queue: RenderQueue, start_worker: Start
) -> None:
    """Trap: SimpleWorker sets the registry entry once, and anybody's look at it files the job."""
    start_worker("--heartbeat=0.2", "--grace=1.8")  # RQ counts whole seconds: 1 is too short
    job = queue.submit(spec("hold"))
    wait_until_running(queue, job.id)
    first = max(score for _, score in queue.connection.zrange(WIP, 0, -1, withscores=True))

    def outlived_it() -> bool:
        scores = queue.connection.zrange(WIP, 0, -1, withscores=True)
        return time.time() > first + 1 and max(score for _, score in scores) > first

    eventually(outlived_it)
    queue.rq_queue.started_job_registry.cleanup()
    assert rq_status(queue, job.id) == "started"
    assert queue.get(job.id).state is State.RUNNING
    queue.cancel(job.id)
    assert run_to_end(queue, job.id).state is State.CANCELLED


def test_rqs_stop_command_stops_the_render(queue: RenderQueue, start_worker: Start) -> None:
    """Trap: SimpleWorker's kill_horse does nothing."""
    start_worker()
    job = queue.submit(spec("hold"))
    wait_until_running(queue, job.id)
    send_stop_job_command(queue.connection, job.id, serializer="json")
    assert run_to_end(queue, job.id).state is State.CANCELLED
    eventually(lambda: rq_status(queue, job.id) == "stopped")
    assert run_to_end(queue, queue.submit(spec("render")).id).state is State.DONE


def test_rqs_cancel_of_a_queued_job_cancels_it(queue: RenderQueue) -> None:
    job = queue.submit(spec())
    rq_job(queue, job.id).cancel()
    assert queue.get(job.id).state is State.CANCELLED
    assert [listed.state for listed in queue.list()] == [State.CANCELLED]


def test_rqs_delete_of_a_queued_job_cancels_it(queue: RenderQueue) -> None:
    job = queue.submit(spec())
    rq_job(queue, job.id).delete()
    assert queue.get(job.id).state is State.CANCELLED


def test_rqs_cancel_of_a_running_job_stops_it(queue: RenderQueue, start_worker: Start) -> None:
    """Trap: RQ only writes it down, goes on, and has the job in two registries at the end."""
    start_worker()
    job = queue.submit(spec("hold"))
    wait_until_running(queue, job.id)
    rq_job(queue, job.id).cancel()
    assert run_to_end(queue, job.id).state is State.CANCELLED
    eventually(lambda: queue.connection.hget("rq:worker:h3farm", "state") == b"idle")
    assert rq_status(queue, job.id) == "canceled"
    registries = (queue.rq_queue.failed_job_registry, queue.rq_queue.finished_job_registry)
    assert [registry.get_job_ids(cleanup=False) for registry in registries] == [[], []]


def test_rqs_delete_of_a_running_job_stops_it(queue: RenderQueue, start_worker: Start) -> None:
    start_worker()
    job = queue.submit(spec("hold"))
    wait_until_running(queue, job.id)
    rq_job(queue, job.id).delete()
    assert run_to_end(queue, job.id).state is State.CANCELLED
    eventually(lambda: queue.connection.hget("rq:worker:h3farm", "state") == b"idle")
    assert queue.fetch_rq_job(job.id) is None


def test_rqs_requeue_gives_a_failed_job_another_chance(
    queue: RenderQueue, start_worker: Start
) -> None:
    start_worker()
    job = queue.submit(spec("break"))
    assert run_to_end(queue, job.id).attempts == 1
    eventually(lambda: queue.rq_queue.failed_job_registry.get_job_ids(cleanup=False) == [job.id])
    queue.rq_queue.failed_job_registry.requeue(job.id)
    eventually(lambda: queue.get(job.id).attempts == 2)
    assert run_to_end(queue, job.id).state is State.FAILED


def test_only_the_render_function_is_ever_called(
    queue: RenderQueue, settings: Settings, start_worker: Start
) -> None:
    """A job's function and callbacks are names: whoever can write to the store can give any."""
    start_worker()
    foreign = queue.rq_queue.enqueue("__main__.mark", job_timeout=-1)
    eventually(lambda: foreign.get_status(refresh=True) == "failed")
    assert "this worker calls h3farm.worker.jobs.render only" in foreign.latest_result().exc_string
    suspend(queue.connection)
    jobs = [queue.submit(spec("fail")), queue.submit(spec("render")), queue.submit(spec("hold"))]
    for job in jobs:
        for callback in ("success", "failure", "stopped"):
            queue.connection.hset(f"rq:job:{job.id}", f"{callback}_callback_name", "__main__.mark")
    resume(queue.connection)
    wait_until_running(queue, jobs[2].id)
    send_stop_job_command(queue.connection, jobs[2].id, serializer="json")
    assert [run_to_end(queue, job.id).state for job in jobs] == ["failed", "done", "cancelled"]
    eventually(lambda: rq_status(queue, jobs[2].id) == "stopped")
    assert not (settings.home / "called").exists()


def test_signals_are_prompt_while_a_job_runs(queue: RenderQueue, start_worker: Start) -> None:
    """Trap: a render in the main thread would hold the handler back to its end, after a minute."""
    worker = start_worker()
    job = queue.submit(spec("hold"))
    wait_until_running(queue, job.id)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert (queue.get(job.id).state, queue.get(job.id).position) == (State.QUEUED, 0)
    assert queue.worker() is None


def test_a_second_signal_changes_nothing(queue: RenderQueue, start_worker: Start) -> None:
    """Trap: RQ turns it into SystemExit inside of the job, which fails it."""
    worker = start_worker()
    job = queue.submit(spec("hold"))
    wait_until_running(queue, job.id)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        worker.send(number)
    assert worker.wait() == 0
    assert (queue.get(job.id).state, queue.get(job.id).position) == (State.QUEUED, 0)
    assert rq_status(queue, job.id) == "queued"


def test_rqs_shutdown_command_puts_the_job_back(queue: RenderQueue, start_worker: Start) -> None:
    worker = start_worker()
    job = queue.submit(spec("hold"))
    wait_until_running(queue, job.id)
    send_shutdown_command(queue.connection, "h3farm")
    assert worker.wait() == 0
    assert queue.get(job.id).state is State.QUEUED


def test_a_job_pushed_while_suspended_waits(queue: RenderQueue, start_worker: Start) -> None:
    """Trap: an idle worker is blocked in its pop and does not see the suspension."""
    start_worker()
    suspend(queue.connection)
    jobs = [queue.submit(spec("render one")), queue.submit(spec("render two"))]
    eventually(lambda: queue.connection.hget("rq:worker:h3farm", "state") == b"suspended")
    assert [queue.get(job.id).position for job in jobs] == [0, 1]
    assert queue.get(jobs[0].id).attempts == 0
    resume(queue.connection)
    assert [run_to_end(queue, job.id).state for job in jobs] == [State.DONE, State.DONE]


def test_a_job_that_was_popped_into_a_crash_is_run(queue: RenderQueue, start_worker: Start) -> None:
    """Trap: RQ lets it lie in its intermediate list for a minute, and then fails it."""
    first, second = queue.submit(spec("render one")), queue.submit(spec("render two"))
    queue.connection.lmove(queue.rq_queue.key, queue.rq_queue.intermediate_queue_key)
    start_worker()
    ends = [run_to_end(queue, job.id) for job in (first, second)]
    assert [end.state for end in ends] == [State.DONE, State.DONE]
    assert ends[0].ended_at <= ends[1].ended_at
    assert queue.rq_queue.intermediate_queue.get_job_ids() == []


def test_a_dead_workers_name_is_free_at_once(queue: RenderQueue, start_worker: Start) -> None:
    """Trap: RQ refuses the name until the key of the dead one has expired."""
    dead = start_worker()
    dead.send(signal.SIGKILL)
    dead.wait()
    assert queue.connection.exists("rq:worker:h3farm")
    start_worker()
    assert run_to_end(queue, queue.submit(spec("render")).id).state is State.DONE


def test_looking_never_files_a_job_as_failed(queue: RenderQueue, start_worker: Start) -> None:
    """Trap: RQ's own ways to look clean up, and file what is overdue as failed."""
    worker = start_worker()
    job = queue.submit(spec("hold"))
    wait_until_running(queue, job.id)
    worker.send(signal.SIGKILL)
    worker.wait()
    (entry,) = queue.connection.zrange(WIP, 0, -1)
    queue.connection.zadd(WIP, {entry: 1})
    queue.list(), queue.counts(), queue.get(job.id), queue.worker(), queue.models()
    assert queue.connection.zrange(WIP, 0, -1) == [entry]
    assert queue.get(job.id).state is State.RUNNING


def test_a_result_wins_over_an_earlier_abandoned(
    queue: RenderQueue, settings: Settings, start_worker: Start
) -> None:
    """After a long sleep somebody else's cleanup has filed the job; then it ends well."""
    start_worker()
    job = queue.submit(spec("wait"))
    wait_until_running(queue, job.id)
    (entry,) = queue.connection.zrange(WIP, 0, -1)
    queue.connection.zadd(WIP, {entry: 1})
    queue.rq_queue.started_job_registry.cleanup()
    assert rq_status(queue, job.id) == "failed"
    (settings.home / "go").touch()
    assert run_to_end(queue, job.id).state is State.DONE
    eventually(lambda: rq_status(queue, job.id) == "finished")
    eventually(lambda: queue.rq_queue.failed_job_registry.get_job_ids(cleanup=False) == [])


def test_maintenance_fails_nothing(queue: RenderQueue, start_worker: Start) -> None:
    """Trap: RQ's maintenance at a worker's start files overdue jobs as failed."""
    first = start_worker()
    job = queue.submit(spec("hold"))
    wait_until_running(queue, job.id)
    first.send(signal.SIGKILL)
    first.wait()
    (entry,) = queue.connection.zrange(WIP, 0, -1)
    queue.connection.zadd(WIP, {entry: 1})
    start_worker()
    eventually(lambda: queue.get(job.id).attempts == 2)
    wait_until_running(queue, job.id)
    queue.cancel(job.id)
    assert run_to_end(queue, job.id).state is State.CANCELLED


def test_the_store_may_be_started_again_while_a_job_runs(
    queue: RenderQueue, settings: Settings, store: Store, start_worker: Start
) -> None:
    start_worker()
    job = queue.submit(spec("wait"))
    wait_until_running(queue, job.id)
    store.stop()
    (settings.home / "go").touch()
    again = Store(settings)
    try:
        assert run_to_end(queue, job.id).state is State.DONE
        assert run_to_end(queue, queue.submit(spec("render")).id).state is State.DONE
    finally:
        again.stop()


@pytest.mark.parametrize("command", [["info"], ["info", "--only-workers"]])
def test_rqs_own_command_line_sees_the_farm(
    queue: RenderQueue, settings: Settings, start_worker: Start, command: list[str]
) -> None:
    start_worker()
    rq = Path(sys.executable).with_name("rq")
    done = subprocess.run(
        [
            rq,
            *command,
            "--url",
            settings.store_url,
            "--serializer",
            "rq.serializers.JSONSerializer",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": ""},
    )
    assert (done.returncode, "h3farm" in done.stdout) == (0, True), done.stderr


def test_nothing_of_a_finished_or_failed_job_expires(
    queue: RenderQueue, start_worker: Start
) -> None:
    """Trap: RQ drops results after 500 s and failures after a year."""
    start_worker()
    jobs = [queue.submit(spec("render")), queue.submit(spec("break"))]
    for job in jobs:
        run_to_end(queue, job.id)
    registries = (queue.rq_queue.finished_job_registry, queue.rq_queue.failed_job_registry)
    for job, registry in zip(jobs, registries, strict=True):
        eventually(lambda job=job, registry=registry: job.id in registry.get_job_ids(cleanup=False))
        registry.cleanup(2**40)  # in the far future
        assert registry.get_job_ids(cleanup=False) == [job.id]
    keys = [key for job in jobs for key in queue.connection.keys(f"*{job.id}*")]
    assert len(keys) >= 4
    assert {key: queue.connection.ttl(key) for key in keys} == dict.fromkeys(keys, -1)
