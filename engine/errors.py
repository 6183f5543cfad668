"""What can go wrong in the engine: one class for each thing a caller would do differently.

The message is one sentence for a person and names the file, tensor or value at fault.
"""


class EngineError(Exception):
    """Any failure of the engine."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        """`status` is the C library's code, None when C was not involved."""
        # A path may hold bytes that are no text; a message can always be printed and stored.
        super().__init__(message.encode("utf-8", "backslashreplace").decode("utf-8"))
        self.status = status


class CheckpointError(EngineError):
    """A model's files are missing, damaged or of another kind: repair it or choose another."""


class Cancelled(EngineError):  # noqa: N818 - a wish, not an error
    """The work was stopped on request: nothing is wrong."""


class OutOfMemory(EngineError):  # noqa: N818 - as malloc's own name for it
    """The machine's memory does not suffice: render smaller or shorter, or free some."""


class MemoryShort(OutOfMemory):
    """What is free now does not suffice, an empty machine's would: it can be tried again later."""

    def __init__(self, message: str, *, needed_bytes: int, status: int | None = None) -> None:
        """needed_bytes: how much must be free."""
        super().__init__(message, status=status)
        self.needed_bytes = needed_bytes


class NumericError(EngineError):
    """NaN or infinity appeared in the computation: the weights are damaged or the wrong type."""


class MediaError(EngineError):
    """ffmpeg failed, or the file it made is not what it should be."""


class DiskError(EngineError):
    """A file could not be written: the disk is full or not writable."""


class DiskFull(DiskError):  # noqa: N818
    """The disk has no room (left): free some, and the render can go on from its resume point."""


# What a code of csrc/h3f.h means to a caller; the codes not listed are mistakes of the caller's.
_BY_STATUS: dict[int, type[EngineError]] = {
    -1: Cancelled,
    -2: OutOfMemory,
    -10: CheckpointError,  # cannot be opened or mapped
    -11: CheckpointError,  # not a well-formed file
    -12: CheckpointError,  # a tensor is missing, unknown or has the wrong shape
    -13: CheckpointError,  # a tensor's type
    -20: NumericError,
}


def from_status(status: int, message: str) -> EngineError:
    """The exception for a failure that the C library reported as `status`, in its own words."""
    return _BY_STATUS.get(status, EngineError)(message, status=status)
