"""The options that make a spec: one for each field of the table, and `--spec` for a JSON file."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from h3farm.engine.spec import FIELDS, Field, RenderSpec, SpecError

LENGTH = ("frames", "seconds", "frames_asked", "seconds_asked")


def add_spec_options(parser: argparse.ArgumentParser) -> None:
    """A positional prompt, `--spec`, and the fields by their groups."""
    parser.add_argument("prompt", nargs="?", help="what is to be seen and heard")
    parser.add_argument(
        "--spec",
        metavar="FILE",
        help="a spec as JSON, - for standard input; prompt and options given beside it win",
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for field in FIELDS:
        if field.group == "record" or field.name == "prompt":
            continue
        if field.group not in groups:
            groups[field.group] = parser.add_argument_group(f"spec: {field.group}")
        _add_option(groups[field.group], field)


def _add_option(group: argparse._ArgumentGroup, field: Field) -> None:
    name = f"--{field.name.replace('_', '-')}"
    text = _help(field)
    if field.type == "switch":
        group.add_argument(name, action=argparse.BooleanOptionalAction, default=None, help=text)
        return
    convert = {"integer": _or_text(int), "number": _or_text(float)}.get(field.type, str)
    metavar = field.unit.upper() or {"integer": "N", "number": "X"}.get(field.type, "NAME")
    group.add_argument(name, dest=field.name, type=convert, metavar=metavar, help=text)


def _help(field: Field) -> str:
    default = "" if field.default is None else f" (default: {_shown(field.default)})"
    if field.name == "model":
        default = " (default: the only one there is)"
    return f"{field.help}{default}".replace("%", "%%")


def _shown(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _or_text(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """A number if it is one; else the text, of which the spec then says what is wrong."""

    def parse(text: str) -> Any:
        try:
            return convert(text)
        except ValueError:
            return text

    return parse


def given_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields that were given, those of the file below those of the options.

    SpecError for a file that holds no JSON object; OSError for one that cannot be read.
    """
    fields = _read(arguments.spec) if arguments.spec else {}
    options = {field.name: getattr(arguments, field.name, None) for field in FIELDS}
    options = {name: value for name, value in options.items() if value is not None}
    if options.keys() & {"frames", "seconds"}:
        for name in LENGTH:  # however the file says it, the option takes its place
            fields.pop(name, None)
    return fields | options


def _read(name: str) -> dict[str, Any]:
    where = "standard input" if name == "-" else name
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also for what is not UTF-8
        raise SpecError("", where, "JSON", f"{where} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise SpecError("", fields, "an object", f"{where} must hold one JSON object")
    return fields


def make_spec(fields: dict[str, Any], models: list[str]) -> RenderSpec:
    """The spec; without a model it gets the only one there is. SpecError."""
    choose_model(fields, models)
    return RenderSpec.from_json(fields)


def choose_model(fields: dict[str, Any], models: Sequence[str]) -> None:
    """Fill in the only model there is where none is named; SpecError when there are several."""
    if "model" not in fields and len(models) == 1:
        fields["model"] = models[0]
    elif "model" not in fields and models:
        known = ", ".join(models)
        raise SpecError("model", None, known, f"say which model with --model: there are {known}")
