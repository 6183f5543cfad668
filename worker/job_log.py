"""The log of each job; worker/queue/log_reader.py reads it."""

import contextlib
import logging
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path

# A job that is begun again and again must not fill the disk: its newest lines are kept.
LOG_BYTES = 2_000_000


@contextlib.contextmanager
def job_log(path: Path) -> Iterator[None]:
    """Keep what the farm logs meanwhile in the job's file too, tracebacks included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = RotatingFileHandler(
        path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logger = logging.getLogger("h3farm")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
