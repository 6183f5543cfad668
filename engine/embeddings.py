"""Embeddings of prompts, kept on the disk: a prompt is encoded once, whatever it is used for.

A file is named by what went into it: the text encoder's and tokenizer's files, the engine's
version, the processor's instructions, and the token ids. A damaged file is none.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from h3farm.engine._native import version
from h3farm.engine.durable import disk_errors, write_durably
from h3farm.engine.errors import DiskError
from h3farm.engine.model import Model

MOST_BYTES = 1 << 30
ENDING = ".embedding"
DIGEST_BYTES = 32

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

logger = logging.getLogger(__name__)


class Embeddings:
    """A folder of embeddings; those not used for the longest time go when there are too many."""

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES) -> None:
        """The folder is made when the first one is kept."""
        self._folder = folder
        self._most_bytes = most_bytes

    def find(self, key: str) -> Floats | None:
        """The embedding [tokens, text_dim] that was kept under a key, None when there is none."""
        path = self._folder / f"{key}{ENDING}"
        try:
            data = path.read_bytes()
        except OSError:
            return None
        digest, content = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != digest:
            logger.warning("%s is damaged: the prompt is encoded again", path)
            return None
        with suppress(OSError):
            os.utime(path)
        found: Floats = np.load(io.BytesIO(content), allow_pickle=False)
        return found

    def keep(self, key: str, embedding: Floats) -> None:
        """Keep an embedding. A disk that does not take it costs the time of encoding it again."""
        content = io.BytesIO()
        np.save(content, embedding, allow_pickle=False)
        data = hashlib.sha256(content.getvalue()).digest() + content.getvalue()
        try:
            with disk_errors(f"cannot write into {self._folder}"):
                self._folder.mkdir(parents=True, exist_ok=True)
            write_durably(self._folder / f"{key}{ENDING}", data)
        except DiskError as error:
            logger.warning("an embedding could not be kept: %s", error)
        self._make_room()

    def _make_room(self) -> None:
        files = []
        for path in self._folder.glob(f"*{ENDING}"):
            with suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._most_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size


def key_of(model: Model, isa: str, ids: Ints) -> str:
    """What an embedding of these ids is kept under. For a prompt without pictures."""
    made_of = hashlib.sha256()
    for part in (version(), isa, model.encoder_identity):
        made_of.update(f"{part}\n".encode())
    made_of.update(np.ascontiguousarray(ids, "<i4").tobytes())
    return made_of.hexdigest()
