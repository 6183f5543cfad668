"""What users want of jobs that wait, run, or are just being taken up."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from farmtest import spec
from rq.suspension import suspend

from h3farm.engine.progress import Progress
from h3farm.worker.queue import InvalidTransition, RenderJob, RenderQueue, State, UnknownJob
from h3farm.worker.queue.errors import AmbiguousJob, BadSchedule, CannotChange, Superseded
from h3farm.worker.queue.farm_state import FarmState
from h3farm.worker.queue.returning import put_back

NOON = datetime(2026, 6, 10, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(queue: RenderQueue) -> Clock:
    found = Clock()
    queue._clock = queue.records.clock = found
    return found


def pop(queue: RenderQueue, job: RenderJob) -> None:
    """As RQ does it: the job is in the intermediate list, and nobody has begun it."""
    queue.connection.lrem(queue.rq_queue.key, 1, job.id)
    queue.connection.lpush(queue.rq_queue.intermediate_queue_key, job.id)


def begin(queue: RenderQueue, job: RenderJob, execution: str = "x1") -> RenderJob:
    pop(queue, job)
    queue.connection.lrem(queue.rq_queue.intermediate_queue_key, 1, job.id)
    attempts = job.attempts + 1
    return queue.records.move(job.id, State.RUNNING, execution=execution, attempts=attempts)


def order(queue: RenderQueue) -> list[str]:
    return [job.spec.prompt for job in queue.list([State.QUEUED])]


def line(queue: RenderQueue) -> list[str]:
    return [job_id.decode() for job_id in queue.connection.lrange(queue.rq_queue.key, 0, -1)]


def on_disk(queue: RenderQueue, job: RenderJob) -> dict[str, object]:
    found = queue.folders.read(job.id)
    assert found is not None
    return found


# ---- fencing ----


def test_an_end_of_another_execution_is_refused(queue: RenderQueue) -> None:
    job = begin(queue, queue.submit(spec()), "second")
    with pytest.raises(Superseded):
        queue.records.move(job.id, State.DONE, by="first", result={})
    assert queue.get(job.id).state is State.RUNNING
    assert on_disk(queue, job)["state"] == "running"
    assert queue.records.move(job.id, State.DONE, by="second", result={}).state is State.DONE


def test_an_execution_ends_with_the_state_running(queue: RenderQueue) -> None:
    job = begin(queue, queue.submit(spec()))
    assert on_disk(queue, job)["execution"] == "x1"
    put_back(queue, job.id)
    assert queue.get(job.id).execution is None
    assert on_disk(queue, job)["execution"] is None


def test_a_wish_for_another_execution_is_refused(queue: RenderQueue) -> None:
    job = begin(queue, queue.submit(spec()), "second")
    for ask in (queue.cancel, queue.pause):
        with pytest.raises(Superseded):
            ask(job.id, execution="first")
    assert queue.get(job.id).wish is None
    assert queue.cancel(job.id, execution="second").wish == "cancel"


def test_progress_of_another_execution_is_not_taken(queue: RenderQueue) -> None:
    job = begin(queue, queue.submit(spec()), "second")
    now = Progress(phase="denoise", step=1, steps=2)
    assert queue.records.report(job.id, "first", now, f"rq:job:{job.id}") is None
    assert queue.get(job.id).progress is None
    assert queue.records.report(job.id, "second", now, f"rq:job:{job.id}") is not None
    assert queue.get(job.id).progress == now


# ---- cancel and pause, at every boundary ----


@pytest.mark.parametrize("state", ["waiting", "popped", "running"])
@pytest.mark.parametrize(
    ("ask", "wish", "end"), [("cancel", "cancel", "cancelled"), ("pause", "pause", "paused")]
)
def test_a_wish_changes_one_that_waits_and_is_left_for_one_in_hands(
    queue: RenderQueue, state: str, ask: str, wish: str, end: str
) -> None:
    job, other = queue.submit(spec("it")), queue.submit(spec("other"))
    if state == "running":
        begin(queue, job)
    elif state == "popped":
        pop(queue, job)
    asked = getattr(queue, ask)(job.id)
    if state == "waiting":
        assert (asked.state, asked.wish) == (end, None)
        assert on_disk(queue, job)["state"] == end
    else:
        assert (asked.state, asked.wish) == ("running" if state == "running" else "queued", wish)
        assert on_disk(queue, job)["wish"] == wish
    assert line(queue) == [other.id]
    assert queue.get(other.id).wish is None


def test_a_wish_for_one_that_waits_never_touches_the_one_that_runs(queue: RenderQueue) -> None:
    running, waiting = queue.submit(spec()), queue.submit(spec())
    begin(queue, running)
    queue.cancel(waiting.id)
    assert (queue.get(running.id).state, queue.get(running.id).wish) == (State.RUNNING, None)


def test_a_cancel_is_stronger_than_a_pause_and_stays(queue: RenderQueue) -> None:
    job = begin(queue, queue.submit(spec()))
    queue.cancel(job.id)
    assert queue.pause(job.id).wish == "cancel"
    with pytest.raises(InvalidTransition):
        queue.resume(job.id)
    put_back(queue, job.id)  # its worker ends before it has seen the wish
    assert queue.get(job.id).wish == "cancel"


@pytest.mark.parametrize("ask", ["cancel", "pause"])
def test_what_is_over_is_refused(queue: RenderQueue, ask: str) -> None:
    job = begin(queue, queue.submit(spec()))
    queue.records.move(job.id, State.DONE, result={})
    with pytest.raises(InvalidTransition, match="is done"):
        getattr(queue, ask)(job.id)
    with pytest.raises(InvalidTransition, match="is done"):
        queue.resume(job.id)


def test_many_jobs_are_asked_in_one_call_and_an_unknown_one_stops_all(queue: RenderQueue) -> None:
    jobs = [queue.submit(spec(str(n))) for n in range(4)]
    begin(queue, jobs[0])
    ids = [job.id for job in jobs]
    with pytest.raises(UnknownJob):
        queue.pause_many([*ids, "nobody"])
    assert order(queue) == ["1", "2", "3"]
    assert queue.pause_many(ids[:3]) == ["asked", "done", "done"]
    assert order(queue) == ["3"]
    assert queue.cancel_many(ids) == ["asked", "done", "done", "done"]
    assert queue.cancel_many(ids) == ["asked", "over", "over", "over"]


# ---- resume ----


def test_a_resumed_job_stands_where_it_was(queue: RenderQueue) -> None:
    jobs = {name: queue.submit(spec(name)) for name in "abcd"}
    queue.pause(jobs["b"].id)
    queue.pause(jobs["c"].id)
    queue.submit(spec("e"))
    assert order(queue) == ["a", "d", "e"]
    queue.resume(jobs["c"].id)
    queue.resume(jobs["b"].id)
    assert order(queue) == ["a", "b", "c", "d", "e"]


def test_a_resumed_job_that_had_been_begun_stands_in_front_of_its_priority(
    queue: RenderQueue,
) -> None:
    job = queue.submit(spec("begun"))
    queue.submit(spec("normal"))
    queue.submit(spec("urgent"), priority="urgent")
    begin(queue, job)
    put_back(queue, job.id, to=State.PAUSED)
    assert order(queue) == ["urgent", "normal"]
    assert queue.resume(job.id).state is State.QUEUED
    assert order(queue) == ["urgent", "begun", "normal"]


def test_several_resumed_at_once_keep_their_order(queue: RenderQueue) -> None:
    jobs = [queue.submit(spec(name)) for name in "abc"]
    for job in jobs[:2]:
        begin(queue, job)
        put_back(queue, job.id, to=State.PAUSED)
    assert queue.resume_many([job.id for job in jobs]) == [jobs[0].id, jobs[1].id]
    assert order(queue) == ["a", "b", "c"]


def test_a_pause_taken_back_before_the_worker_saw_it_brings_the_job_back(
    queue: RenderQueue,
) -> None:
    running, popped = queue.submit(spec()), queue.submit(spec())
    begin(queue, running)
    pop(queue, popped)
    for job in (running, popped):
        queue.pause(job.id, until=NOON)
        queue.resume(job.id)
    assert (queue.get(running.id).wish, queue.get(running.id).paused_until) == ("yield", None)
    assert queue.get(popped.id).wish is None


def test_a_pause_until_a_moment_ends_by_itself(queue: RenderQueue, clock: Clock) -> None:
    job, other = queue.submit(spec("it")), queue.submit(spec("other"))
    queue.pause(job.id, until=NOON + HOUR)
    queue.pause(other.id)
    queue.promote_due()
    assert order(queue) == []
    clock.now += HOUR
    queue.promote_due()
    assert order(queue) == ["it"]
    assert queue.get(job.id).paused_until is None


# ---- schedule ----


def test_a_scheduled_job_waits_outside_of_the_line_and_keeps_its_place(
    queue: RenderQueue, clock: Clock
) -> None:
    jobs = [queue.submit(spec(name)) for name in "abc"]
    queue.schedule([jobs[1].id], not_before=NOON + HOUR)
    assert (queue.get(jobs[1].id).state, order(queue)) == (State.SCHEDULED, ["a", "c"])
    assert on_disk(queue, jobs[1])["not_before"] == "2026-06-10T13:00:00.000Z"
    queue.promote_due()
    assert order(queue) == ["a", "c"]
    clock.now += HOUR
    queue.promote_due()
    assert order(queue) == ["a", "b", "c"]


def test_a_clock_that_jumps_is_harmless(queue: RenderQueue, clock: Clock) -> None:
    """Nothing is remembered of what it showed."""
    job = queue.submit(spec("a"))
    queue.schedule([job.id], not_before=NOON + HOUR)
    clock.now -= 1000 * HOUR
    queue.promote_due()
    assert order(queue) == []
    clock.now = NOON + HOUR
    queue.promote_due()
    assert order(queue) == ["a"]


def test_a_schedule_is_lifted(queue: RenderQueue, clock: Clock) -> None:
    job = queue.submit(spec("a"))
    queue.schedule([job.id], not_before=NOON + HOUR, window="22:00-07:00")
    queue.schedule([job.id], not_before=None)
    assert queue.get(job.id).window == "22:00-07:00"
    [lifted] = queue.schedule([job.id], window=None)
    assert (lifted.state, lifted.window, order(queue)) == (State.QUEUED, None, ["a"])


def test_a_paused_job_is_scheduled_when_it_is_resumed_too_early(
    queue: RenderQueue, clock: Clock
) -> None:
    job = queue.submit(spec())
    queue.pause(job.id)
    queue.schedule([job.id], not_before=NOON + HOUR)
    assert queue.get(job.id).state is State.PAUSED
    assert queue.resume(job.id).state is State.SCHEDULED


def test_a_bad_window_and_a_job_that_is_over_change_nothing(queue: RenderQueue) -> None:
    job, done = queue.submit(spec()), queue.submit(spec())
    queue.cancel(done.id)
    with pytest.raises(BadSchedule):
        queue.schedule([job.id], window="at night")
    with pytest.raises(CannotChange, match="is cancelled: only a job that waits can be scheduled"):
        queue.schedule([job.id, done.id], window="22:00-07:00")
    assert queue.get(job.id).window is None


# ---- the farm ----


def test_the_farms_state_is_in_the_store_and_on_disk(queue: RenderQueue) -> None:
    queue.set_farm_window("22:00-7:00")
    queue.pause_farm(reason="the moon is full", finish_current=True, free_memory=True)
    file = queue.settings.state / "farm.json"
    state = queue.farm()
    assert json.loads(file.read_text()) == state.to_json()
    assert (state.paused, state.finish_current, state.window) == (True, True, "22:00-07:00")
    queue.connection.delete("h3farm:farm")
    assert queue.farm() == FarmState()
    queue.farm_record.restore()
    assert queue.farm() == state
    assert queue.resume_farm() == FarmState(window="22:00-07:00")
    queue.farm_record.restore()  # what the store has counts
    assert queue.farm() == FarmState(window="22:00-07:00")


def test_a_farm_paused_until_a_moment_opens_by_itself(queue: RenderQueue, clock: Clock) -> None:
    queue.pause_farm(until=NOON + HOUR)
    assert (queue.closed() or "").startswith("the farm is paused until ")
    clock.now += HOUR
    assert queue.closed() is None


# ---- why jobs wait ----


def test_every_waiting_job_says_why(queue: RenderQueue, clock: Clock) -> None:
    first, second, third = (queue.submit(spec(name)) for name in "abc")
    assert queue.get(first.id).waits == "next; no worker is running"
    assert queue.get(second.id).waits == "behind 1 other; no worker is running"
    assert queue.get(third.id).waits == "behind 2 others; no worker is running"
    queue.connection.hset("rq:worker:h3farm", mapping={"pid": 1, "state": "idle"})
    assert queue.get(first.id).waits == "next"
    suspend(queue.connection)
    assert "`rq resume`" in (queue.get(first.id).waits or "")
    queue.pause_farm(reason="the disk is full")
    assert queue.get(first.id).waits == "next; the farm is paused because the disk is full"
    queue.resume_farm()
    queue.connection.delete("rq:suspended")
    queue.pause(second.id)
    assert queue.get(second.id).waits == "paused"
    queue.schedule([third.id], not_before=NOON + 100 * HOUR)
    assert (queue.get(third.id).waits or "").startswith("not before 2026-06-14 ")
    begin(queue, first)
    assert queue.get(first.id).waits is None
    fourth = queue.submit(spec("d"))
    assert queue.get(fourth.id).waits == "next, behind the one that runs"
    assert [job.waits for job in queue.list()] == [
        queue.get(job.id).waits for job in (first, fourth, second, third)
    ]


# ---- ids ----


def test_an_id_may_be_given_by_its_beginning(queue: RenderQueue) -> None:
    suffixes = iter(["aa11", "aa22"])
    queue._suffix = lambda: next(suffixes)
    jobs = [queue.submit(spec()) for _ in range(2)]
    assert queue.resolve(jobs[0].id) == jobs[0].id
    assert queue.resolve(jobs[0].id[:-1]) == jobs[0].id
    with pytest.raises(AmbiguousJob, match="beginning of several ids"):
        queue.resolve(jobs[0].id[:-4])
    with pytest.raises(UnknownJob):
        queue.resolve("x")


Move = Callable[[RenderQueue, dict[str, RenderJob]], RenderJob]


@pytest.mark.parametrize(
    ("move", "wanted"),
    [
        (lambda q, j: q.move(j["c"].id, front=True), "u c a b i"),
        (lambda q, j: q.move(j["c"].id, before=j["b"].id), "u a c b i"),
        (lambda q, j: q.move(j["a"].id, after=j["b"].id), "u b a c i"),
        (lambda q, j: q.move(j["a"].id, to=2), "u b a c i"),
        (lambda q, j: q.move(j["a"].id, to=1), "u a b c i"),
        (lambda q, j: q.move(j["a"].id, to=99), "u b c a i"),
        (lambda q, j: q.move(j["a"].id, after=j["i"].id), "u b c i a"),
        (lambda q, j: q.move(j["i"].id, before=j["u"].id), "i u a b c"),
        (lambda q, j: q.set_priority(j["b"].id, "urgent"), "u b a c i"),
        (lambda q, j: q.set_priority(j["a"].id, "idle"), "u b c i a"),
        (lambda q, j: q.set_priority(j["a"].id, "normal"), "u a b c i"),
    ],
)
def test_the_order_is_changed(queue: RenderQueue, move: Move, wanted: str) -> None:
    jobs = {name: queue.submit(spec(name)) for name in "abc"}
    jobs["i"] = queue.submit(spec("i"), priority="idle")
    jobs["u"] = queue.submit(spec("u"), priority="urgent")
    move(queue, jobs)
    assert " ".join(order(queue)) == wanted
    stored = sorted(
        (json.loads((queue.folder(job.id) / "job.json").read_text()) for job in jobs.values()),
        key=lambda row: (["urgent", "normal", "idle"].index(row["priority"]), row["order"]),
    )
    assert " ".join(row["spec"]["prompt"] for row in stored) == wanted  # for a recovery


def test_there_is_always_room_between_two(queue: RenderQueue) -> None:
    first, *others = (queue.submit(spec(str(n))) for n in range(3))
    for n in range(300):
        queue.move(others[n % 2].id, after=first.id)
    assert order(queue) == ["0", "2", "1"]


def test_a_paused_job_can_be_moved_and_is_met_by_others(queue: RenderQueue) -> None:
    a, b, c = (queue.submit(spec(name)) for name in "abc")
    queue.pause(a.id)
    queue.move(a.id, after=b.id)
    queue.move(c.id, before=a.id)
    queue.resume(a.id)
    assert order(queue) == ["b", "c", "a"]


def test_what_does_not_wait_is_not_moved(queue: RenderQueue) -> None:
    job, other, popped = (queue.submit(spec()) for _ in range(3))
    begin(queue, job)
    pop(queue, popped)
    with pytest.raises(CannotChange, match="is running: only a job that waits can be moved"):
        queue.move(job.id, front=True)
    with pytest.raises(CannotChange, match="about to start"):
        queue.move(popped.id, front=True)
    with pytest.raises(CannotChange):
        queue.move(other.id, before=job.id)
    with pytest.raises(BadSchedule):
        queue.move(other.id, before=other.id)
    with pytest.raises(BadSchedule):
        queue.move(other.id, to=0)
    assert line(queue) == [other.id]


def test_the_running_jobs_priority_can_be_changed(queue: RenderQueue) -> None:
    job = begin(queue, queue.submit(spec()))
    assert queue.set_priority(job.id, "urgent").priority == "urgent"
    assert queue.get(job.id).state is State.RUNNING
