"""From the description of a batch to the exact list of its specs. Nothing is queued here.

The order is that of the rows; for each, of the texts of its template; for each of these, of the
varied fields, the last one named changing fastest, and the seeds faster still. Without seeds and
count a text whose seed is -1 gets one drawn seed for all that is varied, so that its videos can be
compared.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from h3farm.engine.spec import RenderSpec, SpecError
from h3farm.worker.queue.description import MAX_JOBS, Axis, Description
from h3farm.worker.queue.faults import MOST_FAULTS, BatchError, Fault, batch_error
from h3farm.worker.queue.tables import Row
from h3farm.worker.queue.template import Lookup, Parser, Template, TemplateError, Words

NOISE_SEEDS = 2**32  # no more reach the noise
LENGTH = frozenset({"frames", "seconds", "frames_asked", "seconds_asked"})


def expand(description: Description, wordlist: Lookup) -> list[RenderSpec]:
    """The specs of a batch, in order, each with its seed. BatchError has every fault up to 20.

    wordlist: the lines of a list by its name, or TemplateError (see Wordlists).
    """
    prompts = _prompts(description, Parser(wordlist).parse)
    axes = list(description.vary)
    if description.count is not None:
        axes.append(("seed", _drawn_seeds(description.draw_seed, description.count)))
    _check_total(sum(each.taken for each in prompts) * math.prod(len(each[1]) for each in axes))
    specs: list[RenderSpec] = []
    faults: dict[str, Fault] = {}
    for row_number, (row, prompt) in enumerate(zip(description.rows, prompts, strict=True)):
        for number in prompt.numbers(description.draw_seed, row_number):
            seed = _drawn(description.draw_seed, "own", row_number, number) % NOISE_SEEDS
            for fields in _grid(description.defaults, row, prompt.fields(number), axes):
                try:
                    spec = RenderSpec.from_json(fields)
                except SpecError as error:
                    fault = Fault.at(_place(row, axes, error), error)
                    faults[fault.sentence] = fault
                else:
                    specs.append(spec.with_seed(functools.partial(int, seed)))
            if len(faults) >= MOST_FAULTS:
                break
    if faults:
        raise BatchError(list(faults.values())[:MOST_FAULTS])
    return specs


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The prompt of a row: a template, and how many of its texts are taken."""

    template: Template | None
    taken: int

    def numbers(self, draw_seed: int, row: int) -> Iterable[int]:
        """The numbers of the texts: all in order, or so many different ones, drawn."""
        count = self.template.count if self.template else 1
        if self.taken == count:
            return range(count)
        drawn: dict[int, None] = {}
        for turn in itertools.count():
            if len(drawn) == self.taken:
                break
            drawn[_drawn(draw_seed, "text", row, turn) % count] = None
        return drawn

    def fields(self, number: int) -> dict[str, object]:
        """The prompt as a field of a spec; none for a row that has none."""
        return {"prompt": self.template.text(number)} if self.template else {}


def _prompts(description: Description, parse: Callable[[str], Template]) -> list[_Prompt]:
    """The prompt of every row. BatchError for templates that cannot be read, and clashing rows."""
    prompts, faults = [], []
    varied = {name for name, _ in description.vary}
    if description.count is not None:
        varied.add("seed")
    for row in description.rows:
        if clash := _clash(row, varied):
            faults.append(clash)
            continue
        text = row.fields.get("prompt", description.defaults.get("prompt"))
        template: Template | None = None
        if isinstance(text, str):
            try:
                template = Words(text) if description.expand == "none" else parse(text)
            except TemplateError as error:
                wrong = SpecError("prompt", text, "a template", f"prompt: {error}")
                faults.append(Fault.at(row.place, wrong))
                continue
        count = template.count if template else 1
        limit = count if isinstance(description.expand, str) else description.expand
        prompts.append(_Prompt(template, min(count, limit)))
    if faults:
        raise BatchError(faults[:MOST_FAULTS])
    return prompts


def _clash(row: Row, varied: set[str]) -> Fault | None:
    """A field that a row gives and that is to be varied as well."""
    for name in row.fields:
        rivals = varied & (LENGTH if name in LENGTH else {name})
        for rival in rivals:
            sentence = f"{name} is given here, and {rival} is varied for all: leave one of them out"
            return Fault.at(row.place, SpecError(name, row.fields[name], "absent", sentence))
    return None


def _check_total(total: int) -> None:
    if total <= MAX_JOBS:
        return
    jobs = f"{total:,}".replace(",", " ") if total < 10**15 else "far too many"
    sentence = (
        f"the batch would have {jobs} jobs, and at most {MAX_JOBS} go into one: "
        "take fewer values, or have only some texts of the templates drawn (expand)"
    )
    raise batch_error("", jobs, f"at most {MAX_JOBS} jobs", sentence)


def _grid(
    defaults: Mapping[str, object],
    row: Row,
    prompt: Mapping[str, object],
    axes: Sequence[Axis],
) -> Iterator[dict[str, object]]:
    """The fields of every combination, the last axis changing fastest."""
    fields = _over(_over(defaults, row.fields), prompt)
    names = [name for name, _ in axes]
    for values in itertools.product(*(values for _, values in axes)):
        yield _over(fields, dict(zip(names, values, strict=True)))


def _over(fields: Mapping[str, object], more: Mapping[str, object]) -> dict[str, object]:
    """Fields with others in their places; a length takes the place of any other length."""
    kept = fields
    if LENGTH & more.keys():
        kept = {name: value for name, value in fields.items() if name not in LENGTH}
    return {**kept, **more}


def _place(row: Row, axes: Sequence[Axis], error: SpecError) -> str:
    """Where a fault comes from; what is varied is the same fault in every row."""
    return "vary" if error.field in {name for name, _ in axes} else row.place


def _drawn(draw_seed: int, *what: object) -> int:
    """A number that depends on the draw seed and on what it is for, on nothing else, for ever."""
    text = ":".join(map(str, ("h3farm", draw_seed, *what)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest())


def _drawn_seeds(draw_seed: int, count: int) -> tuple[int, ...]:
    """So many different seeds."""
    drawn: dict[int, None] = {}
    for turn in itertools.count():
        if len(drawn) == count:
            break
        drawn[_drawn(draw_seed, "seed", turn) % NOISE_SEEDS] = None
    return tuple(drawn)
