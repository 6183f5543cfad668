"""What holds for the whole farm: paused or not, and its nightly window; durable in `farm.json`."""

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Self

from redis import Redis

from h3farm.engine.durable import write_durably
from h3farm.engine.errors import DiskError
from h3farm.worker.queue.errors import FarmNotSaved
from h3farm.worker.queue.records import FARM
from h3farm.worker.queue.schedule import Window, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmState:
    """Whether jobs may run at all.

    paused: with `reason` (a clause: "the worker died three times in a row"; None when a user paused
    it), since `paused_at`, and until `paused_until` if that is given (UTC stamps).
    finish_current: the job that runs is finished first. free_memory: the model is closed meanwhile.
    window: "22:00-07:00", local time: jobs run only inside of it.
    """

    paused: bool = False
    reason: str | None = None
    paused_at: str | None = None
    paused_until: str | None = None
    finish_current: bool = False
    free_memory: bool = False
    window: str | None = None

    def is_paused(self, now: datetime) -> bool:
        """Whether it is paused at this moment."""
        until = self.paused_until
        return self.paused and (until is None or now < datetime.fromisoformat(until))

    def closed(self, now: datetime, zone: tzinfo | None = None) -> str | None:
        """Why no job may be begun now, a clause; None when one may."""
        if self.is_paused(now):
            until = self.paused_until
            when = f" until {shown(datetime.fromisoformat(until), now, zone)}" if until else ""
            return f"the farm is paused{when}" + (f" because {self.reason}" if self.reason else "")
        if self.window and (start := Window.parse(self.window).interval(now, zone)[0]) > now:
            opens = shown(start, now, zone)
            return f"it is outside the farm's nightly window {self.window}: it opens at {opens}"
        return None

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; what it lacks gets its default."""
        return cls(**{each.name: record[each.name] for each in fields(cls) if each.name in record})


class FarmRecord:
    """The farm's state in the store, and on disk for when the store's files are lost."""

    def __init__(self, connection: "Redis", file: Path) -> None:
        """Nothing is sent or read yet."""
        self._connection = connection
        self._file = file

    def read(self) -> FarmState:
        """The state as it counts now."""
        return self.parse(self._connection.get(FARM))

    @staticmethod
    def parse(raw: bytes | str | None) -> FarmState:
        """From what the store holds."""
        return FarmState.from_json(json.loads(raw)) if raw else FarmState()

    def change(self, how: Callable[[FarmState], FarmState]) -> FarmState:
        """Change it, on disk first; FarmNotSaved when the disk refuses. One at a time."""
        with self._alone():
            state = how(self.read())
            text = json.dumps(state.to_json(), ensure_ascii=False)
            try:
                write_durably(self._file, text.encode() + b"\n")
            except (OSError, DiskError) as error:
                raise FarmNotSaved(f"The farm's state could not be written: {error}.") from error
            self._connection.set(FARM, text)
            return state

    def restore(self) -> None:
        """Give a store that knows nothing of it what the disk has."""
        with contextlib.suppress(FileNotFoundError):
            text = self._file.read_text(encoding="utf-8")
            self._connection.set(FARM, text, nx=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
