"""Changing a job that waits."""

import pytest
from farmtest import spec
from test_control import begin, on_disk, order, pop

from h3farm.engine.spec import SpecError
from h3farm.worker.queue import RenderQueue, UnknownModel
from h3farm.worker.queue.errors import CannotChange


def test_a_waiting_job_gets_other_values_and_keeps_its_place(queue: RenderQueue) -> None:
    job = queue.submit(spec("a"))
    queue.submit(spec("b"))
    edited, dropped = queue.edit(job.id, {"prompt": "a wolf", "steps": 7})
    assert (edited.spec.prompt, edited.spec.steps, dropped) == ("a wolf", 7, False)
    assert edited.spec.seed == job.spec.seed
    assert on_disk(queue, job)["spec"] == edited.spec.to_json()
    assert order(queue) == ["a wolf", "b"]
    assert queue.fetch_rq_job(job.id).description == "a wolf"
    assert queue.records.get(job.id).spec.hash.encode() == queue.connection.hget(
        f"h3farm:job:{job.id}", "spec_hash"
    )


def test_a_length_takes_the_place_of_the_other_one(queue: RenderQueue) -> None:
    job = queue.submit(spec(frames=39))
    assert queue.edit(job.id, {"seconds": 4})[0].spec.seconds_asked == 4
    assert queue.edit(job.id, {"frames": 22})[0].spec.frames == 22


def test_a_resume_point_of_the_old_settings_is_dropped_when_it_begins(queue: RenderQueue) -> None:
    job = queue.submit(spec())
    (queue.folder(job.id) / "work").mkdir()
    assert queue.edit(job.id, {"steps": job.spec.steps}) == (queue.get(job.id), False)
    edited, dropped = queue.edit(job.id, {"steps": 7})
    assert (dropped, edited.start_over) == (True, True)


@pytest.mark.parametrize(
    ("fields", "error", "sentence"),
    [
        ({"steps": 0}, SpecError, "steps"),
        ({"colour": 1}, SpecError, "colour"),
        ({"model": "huge"}, UnknownModel, "huge"),
        ({"frames": 22, "seconds": 1}, SpecError, "seconds"),
    ],
)
def test_what_a_spec_may_not_have_is_refused(
    queue: RenderQueue, fields: dict[str, object], error: type[Exception], sentence: str
) -> None:
    job = queue.submit(spec())
    with pytest.raises(error, match=sentence):
        queue.edit(job.id, fields)
    assert queue.get(job.id).spec == job.spec


def test_a_job_that_runs_is_about_to_or_is_over_is_refused(queue: RenderQueue) -> None:
    running, popped, over = (queue.submit(spec()) for _ in range(3))
    queue.cancel(over.id)
    begin(queue, running)
    pop(queue, popped)
    for job, state in ((running, "running"), (popped, "about to start"), (over, "cancelled")):
        with pytest.raises(CannotChange, match=f"is {state}: only a job that waits can be edited"):
            queue.edit(job.id, {"steps": 7})
