"""A file of a few megabytes that only takes up room: dropped when the disk is full.

Then the store and the job folders, which are most often on that disk, can still write down that it
is, and the farm can say so.
"""

import logging
from pathlib import Path

from h3farm.engine.machine import Machine
from h3farm.worker.queue import Settings

logger = logging.getLogger(__name__)

SIZE_BYTES = 8_000_000
PLENTY = 10  # times its size must be free before it is laid down


def keep(settings: Settings, machine: Machine) -> None:
    """Lay it down, unless it is there or the disk is short of room."""
    path = _path(settings)
    if path.exists() or machine.free_disk(settings.state)[1] < PLENTY * SIZE_BYTES:
        return
    try:
        # Written, not only sized: a hole takes up no room.
        path.write_bytes(b"\xff" * SIZE_BYTES)
    except OSError as error:
        path.unlink(missing_ok=True)
        logger.warning("%s could not be written: %s", path, error)


def drop(settings: Settings) -> None:
    """Give its room to the store and the job folders."""
    path = _path(settings)
    if path.exists():
        logger.warning("the disk of %s is full: its reserve is given up", settings.state)
        path.unlink(missing_ok=True)


def _path(settings: Settings) -> Path:
    return settings.state / "ballast"
