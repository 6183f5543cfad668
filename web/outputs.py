"""What was rendered, read from the output folders, and the one way from a request to a file."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from h3farm.engine.spec import RenderSpec, SpecError
from h3farm.web.errors import NoSuchRenderError

SIDECAR = "render.json"
# What a page or a program may fetch of a render, and how it is served.
FILES = {
    "video.mp4": "video/mp4",
    "poster.jpg": "image/jpeg",
    "render.json": "application/json",
    "log.txt": "text/plain; charset=utf-8",
    "latents.safetensors": "application/octet-stream",
}

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """What is shown of a `render.json`. What this version cannot read of it is None or ""."""

    prompt: str
    spec: RenderSpec | None
    ended_at: str
    total_s: float | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Render:
    """A finished render: its two folder names under the outputs, and what is in there."""

    day: str
    folder: str
    sidecar: Sidecar
    files: frozenset[str]

    @property
    def key(self) -> str:
        """The render's path below the outputs, as in addresses."""
        return f"{self.day}/{self.folder}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of the gallery. newer, older: where the neighbouring pages begin, None at the ends."""

    renders: list[Render]
    total: int
    newer: int | None
    older: int | None


class Outputs:
    """The renders below one folder. Sidecars are read once for as long as they do not change."""

    def __init__(self, root: Path) -> None:
        """The outputs folder; it need not exist yet."""
        self._root = root
        self._read: dict[Path, tuple[int, Sidecar | None]] = {}

    def page(self, *, search: str = "", start: int = 0, size: int = 48) -> Page:
        """Finished renders, newest first, whose prompt holds every word of `search`."""
        words = search.casefold().split()
        found = [
            render
            for render in self._renders()
            if all(word in render.sidecar.prompt.casefold() for word in words)
        ]
        found.sort(
            key=lambda render: (render.day, render.sidecar.ended_at, render.folder), reverse=True
        )
        return Page(
            renders=found[start : start + size],
            total=len(found),
            newer=max(0, start - size) if start else None,
            older=start + size if start + size < len(found) else None,
        )

    def get(self, day: str, folder: str) -> Render:
        """One render; NoSuchRenderError when its folder or sidecar is not there."""
        render = self._render(self._inside(day, folder, SIDECAR).parent, day, folder)
        if render is None:
            raise NoSuchRenderError("This render's sidecar cannot be read.")
        return render

    def file(self, day: str, folder: str, name: str) -> Path:
        """The path of a render's file, to be served; NoSuchRenderError for anything else."""
        if name not in FILES:
            raise NoSuchRenderError("A render has no such file.")
        return self._inside(day, folder, name)

    def at(self, folder: Path) -> Render | None:
        """The render in a folder that the queue named; None when it is elsewhere or gone."""
        try:
            day, name = folder.resolve().relative_to(self._root.resolve()).parts
            return self.get(day, name)
        except (NoSuchRenderError, ValueError):
            return None

    def _inside(self, *parts: str) -> Path:
        """A file below the root from names of a request: nothing gets out, symbolic links included.

        This is the only place where a part of a request becomes a part of a path.
        """
        missing = NoSuchRenderError("There is no such render; it may have been moved or deleted.")
        for part in parts:
            if part.startswith(".") or not part.isprintable() or {"/", "\\"} & set(part):
                raise missing
        try:
            path = self._root.joinpath(*parts).resolve(strict=True)
        except (OSError, ValueError):
            raise missing from None
        if not path.is_relative_to(self._root.resolve()) or not path.is_file():
            raise missing
        return path

    def _renders(self) -> Iterator[Render]:
        """Every render below the root; half-made and hidden folders are not among them."""
        for day in _folders(self._root):
            for folder in _folders(day):
                if render := self._render(folder, day.name, folder.name):
                    yield render

    def _render(self, path: Path, day: str, folder: str) -> Render | None:
        sidecar = self._sidecar(path / SIDECAR)
        if sidecar is None:
            return None
        files = frozenset(name for name in FILES if (path / name).is_file())
        return Render(day=day, folder=folder, sidecar=sidecar, files=files)

    def _sidecar(self, path: Path) -> Sidecar | None:
        """The sidecar, from memory when the file is the one that was read before."""
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            self._read.pop(path, None)
            return None
        known = self._read.get(path)
        if known is None or known[0] != changed:
            known = self._read[path] = (changed, _parse(path))
        return known[1]


def _folders(parent: Path) -> list[Path]:
    """Plain folders: a link could lead out of the outputs, and nothing behind it is served."""
    try:
        return [
            path
            for path in parent.iterdir()
            if path.is_dir() and not path.is_symlink() and not path.name.startswith(".")
        ]
    except OSError:
        return []


def _parse(path: Path) -> Sidecar | None:
    try:
        parsed = json.loads(path.read_bytes())
        if not isinstance(parsed, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        logger.warning("The gallery leaves out %s: %s", path, error)
        return None
    given = parsed.get("spec")
    try:
        spec = RenderSpec.from_json(given)
    except SpecError as error:  # of a newer version, or edited: its video still plays
        logger.warning("The settings in %s cannot be read: %s", path, error)
        spec = None
    return Sidecar(
        prompt=_of(str, given.get("prompt")) or "" if isinstance(given, dict) else "",
        spec=spec,
        ended_at=_of(str, parsed.get("ended_at")) or "",
        total_s=_total(parsed.get("timings")),
        peak_bytes=_of(int, parsed.get("peak_bytes")),
    )


def _of(kind: type[T], value: object) -> T | None:
    return value if isinstance(value, kind) else None


def _total(timings: object) -> float | None:
    """All phases together; None when one of them is not a number."""
    if not isinstance(timings, dict) or not timings:
        return None
    parts = [value for value in timings.values() if isinstance(value, int | float)]
    return float(sum(parts)) if len(parts) == len(timings) else None
