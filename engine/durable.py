"""Files that are either whole and on the disk, or not there. Standard library only."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from h3farm.engine.errors import DiskError, DiskFull

if sys.platform == "darwin":
    import fcntl

    def flush_to_platter(descriptor: int) -> None:
        """fsync on macOS stops at the drive's cache; F_FULLFSYNC goes on to the platter."""
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)

else:

    def flush_to_platter(descriptor: int) -> None:
        """Have the system write a file's data and size to the disk."""
        os.fsync(descriptor)


Flush = Callable[[int], None]


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Turn an OSError of the block into a DiskError: `doing` is what was tried, with its path.

    DiskFull when there is no room.
    """
    try:
        yield
    except OSError as error:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else DiskError
        raise kind(f"{doing}: {error.strerror or error}") from error


def write_durably(path: Path, data: bytes, *, flush: Flush = flush_to_platter) -> None:
    """Put `data` into `path`; after a crash at any moment it holds the old content or the new.

    The temporary file stands beside it, so the folder must exist. Raises DiskError.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with disk_errors(f"cannot write {path}"):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                flush(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    sync_folder(path.parent, flush=flush)


def sync_file(path: Path, *, flush: Flush = flush_to_platter) -> None:
    """Have what another program wrote into `path` on the disk. Raises DiskError."""
    _sync(path, os.O_RDONLY, flush)


def sync_folder(path: Path, *, flush: Flush = flush_to_platter) -> None:
    """Have the names in `path` (what was made, renamed, removed) on the disk. Raises DiskError."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY, flush)


def sync_many(paths: Iterable[Path], *, flush: Flush = flush_to_platter) -> None:
    """Have many small files, and their names, on the disk at the price of few flushes.

    Linux: one sync of everything; a flush of each would cost a second for every hundred files.
    macOS, where sync() does not wait: each file goes to the drive, and the last one takes the
    drive's cache to the platter. Raises DiskError.
    """
    wanted = list(paths)
    if not wanted:
        return
    if sys.platform != "darwin":
        os.sync()
    else:
        for path in wanted:
            _sync(path, os.O_RDONLY, os.fsync)
        # The folders may be new as well: their names stand in theirs.
        for folder in {place for path in wanted for place in (path.parent, path.parent.parent)}:
            _sync(folder, os.O_RDONLY | os.O_DIRECTORY, os.fsync)
    sync_file(wanted[-1], flush=flush)


def _sync(path: Path, flags: int, flush: Flush) -> None:
    with disk_errors(f"cannot sync {path}"):
        descriptor = os.open(path, flags)
        try:
            flush(descriptor)
        finally:
            os.close(descriptor)
