"""What cffi is told is what the public header says."""

import re
import runpy
from pathlib import Path

from h3farm.engine import _bridge

ROOT = Path(__file__).parents[2]
BUILD = runpy.run_path(str(ROOT / "engine/_build.py"))


def test_every_public_function_is_declared_and_linked() -> None:
    header = (ROOT / "csrc/h3f.h").read_text(encoding="utf-8")
    names = set(re.findall(r"^H3F_API [^;(]*?\b(h3f_\w+)\(", header, re.MULTILINE))
    assert len(names) > 40
    assert [name for name in sorted(names) if not hasattr(_bridge.lib, name)] == []


def test_the_declarations_hold_nothing_for_the_preprocessor() -> None:
    declared = BUILD["declarations"]()
    assert "#" not in declared
    assert "H3F_API" not in declared


def test_every_source_is_compiled() -> None:
    assert {path.name for path in BUILD["sources"]()} == {
        path.name for path in (ROOT / "csrc").glob("*.c")
    }
