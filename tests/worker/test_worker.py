"""The worker process, with a real store."""

import signal
from collections.abc import Callable

import pytest
from farmtest import WorkerProcess, eventually, run_to_end, spec, wait_until_running

from h3farm.worker.queue import RenderQueue, Settings, State
from h3farm.worker.worker import serve

pytestmark = pytest.mark.slow  # each test has processes of its own

Start = Callable[..., WorkerProcess]


def test_a_submitted_job_is_rendered(queue: RenderQueue, start_worker: Start) -> None:
    worker = start_worker()
    job = queue.submit(spec("render a fox"))
    eventually(lambda: queue.get(job.id).over)
    done = queue.get(job.id)
    assert (done.state, done.attempts, done.error) == (State.DONE, 1, None)
    assert done.result is not None
    assert queue.folders.read(job.id)["state"] == "done"
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def test_sigint_puts_the_job_back_at_the_front(queue: RenderQueue, start_worker: Start) -> None:
    worker = start_worker()
    running = queue.submit(spec("hold on"))
    waiting = queue.submit(spec("render"))
    eventually(lambda: queue.get(running.id).progress)
    worker.send(signal.SIGINT)
    assert worker.wait() == 0
    assert [(j.id, j.state, j.position) for j in queue.list()] == [
        (running.id, State.QUEUED, 0),
        (waiting.id, State.QUEUED, 1),
    ]
    assert queue.get(running.id).crashes == 0


def test_a_running_job_is_cancelled(queue: RenderQueue, start_worker: Start) -> None:
    start_worker()
    job = queue.submit(spec("hold on"))
    eventually(lambda: queue.get(job.id).progress)
    asked = queue.cancel(job.id)
    assert asked.cancel_requested or asked.over
    eventually(lambda: queue.get(job.id).over)
    assert queue.get(job.id).state is State.CANCELLED


def test_models_are_published_at_the_start(queue: RenderQueue, start_worker: Start) -> None:
    queue.connection.delete("h3farm:models")
    start_worker()
    assert queue.models() == {"tiny": {"path": str(queue.settings.models[0] / "tiny")}}


def test_the_worker_is_seen(queue: RenderQueue, start_worker: Start) -> None:
    assert queue.worker() is None
    worker = start_worker()
    job = queue.submit(spec("hold"))
    wait_until_running(queue, job.id)
    seen = queue.worker()
    assert seen is not None
    assert (seen.pid, seen.state, seen.job_id) == (worker.process.pid, "busy", job.id)


def test_one_failure_does_not_stop_the_rest(queue: RenderQueue, start_worker: Start) -> None:
    start_worker()
    jobs = [queue.submit(spec(prompt)) for prompt in ("fail", "break", "render")]
    assert [run_to_end(queue, job.id).state for job in jobs] == ["failed", "failed", "done"]


def test_without_a_store_the_worker_says_how_to_start_the_farm(settings: Settings) -> None:
    """It waits a while for one: under a Procfile the store starts beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("h3farm.worker.worker.STORE_WAIT_S", 0.0)
        patch.setattr("signal.signal", lambda *_: None)
        code = serve(
            settings, lambda: pytest.fail("an engine was made"), lambda _: {}, lambda _: {}
        )
    assert code == 3


def test_a_worker_of_another_machine_is_not_pushed_aside(
    queue: RenderQueue, start_worker: Start
) -> None:
    """With REDIS_URL two farms could share a store by mistake."""
    key = "rq:worker:h3farm"
    queue.connection.hset(key, mapping={"hostname": "other.example", "pid": 1, "queues": "h3farm"})
    queue.connection.sadd("rq:workers", key)
    worker = start_worker(ready=False)
    assert worker.wait() == 1
    assert "a worker on other.example already serves this store" in worker.output()
