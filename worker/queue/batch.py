"""A batch as everybody sees it: a name for jobs that came together, and how far they are."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue.faults import batch_error
from h3farm.worker.queue.states import OVER, State

NAME_WORDS = 5
GONE = "gone"  # jobs whose record was cleared away


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """jobs: how many it has. left_out: equal specs in it that were queued once only.

    counts: its jobs by state, those that are none left out; `gone` are jobs that were cleared away.
    frames: of all its jobs; frames_done: of those that are done.
    """

    id: str
    name: str
    created_at: str
    priority: str
    key: str | None = None
    jobs: int
    left_out: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    frames: int = 0
    frames_done: int = 0

    @property
    def done(self) -> int:
        """How many of its jobs are done."""
        return self.counts.get(State.DONE, 0)

    @property
    def over(self) -> bool:
        """Whether nothing of it is left to do."""
        return set(self.counts) <= {*OVER, GONE}

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return dataclasses.asdict(self) | {
            "counts": dict(self.counts),
            "done": self.done,
            "over": self.over,
        }


def batch_name(template: str, specs: Collection[RenderSpec], moment: datetime) -> str:
    """The name that a template gives: `{date}`, `{time}` (local) and `{jobs}` are filled in.

    Without a template: the first words of the first prompt. BatchError for other braces.
    """
    if not template:
        prompt = next(iter(specs)).prompt
        words = re.sub(r"[^\w\s'-]", " ", prompt).split()[:NAME_WORDS]
        return " ".join(words) or "batch"
    local = moment.astimezone()
    values = {"date": f"{local:%Y-%m-%d}", "time": f"{local:%H%M}", "jobs": str(len(specs))}

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            allowed = ", ".join(f"{{{name}}}" for name in values)
            sentence = f"name has {match[0]} in it: known are {allowed}"
            raise batch_error("name", template, allowed, sentence)
        return values[match[1]]

    return re.sub(r"\{([^{}]*)\}", value, template)


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, with a number behind it when another batch has it."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name} {number}"
    return found
