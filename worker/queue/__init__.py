"""The queue for its clients: submit, look, cancel, follow. Needs redis and rq, nothing more."""

from h3farm.worker.queue.errors import (
    InvalidTransition,
    QueueError,
    SettingsError,
    StoreUnavailable,
    UnknownJob,
    UnknownModel,
)
from h3farm.worker.queue.job import JobEvent, RenderJob, WorkerStatus
from h3farm.worker.queue.queue import RenderQueue
from h3farm.worker.queue.settings import Settings
from h3farm.worker.queue.states import OVER, WAITING, Priority, State
from h3farm.worker.queue.watch import Watch

__all__ = [
    "OVER",
    "WAITING",
    "InvalidTransition",
    "JobEvent",
    "Priority",
    "QueueError",
    "RenderJob",
    "RenderQueue",
    "Settings",
    "SettingsError",
    "State",
    "StoreUnavailable",
    "UnknownJob",
    "UnknownModel",
    "Watch",
    "WorkerStatus",
]
