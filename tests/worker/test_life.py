"""A job's life with a real store and a real worker process."""

import signal
from collections.abc import Callable

from farmtest import WorkerProcess, eventually, spec
from h3farm.worker.queue import RenderQueue, State

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
    waiting = queue.submit(
        spec(
            "render",
        ),
        priority="urgent",
    )
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
