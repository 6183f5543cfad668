"""What renders have taken on this machine: a file of measured units. Standard library only."""

from __future__ import annotations

import json
import logging
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from h3farm.engine.durable import flush_to_platter, write_durably
from h3farm.engine.errors import DiskError

# Lines kept of each setting, the newest: some sixty renders of twenty steps and eight clips.
KEPT = 2000
KEPT_SETTINGS = 6
LINE_BYTES = 200  # a line at most, about

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a speed belongs to. model: `Networks.signature`."""

    model: str
    engine: str
    isa: str
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One unit that was computed from its beginning to its end: see `work.Task`. `at`: UTC."""

    at: str
    job: str
    unit: str
    work: float
    seconds: float
    setting: Setting

    def to_line(self) -> bytes:
        """One line of JSON."""
        record = asdict(self)
        record |= record.pop("setting")
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The inverse; KeyError, TypeError or ValueError for what it cannot have written."""
        setting = Setting(**{name: record[name] for name in Setting.__dataclass_fields__})
        work, seconds = float(record["work"]), float(record["seconds"])
        if not (0 < work < math.inf and 0 <= seconds < math.inf):
            raise ValueError("a measurement's work and seconds are finite, and its work above 0")
        return cls(
            at=str(record["at"]),
            job=str(record["job"]),
            unit=str(record["unit"]),
            work=work,
            seconds=seconds,
            setting=setting,
        )


class Measurements:
    """The file. One process writes it, any may read it."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet; the file is made with the first measurement."""
        self._path = path
        self._complained = False

    def append(self, measurement: Measurement) -> None:
        """Add one, durably. A disk that refuses costs the measurement, never the render."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(self._line_break(file.tell()) + measurement.to_line())
                file.flush()
                flush_to_platter(file.fileno())
                size = file.tell()
            if size > 2 * KEPT * KEPT_SETTINGS * LINE_BYTES:
                self._shorten()
        except (OSError, DiskError) as error:
            if not self._complained:
                logger.warning("estimates learn nothing from this render: %s", error)
            self._complained = True

    def read(self) -> Sequence[Measurement]:
        """All that can be read, oldest first. A line cut short by a crash is passed over."""
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return ()
        found = []
        for line in lines:
            try:
                found.append(Measurement.from_json(json.loads(line)))
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def stamp(self) -> tuple[int, int]:
        """Changes whenever the file does."""
        try:
            status = self._path.stat()
        except OSError:
            return 0, 0
        return status.st_mtime_ns, status.st_size

    def _line_break(self, size: int) -> bytes:
        """What ends a line that a crash has cut short, so that it spoils none but itself."""
        if not size:
            return b""
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return b"" if file.read() == b"\n" else b"\n"

    def _shorten(self) -> None:
        write_durably(self._path, b"".join(m.to_line() for m in newest(self.read())))


def newest(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Those worth keeping, in their order: `KEPT` of each of the settings seen last."""
    by_setting: defaultdict[Setting, list[int]] = defaultdict(list)
    ordered = list(measurements)
    for place, measurement in enumerate(ordered):
        by_setting[measurement.setting].append(place)
    last = sorted(by_setting.values(), key=lambda places: places[-1])[-KEPT_SETTINGS:]
    return [ordered[place] for place in sorted(p for places in last for p in places[-KEPT:])]
