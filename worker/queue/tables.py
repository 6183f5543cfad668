"""Rows of a batch from text: a prompt a line, CSV, JSON Lines. Columns are fields of a spec."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from h3farm.engine.spec import FIELDS, RenderSpec, SpecError, field_named
from h3farm.worker.queue.faults import MOST_FAULTS, BatchError, Fault, batch_error
from h3farm.worker.queue.wordlists import lines_of

COLUMNS = tuple(field.name for field in FIELDS if field.group != "record")
SWITCH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a batch says of one prompt: fields of a spec, and where they stand."""

    fields: Mapping[str, object]
    place: str = ""


def decoded(data: bytes, name: str) -> str:
    """The text of a file; BatchError names the line that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        sentence = f"{name} is not UTF-8 in line {line}: save it as UTF-8 (“CSV UTF-8”)"
        raise batch_error("", "", "UTF-8", sentence) from error


def from_prompts(text: str, name: str) -> list[Row]:
    """A prompt a line; blank lines and lines that begin with `#` do not count."""
    rows = [
        Row(fields={"prompt": prompt}, place=f"{name} line {line}")
        for line, prompt in lines_of(text)
    ]
    return _some(rows, name)


def from_jsonl(text: str, name: str) -> list[Row]:
    """An object a line; blank lines do not count."""
    rows, faults = [], []
    for line, content in enumerate(re.split(r"\r\n|\r|\n", text.removeprefix("\ufeff")), start=1):
        place = f"{name} line {line}"
        if not content.strip():
            continue
        try:
            fields = json.loads(content, object_pairs_hook=_object, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            faults.append(_fault(place, content, "a JSON object", f"is not JSON: {error}"))
            continue
        if not isinstance(fields, dict):
            faults.append(_fault(place, content, "a JSON object", "must be a JSON object"))
            continue
        rows.append(Row(fields=_without_nulls(fields), place=place))
    return _some(rows, name, faults)


def _without_nulls(fields: Mapping[str, object]) -> dict[str, object]:
    """Null means that the default is wanted."""
    return {name: value for name, value in fields.items() if value is not None}


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Two values for one name: the first would be lost without a word."""
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name} stands in it twice")
        found[name] = value
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def from_csv(text: str, name: str) -> list[Row]:
    """A row a record, under a header of fields. An empty cell means the default.

    The separator is the one that the header has: comma, semicolon or tab. Line breaks within quotes
    are part of the text; records with no text at all do not count.
    """
    records = _records(text.removeprefix("\ufeff"), name)
    header_line, header = next(records, (1, []))
    columns = _columns(header, f"{name} line {header_line}")
    rows, faults = [], []
    for line, cells in records:
        place = f"{name} line {line}"
        if len(cells) != len(columns):
            what = f"has {_cells(len(cells))}, the header has {len(columns)}: "
            hint = "a text with the separator or a line break in it must stand in quotes"
            faults.append(_fault(place, len(cells), _cells(len(columns)), what + hint))
            continue
        pairs = zip(columns, cells, strict=True)
        fields = {column: _value(column, cell) for column, cell in pairs if cell.strip()}
        rows.append(Row(fields=fields, place=place))
    return _some(rows, name, faults)


def _records(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """The records that hold anything, with the line on which each begins."""
    first = next((line for line in re.split(r"[\r\n]", text) if line.strip()), "")
    separator = next((char for char in ",;\t" if char in first), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        what = str(error)
        if "unexpected end of data" in what:
            what = "a quote is opened here and never closed"
        sentence = f"{name} line {line} is not CSV: {what}"
        raise batch_error("", "", "CSV", sentence) from error


def _columns(header: Sequence[str], place: str) -> list[str]:
    """The fields that a header names; BatchError for each column that is none."""
    if not header:
        sentence = f"{place}: there is no header: the first line must name the columns, e.g. prompt"
        raise batch_error("", "", ", ".join(COLUMNS), sentence)
    columns: list[str] = []
    faults = []
    for number, cell in enumerate(header, start=1):
        column = cell.strip().lower()
        if not column:
            faults.append(_fault(place, cell, ", ".join(COLUMNS), f"column {number} has no name"))
        elif column in columns:
            faults.append(_fault(place, column, "once", f"column {column} stands in it twice"))
        elif error := _unknown(column):
            faults.append(Fault.at(place, error))
        columns.append(column)
    if faults:
        raise BatchError(faults[:MOST_FAULTS])
    return columns


def _unknown(column: str) -> SpecError | None:
    """What a spec says of a name that is none of its fields."""
    if column in COLUMNS:
        return None
    allowed = ", ".join(COLUMNS)
    try:
        RenderSpec.from_json({column: None})
    except SpecError as error:
        if error.field == column:
            return error
    return SpecError(column, column, allowed, f"{column} is written by h3farm: it is no column")


def _value(column: str, cell: str) -> object:
    """A cell as its field's type; the text itself when it is none, for the spec to refuse."""
    kind = field_named(column).type
    plain = cell.strip()
    if kind in ("integer", "number"):
        return number_of(plain)
    if kind == "switch":
        return SWITCH.get(plain.lower(), plain)
    if kind == "choice" or column == "model":
        return plain
    return re.sub(r"\r\n?", "\n", cell)


def number_of(text: str) -> int | float | str:
    """The number that a text is; the text itself when it is none."""
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _cells(count: int) -> str:
    return f"{count} cell{'' if count == 1 else 's'}"


def _fault(place: str, given: object, allowed: str, sentence: str) -> Fault:
    return Fault(
        place=place, field="", given=given, allowed=allowed, sentence=f"{place} {sentence}"
    )


def _some(rows: list[Row], name: str, faults: Sequence[Fault] = ()) -> list[Row]:
    """The rows; BatchError when there are faults, or no rows."""
    if faults:
        raise BatchError(faults[:MOST_FAULTS])
    if not rows:
        raise batch_error("", "", "at least one row", f"{name} has nothing to render in it")
    return rows
