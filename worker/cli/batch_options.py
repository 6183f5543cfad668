"""The options that make a batch of a submit, and the description that they add up to."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from h3farm.engine.spec import SpecError, draw_seed
from h3farm.worker.cli.spec_options import choose_model, given_fields
from h3farm.worker.queue import tables
from h3farm.worker.queue.description import Description
from h3farm.worker.queue.job import utc_now
from h3farm.worker.queue.schedule import Schedule
from h3farm.worker.queue.tables import Row

FILES: tuple[tuple[str, Callable[[str, str], list[Row]], str], ...] = (
    ("prompts", tables.from_prompts, "a prompt a line; lines that begin with # do not count"),
    ("csv", tables.from_csv, "a table, its columns named like the fields of a spec"),
    ("jsonl", tables.from_jsonl, "a spec as a JSON object a line"),
)
MAKES_A_BATCH = ("prompts", "csv", "jsonl", "vary", "seeds", "count", "expand", "name", "draw_seed")


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    """The files, what is done with each row, and what is done with the batch."""
    group = parser.add_argument_group(
        "many at once",
        "Any of these makes a batch: all of it is queued, or nothing.",
    )
    for name, _, help_ in FILES:
        group.add_argument(f"--{name}", metavar="FILE", help=f"{help_}; - for standard input")
    group.add_argument(
        "--expand",
        metavar="HOW",
        help="prompts are templates, {red|grey} fox or __list__ (a file in wordlists/): all makes "
        "a job of every text (default for a batch), a number draws so many a prompt, none takes "
        "prompts word for word",
    )
    group.add_argument(
        "--vary",
        action="append",
        metavar="FIELD=VALUES",
        help="a job for each value of a numeric field: 10,20 or 10..50..20; more than one: for "
        "each combination",
    )
    group.add_argument("--seeds", metavar="VALUES", help="a job for each seed: 1,2 or 1..10")
    group.add_argument("--count", metavar="N", help="a job for each of N drawn seeds")
    group.add_argument(
        "--draw-seed",
        metavar="N",
        help="whatever is drawn is drawn from it: the same again makes the same batch",
    )
    group.add_argument(
        "--name",
        help="the batch's name, in which {date}, {time} and {jobs} are filled in (default: the "
        "first words of its first prompt)",
    )
    parser.add_argument(
        "--plan",
        "--dry-run",
        action="store_true",
        help="show what would be queued, and queue nothing",
    )
    parser.add_argument(
        "--not-before", metavar="WHEN", help="not before a moment: 22:00, +8h, 2026-12-24 22:00"
    )
    parser.add_argument(
        "--window", metavar="FROM-TO", help="only in this time of every day, e.g. 22:00-07:00"
    )
    parser.add_argument(
        "--key",
        help="with a key that was given before nothing is queued: the answer is the first one's",
    )
    parser.add_argument(
        "--again", action="store_true", help="render also what has been rendered already"
    )


def schedule_of(arguments: argparse.Namespace) -> Schedule:
    """When the jobs may run; BadSchedule."""
    return Schedule.parse(arguments.not_before, arguments.window, utc_now())


def is_batch(arguments: argparse.Namespace) -> bool:
    """Whether an option was given that makes a batch."""
    return any(getattr(arguments, name) is not None for name in MAKES_A_BATCH)


def described(arguments: argparse.Namespace, models: Sequence[str]) -> Description:
    """The batch that the options describe; `models`: those there are. BatchError, SpecError."""
    defaults = given_fields(arguments)
    if arguments.prompts is not None and arguments.prompt is not None:
        sentence = "a prompt is given and a file of prompts too: leave one of them out"
        raise SpecError("prompt", arguments.prompt, "absent beside --prompts", sentence)
    rows = [row for name, parse, _ in FILES for row in _rows(getattr(arguments, name), parse)]
    if not rows or any("model" not in row.fields for row in rows):
        choose_model(defaults, models)
    expand = arguments.expand
    if expand is None:
        expand = "all" if is_batch(arguments) else "none"
    return Description.build(
        rows=rows or [Row(fields={})],
        name=arguments.name or "",
        defaults=defaults,
        expand=tables.number_of(expand),
        vary=_vary(arguments.vary or []),
        seeds=arguments.seeds,
        count=None if arguments.count is None else tables.number_of(arguments.count),
        draw_seed=draw_seed()
        if arguments.draw_seed is None
        else tables.number_of(arguments.draw_seed),
    )


def _rows(name: str | None, parse: Callable[[str, str], list[Row]]) -> list[Row]:
    if name is None:
        return []
    if name == "-":
        return parse(tables.decoded(sys.stdin.buffer.read(), "standard input"), "standard input")
    return parse(tables.decoded(Path(name).read_bytes(), name), name)


def _vary(given: Sequence[str]) -> dict[str, Any]:
    axes: dict[str, Any] = {}
    for text in given:
        name, equals, values = text.partition("=")
        field = name.strip().replace("-", "_")
        if not equals or field in axes:
            what = "is varied twice" if equals else "must be like steps=10,20 or steps=10..50..20"
            sentence = f"vary: {field if equals else text} {what}"
            raise SpecError("vary", text, "FIELD=VALUES", sentence)
        axes[field] = values
    return axes
