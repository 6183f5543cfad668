"""The output folder of a render: its name, and how it appears, whole or not at all.

    outputs/2026-11-30/1842-red-fox-in-snow-3f2a/

Everything is written into a hidden folder beside the final one and appears by one rename.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import struct
import unicodedata
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from h3farm.engine.durable import Flush, disk_errors, flush_to_platter, sync_file, sync_folder

SLUG_LENGTH = 40
_PARTIAL = "partial"


def slug(prompt: str) -> str:
    """A piece of a file name for a prompt of any script: "red-fox-in-snow", 1 to 40 characters.

    Lower-case letters, their marks and digits, single dashes between; cut between words where that
    leaves at least half. The same on file systems that fold case or compose characters.
    """
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", prompt).casefold())
    kept = (char if unicodedata.category(char)[0] in "LMN" else " " for char in folded)
    words = "-".join("".join(kept).split())
    short = words[:SLUG_LENGTH]
    if len(words) > SLUG_LENGTH and words[SLUG_LENGTH] != "-":
        whole_words = short.rpartition("-")[0]
        short = whole_words if len(whole_words) >= SLUG_LENGTH // 2 else short
    return short.strip("-") or "render"


class OutputFolder:
    """A folder in the making: `path` is where to write, `appear` gives it its name.

    Use as a context manager: what did not appear is discarded.
    """

    def __init__(self, outputs: Path, *, prompt: str, job_id: str, started: datetime) -> None:
        """Make the hidden folder; remove those of this job's earlier attempts and of dead writers.

        started: local time, from which the names are made. Raises DiskError.
        """
        self._day = outputs / f"{started:%Y-%m-%d}"
        short = hashlib.sha256(job_id.encode()).hexdigest()[:4]
        self._name = f"{started:%H%M}-{slug(prompt)}-{short}"
        # Whose it is stands in its name, and its writer holds a lock: others may write beside it.
        owner = hashlib.sha256(job_id.encode()).hexdigest()[:16]
        with disk_errors(f"cannot write into {outputs}"):
            for leftover in outputs.glob(f"*/.*.{_PARTIAL}"):
                if leftover.name.endswith(f".{owner}.{_PARTIAL}"):
                    shutil.rmtree(leftover)
                elif _is_abandoned(leftover):
                    shutil.rmtree(leftover, ignore_errors=True)  # others may be at it too
            self.path = self._day / f".{self._name}.{owner}.{_PARTIAL}"
            self._lock = _make_locked(self.path)

    def __enter__(self) -> OutputFolder:
        """The folder itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Discard what did not appear."""
        self.discard()

    def appear(self, *, flush: Flush = flush_to_platter) -> Path:
        """Have everything on the disk, then rename; the final path. Replaces no other folder."""
        for folder, _, names in os.walk(self.path):
            for name in names:
                sync_file(Path(folder, name), flush=flush)
            sync_folder(Path(folder), flush=flush)
        with disk_errors(f"cannot name the output {self._name}"):
            final = self._rename()
        sync_folder(self._day, flush=flush)
        sync_folder(self._day.parent, flush=flush)
        return final

    def _rename(self) -> Path:
        for number in itertools.count(1):
            final = self._day / (self._name if number == 1 else f"{self._name}-{number}")
            if not final.exists():
                try:
                    return self.path.rename(final)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                        raise
        raise AssertionError  # the numbers do not end

    def discard(self) -> None:
        """Remove what was written, and the day's folder when nothing else is in it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            self._day.rmdir()
        except OSError:
            return  # other renders are in it


def _make_locked(path: Path) -> int | None:
    """Make a folder and lock it for as long as this process lives: the descriptor to close.

    None on a file system without locks. Another process may find the folder between the two and
    take it for abandoned; then it is made again.
    """
    while True:
        path.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            os.close(lock)
            return None
        if path.exists():
            return lock
        os.close(lock)


def _is_abandoned(path: Path) -> bool:
    """Whether nobody holds the lock of a hidden folder: its writer was killed."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def write_latents(
    path: Path, tensors: Mapping[str, npt.NDArray[np.float32]], metadata: Mapping[str, str]
) -> None:
    """Write f32 tensors as a safetensors file. Raises DiskError.

    Layout: the header's length as u64 little-endian, the header as JSON, padded with spaces so that
    the data is aligned to 8 bytes, then the tensors in the header's order.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        shape = list(tensor.shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    with disk_errors(f"cannot write {path}"), path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, "<f4").tobytes())
