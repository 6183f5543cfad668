"""Headers of safetensors files, without the C library and without numpy.

The engine maps its weights in C; this serves what only wants to know what a file holds.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from h3farm.engine._config_files import check_regular
from h3farm.engine.errors import CheckpointError

MAX_HEADER = 100_000_000  # bytes; the format's own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor of a file: `start` and `end` are bytes from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of a file by name; CheckpointError when it is not a safetensors file."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 2 <= size <= MAX_HEADER:
                raise CheckpointError(f"{path}: not a safetensors file")
            text = file.read(size)
            length = file.seek(0, 2)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    try:
        header = json.loads(text)
        found = {
            name: Entry(
                dtype=str(entry["dtype"]),
                shape=tuple(map(int, entry["shape"])),
                start=8 + size + int(entry["data_offsets"][0]),
                end=8 + size + int(entry["data_offsets"][1]),
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{path}: the safetensors header is damaged ({error})") from error
    for name, entry in found.items():
        if not 8 + size <= entry.start <= entry.end <= length:
            raise CheckpointError(
                f"{path}: tensor '{name}' ends at byte {entry.end}, the file at {length}: "
                "it is truncated"
            )
    return found
