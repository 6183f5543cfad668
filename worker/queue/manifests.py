"""The batches on disk: `state/batches/<id>.json`, written last of all that a batch consists of.

Order of a submit: the jobs' folders with `prepared.json`, then `<id>.prepared`, both durable; then
one call to the store; then the manifest gets its name. So a manifest under its name means that the
store has taken the batch, whole, and its jobs are jobs even where their folders do not say so yet.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from h3farm.engine.durable import disk_errors, sync_folder, write_durably
from h3farm.engine.errors import DiskError
from h3farm.worker.queue.errors import JobNotSaved, UnknownBatch

ENDING, PREPARED = ".json", ".prepared"


class Manifests:
    """The folder of the manifests."""

    def __init__(self, root: Path) -> None:
        """`root` is made when the first batch is."""
        self._root = root

    def path(self, batch_id: str, ending: str = ENDING) -> Path:
        """Where a manifest is; UnknownBatch for what can be no id."""
        if not batch_id or batch_id.startswith(".") or "/" in batch_id or "\0" in batch_id:
            raise UnknownBatch(batch_id)
        return self._root / f"{batch_id}{ending}"

    def prepare(self, batch_id: str, record: Mapping[str, Any]) -> None:
        """Put down what the batch will be; JobNotSaved when the disk refuses."""
        content = json.dumps(record, ensure_ascii=False, indent=1).encode() + b"\n"
        try:
            if not self._root.exists():
                self._root.mkdir(parents=True, exist_ok=True)
                sync_folder(self._root.parent)
            write_durably(self.path(batch_id, PREPARED), content)
        except (OSError, DiskError) as error:
            raise JobNotSaved(f"The batch could not be written to disk: {error}.") from error

    def accept(self, batch_id: str) -> None:
        """The store has taken the batch. Calling it again changes nothing."""
        with disk_errors("cannot keep the batch"), contextlib.suppress(FileNotFoundError):
            self.path(batch_id, PREPARED).replace(self.path(batch_id))
        sync_folder(self._root)

    def accepted(self, batch_id: str) -> bool:
        """Whether the store is known to have taken the batch."""
        return self.path(batch_id).exists()

    def release(self, batch_id: str) -> None:
        """Take back a batch that never reached the store."""
        self.path(batch_id, PREPARED).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete what was not written to its end. For the one who is alone."""
        for path in self._root.glob(".*.tmp"):
            path.unlink(missing_ok=True)

    def prepared(self) -> list[str]:
        """Batches of which it is open whether the store has taken them."""
        return sorted(path.stem for path in self._root.glob(f"*{PREPARED}"))

    def all(self) -> list[dict[str, Any]]:
        """The records of all batches that the store has taken, by their ids."""
        found = [self.read(path.stem) for path in sorted(self._root.glob(f"*{ENDING}"))]
        return [record for record in found if record is not None]

    def read(self, batch_id: str) -> dict[str, Any] | None:
        """The record of a batch; None when there is none that can be read."""
        try:
            record = json.loads(self.path(batch_id).read_bytes())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None


@contextlib.contextmanager
def submitting(lock: Path) -> Iterator[None]:
    """Held while something is submitted, by any number at once; a dead holder lets go."""
    with _locked(lock, fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def settling(lock: Path) -> Iterator[bool]:
    """Held by the one who settles what is left of dead submits; False when somebody submits."""
    try:
        with _locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield True
    except BlockingIOError:
        yield False


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)
