"""Reading a folder of golden vectors: its cases, stored tensors and checkpoint trees.

tests/golden/README.md describes the format. `selftest` runs the cases.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3farm.engine.checkpoints import LAYOUTS, OFFICIAL_FOLDER, Tree, is_model, open_tree
from h3farm.engine.errors import CheckpointError, EngineError
from h3farm.engine.safetensors import Entry, read_header

Array = npt.NDArray[Any]
_DTYPES = {"F64": "<f8", "F32": "<f4", "I32": "<i4", "U8": "u1"}


class GoldenError(EngineError):
    """The golden folder is not what its README says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A stored result and how far from it is near enough; 0 means equal."""

    want: Array
    atol: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case: its tensors are loaded, and have the shapes that the manifest says."""

    name: str
    stage: str
    config: Mapping[str, Any]
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Output]


class Golden:
    """A golden folder."""

    def __init__(self, folder: Path) -> None:
        """Read the manifest; GoldenError when there is none."""
        self.folder = folder
        path = folder / "manifest.json"
        try:
            self._entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))[
                "cases"
            ]
        except OSError as error:
            raise GoldenError(f"{path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise GoldenError(f"{path} is no manifest: {error!r}") from error
        self._files: dict[str, _File] = {}

    def names(self) -> list[tuple[str, str]]:
        """(stage, name) of every case, in order."""
        return [(str(e.get("stage")), str(e.get("name"))) for e in self._entries]

    def case(self, stage: str, name: str) -> Case:
        """A case with its tensors; GoldenError when something of it is missing."""
        found = [e for e in self._entries if e.get("stage") == stage and e.get("name") == name]
        if len(found) != 1:
            raise GoldenError(f"the manifest has {len(found)} cases {stage}/{name}, not one")
        entry = found[0]
        try:
            inputs = {key: self._tensor(entry, key, of) for key, of in entry["inputs"].items()}
            outputs = {
                key: Output(want=self._tensor(entry, key, of), atol=float(of["atol"]))
                for key, of in entry["outputs"].items()
            }
        except (KeyError, TypeError) as error:
            raise GoldenError(f"{stage}/{name}: the manifest's entry lacks {error}") from error
        config = entry.get("config") or {}
        return Case(name=name, stage=stage, config=config, inputs=inputs, outputs=outputs)

    def _tensor(self, entry: dict[str, Any], key: str, described: dict[str, Any]) -> Array:
        file = self._files.setdefault(entry["file"], _File(self.folder / entry["file"]))
        tensor = file.tensor(f"{entry['name']}/{key}")
        if list(tensor.shape) != described["shape"] or tensor.dtype.name != described["dtype"]:
            raise GoldenError(
                f"{file.path}: {entry['name']}/{key} is {tensor.dtype.name} {list(tensor.shape)}, "
                f"the manifest says {described['dtype']} {described['shape']}"
            )
        return tensor

    @cached_property
    def trees(self) -> list[Tree]:
        """Every checkpoint tree of the folder, in every layout that it has."""
        found = []
        for path in sorted(child for child in self.folder.iterdir() if is_model(child)):
            for layout in LAYOUTS:
                inner = path / OFFICIAL_FOLDER if layout == "official" else path
                if (inner / "transformer").is_dir():
                    found.append(open_tree(path, layout=layout))
        return found


class _File:
    """A safetensors file of stored results."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def header(self) -> dict[str, Entry]:
        return read_header(self.path)

    @cached_property
    def data(self) -> bytes:
        return self.path.read_bytes()

    def tensor(self, name: str) -> Array:
        """A copy, so that it is aligned."""
        entry = self.header.get(name)
        if entry is None or entry.dtype not in _DTYPES:
            what = "is not there" if entry is None else f"has type {entry.dtype}"
            raise GoldenError(f"{self.path}: tensor '{name}' {what}")
        try:
            raw = np.frombuffer(self.data[entry.start : entry.end], _DTYPES[entry.dtype])
            return raw.reshape(entry.shape).copy()
        except ValueError as error:
            raise CheckpointError(f"{self.path}: tensor '{name}': {error}") from error
