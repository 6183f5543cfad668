"""What can go wrong between a client and the queue, by what a caller would do differently."""

from h3farm.engine.spec import SpecError


class QueueError(Exception):
    """Base of the queue's errors; `str()` is a sentence for the user."""


class SettingsError(QueueError):
    """An environment variable of the farm has a value that cannot be used."""

    def __init__(self, sentence: str, *, field: str, given: str, allowed: str) -> None:
        """`field` is the variable's name."""
        super().__init__(sentence)
        self.field = field
        self.given = given
        self.allowed = allowed


class StoreUnavailable(QueueError):  # noqa: N818 - a state of the world
    """The store does not answer: most often the farm is not running."""


class JobNotSaved(QueueError):  # noqa: N818
    """The job's folder could not be written: the disk is full or not writable."""


class NotEnoughDisk(QueueError):  # noqa: N818
    """The disk has no room for all that waits and for what was to be queued."""


class UnknownJob(QueueError):  # noqa: N818
    """No job has this id."""

    def __init__(self, job_id: str) -> None:
        """`job_id` as it was given."""
        super().__init__(f"There is no job {job_id!r}: `h3farm list` shows those that exist.")
        self.job_id = job_id


class UnknownBatch(QueueError):  # noqa: N818
    """No batch, or more than one, has this id or name."""

    def __init__(self, given: str, ids: tuple[str, ...] = ()) -> None:
        """`given` is what was asked for; `ids`: the batches that have it as their name."""
        sentence = f"There is no batch {given!r}: `h3farm batch list` shows those that exist."
        if ids:
            sentence = f"There are {len(ids)} batches named {given!r}: {', '.join(ids)}. Say which."
        super().__init__(sentence)
        self.given = given
        self.ids = ids


class InvalidTransition(QueueError):  # noqa: N818
    """The job's state does not allow what was asked."""

    def __init__(self, job_id: str, state: str, wanted: str) -> None:
        """`state` is what the job is, `wanted` what it was to become."""
        super().__init__(f"Job {job_id} is {state}: it can no longer become {wanted}.")
        self.job_id = job_id
        self.state = state
        self.wanted = wanted


class NotFailed(InvalidTransition):
    """Only a job that failed can be tried again."""

    def __init__(self, job_id: str, state: str) -> None:
        """`state` is what the job is."""
        super().__init__(job_id, state, "queued")
        self.args = (f"Job {job_id} is {state}: only a job that failed can be tried again.",)


class UnknownModel(QueueError, SpecError):  # noqa: N818
    """The spec names a model that the farm does not have: a mistake in the spec's field `model`."""

    def __init__(self, given: str, known: tuple[str, ...], sentence: str) -> None:
        """`known`: the names that would have been taken."""
        super().__init__("model", given, ", ".join(known), sentence)
        self.known = known


class FarmNotSaved(QueueError):  # noqa: N818
    """The farm's own state could not be written: the disk is full or not writable."""


class AmbiguousJob(QueueError):  # noqa: N818
    """Several jobs' ids begin with what was given."""

    def __init__(self, given: str, found: list[str]) -> None:
        """`found`: some of them."""
        super().__init__(
            f"{given!r} is the beginning of several ids ({', '.join(found)}): give more of it."
        )
        self.field = "job"
        self.given = given
        self.allowed = ", ".join(found)


class Superseded(QueueError):  # noqa: N818
    """The job is no longer in the execution that speaks: what it says does not count."""

    def __init__(self, job_id: str) -> None:
        """`job_id`: whose execution is another, or none."""
        super().__init__(f"Job {job_id} is not in that execution any more.")
        self.job_id = job_id


class BadSchedule(QueueError):  # noqa: N818
    """A moment, window or place that cannot be used."""

    def __init__(self, field: str, given: str, allowed: str) -> None:
        """`allowed` completes "must be"."""
        super().__init__(f"{field} is {given!r}: it must be {allowed}.")
        self.field = field
        self.given = given
        self.allowed = allowed


class CannotChange(QueueError):  # noqa: N818
    """A job that runs or is over cannot be edited, moved or scheduled."""

    def __init__(self, job_id: str, state: str, wanted: str) -> None:
        """`wanted`: "edited", "moved", ..."""
        super().__init__(f"Job {job_id} is {state}: only a job that waits can be {wanted}.")
        self.job_id = job_id
        self.state = state
