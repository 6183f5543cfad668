"""What may be deleted, and deleting it: work files, records without a video, dead writers' remains.

Nothing that a user kept is among it: no folder under the outputs but the hidden ones of writers
that were killed, and no record of a job whose video is there. Whatever is deleted from the state is
renamed away first, so that nobody finds half of it.
"""

import contextlib
import logging
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from h3farm.engine.spec import SpecError
from h3farm.worker.identity import folder_locked
from h3farm.worker.queue import RenderJob, RenderQueue, Settings, State, UnknownJob
from h3farm.worker.queue.disk import JobFolders
from h3farm.worker.queue.job import utc_now

logger = logging.getLogger(__name__)

RECORD_DAYS = 90.0  # of jobs that have no video (any more)
SETTLED_S = 60.0  # a folder that is younger may not be locked by its writer yet
# As engine/output.py names the output in the making, and `h3farm render` its work folder.
PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}\.partial")
DIRECT_WORK = re.compile(r"\.work-[a-z0-9_]{8}")
PROBE = re.compile(r"\.writable-[a-z0-9_]{8}")

FindJob = Callable[[str], RenderJob | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that may go. kind: "work", "record", "batch" or "leftover"; reason: why, in words.

    failed: it belongs to a job that failed or was cancelled.
    """

    kind: str
    path: Path
    size_bytes: int
    reason: str
    job: str | None = None
    failed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return asdict(self) | {"path": str(self.path)}


class Retention:
    """Finds what may go, and deletes it. `find_job` tells what is known of a job."""

    def __init__(
        self, settings: Settings, find_job: FindJob, *, clock: Callable[[], datetime] = utc_now
    ) -> None:
        """Nothing is looked at yet."""
        self._settings = settings
        self._find_job = find_job
        self._clock = clock
        self._trash = settings.state / "trash"

    def work(self, days: float | None = None) -> Iterator[Item]:
        """Work files of jobs that are over: at once when done or cancelled, of failed ones (which
        can still be retried from their resume point) after `days`, by default the setting's.
        """
        keep = timedelta(days=self._settings.keep_days if days is None else days)
        for path in sorted(self._settings.jobs.glob("*/work")):
            job = self._find_job(path.parent.name)
            if job is None or not job.over:
                continue
            if job.state is not State.FAILED or self._age(job) >= keep:
                yield self._of_job("work", path, job)

    def records(self, days: float | None = None) -> Iterator[Item]:
        """Records and logs of jobs that have no video (any more), `days` after their end."""
        keep = timedelta(days=RECORD_DAYS if days is None else days)
        for path in sorted(self._settings.jobs.glob("*/job.json")):
            job = self._find_job(path.parent.name)
            if job is None or not job.over or _has_output(job) or self._age(job) < keep:
                continue
            yield self._of_job("record", path.parent, job)

    def batches(self, queue: RenderQueue, jobs: Collection[str | None]) -> Iterator[Item]:
        """Batches of which no job is left when the records of `jobs` are gone."""
        for batch in queue.batches():
            left = {job.id for job in queue.batch_jobs(batch.id)} - set(jobs)
            if batch.over and not left:
                path = queue.manifests.path(batch.id)
                reason = "none of its jobs is left"
                yield Item(
                    kind="batch", path=path, size_bytes=size_of(path), reason=reason, job=batch.id
                )

    def leftovers(self) -> Iterator[Item]:
        """What writers that were killed have left: no process holds it any more."""
        outputs = self._settings.outputs
        for pattern, known in (("*/.*.partial", PARTIAL), (".work-*", DIRECT_WORK)):
            for path in sorted(outputs.glob(pattern)):
                if known.fullmatch(path.name) and self._abandoned(path):
                    yield _leftover(path, "the render that wrote it was killed")
        for path in sorted(outputs.glob(".writable-*")):
            if PROBE.fullmatch(path.name) and self._settled(path) and not any(path.iterdir()):
                yield _leftover(path, "the process that tried the disk was killed")
        for path in sorted(self._settings.jobs.glob("[!.]*/")):
            if self._settled(path) and not any(path.iterdir()):
                yield _leftover(path, "the job never reached the queue")
        if self._trash.is_dir() and any(self._trash.iterdir()):
            yield _leftover(self._trash, "an earlier cleaning was stopped")

    def delete(self, item: Item) -> None:
        """Delete what was found, unless somebody has taken it up meanwhile; OSError."""
        if not item.path.is_relative_to(self._settings.state):
            self._delete_abandoned(item.path)
            return
        path = item.path
        if path != self._trash:
            self._trash.mkdir(exist_ok=True)
            path = path.rename(self._trash / secrets.token_hex(8))
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        with contextlib.suppress(OSError):
            self._trash.rmdir()

    def _delete_abandoned(self, path: Path) -> None:
        with folder_locked(path) as ours:
            if not ours:
                return
            shutil.rmtree(path)
        with contextlib.suppress(OSError):
            if path.parent != self._settings.outputs:
                path.parent.rmdir()  # the day, when nothing else is in it

    def _abandoned(self, path: Path) -> bool:
        if path.is_symlink() or not path.is_dir() or not self._settled(path):
            return False
        with folder_locked(path) as ours:
            return ours

    def _settled(self, path: Path) -> bool:
        try:
            return self._clock().timestamp() - path.stat().st_mtime > SETTLED_S
        except OSError:
            return False

    def _age(self, job: RenderJob) -> timedelta:
        return self._clock() - datetime.fromisoformat(job.ended_at or job.created_at)

    def _of_job(self, kind: str, path: Path, job: RenderJob) -> Item:
        days = self._age(job) // timedelta(days=1)
        when = "today" if days < 1 else "yesterday" if days == 1 else f"{days} days ago"
        word = {State.DONE: "was done", State.CANCELLED: "was cancelled"}.get(job.state, "failed")
        gone = ", and its video is gone" if kind == "record" and job.state is State.DONE else ""
        return Item(
            kind=kind,
            path=path,
            size_bytes=size_of(path),
            reason=f"the job {word} {when}{gone}",
            job=job.id,
            failed=job.state is not State.DONE,
        )


def _leftover(path: Path, reason: str) -> Item:
    return Item(kind="leftover", path=path, size_bytes=size_of(path), reason=reason)


def stored_jobs(queue: RenderQueue) -> FindJob:
    """Look jobs up in a store that answers; it knows best."""

    def find(job_id: str) -> RenderJob | None:
        try:
            return queue.records.get(job_id)
        except UnknownJob:
            return None

    return find


def jobs_on_disk(settings: Settings) -> FindJob:
    """Look jobs up in their folders, for as long as there is no store."""
    folders = JobFolders(settings.jobs)

    def find(job_id: str) -> RenderJob | None:
        record = folders.read(job_id)
        try:
            return None if record is None else RenderJob.from_json(record)
        except (KeyError, ValueError, TypeError, SpecError):
            return None  # of another version, or damaged: not ours to delete

    return find


class Sweeper:
    """For the worker: now and then, with no job in hand, deletes what nobody can use any more."""

    def __init__(
        self,
        queue: RenderQueue,
        *,
        now: Callable[[], float] = time.monotonic,
        every_s: float = 3600,
    ) -> None:
        """The first tick sweeps. now: a monotonic clock in seconds."""
        self._retention = Retention(queue.settings, stored_jobs(queue))
        self._now = now
        self._every_s = every_s
        self._next = -math.inf

    def tick(self) -> None:
        """Sweep when it is time. What cannot be deleted is left for the next time."""
        if self._now() < self._next:
            return
        self._next = self._now() + self._every_s
        for item in [*self._retention.work(), *self._retention.leftovers()]:
            try:
                self._retention.delete(item)
            except OSError as error:
                logger.warning("%s could not be deleted: %s", item.path, error)
            else:
                logger.info("deleted %s (%d bytes): %s", item.path, item.size_bytes, item.reason)


def size_of(path: Path) -> int:
    """Bytes of a file or of everything in a folder; what vanishes meanwhile counts nothing."""
    total = path.lstat().st_size if path.is_file() else 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(folder, name).lstat().st_size
    return total


def _has_output(job: RenderJob) -> bool:
    return bool(job.result and job.result.get("folder") and Path(job.result["folder"]).exists())
