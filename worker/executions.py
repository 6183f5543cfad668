"""One execution of a job: what it asks of the engine, how it begins, and how it can end."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from h3farm.engine.limits import Limits
from h3farm.engine.progress import Progress
from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue import RenderJob, State
from h3farm.worker.queue.job import stamp


class Result(Protocol):
    """What a render gives back."""

    def to_json(self) -> dict[str, Any]:
        """As JSON."""


class RenderEngine(Protocol):
    """What the worker needs of `h3farm.engine.render.Engine`."""

    def render(
        self,
        spec: RenderSpec,
        *,
        model: Path,
        outputs: Path,
        work: Path,
        job_id: str | None,
        on_progress: Callable[[Progress], None],
        limits: Limits,
        ahead: Sequence[str],
    ) -> Result:
        """Render; clears the cancel flag first. `work` is the engine's, to make and remove."""

    def cancel(self) -> None:
        """Stop the render that runs at once, from any thread."""

    def stop_at_resume_point(self) -> None:
        """Stop the render that runs when its next resume point is kept, from any thread."""

    def close_model(self) -> None:
        """Free the memory of the model; the next render opens it again."""

    def close(self) -> None:
        """Free everything."""


class Interrupted(Exception):  # noqa: N818 - nothing is wrong with the job
    """The job stopped before its end and waits again."""

    def __init__(self, job_id: str, to: State = State.QUEUED, **fields: Any) -> None:
        """to: the state that it comes to. fields: of its record, what changes along."""
        super().__init__(job_id)
        self.to = to
        self.fields = fields


class Stopped(Exception):  # noqa: N818 - a wish
    """Somebody cancelled the job."""


class Held(Exception):  # noqa: N818 - nothing is wrong with the job
    """The job waits for room, on the disk or in memory."""


class Failed(Exception):  # noqa: N818 - the job's outcome
    """The job failed, and its record says why."""


def begun(job: RenderJob, now: datetime, execution: str) -> dict[str, Any]:
    """What changes of a job that is begun: its last interruption ends here."""
    resumed = [
        each | {"resumed_at": each["resumed_at"] or stamp(now)} for each in job.interruptions
    ]
    return {
        "started_at": stamp(now),
        "attempts": job.attempts + 1,
        "execution": execution,
        "interruptions": resumed,
        "start_over": False,
        "progress": None,
        "hold": None,
    }


def place_of(progress: Progress | None) -> str | None:
    """Where a render stands, in words: "denoise 12 of 20"."""
    if progress is None:
        return None
    counted = f" {progress.step} of {progress.steps}" if progress.steps else ""
    return f"{progress.phase}{counted}"
