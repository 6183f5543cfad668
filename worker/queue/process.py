"""What the farm's processes share: the form of their log lines, and how they end."""

import logging
import os
import signal
import sys
import threading
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path

LOG_BYTES = 5_000_000
OLD_LOGS = 3
PARENT_CHECK_S = 0.5
PATIENCE_S = 8.0  # more than any of our processes needs to end in order


class LineFormatter(logging.Formatter):
    """One line per message; tracebacks are for files."""

    def format(self, record: logging.LogRecord) -> str:
        """As usual, without the traceback, and without leaving it in the record for the others."""
        exc_info, exc_text = record.exc_info, record.exc_text
        record.exc_info = record.exc_text = None
        try:
            return super().format(record)
        finally:
            record.exc_info, record.exc_text = exc_info, exc_text


def log_to(process: str, folder: Path) -> None:
    """Log INFO and above to standard error and to `<process>.log` in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    line = f"%(asctime)s {process:<6} %(levelname)-7s %(message)s"
    console = logging.StreamHandler(sys.stderr)
    console.setFormatter(LineFormatter(line, "%H:%M:%S"))
    file = RotatingFileHandler(
        folder / f"{process}.log", maxBytes=LOG_BYTES, backupCount=OLD_LOGS, encoding="utf-8"
    )
    file.setFormatter(logging.Formatter(line))
    logging.basicConfig(level=logging.INFO, handlers=[file, console])
    for chatty in ("rq", "waitress"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def bound(log: Path) -> None:
    """Begin a log anew, for one that somebody else writes: what it held stays beside it, once."""
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))


def end_with_parent() -> None:
    """Send ourselves SIGTERM when the process that started us is gone, however it ended.

    A supervisor that was killed outright cannot end its children, and no system call that both
    Linux and macOS have would do it for us.
    """
    threading.Thread(target=_watch, args=(os.getppid(),), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_S)
    os.kill(os.getpid(), signal.SIGKILL)
