"""Reading the parts of a JSON body that are no spec."""

from collections.abc import Mapping
from typing import Any

from h3farm.web.errors import BadRequestError
from h3farm.worker.queue.job import utc_now
from h3farm.worker.queue.schedule import Schedule


def switch_in(body: Mapping[str, Any], name: str) -> bool:
    """A part that is true or false; false when it is absent."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise BadRequestError(f"{name} must be true or false, got {value!r}", name)
    return value


def text_in(body: Mapping[str, Any], name: str) -> str | None:
    """A part that is a text; None when it is absent."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRequestError(f"{name} must be a text", name)
    return value


def schedule_in(body: Mapping[str, Any]) -> Schedule:
    """When the jobs may run: the parts `not_before` and `window`; BadSchedule."""
    return Schedule.parse(text_in(body, "not_before"), text_in(body, "window"), utc_now())
