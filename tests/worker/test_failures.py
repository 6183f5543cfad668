"""One job's failure never stops or poisons the next."""

from collections.abc import Callable

import pytest
from farmtest import WorkerProcess, run_to_end, spec

from h3farm.worker.queue import RenderQueue, State


@pytest.mark.slow
def test_five_jobs_of_each_kind_that_fail_do_not_stop_the_one_behind_them(
    queue: RenderQueue, start_worker: Callable[..., WorkerProcess]
) -> None:
    kinds = {
        "fail": (State.FAILED, "out_of_memory"),
        "break": (State.FAILED, "internal"),
        "full": (State.PAUSED, "disk"),
    }
    jobs = [queue.submit(spec(f"{word} {n}")) for word in kinds for n in range(5)]
    good = queue.submit(spec("render"))
    worker = start_worker()
    assert run_to_end(queue, good.id).state is State.DONE
    for job in (queue.get(job.id) for job in jobs):
        reason = job.error or job.hold or {}
        assert (job.state, reason["kind"]) == kinds[job.spec.prompt.split()[0]]
        assert reason["sentence"] in queue.log(job.id).read_text(encoding="utf-8")
    assert worker.process.poll() is None
