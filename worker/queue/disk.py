"""The job folders: what is known of a job even when the store is gone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from h3farm.engine.durable import write_durably
from h3farm.engine.errors import DiskError
from h3farm.worker.queue.errors import JobNotSaved, UnknownJob

RECORD_VERSION = 1


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
        """Take back a folder whose job never reached the queue."""
        folder = self.path(job_id)
        (folder / "job.json").unlink(missing_ok=True)
        folder.rmdir()

    def write(self, job_id: str, record: Mapping[str, Any]) -> None:
        """Make the record of a job durable; JobNotSaved when the disk refuses."""
        content = json.dumps(
            {"record_version": RECORD_VERSION, **record}, ensure_ascii=False, indent=1
        )
        try:
            self.path(job_id).mkdir(parents=True, exist_ok=True)
            write_durably(self.path(job_id) / "job.json", content.encode() + b"\n")
        except (OSError, DiskError) as error:
            raise JobNotSaved(f"Job {job_id} could not be written to disk: {error}.") from error

    def read(self, job_id: str) -> dict[str, Any] | None:
        """The durable record of a job; None when there is none that can be read."""
        try:
            record = json.loads((self.path(job_id) / "job.json").read_bytes())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None
