"""pause, resume, move, priority, schedule and edit from the shell."""

import json
from collections.abc import Callable

from clitest import Answer
from farmtest import spec

from h3farm.worker.queue import RenderQueue, State

H3farm = Callable[..., Answer]


def order(queue: RenderQueue) -> list[str]:
    return [job.spec.prompt for job in queue.list() if job.state is State.QUEUED]


def test_a_job_is_paused_and_resumed(queue: RenderQueue, h3farm: H3farm) -> None:
    job = queue.submit(spec())
    answer = h3farm("pause", job.id)
    assert (answer.code, answer.out) == (0, f"{job.id} paused, paused\n")
    assert h3farm("resume", job.id).code == 0
    assert queue.get(job.id).state is State.QUEUED
    assert h3farm("pause", "nobody").code == 4


def test_the_farm_is_paused_without_a_job(queue: RenderQueue, h3farm: H3farm) -> None:
    assert h3farm("pause", "--finish").code == 0
    assert queue.farm().finish_current
    assert "paused" in h3farm("status").out
    assert json.loads(h3farm("status", "--json").out)["farm"]["paused"] is True
    assert h3farm("resume").out == "the farm runs\n"
    job = queue.submit(spec())
    refused = h3farm("pause", job.id, "--finish")
    assert (refused.code, refused.err) == (2, "h3farm: --finish is for the whole farm\n")


def test_waiting_jobs_change_places(queue: RenderQueue, h3farm: H3farm) -> None:
    first, second, third = (queue.submit(spec(name)) for name in "abc")
    assert h3farm("move", third.id, "--front").code == 0
    assert order(queue) == ["c", "a", "b"]
    assert h3farm("move", third.id, "--after", second.id).code == 0
    assert h3farm("priority", "urgent", second.id, first.id).code == 0
    assert order(queue) == ["b", "a", "c"]
    assert h3farm("move", third.id).code == 2


def test_settings_and_times_of_a_waiting_job(queue: RenderQueue, h3farm: H3farm) -> None:
    job = queue.submit(spec())
    assert h3farm("edit", job.id, "a badger", "--steps", "3").code == 0
    made = queue.get(job.id).spec
    assert (made.prompt, made.steps, made.seed) == ("a badger", 3, job.spec.seed)
    assert "steps must be" in h3farm("edit", job.id, "--steps", "0").err
    assert h3farm("edit", job.id).code == 2
    assert h3farm("schedule", job.id, "--not-before", "+8h").code == 0
    assert queue.get(job.id).state is State.SCHEDULED
    assert h3farm("schedule", job.id, "--not-before", "none").code == 0
    assert queue.get(job.id).state is State.QUEUED
    assert h3farm("schedule", "--window", "22:00-07:00").code == 0
    assert queue.farm().window == "22:00-07:00"
    assert h3farm("schedule", "--window", "never").code == 2
