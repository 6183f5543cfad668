"""The queue as its clients see it."""

import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis
from farmtest import eventually, spec

from h3farm.engine.spec import SpecError
from h3farm.worker.queue import (
    InvalidTransition,
    RenderJob,
    RenderQueue,
    Settings,
    State,
    StoreUnavailable,
    UnknownJob,
    UnknownModel,
)
from h3farm.worker.queue.errors import JobNotSaved
from h3farm.worker.queue.states import ALLOWED, OVER, check_transition
from h3farm.worker.store import Store


def order(queue: RenderQueue) -> list[str]:
    return [job.spec.prompt for job in queue.list()]


def test_jobs_stand_behind_all_of_their_own_and_higher_priorities(queue: RenderQueue) -> None:
    for prompt, priority in (
        ("n1", "normal"),
        ("i1", "idle"),
        ("u1", "urgent"),
        ("n2", "normal"),
        ("u2", "urgent"),
        ("i2", "idle"),
    ):
        queue.submit(spec(prompt), priority=priority)
    assert order(queue) == ["u1", "u2", "n1", "n2", "i1", "i2"]
    assert [job.position for job in queue.list()] == [0, 1, 2, 3, 4, 5]


def test_an_unknown_priority_is_refused(queue: RenderQueue) -> None:
    with pytest.raises(ValueError, match="soon"):
        queue.submit(spec(), priority="soon")
    assert queue.list() == []


def test_a_seed_is_drawn_when_it_is_submitted(queue: RenderQueue) -> None:
    job = queue.submit(spec(seed=-1))
    assert job.spec.seed >= 0
    assert queue.get(job.id).spec == job.spec


def test_a_job_is_on_disk_as_it_is_in_the_store(queue: RenderQueue) -> None:
    job = queue.submit(spec("ein Fuchs für 狐"), priority="idle")
    record = json.loads((queue.folder(job.id) / "job.json").read_text(encoding="utf-8"))
    assert record == {"record_version": 1, **job.durable()}
    assert record["spec"]["prompt"] == "ein Fuchs für 狐"


def test_a_job_is_on_disk_before_it_is_in_the_store(queue: RenderQueue) -> None:
    seen: list[bool] = []

    def take_in(jobs: list[RenderJob], **_: object) -> None:
        seen.append((queue.folder(jobs[0].id) / "prepared.json").exists())
        raise redis.ConnectionError("gone")

    queue.take_in = take_in  # type: ignore[method-assign,assignment]
    with pytest.raises(StoreUnavailable):
        queue.submit(spec())
    assert seen == [True]
    # It was not acknowledged: nothing brings it back, and in the end nothing is left of it.
    assert queue.folders.read(queue.folders.unsettled()[0]) is None
    queue.settle()
    assert list(queue.settings.jobs.iterdir()) == []


def test_a_disk_that_refuses_is_told_in_a_sentence(queue: RenderQueue) -> None:
    queue.settings.jobs.write_text("a file in the folder's place")
    with pytest.raises(JobNotSaved, match="could not be written to disk"):
        queue.submit(spec())
    assert queue.counts()["queued"] == 0


def test_ids_are_short_readable_and_never_given_twice(settings: Settings, store: Store) -> None:
    endings = iter(["aaaa", "aaaa", "bbbb"])
    moment = datetime(2026, 11, 30, 18, 42, tzinfo=UTC)
    with RenderQueue(settings, clock=lambda: moment, suffix=lambda: next(endings)) as queue:
        queue.records.publish_models({"tiny": {}})
        ids = [queue.submit(spec()).id for _ in range(2)]
    start = moment.astimezone().strftime("%m%d-%H%M")
    assert ids == [f"{start}-aaaa", f"{start}-bbbb"]


def test_an_unknown_model_is_refused_with_those_that_are_known(queue: RenderQueue) -> None:
    with pytest.raises(UnknownModel) as caught:
        queue.submit(spec(model="huge"))
    assert str(caught.value) == "model must be one of tiny, got 'huge'"
    assert (caught.value.field, caught.value.given, caught.value.known) == (
        "model",
        "huge",
        ("tiny",),
    )
    assert isinstance(caught.value, SpecError)


@pytest.mark.parametrize(
    ("models", "sentence"), [(None, "no worker has said yet"), ({}, "the farm has no model")]
)
def test_without_models_the_sentence_says_why(
    queue: RenderQueue, models: dict[str, object] | None, sentence: str
) -> None:
    queue.connection.delete("h3farm:models")
    if models is not None:
        queue.records.publish_models({})
    with pytest.raises(UnknownModel, match=sentence):
        queue.submit(spec())
    assert queue.models() == {}


@pytest.mark.parametrize("job_id", ["nope", "../store", "", "a/b", "."])
def test_an_unknown_id_is_unknown(queue: RenderQueue, job_id: str) -> None:
    for call in (queue.get, queue.cancel):
        with pytest.raises(UnknownJob):
            call(job_id)


@pytest.mark.parametrize("job_id", ["../store", "", "a/b", ".", "..", "a\0b"])
def test_no_id_leads_out_of_the_jobs_folder(queue: RenderQueue, job_id: str) -> None:
    with pytest.raises(UnknownJob):
        queue.folder(job_id)


def test_a_waiting_job_is_cancelled_at_once_and_for_good(queue: RenderQueue) -> None:
    first, second = queue.submit(spec("one")), queue.submit(spec("two"))
    assert queue.cancel(first.id).state is State.CANCELLED
    assert queue.cancel(first.id).state is State.CANCELLED
    assert queue.get(second.id).position == 0
    assert queue.fetch_rq_job(first.id).get_status() == "canceled"
    assert queue.folders.read(first.id)["state"] == "cancelled"


def test_what_is_over_cannot_be_cancelled(queue: RenderQueue) -> None:
    job = queue.submit(spec())
    queue.records.move(job.id, State.RUNNING)
    queue.records.move(job.id, State.DONE)
    with pytest.raises(InvalidTransition, match=f"Job {job.id} is done"):
        queue.cancel(job.id)


def test_the_list_is_a_line_of_time(queue: RenderQueue) -> None:
    """Over (by their end), running, waiting; `limit` is for those that are over."""
    jobs = {name: queue.submit(spec(name)) for name in ("a", "b", "c", "d", "e")}
    for name, end in (("c", "2026-01-01T00:00:02Z"), ("a", "2026-01-01T00:00:01Z")):
        queue.connection.lrem(queue.rq_queue.key, 1, jobs[name].id)
        queue.records.move(jobs[name].id, State.RUNNING)
        queue.records.move(jobs[name].id, State.DONE, ended_at=end)
    queue.connection.lrem(queue.rq_queue.key, 1, jobs["b"].id)
    queue.records.move(jobs["b"].id, State.RUNNING)
    assert order(queue) == ["a", "c", "b", "d", "e"]
    assert [job.spec.prompt for job in queue.list(limit=1)][1:] == ["b", "d", "e"]
    assert [job.spec.prompt for job in queue.list(limit=0)] == ["b", "d", "e"]
    assert [job.spec.prompt for job in queue.list({"done", "running"})] == ["a", "c", "b"]
    assert queue.counts() == dict.fromkeys(State, 0) | {"done": 2, "running": 1, "queued": 2}


def test_of_those_that_wait_only_the_next_can_be_asked_for(queue: RenderQueue) -> None:
    jobs = [queue.submit(spec(name)) for name in ("a", "b", "c")]
    queue.submit(spec("first"), priority="urgent")
    assert [job.spec.prompt for job in queue.list(waiting=2)] == ["first", "a"]
    assert queue.list(waiting=0) == []
    # Cancelled by RQ's own tools: nobody would ever hear of it if it were not looked at.
    queue.fetch_rq_job(jobs[2].id).cancel()
    assert [job.spec.prompt for job in queue.list(waiting=2)] == ["c", "first"]
    assert queue.get(jobs[2].id).state is State.CANCELLED


def test_a_hundred_jobs_are_read_in_a_few_round_trips(queue: RenderQueue) -> None:
    for number in range(100):
        queue.submit(spec(str(number)))

    def commands() -> int:
        return queue.connection.info("stats")["total_reads_processed"]

    before = commands()
    assert len(queue.list()) == 100
    assert commands() - before < 30


def test_only_one_of_two_contenders_moves_a_job(queue: RenderQueue) -> None:
    job = queue.submit(spec())
    outcomes: list[str] = []
    together = threading.Barrier(8)

    def contend() -> None:
        together.wait()
        try:
            queue.records.move(job.id, State.RUNNING)
            outcomes.append("moved")
        except InvalidTransition:
            outcomes.append("refused")

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["moved"] + ["refused"] * 7


def test_every_transition_is_allowed_or_refused_by_the_one_table() -> None:
    for state in State:
        for to in State:
            if to in ALLOWED[state]:
                check_transition("x", state, to)
            else:
                with pytest.raises(InvalidTransition):
                    check_transition("x", state, to)
    assert {state for state in State if not ALLOWED[state]} == {State.DONE, State.CANCELLED}
    assert all(state in ALLOWED for state in (*OVER, State.QUEUED))


def test_changes_are_announced(queue: RenderQueue) -> None:
    with queue.watch(5) as events:
        job = queue.submit(spec())
        queue.cancel(job.id)
        seen = [next(events), next(events)]
    assert [(event.job_id, event.kind, event.state) for event in seen if event] == [
        (job.id, "state", State.QUEUED),
        (job.id, "state", State.CANCELLED),
    ]


def test_a_watch_says_when_nothing_happens(queue: RenderQueue) -> None:
    with queue.watch(0.01) as events:
        assert next(events) is None


def test_a_store_that_is_not_there_is_told_with_the_remedy(settings: Settings) -> None:
    with pytest.raises(StoreUnavailable, match="start it with `h3farm run`"):
        RenderQueue.connect(settings)


def test_a_store_of_the_users_is_named_without_its_password(home: Path) -> None:
    settings = Settings(
        home=home, outputs=home, models=(home,), redis_url="redis://me:secret@127.0.0.1:1/0"
    )
    with pytest.raises(StoreUnavailable) as caught:
        RenderQueue.connect(settings)
    assert "redis://127.0.0.1:1/0 (REDIS_URL)" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_wrong_password_is_not_told_as_a_store_that_is_not_there(
    queue: RenderQueue, settings: Settings
) -> None:
    queue.connection.config_set("requirepass", "secret")
    with pytest.raises(StoreUnavailable, match="wants another password than REDIS_URL has"):
        RenderQueue.connect(settings)
    queue.connection.config_set("requirepass", "")


def test_a_store_that_goes_away_ends_a_watch(queue: RenderQueue, store: Store) -> None:
    with queue.watch(20) as events:
        store._process.kill()
        store._process.wait()
        with pytest.raises(StoreUnavailable):
            next(events)
    eventually(lambda: store.ended() is not None)


def test_a_waiting_job_survives_a_kill_of_the_store(
    queue: RenderQueue, settings: Settings, store: Store
) -> None:
    """Append-only file, flushed to the system at every write: only a power cut costs a second."""
    job = queue.submit(spec())
    os.kill(store.pid, 9)
    store._process.wait()
    store.stop()
    again = Store(settings)
    try:
        assert queue.get(job.id).state is State.QUEUED
    finally:
        again.stop()
