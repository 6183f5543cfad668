"""What a failed job keeps: a sentence, a kind for programs, and what to do about it."""

from h3farm.engine.errors import (
    CheckpointError,
    DiskError,
    DiskFull,
    EngineError,
    MediaError,
    MemoryShort,
    NumericError,
    OutOfMemory,
)
from h3farm.worker.queue import QueueError
from h3farm.worker.watchdog import Stalled

# A class of error, its kind, and the remedy; the first that fits counts.
KINDS: tuple[tuple[type[Exception], str, str], ...] = (
    (
        CheckpointError,
        "checkpoint",
        "Check the model's files with `h3farm model info`, then submit the job again.",
    ),
    (
        MemoryShort,
        "memory_short",
        "Close other programs, then submit the job again.",
    ),
    (
        OutOfMemory,
        "out_of_memory",
        "Render smaller or shorter, or close other programs, then submit the job again.",
    ),
    (
        NumericError,
        "numeric",
        "Run `h3farm selftest`; if it passes, the model's weights are damaged: fetch them again.",
    ),
    (MediaError, "media", "The job's log has ffmpeg's own words; submit the job again."),
    (DiskFull, "disk_full", "Free some space on that disk: `h3farm clean --dry-run` helps."),
    (DiskError, "disk", "See that the farm may write there, then submit the job again."),
    (EngineError, "engine", "The job's log says more; submit the job again."),
    (
        Stalled,
        "stalled",
        "Submit the job again; if it stands still at the same place, report it with the job's log.",
    ),
    (QueueError, "queue", "Look at `h3farm list`, then submit the job again."),
)
INTERNAL = "This is a fault of h3farm: the job's log has the details to report."
WORKER_DIED = (
    "Render smaller or shorter: most often the system ended the worker for want of memory. "
    "The job's log shows how far it came."
)


def failure(sentence: str, kind: str, remedy: str) -> dict[str, str]:
    """The stored form."""
    return {"sentence": sentence, "kind": kind, "remedy": remedy}


def explain(error: Exception) -> dict[str, str]:
    """What to store of an exception that ended a job."""
    for cls, kind, remedy in KINDS:
        if isinstance(error, cls):
            return failure(str(error), kind, remedy)
    return failure(f"An unexpected {type(error).__name__}: {error}", "internal", INTERNAL)
