"""One job on the engine: what may happen meanwhile, and what becomes of the record."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from farmtest import eventually, spec

from h3farm.engine.durable import write_durably
from h3farm.engine.errors import (
    Cancelled,
    CheckpointError,
    DiskError,
    DiskFull,
    EngineError,
    MediaError,
    MemoryShort,
    NumericError,
    OutOfMemory,
)
from h3farm.engine.limits import Limits
from h3farm.engine.progress import Progress
from h3farm.worker.executions import Failed, Held, Interrupted, Stopped
from h3farm.worker.ladder import FEWER_THREADS, ONE_NETWORK
from h3farm.worker.queue import RenderJob, RenderQueue, State
from h3farm.worker.queue.returning import put_back
from h3farm.worker.runner import Runner
from h3farm.worker.watchdog import LOOK_S, Watchdog


class Result:
    def to_json(self) -> dict[str, object]:
        return {"video": "v.mp4"}


class ScriptedEngine:
    """Calls what the test gives it, inside of the render."""

    def __init__(
        self, script: Callable[["ScriptedEngine", Callable[[Progress], None]], None]
    ) -> None:
        self.script = script
        self.cancelled = threading.Event()
        self.to_stop = threading.Event()
        self.cancels = 0
        self.stops = 0
        self.asked: dict[str, object] = {}

    def render(
        self, spec: object, *, on_progress: Callable[[Progress], None], **asked: object
    ) -> Result:
        self.cancelled.clear()
        self.to_stop.clear()
        self.asked = asked
        self.script(self, on_progress)
        return Result()

    def cancel(self) -> None:
        self.cancels += 1
        self.cancelled.set()

    def stop_at_resume_point(self) -> None:
        self.stops += 1
        self.to_stop.set()

    def close_model(self) -> None:
        pass

    def close(self) -> None:
        pass

    def until_cancelled(self) -> None:
        assert self.cancelled.wait(20)
        raise Cancelled("stopped")


def try_again(queue: RenderQueue, runner: Runner, job: RenderJob) -> None:
    """The render ends, is put back into the queue as the worker does it, and is popped again."""
    with pytest.raises(Interrupted) as end:
        runner.run(job.id)
    put_back(queue, job.id, to=end.value.to, **end.value.fields)
    queue.connection.lrem(queue.rq_queue.key, 1, job.id)


def raising(error: Exception) -> Callable[..., None]:
    def script(*_: object) -> None:
        raise error

    return script


def runner_of(queue: RenderQueue, script: Callable[..., None], **fields: float) -> Runner:
    engine = ScriptedEngine(script)
    runner = Runner(queue, engine, lambda folders: {"tiny": folders[0] / "tiny"}, **fields)
    runner.engine = engine  # type: ignore[attr-defined]
    return runner


def taken(queue: RenderQueue, prompt: str = "a fox") -> RenderJob:
    """A job in a worker's hands: in no list any more."""
    job = queue.submit(spec(prompt))
    queue.connection.lrem(queue.rq_queue.key, 1, job.id)
    return job


def test_the_engine_gets_the_model_and_a_work_folder_of_the_job(queue: RenderQueue) -> None:
    job = taken(queue)
    runner = runner_of(queue, lambda *_: None)
    assert runner.run(job.id) == {"video": "v.mp4"}
    assert runner.engine.asked == {  # type: ignore[attr-defined]
        "model": queue.settings.models[0] / "tiny",
        "outputs": queue.settings.outputs,
        "work": queue.folder(job.id) / "work",
        "job_id": job.id,
        "limits": Limits(),
        "ahead": [],
    }


def test_a_late_cancel_does_not_hit_the_next_job(queue: RenderQueue) -> None:
    """It names a job that no longer runs, and is dropped."""
    first, second = taken(queue), taken(queue)
    runner = runner_of(queue, lambda *_: None)
    runner.run(first.id)
    runner.stop(first.id)
    runner.run(second.id)
    assert queue.get(second.id).state is State.DONE
    assert runner.engine.cancels == 0  # type: ignore[attr-defined]


def test_a_cancel_between_pop_and_start_is_not_lost(queue: RenderQueue) -> None:
    job = taken(queue)
    queue.cancel(job.id)
    with pytest.raises(Stopped):
        runner_of(queue, raising(AssertionError("rendered"))).run(job.id)
    assert queue.get(job.id).state is State.CANCELLED


def test_a_cancel_that_the_renders_own_start_wipes_is_not_lost(queue: RenderQueue) -> None:
    job = taken(queue)

    def script(engine: ScriptedEngine, _: object) -> None:
        runner.stop(job.id)
        eventually(engine.cancelled.is_set)
        engine.cancelled.clear()  # as a render does when it begins
        engine.until_cancelled()

    runner = runner_of(queue, script, tick_s=0.01)
    with pytest.raises(Stopped):
        runner.run(job.id)


def test_a_cancel_whose_message_was_lost_is_found_in_the_record(queue: RenderQueue) -> None:
    job = taken(queue)

    def script(engine: ScriptedEngine, _: object) -> None:
        queue.cancel(job.id)
        engine.until_cancelled()

    with pytest.raises(Stopped):
        runner_of(queue, script, tick_s=0.01).run(job.id)
    assert queue.get(job.id).state is State.CANCELLED


def test_a_cancelled_job_leaves_no_work_files(queue: RenderQueue) -> None:
    job = taken(queue)

    def script(engine: ScriptedEngine, _: object) -> None:
        Path(str(engine.asked["work"])).mkdir()
        runner.stop(job.id)
        engine.until_cancelled()

    runner = runner_of(queue, script, tick_s=0.01)
    with pytest.raises(Stopped):
        runner.run(job.id)
    assert sorted(path.name for path in queue.folder(job.id).iterdir()) == ["job.json", "log.txt"]


def test_a_render_that_was_faster_than_the_cancel_is_done(queue: RenderQueue) -> None:
    job = taken(queue)
    runner = runner_of(queue, lambda *_: runner.stop(job.id))
    runner.run(job.id)
    assert queue.get(job.id).state is State.DONE


def test_a_shutdown_interrupts(queue: RenderQueue) -> None:
    job = taken(queue)

    def script(engine: ScriptedEngine, _: object) -> None:
        runner.interrupt()
        engine.until_cancelled()

    runner = runner_of(queue, script)
    with pytest.raises(Interrupted):
        runner.run(job.id)
    assert queue.get(job.id).state is State.RUNNING  # the worker puts it back, with RQ's half


def test_a_real_error_during_a_shutdown_is_a_failure(queue: RenderQueue) -> None:
    job = taken(queue)

    def script(engine: ScriptedEngine, _: object) -> None:
        runner.interrupt()
        assert engine.cancelled.wait(20)
        raise NumericError("NaN in block 3")

    runner = runner_of(queue, script)
    with pytest.raises(Failed):
        runner.run(job.id)
    assert queue.get(job.id).state is State.FAILED


def test_an_engine_that_ignores_the_shutdown_is_left_behind(queue: RenderQueue) -> None:
    job = taken(queue)
    release = threading.Event()

    def script(*_: object) -> None:
        runner.interrupt()
        release.wait(20)

    runner = runner_of(queue, script, tick_s=0.01, give_up_s=0.05)
    with pytest.raises(Interrupted):
        runner.run(job.id)
    release.set()


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (OutOfMemory("needs 30 GB"), "out_of_memory", "needs 30 GB"),
        (CheckpointError("x.safetensors is cut"), "checkpoint", "x.safetensors is cut"),
        (NumericError("NaN in block 3"), "numeric", "NaN in block 3"),
        (MediaError("ffmpeg failed"), "media", "ffmpeg failed"),
        (DiskError("disk full"), "disk", "disk full"),
        (EngineError("odd"), "engine", "odd"),
        (ZeroDivisionError("oops"), "internal", "An unexpected ZeroDivisionError: oops"),
        (Cancelled("by nobody"), "engine", "by nobody"),
    ],
)
def test_a_failure_keeps_a_sentence_a_kind_and_a_remedy(
    queue: RenderQueue, error: Exception, kind: str, sentence: str
) -> None:
    job = taken(queue)
    runner = runner_of(queue, raising(error))
    if isinstance(error, OutOfMemory):
        try_again(queue, runner, job)
        sentence += " (it was tried again with one network at a time)"
    with pytest.raises(Failed):
        runner.run(job.id)
    failed = queue.get(job.id)
    assert failed.state is State.FAILED
    assert failed.error is not None
    assert (failed.error["kind"], failed.error["sentence"]) == (kind, sentence)
    assert failed.error["remedy"].endswith(".")
    assert queue.folders.read(job.id)["error"] == failed.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DiskFull("cannot write frames.rgb: No space left on device"), "disk"),
        (MemoryShort("8 GB are free now", needed_bytes=9), "memory"),
    ],
)
def test_want_of_room_holds_the_job_and_keeps_its_work(
    queue: RenderQueue, error: Exception, kind: str
) -> None:
    """Nothing is wrong with it: it waits, with the reason, in no list of RQ's."""
    job = taken(queue)

    def script(engine: ScriptedEngine, _: object) -> None:
        Path(str(engine.asked["work"])).mkdir()
        raise error

    with pytest.raises(Held):
        runner_of(queue, script).run(job.id)
    held = queue.get(job.id)
    assert (held.state, held.position) == (State.PAUSED, None)
    assert (held.waits or "").endswith(str(error))
    assert held.hold is not None
    assert held.hold["kind"] == kind
    assert queue.folders.read(job.id)["hold"] == held.hold
    assert (queue.folder(job.id) / "work").exists()


def test_a_job_that_is_to_be_cancelled_is_not_held(queue: RenderQueue) -> None:
    job = taken(queue)

    def script(engine: ScriptedEngine, _: object) -> None:
        runner.stop(job.id)
        assert engine.cancelled.wait(20)
        raise DiskFull("disk full")

    runner = runner_of(queue, script, tick_s=0.01)
    with pytest.raises(Stopped):
        runner.run(job.id)
    assert queue.get(job.id).state is State.CANCELLED


def test_a_job_is_held_in_the_store_even_when_its_folder_cannot_be_written(
    queue: RenderQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on the disk that is full."""
    job = taken(queue)

    def script(*_: object) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise DiskFull("cannot write job.json: No space left on device")

        monkeypatch.setattr("h3farm.worker.queue.disk.write_durably", refuse)
        raise DiskFull("disk full")

    with pytest.raises(Held):
        runner_of(queue, script).run(job.id)
    assert queue.get(job.id).state is State.PAUSED


def test_an_end_waits_for_room_in_the_jobs_folder(
    queue: RenderQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The video is there: its record must not be lost for want of a kilobyte."""
    job = taken(queue)
    refused = 0

    def script(*_: object) -> None:
        def refuse(*arguments: object, **named: object) -> None:
            nonlocal refused
            refused += 1
            if refused < 3:
                raise DiskFull("cannot write job.json: No space left on device")
            write_durably(*arguments, **named)

        monkeypatch.setattr("h3farm.worker.queue.disk.write_durably", refuse)

    runner_of(queue, script, tick_s=0.01).run(job.id)
    assert refused == 3
    assert queue.get(job.id).state is State.DONE


class ImpatientDog(Watchdog):
    """Takes every look for a long time, and kills nothing."""

    def __init__(self, release: threading.Event) -> None:
        self.time = 0.0
        super().__init__(self.tell)
        self.release = release

    def tell(self) -> float:
        self.time += LOOK_S
        return self.time

    def kill(self) -> None:
        self.release.set()


def test_a_render_that_stands_still_is_stopped_and_says_where(queue: RenderQueue) -> None:
    job = taken(queue)

    def script(engine: ScriptedEngine, report: Callable[[Progress], None]) -> None:
        report(Progress(phase="denoise", step=3, steps=20, unit_p90_s=1.0))
        engine.until_cancelled()

    runner = runner_of(queue, script, tick_s=0.001)
    runner.watchdog = lambda: ImpatientDog(threading.Event())
    try_again(queue, runner, job)
    with pytest.raises(Failed):
        runner.run(job.id)
    assert queue.get(job.id).place == "denoise 3 of 20"
    error = queue.get(job.id).error or {}
    assert error["kind"] == "stalled"
    assert error["sentence"].startswith(
        "the render stood still at denoise 3 of 20: nothing came of it for 10 min"
    )


def test_an_engine_that_does_not_stop_ends_the_worker(queue: RenderQueue) -> None:
    """The supervisor starts it again; here the kill lets the engine go."""
    job, released = taken(queue), threading.Event()

    def script(engine: ScriptedEngine, _: object) -> None:
        queue.cancel(job.id)
        assert released.wait(20)
        engine.until_cancelled()

    runner = runner_of(queue, script, tick_s=0.001)
    runner.watchdog = lambda: ImpatientDog(released)
    with pytest.raises(Stopped):
        runner.run(job.id)
    assert released.is_set()


def test_want_of_memory_is_tried_again_once_with_a_named_change(queue: RenderQueue) -> None:
    """Never as it was; what helped is where the next such job begins."""
    job, seen = taken(queue), []

    def script(engine: ScriptedEngine, _: object) -> None:
        seen.append(engine.asked["limits"])
        if len(seen) == 1:
            raise OutOfMemory("needs 30 GB")

    runner = runner_of(queue, script)
    try_again(queue, runner, job)
    waiting = queue.get(job.id)
    assert (waiting.state, waiting.rung, waiting.retries) == (
        State.QUEUED,
        ONE_NETWORK,
        [ONE_NETWORK],
    )
    assert queue.folders.read(job.id)["rung"] == ONE_NETWORK
    assert waiting.interruptions[-1]["reason"] == (
        "needs 30 GB: it is tried again with one network at a time"
    )
    runner.run(job.id)
    assert seen == [Limits(), Limits(one_network=True)]
    after = taken(queue, "a hare")
    runner.run(after.id)
    assert seen[-1] == Limits(one_network=True)
    done = queue.get(after.id)
    assert (done.state, done.rung, done.retries) == (State.DONE, ONE_NETWORK, [])


def test_a_job_that_begins_on_a_rung_is_tried_again_on_the_next(queue: RenderQueue) -> None:
    job = taken(queue)
    queue.connection.hset(f"h3farm:job:{job.id}", "rung", json.dumps(ONE_NETWORK))
    runner = runner_of(queue, raising(OutOfMemory("needs 30 GB")))
    try_again(queue, runner, job)
    assert queue.get(job.id).rung == FEWER_THREADS
    with pytest.raises(Failed, match="it was tried again with one network"):
        runner.run(job.id)


def test_the_prompts_that_come_next_are_told_to_the_engine(queue: RenderQueue) -> None:
    """In their order; only of the same model and task."""
    queue.records.publish_models({"tiny": {}, "other": {}})
    job = taken(queue, "fox 0")
    for number in range(1, 4):
        queue.submit(spec(f"fox {number}", model="other" if number == 2 else "tiny"))
    runner = runner_of(queue, lambda *_: None)
    runner.run(job.id)
    assert runner.engine.asked["ahead"] == ["fox 1", "fox 3"]  # type: ignore[attr-defined]


def test_what_kept_embeddings_save_is_added_up(
    queue: RenderQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"video": "v.mp4", "saved": {"opens": 1, "bytes": 7_000_000_000}}
    monkeypatch.setattr(Result, "to_json", lambda self: record)
    assert queue.saved() == {"opens": 0, "bytes": 0}
    for prompt in ("fox", "hare"):
        runner_of(queue, lambda *_: None).run(taken(queue, prompt).id)
    assert queue.saved() == {"opens": 2, "bytes": 14_000_000_000}


def test_a_failures_traceback_is_in_the_jobs_log(queue: RenderQueue) -> None:
    job = taken(queue)
    with pytest.raises(Failed):
        runner_of(queue, raising(ZeroDivisionError("oops"))).run(job.id)
    log = queue.log(job.id).read_text(encoding="utf-8")
    assert "Traceback" in log
    assert "ZeroDivisionError: oops" in log


def test_a_model_that_is_gone_fails_the_job(queue: RenderQueue) -> None:
    job = taken(queue)
    engine = ScriptedEngine(lambda *_: None)
    with pytest.raises(Failed, match="the model tiny is no longer in"):
        Runner(queue, engine, lambda _: {}).run(job.id)
    assert queue.get(job.id).error["kind"] == "checkpoint"


def test_progress_is_thinned_out_and_its_last_is_kept(queue: RenderQueue) -> None:
    job = taken(queue)

    def script(_: object, on_progress: Callable[[Progress], None]) -> None:
        for step in range(1000):
            on_progress(Progress(phase="denoise", step=step, steps=1000))

    with queue.watch(1) as events:
        runner_of(queue, script, tick_s=5).run(job.id)
        seen = [event for event in iter(events.__next__, None) if event.kind == "progress"]
    assert len(seen) <= 2  # one at the end, one if the render's end and a tick fell together
    assert seen[-1].progress == Progress(phase="denoise", step=999, steps=1000)
    assert queue.get(job.id).progress == seen[-1].progress


def test_the_worker_beats_while_the_job_runs(queue: RenderQueue) -> None:
    beats: list[int] = []
    job = taken(queue)
    runner = runner_of(queue, lambda *_: eventually(lambda: len(beats) >= 3), tick_s=0.01)
    runner.beat = lambda: beats.append(1)
    runner.run(job.id)
    assert len(beats) >= 3
