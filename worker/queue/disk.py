"""The job folders: what is known of a job even when the store is gone.

A job that is being submitted has `prepared.json`. It becomes `job.json` when the store has taken
the job: a folder that has none is not a job, and nothing may bring it back.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from h3farm.engine.durable import sync_folder, sync_many, write_durably
from h3farm.engine.errors import DiskError
from h3farm.worker.queue.errors import JobNotSaved, UnknownJob

RECORD_VERSION = 1
RECORD, PREPARED = "job.json", "prepared.json"


class JobFolders:
    """`state/jobs/<id>/`: `job.json` (spec and state), `log.txt`, and the engine's work files."""

    def __init__(self, root: Path) -> None:
        """`root` is made when the first job is."""
        self._root = root

    def path(self, job_id: str) -> Path:
        """The folder of a job, whether it exists or not; UnknownJob for what can be no id."""
        if not job_id or job_id.startswith(".") or "/" in job_id or "\0" in job_id:
            raise UnknownJob(job_id)
        return self._root / job_id

    def log(self, job_id: str) -> Path:
        """The job's log file."""
        return self.path(job_id) / "log.txt"

    def reserve(self, job_id: str) -> bool:
        """Make the folder; False when the id is taken: the file system judges.

        JobNotSaved when the disk refuses.
        """
        try:
            self.path(job_id).mkdir(parents=True)
        except FileExistsError:
            return False
        except OSError as error:
            raise JobNotSaved(f"A job could not be written to disk: {error}.") from error
        return True

    def release(self, job_id: str) -> None:
        """Take back a folder whose job never reached the queue; OSError when more is in it."""
        folder = self.path(job_id)
        for name in (RECORD, PREPARED, f".{PREPARED}.tmp"):
            (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()

    def prepare(self, job_id: str, record: Mapping[str, Any], *, durably: bool = True) -> None:
        """Put down what the job will be; JobNotSaved when the disk refuses.

        durably: False when many are written and brought to the disk together.
        """
        path = self.path(job_id) / PREPARED
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if durably:
                write_durably(path, _content(record))
                sync_folder(self._root)  # the folder is new: its name stands there
            else:
                path.write_bytes(_content(record))
        except (OSError, DiskError) as error:
            raise JobNotSaved(f"Job {job_id} could not be written to disk: {error}.") from error

    def accept(self, job_id: str) -> None:
        """The store has the job: what was prepared is its record, unless it has a newer one."""
        prepared = self.path(job_id) / PREPARED
        try:
            with contextlib.suppress(FileExistsError):  # a worker has begun the job already
                os.link(prepared, prepared.with_name(RECORD))
            prepared.unlink()
        except FileNotFoundError:
            return  # somebody else has seen to it
        except OSError as error:
            raise JobNotSaved(f"Job {job_id} could not be written to disk: {error}.") from error

    def unsettled(self) -> list[str]:
        """Folders of jobs of which it is open whether the store has taken them."""
        if not self._root.exists():
            return []
        folders = sorted(path for path in self._root.iterdir() if path.is_dir())
        return [
            path.name
            for path in folders
            if (path / PREPARED).exists() or not (path / RECORD).exists()
        ]

    def write(self, job_id: str, record: Mapping[str, Any]) -> None:
        """Make the record of a job durable; JobNotSaved when the disk refuses."""
        self.update(job_id, lambda: record)

    def update(self, job_id: str, now: Callable[[], Mapping[str, Any]]) -> None:
        """`write` what `now` says when nobody else writes: of two writers the last has the newest,
        and the temporary file, which has one name, one owner.
        """
        try:
            self.path(job_id).mkdir(parents=True, exist_ok=True)
            with _alone(self.path(job_id)):
                write_durably(self.path(job_id) / RECORD, _content(now()))
        except (OSError, DiskError) as error:
            raise JobNotSaved(f"Job {job_id} could not be written to disk: {error}.") from error

    def write_many(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """`write` for many records at the price of a few flushes: each is whole, old or new, after
        a crash at any moment. JobNotSaved when the disk refuses.
        """
        if not records:
            return None
        if len(records) == 1:
            return self.write(*next(iter(records.items())))
        places = {self.path(job_id) / RECORD: record for job_id, record in records.items()}
        # Another name than that of `write`, which a worker may be at; and one writer at a time.
        temporary = {path: path.with_name(f".{RECORD}.many.tmp") for path in places}
        try:
            with _alone(self._root):
                for path, record in places.items():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    temporary[path].write_bytes(_content(record))
                sync_many(temporary.values())
                for path, written in temporary.items():
                    written.replace(path)
                sync_many(places)
        except (OSError, DiskError) as error:
            raise JobNotSaved(f"Jobs could not be written to disk: {error}.") from error
        return None

    def read(self, job_id: str) -> dict[str, Any] | None:
        """The durable record of a job; None when there is none that can be read."""
        return _read(self.path(job_id) / RECORD)

    def read_prepared(self, job_id: str) -> dict[str, Any] | None:
        """What was prepared of a job; None when nothing was that can be read."""
        return _read(self.path(job_id) / PREPARED)


def _content(record: Mapping[str, Any]) -> bytes:
    text = json.dumps({"record_version": RECORD_VERSION, **record}, ensure_ascii=False, indent=1)
    return text.encode() + b"\n"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
