"""Exit codes, and how a failure is told: one table."""

import json
import sys
from typing import Any

from h3farm.engine.errors import (
    Cancelled,
    CheckpointError,
    DiskError,
    EngineError,
    MediaError,
    NumericError,
    OutOfMemory,
)
from h3farm.engine.spec import SpecError
from h3farm.worker.queue import (
    InvalidTransition,
    QueueError,
    SettingsError,
    StoreUnavailable,
    UnknownJob,
    UnknownModel,
)
from h3farm.worker.queue.errors import BadSchedule, NotEnoughDisk, UnknownBatch
from h3farm.worker.queue.faults import BatchError
from h3farm.worker.supervisor import CannotRun

OK, FAILED, USAGE, NOT_RUNNING, UNKNOWN_JOB, INTERRUPTED = 0, 1, 2, 3, 4, 130

# A class of error, the exit code, and the word for programs; the first that fits counts.
TABLE: tuple[tuple[type[BaseException], int, str], ...] = (
    (UnknownModel, USAGE, "unknown_model"),
    (BatchError, USAGE, "invalid_batch"),
    (BadSchedule, USAGE, "invalid_schedule"),
    (SpecError, USAGE, "invalid_spec"),
    (SettingsError, USAGE, "invalid_setting"),
    (StoreUnavailable, NOT_RUNNING, "store_unavailable"),
    (UnknownJob, UNKNOWN_JOB, "unknown_job"),
    (UnknownBatch, UNKNOWN_JOB, "unknown_batch"),
    (InvalidTransition, FAILED, "invalid_transition"),
    (NotEnoughDisk, FAILED, "not_enough_disk"),
    (QueueError, FAILED, "queue"),
    (CannotRun, FAILED, "cannot_run"),
    (Cancelled, INTERRUPTED, "cancelled"),
    (CheckpointError, FAILED, "checkpoint"),
    (OutOfMemory, FAILED, "out_of_memory"),
    (NumericError, FAILED, "numeric"),
    (MediaError, FAILED, "media"),
    (DiskError, FAILED, "disk"),
    (EngineError, FAILED, "engine"),
    (OSError, FAILED, "system"),
    (KeyboardInterrupt, INTERRUPTED, "interrupted"),
)

EXPLAINED = """\
exit codes:
  0    it worked; for `submit --wait` and `render`: the video is there
  1    it failed, or the job did; the reason is on standard error
  2    wrong usage: an option, a setting, or a spec that cannot be rendered
  3    the farm is not running
  4    there is no such job or batch
  130  interrupted with Ctrl-C
"""


def classify(error: BaseException) -> tuple[int, str]:
    """The exit code of a failure and its word for programs."""
    for known, code, kind in TABLE:
        if isinstance(error, known):
            return code, kind
    return FAILED, "internal"


def tell(error: BaseException, sentence: str, *, as_json: bool) -> int:
    """Say what went wrong, on standard error, and as JSON on standard output; the exit code."""
    code, kind = classify(error)
    if as_json:
        shape: dict[str, Any] = {"kind": kind, "message": sentence}
        if field := getattr(error, "field", ""):
            shape["field"] = field
        if isinstance(error, BatchError):
            shape["faults"] = [fault.to_json() for fault in error.faults]
        print(json.dumps({"error": shape}, ensure_ascii=False))
    told = [fault.sentence for fault in error.faults] if isinstance(error, BatchError) else []
    for line in told or [sentence]:
        print(f"h3farm: {line}", file=sys.stderr)
    return code
