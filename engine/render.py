"""Rendering: one spec in, one output folder out, phase by phase.

`Engine` keeps the model that was used last open, so that a queue of renders opens it once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from h3farm.engine._estimate import Estimate
from h3farm.engine._native import Context, version
from h3farm.engine._phases import Job, render_job
from h3farm.engine.embeddings import Embeddings
from h3farm.engine.errors import Cancelled, OutOfMemory
from h3farm.engine.limits import Limits
from h3farm.engine.machine import Machine
from h3farm.engine.measurements import Measurement, Measurements, Setting
from h3farm.engine.media import Ffmpeg
from h3farm.engine.model import Model
from h3farm.engine.pace import Pace
from h3farm.engine.progress import Progress
from h3farm.engine.spec import RenderSpec
from h3farm.engine.work import Task, tasks_of

T = TypeVar("T")
NO_LIMITS = Limits()
WAKE_S = 0.1  # how often the waiting thread lets signal handlers run

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderResult:
    """What a render left: paths in its output folder, and what it took.

    timings: seconds by phase. estimate: what was said before it began, `p50_s` and `p90_s` of the
    whole. peak_bytes: the most memory the engine had allocated. saved: `opens` of the
    text encoder and `bytes` of it that were not needed, since the prompt had been encoded before.
    """

    folder: Path
    video: Path
    poster: Path
    sidecar: Path
    frames: int
    width: int
    height: int
    duration_s: float
    timings: dict[str, float]
    estimate: dict[str, Any]
    peak_bytes: int
    saved: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON values with a key per field."""
        record = asdict(self)
        for name in ("folder", "video", "poster", "sidecar"):
            record[name] = str(record[name])
        return record


class Engine:
    """The C engine with at most one model open. One render at a time."""

    def __init__(
        self,
        *,
        threads: int = 0,
        ffmpeg: Ffmpeg | None = None,
        machine: Machine | None = None,
        measurements: Measurements | None = None,
        embeddings: Embeddings | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """threads: 0 means one for each performance core. measurements: what estimates are learnt
        from and add to; None: from this render alone. embeddings: where those of prompts are
        kept; None: nowhere. now: an aware clock, for names.
        """
        self._threads = self._context_threads = threads
        self._context = Context(threads)
        self._ffmpeg = ffmpeg or Ffmpeg()
        self._machine = machine or Machine()
        self._measurements = measurements
        self._embeddings = embeddings
        self._now = now
        self._model: Model | None = None
        # Re-entrant: a signal's handler may cancel in the thread that holds it.
        self._lock = threading.RLock()
        self._rendering = False
        self.models_opened = 0

    def render(
        self,
        spec: RenderSpec,
        *,
        model: Path,
        outputs: Path,
        work: Path,
        job_id: str | None = None,
        on_progress: Callable[[Progress], None] = lambda _: None,
        limits: Limits = NO_LIMITS,
        ahead: Sequence[str] = (),
    ) -> RenderResult:
        """Render `spec` with the model in the folder `model`; blocks until it is done.

        The computation runs in a thread of its own, so that the caller's signal handlers stay
        prompt; `on_progress` is called there, and what it raises ends the render. work: a folder
        for what is kept between phases; made when missing, removed at the end. job_id: None for a
        render without a queue; part of the output's name and sidecar. limits: named changes; none
        of them changes a bit of the result. ahead: prompts of renders that come next: when the
        memory does not hold the whole model, they are encoded while the text encoder is there.

        Raises an EngineError; Cancelled after `cancel`. Nothing appears under `outputs` then.
        """
        spec, job_id = spec.with_seed(), job_id or f"direct-{time.time_ns():x}"
        job = Job(
            spec=spec,
            outputs=outputs,
            work=work,
            job_id=job_id,
            started=self._now(),
            on_progress=on_progress,
            limits=limits,
            embeddings=self._embeddings,
            ahead=ahead,
            estimate=lambda model, tokens, begun: Estimate(
                self._pace(model),
                tasks_of(model.networks, spec, tokens),
                record=lambda task, seconds: self._measured(job_id, model, task, seconds),
                begun=begun,
            ),
        )
        with self._lock:
            self._set_threads(limits.threads or self._threads)
            self._context.clear_cancel()
            self._ffmpeg.clear_cancel()
            self._rendering = True
        try:
            return in_thread(lambda: self._render(job, model), on_interrupt=self.cancel)
        finally:
            with self._lock:
                self._rendering = False

    def _render(self, job: Job, path: Path) -> RenderResult:
        self._context.reset_memory_peak()
        try:
            finished = render_job(
                job,
                open_model=lambda: self._opened(path, job.limits),
                context=self._context,
                ffmpeg=self._ffmpeg,
                machine=self._machine,
            )
        except MemoryError as error:  # Python's own, for an array beside those of the C engine
            raise OutOfMemory(f"the machine's memory does not suffice: {error}") from error
        return RenderResult(**finished)

    def _setting(self, model: Model) -> Setting:
        return Setting(
            model=model.signature,
            engine=version(),
            isa=self._context.isa,
            threads=self._context.threads,
        )

    def _pace(self, model: Model) -> Pace:
        return Pace(self._measurements.read() if self._measurements else (), self._setting(model))

    def _measured(self, job_id: str, model: Model, task: Task, seconds: float) -> None:
        if self._measurements is not None:
            self._measurements.append(
                Measurement(
                    at=self._now().astimezone(UTC).isoformat(timespec="seconds"),
                    job=job_id,
                    unit=task.unit,
                    work=task.work,
                    seconds=round(seconds, 4),
                    setting=self._setting(model),
                )
            )

    def _set_threads(self, threads: int) -> None:
        """Have a context with so many: another one, and with it the model, when they differ."""
        if threads != self._context_threads:
            self.close_model()
            self._context.close()
            self._context = Context(threads)
            self._context_threads = threads

    def _memory_is_short(self, model: Model) -> bool:
        """Whether the networks of a model push each other out of memory."""
        available = self._machine.available_memory()
        return available is not None and model.weight_bytes() > available

    def _opened(self, path: Path, limits: Limits) -> Model:
        """The model at `path`: the open one when it is that, else opened in its place."""
        if self._model is not None and not self._model.is_still(path):
            self.close_model()
        if self._model is None:
            logger.info("opening %s", path)
            self._model = Model(self._context, path)
            self.models_opened += 1
        self._model.one_network = limits.one_network or self._memory_is_short(self._model)
        return self._model

    def cancel(self) -> None:
        """End the render that runs, from any thread; without one it does nothing.

        It is seen between tiles of work, and ffmpeg is killed: well under a second.
        """
        with self._lock:
            if self._rendering:
                self._context.cancel()
                self._ffmpeg.cancel()

    def stop_at_resume_point(self) -> None:
        """As `cancel`: no render has a resume point yet, so none is worth waiting for."""
        self.cancel()

    def close_model(self) -> None:
        """Close the model that is kept open; the next render opens it again. Not while one runs."""
        if self._model is not None:
            self._model.close()
            self._model = None

    def close(self) -> None:
        """Close the model and the engine.

        A render that was left behind still computes with them: then they go with the process.
        """
        if self._rendering:
            return
        self.close_model()
        self._context.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def in_thread(call: Callable[[], T], *, on_interrupt: Callable[[], None]) -> T:
    """Run `call` in a thread and wait for it, awake for signals; its result, or what it raised.

    Python runs signal handlers in the main thread between its own instructions: a call into C made
    there would hold them up. When a handler raises (Ctrl-C), `on_interrupt` is called, the thread
    is waited for through further ones, and the handler's exception goes on.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    # Not the thread's own `join`: interrupted by an exception, it takes the thread for ended.
    done = threading.Event()
    # Whoever is first has it: the thread that computes, or an interrupt before it began.
    turn = threading.Lock()

    def run() -> None:
        if not turn.acquire(blocking=False):
            return
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
        finally:
            done.set()

    # A computation that hangs must not keep the process from ending.
    thread = threading.Thread(target=run, name="render", daemon=True)
    try:
        thread.start()
        while not done.wait(WAKE_S):
            pass
    except BaseException:
        on_interrupt()
        while not turn.acquire(blocking=False):
            with contextlib.suppress(KeyboardInterrupt):
                if done.wait(WAKE_S):
                    break
        if errors and not isinstance(errors[0], Cancelled):
            logger.warning("the interrupted render had failed already: %s", errors[0])
        raise
    if errors:
        raise errors[0]
    return results[0]
