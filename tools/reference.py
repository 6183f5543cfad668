"""Writes docs/spec.md and docs/commands.md from the table of fields and the commands' own help.

`python tools/reference.py` rewrites them; tests/test_docs.py fails when they are out of date.
"""

import argparse
import os
import sys
from pathlib import Path

from h3farm.engine.spec import FIELDS, Field

DOCS = Path(__file__).resolve().parent.parent / "docs"

SPEC_HEAD = """# The fields of a render

A spec is one JSON object. This page is made from the table that also makes the checks, the
options of `h3farm submit` and the form of the dashboard (`make reference`). Fields without a
default must be given. Unknown fields are refused, and so are `cfg`, `guidance_scale` and
`negative_prompt`: the model is guidance-distilled and has no use for them.

| field | allowed | default | |
|---|---|---|---|
"""
SPEC_RECORD = """
Written by h3farm, and read back:

| field | | |
|---|---|---|
"""
SPEC_TAIL = """
```json
{"prompt": "A red fox walks through fresh snow.", "model": "h3-demo", "seconds": 2, "seed": 7}
```
"""
COMMANDS_HEAD = """# Commands

Made from the commands' own help (`make reference`).
"""


def default_of(field: Field) -> str:
    """How a default stands in the table."""
    if field.default is None:
        return "" if field.name in ("prompt", "model") else "none"
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)


def spec_page() -> str:
    """docs/spec.md."""
    asked = [field for field in FIELDS if field.group != "record"]
    written = [field for field in FIELDS if field.group == "record"]
    rows = [
        f"| `{field.name}` | {field.allowed} | {default_of(field)} | {field.help} |\n"
        for field in asked
    ]
    records = [f"| `{field.name}` | {field.allowed} | {field.help} |\n" for field in written]
    return "".join((SPEC_HEAD, *rows, SPEC_RECORD, *records, SPEC_TAIL))


def parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A parser and all of its subcommands, depth first."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                found += parsers(child)
    return found


def commands_page() -> str:
    """docs/commands.md."""
    from h3farm.worker.cli.entry import build_parser  # noqa: PLC0415 - spec_page needs none of it

    os.environ["COLUMNS"] = "100"  # the pages must not depend on the terminal
    os.environ["NO_COLOR"] = "1"
    sections = [
        f"\n## {parser.prog}\n\n```text\n{parser.format_help().rstrip()}\n```\n"
        for parser in parsers(build_parser())
    ]
    return COMMANDS_HEAD + "".join(sections)


PAGES = {"spec.md": spec_page, "commands.md": commands_page}


def main() -> int:
    """Write the pages."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
