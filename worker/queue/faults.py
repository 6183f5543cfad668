"""What is wrong with a batch, all of it at once: each fault with its place, field and value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from h3farm.engine.spec import SpecError

MOST_FAULTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. place: "films.csv line 4", or "" for the batch itself; `sentence` has it too."""

    place: str
    field: str
    given: object
    allowed: str
    sentence: str

    @classmethod
    def at(cls, place: str, error: SpecError) -> Fault:
        """A fault of a spec, and where it came from."""
        sentence = f"{place}: {error}" if place else str(error)
        return cls(
            place=place,
            field=error.field,
            given=error.given,
            allowed=error.allowed,
            sentence=sentence,
        )

    def to_json(self) -> dict[str, object]:
        """The fault as JSON; what was given only where that is a plain value."""
        given = self.given if isinstance(self.given, str | int | float | bool | None) else None
        return {
            "place": self.place,
            "field": self.field,
            "given": given,
            "allowed": self.allowed,
            "message": self.sentence,
        }


class BatchError(SpecError):
    """A batch that cannot be made. Its text is the first fault; `faults` has up to 20 of them."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        """At least one fault."""
        self.faults = tuple(faults)
        first = self.faults[0]
        more = len(self.faults) - 1
        tail = f" (and {more} more fault{'s' if more > 1 else ''})" if more else ""
        super().__init__(first.field, first.given, first.allowed, f"{first.sentence}{tail}")


def batch_error(
    field: str, given: object, allowed: str, sentence: str, place: str = ""
) -> BatchError:
    """The error for a single fault."""
    return BatchError([Fault.at(place, SpecError(field, given, allowed, sentence))])
