"""The description of a batch: what is to be made of which rows. `expansion` makes specs of it.

JSON form, every part optional:

    {"name": "foxes {date}",
     "defaults": {"model": "h3", "seconds": 5},       fields of a spec, for all rows
     "prompts": ["a {red|grey} fox in __place__"],    rows of which only the prompt is said
     "rows": [{"prompt": "a hare", "steps": 30}],     rows of any fields
     "expand": "all",                                 of templates: every text, "none", or how many
     "vary": {"steps": "10..30..10", "width": [480, 864]},
     "seeds": [1, 2, 3],  or  "count": 3,
     "draw_seed": 7}                                  from which everything random here is drawn
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from h3farm.engine.spec import FIELDS, SpecError
from h3farm.engine.spec import draw_seed as new_seed
from h3farm.worker.queue.faults import BatchError, Fault, batch_error
from h3farm.worker.queue.ranges import values_of
from h3farm.worker.queue.tables import Row

MAX_JOBS = 10_000
MAX_NAME = 100
NUMERIC = tuple(
    each.name for each in FIELDS if each.type in ("integer", "number") and each.group != "record"
)
PARTS = ("name", "defaults", "prompts", "rows", "expand", "vary", "seeds", "count", "draw_seed")

Axis = tuple[str, Sequence[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a batch is made from. `expand`: "all", "none", or at most how many texts a template."""

    rows: Sequence[Row]
    name: str = ""
    defaults: Mapping[str, object] = field(default_factory=dict)
    expand: str | int = "all"
    vary: Sequence[Axis] = ()
    count: int | None = None
    draw_seed: int

    @classmethod
    def from_json(cls, obj: object, *, draw: Callable[[], int] = new_seed) -> Description:
        """Read the JSON form; BatchError. `draw` gives the draw seed where none is said."""
        given = _object("", obj)
        for name in given:
            if name not in PARTS:
                raise _wrong(
                    name, given[name], f"one of {', '.join(PARTS)}", "is no part of a batch"
                )
        rows = [
            *(
                Row(fields={"prompt": prompt}, place=f"prompt {number}")
                for number, prompt in enumerate(_list("prompts", given), start=1)
            ),
            *(
                Row(fields=_object(f"row {number}", row), place=f"row {number}")
                for number, row in enumerate(_list("rows", given), start=1)
            ),
        ]
        return cls.build(
            rows=rows or [Row(fields={})],
            name=given.get("name", ""),
            defaults=_object("defaults", given.get("defaults") or {}),
            expand=given.get("expand", "all"),
            vary=_object("vary", given.get("vary") or {}),
            seeds=given.get("seeds"),
            count=given.get("count"),
            draw_seed=draw() if given.get("draw_seed") is None else given["draw_seed"],
        )

    @classmethod
    def build(
        cls,
        *,
        rows: Sequence[Row],
        draw_seed: object,
        name: object = "",
        defaults: Mapping[str, object] = {},
        expand: object = "all",
        vary: Mapping[str, object] = {},
        seeds: object = None,
        count: object = None,
    ) -> Description:
        """The description of checked parts; BatchError names the part at fault."""
        if not isinstance(name, str) or len(name) > MAX_NAME or not (name or "x").isprintable():
            raise _wrong("name", name, f"a text of at most {MAX_NAME} characters on one line")
        if expand not in ("all", "none") and not _whole(expand, 1, MAX_JOBS):
            raise _wrong("expand", expand, f"all, none or a whole number from 1 to {MAX_JOBS}")
        if count is not None and not _whole(count, 1, MAX_JOBS):
            raise _wrong("count", count, f"a whole number from 1 to {MAX_JOBS}")
        if not _whole(draw_seed, 0, 2**63 - 1):
            raise _wrong("draw_seed", draw_seed, f"a whole number from 0 to {2**63 - 1}")
        if count is not None and (seeds is not None or "seed" in vary):
            raise _wrong("count", count, "absent when there are seeds")
        axes = [_axis(each, values) for each, values in vary.items()]
        if seeds is not None:
            if "seed" in vary:
                raise _wrong("seeds", None, "absent when seed is varied")
            axes.append(_axis("seed", seeds, said="seeds"))
        return cls(
            rows=rows,
            name=name.strip(),
            defaults=defaults,
            expand=expand,  # type: ignore[arg-type]  # checked above
            vary=axes,
            count=count,  # type: ignore[arg-type]
            draw_seed=draw_seed,  # type: ignore[arg-type]
        )


def _axis(name: str, given: object, said: str = "") -> Axis:
    if name not in NUMERIC:
        raise _wrong("vary", name, f"a numeric field: {', '.join(NUMERIC)}")
    try:
        return name, values_of(name, given)
    except SpecError as error:
        raise BatchError([Fault.at(said or "vary", error)]) from error


def _object(place: str, given: object) -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        sentence = f"{place or 'a batch'} must be a JSON object"
        raise batch_error(place, given, "an object", sentence)
    return {str(name): value for name, value in given.items() if value is not None}


def _list(name: str, given: Mapping[str, object]) -> Sequence[object]:
    found = given.get(name, [])
    if not isinstance(found, list):
        raise _wrong(name, found, "a list")
    return found


def _whole(given: object, low: int, high: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and low <= given <= high


def _wrong(field_: str, given: object, allowed: str, what: str = "") -> BatchError:
    error = SpecError(field_, given, allowed)
    sentence = f"{field_} {what}: {allowed}" if what else str(error)
    return batch_error(field_, given, allowed, sentence)
