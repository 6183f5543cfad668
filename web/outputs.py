"""What was rendered, read from the output folders, and the one way from a request to a file."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Render:
    """A finished render: its two folder names under the outputs, and its sidecar as read.

    The sidecar may come from another version of the farm: its parts are looked up with care.
    """

    day: str
    folder: str
    sidecar: dict[str, Any]
    files: frozenset[str]

    @property
    def key(self) -> str:
        """The render's path below the outputs, as in addresses."""
        return f"{self.day}/{self.folder}"

    @property
    def spec(self) -> dict[str, Any]:
        """The spec as it was rendered."""
        return _mapping(self.sidecar.get("spec"))

    @property
    def prompt(self) -> str:
        """The prompt, to the letter."""
        return str(self.spec.get("prompt", ""))

    @property
    def total_s(self) -> float | None:
        """How long the render took, all phases together; None when the sidecar does not say."""
        timings = list(_mapping(self.sidecar.get("timings")).values())
        known = timings and all(isinstance(value, int | float) for value in timings)
        return float(sum(timings)) if known else None

    @property
    def peak_bytes(self) -> int | None:
        """The engine's peak memory; None when the sidecar does not say."""
        peak = self.sidecar.get("peak_bytes")
        return peak if isinstance(peak, int) else None

    @property
    def ended_at(self) -> str:
        """When it was finished, UTC; "" when the sidecar does not say."""
        return str(self.sidecar.get("ended_at") or self.sidecar.get("created_at") or "")


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
        self._read: dict[Path, tuple[int, dict[str, Any] | None]] = {}

    def page(self, *, search: str = "", start: int = 0, size: int = 48) -> Page:
        """Finished renders, newest first, whose prompt holds every word of `search`."""
        words = search.casefold().split()
        found = [
            render
            for render in self._renders()
            if all(word in render.prompt.casefold() for word in words)
        ]
        found.sort(key=lambda render: (render.day, render.ended_at, render.folder), reverse=True)
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

    def _sidecar(self, path: Path) -> dict[str, Any] | None:
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


def _parse(path: Path) -> dict[str, Any] | None:
    try:
        parsed = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        logger.warning("The gallery leaves out %s: %s", path, error)
        return None
    return parsed if isinstance(parsed, dict) else None


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
