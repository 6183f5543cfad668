"""The values of a field that is varied: lists, and ranges such as `20..40..10`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal

from h3farm.engine.spec import SpecError
from h3farm.worker.queue.tables import number_of

MAX_VALUES = 10_000
ALLOWED = "numbers and ranges like 20..40..10, separated by commas"

_PART = r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_RANGE = re.compile(rf"({_PART})\.\.({_PART})(?:\.\.({_PART}))?")


def values_of(field: str, given: object) -> tuple[object, ...]:
    """The values that a text, a number, or a list of both stands for, in order; SpecError.

    A range goes from its first number to its last in steps of the third (1 when there is none), up
    or down; both ends belong to it, as far as the steps meet the last. Each number is exact: no sum
    of rounded steps.
    """
    items: Sequence[object] = given if isinstance(given, list | tuple) else [given]
    values: list[object] = []
    for item in items:
        texts = item.split(",") if isinstance(item, str) else [item]
        for text in texts:
            values += _values(field, text)
            if len(values) > MAX_VALUES:
                sentence = f"{field} is varied over more than {MAX_VALUES} values"
                raise SpecError(field, given, f"at most {MAX_VALUES} values", sentence)
    if not values:
        raise SpecError(field, given, ALLOWED, f"{field} is varied, but over no values")
    return tuple(values)


def _values(field: str, item: object) -> Iterator[object]:
    if not isinstance(item, str):
        yield item  # a number, or what the spec will refuse in its own words
        return
    text = item.strip()
    match = _RANGE.fullmatch(text)
    if match is None:
        number = number_of(text)
        if isinstance(number, str):
            raise SpecError(field, item, ALLOWED)
        yield number
        return
    first, last = Decimal(match[1]), Decimal(match[2])
    step = abs(Decimal(match[3] or 1))
    if not step:
        sentence = f"{field} must be varied in steps above 0, got {text}"
        raise SpecError(field, item, "a step above 0", sentence)
    signed = step if last >= first else -step
    for turn in range(min(int((last - first) / signed), MAX_VALUES) + 1):
        value = first + turn * signed
        yield int(value) if value == value.to_integral_value() else float(value)
