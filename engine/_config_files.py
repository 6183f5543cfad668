"""Config files of a model, key by key: what is missing or odd becomes one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from h3farm.engine.errors import CheckpointError

MAX_FLOAT = 3.4e38

_MISSING: Any = object()


class ConfigFile:
    """A JSON object out of a file; `at` is the path of keys down to it, for messages."""

    def __init__(self, path: Path, data: dict[str, Any], at: str = "") -> None:
        """Use ConfigFile.read for a file."""
        self.path, self._data, self._at = path, data, at

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """The object in a JSON file; CheckpointError when there is no such file or object."""
        data = read_json(path)
        if not isinstance(data, dict):
            raise CheckpointError(f"{path} holds {_short(data)}, allowed is a JSON object")
        return cls(path, data)

    def has(self, *keys: str) -> bool:
        """Whether there is one of these keys, with a value."""
        return any(self._data.get(key) is not None for key in keys)

    def __iter__(self) -> Iterator[str]:
        """The keys of the object."""
        return iter(self._data)

    def section(self, key: str) -> ConfigFile:
        """The object below a key."""
        value = self._value(key, _MISSING, "an object")
        if not isinstance(value, dict):
            raise self.fault(key, value, "an object")
        return ConfigFile(self.path, value, f"{self._at}{key}.")

    def text(self, key: str, default: str = _MISSING) -> str:
        """A non-empty text."""
        value = self._value(key, default, "a text")
        if not isinstance(value, str) or not value:
            raise self.fault(key, value, "a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false, also spelt 1 and 0."""
        value = self._value(key, default, "true or false")
        if value not in (True, False):
            raise self.fault(key, value, "true or false")
        return bool(value)

    def integer(self, key: str, default: int = _MISSING, *, minimum: int = 1) -> int:
        """A whole number of at least `minimum`, as C's int32 holds it."""
        allowed = f"a whole number from {minimum} up"
        value = self._value(key, default, allowed)
        if not _whole(value) or not minimum <= value < 2**31:
            raise self.fault(key, value, allowed)
        return int(value)

    def number(self, key: str, default: float = _MISSING) -> float:
        """A number above 0."""
        value = self._value(key, default, "a number above 0")
        if not _finite(value) or value <= 0:
            raise self.fault(key, value, "a number above 0")
        return float(value)

    def integers(
        self, key: str, default: Sequence[int] = _MISSING, *, most: int
    ) -> tuple[int, ...]:
        """A list of 1 to `most` whole numbers above 0."""
        allowed = f"1 to {most} whole numbers above 0"
        value = self._value(key, default, allowed)
        if (
            not isinstance(value, Sequence)
            or not 1 <= len(value) <= most
            or not all(_whole(item) and 0 < item < 2**31 for item in value)
        ):
            raise self.fault(key, value, allowed)
        return tuple(value)

    def lists(self, key: str, default: list[list[int]], *, most: int) -> list[tuple[int, ...]]:
        """A list of lists, each of 1 to `most` whole numbers above 0."""
        allowed = f"a list of lists of 1 to {most} whole numbers above 0"
        value = self._value(key, default, allowed)
        if not isinstance(value, list) or not value:
            raise self.fault(key, value, allowed)
        rows = ConfigFile(self.path, {f"{key}[{i}]": row for i, row in enumerate(value)}, self._at)
        return [rows.integers(f"{key}[{i}]", most=most) for i in range(len(value))]

    def numbers(self, key: str, count: int, *, positive: bool = False) -> tuple[float, ...]:
        """A list of exactly `count` numbers."""
        allowed = f"a list of {count} numbers{' above 0' if positive else ''}"
        value = self._value(key, _MISSING, allowed)
        if (
            not isinstance(value, list)
            or len(value) != count
            or not all(_finite(item) and (item > 0 or not positive) for item in value)
        ):
            raise self.fault(key, value, allowed)
        return tuple(map(float, value))

    def require(self, key: str, allowed: Any, default: Any = _MISSING) -> None:
        """Refuse any value but `allowed`: what this engine does not compute otherwise."""
        sentence = json.dumps(allowed)
        value = self._value(key, default, sentence)
        if value != allowed:
            raise self.fault(key, value, sentence)

    def fault(self, key: str, value: Any, allowed: str) -> CheckpointError:
        """The sentence for a value that cannot be."""
        return CheckpointError(
            f"{self.path}: '{self._at}{key}' is {_short(value)}, allowed is {allowed}"
        )

    def _value(self, key: str, default: Any, allowed: str) -> Any:
        value = self._data.get(key)
        value = default if value is None else value
        if value is _MISSING:
            raise CheckpointError(
                f"{self.path}: '{self._at}{key}' is missing, allowed is {allowed}"
            )
        return value


def check_regular(path: Path) -> None:
    """CheckpointError for a folder, pipe or device in a file's place: a pipe would never end."""
    if path.is_dir():
        raise CheckpointError(f"{path}: is a folder")
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path}: is not a regular file")


@contextmanager
def reading_errors() -> Iterator[None]:
    """Turn an OSError of the block (no permission, a name too long) into a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{error.filename}: {error.strerror}") from error


def read_text(path: Path) -> str:
    """A text file of the model; CheckpointError when there is none, or it is not UTF-8."""
    with reading_errors():
        check_regular(path)
        if not path.exists():
            raise CheckpointError(f"{path} is missing")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path} is not UTF-8 text: {error.reason}") from error


def read_json(path: Path) -> Any:
    """The value in a JSON file; CheckpointError when there is none, or no such file."""
    text = read_text(path)
    try:
        return json.loads(text)
    except RecursionError:
        raise CheckpointError(f"{path} is not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> bool:
    """A number that C's float holds, too."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_FLOAT
    )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
