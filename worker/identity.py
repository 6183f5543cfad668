"""Who a process is, beyond its pid, and the locks that a process holds for as long as it lives."""

import contextlib
import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

PROC = Path("/proc")


def process_start(pid: int) -> str | None:
    """When a process began, in the system's own words; None when it does not run (any more).

    A pid alone is given again to another process; with its start it is not.
    """
    if not PROC.joinpath("self/stat").exists():
        return _start_by_ps(pid)
    try:
        # The name in parentheses may hold anything; behind it come the state and 19 more numbers.
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _start_by_ps(pid: int) -> str | None:
    """macOS has no /proc."""
    done = subprocess.run(
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C"},
    )
    state, _, start = done.stdout.strip().partition(" ")
    return None if not start or state.startswith("Z") else start.strip()


class Taken(Exception):  # noqa: N818 - a state of the world
    """Somebody else holds the lock; `holder` is what it wrote into it."""

    def __init__(self, holder: dict[str, Any]) -> None:
        """`holder` is empty when nothing can be read."""
        super().__init__(f"held by process {holder.get('pid', 'unknown')}")
        self.holder = holder


class ProcessLock:
    """A file that one process holds. The system lets go of it when the process ends, however."""

    def __init__(self, path: Path) -> None:
        """Takes the lock or raises Taken; the folder is made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            text = self._file.read()
            self._file.close()
            raise Taken(_parsed(text)) from None
        self._file.truncate(0)
        self._file.write(json.dumps({"pid": os.getpid()}))
        self._file.flush()

    def release(self) -> None:
        """Let go. The file stays: removing it could take a lock from under somebody's feet."""
        self._file.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go."""
        self.release()


@contextlib.contextmanager
def folder_locked(path: Path) -> Iterator[bool]:
    """Hold a folder meanwhile; False when another process has it, when it is gone, or on a file
    system without locks.
    """
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        yield _locked(lock)
    finally:
        os.close(lock)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _parsed(text: str) -> dict[str, Any]:
    try:
        holder = json.loads(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}
