"""Estimates held against what happened: a recorded batch, replayed, and machines with faults."""

import dataclasses
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from h3farm.engine.checkpoints import open_tree
from h3farm.engine.costs import memory_by_phase
from h3farm.engine.disk_sizes import disk_for_output, disk_for_work
from h3farm.engine.measurements import Measurement, Setting
from h3farm.engine.pace import Pace, Range, total
from h3farm.engine.spec import RenderSpec
from h3farm.engine.work import tasks_of

RECORD = Path(__file__).parent / "recorded" / "batch.jsonl"
TINY = Path(__file__).parent.parent / "golden" / "tiny-h3"
NETWORKS = open_tree(TINY).networks()
HERE = Setting(model="tiny", engine="1", isa="avx512", threads=2)
LEARNT = 10  # renders before an estimate is held to its word
COVERED = (0.80, 0.97)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A line of the record; tools/record_batch.py writes them."""

    spec: RenderSpec
    tokens: int
    units: dict[str, list[float]]
    peak_bytes: int
    work_bytes: int
    output_bytes: int

    @property
    def seconds(self) -> float:
        return sum(map(sum, self.units.values()))


def recorded() -> list[Recorded]:
    lines = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    return [
        Recorded(**line | {"spec": RenderSpec.from_json(line["spec"] | {"model": "tiny"})})
        for line in lines
    ]


def measurements(batch: Sequence[Recorded]) -> list[Measurement]:
    """What the batch left in the file."""
    return [
        Measurement(
            at="2026-12-01T06:00:00+00:00",
            job=str(place),
            unit=task.unit,
            work=task.work,
            seconds=seconds,
            setting=HERE,
        )
        for place, render in enumerate(batch)
        for task in tasks_of(NETWORKS, render.spec, render.tokens)
        for seconds in render.units[task.unit]
    ]


def said(batch: Sequence[Recorded], place: int) -> Range:
    """What was said of a render of the batch before it began."""
    render = batch[place]
    pace = Pace(measurements(batch[:place]), HERE)
    return pace.render(tasks_of(NETWORKS, render.spec, render.tokens)).range


def coverage(batch: Sequence[Recorded]) -> tuple[float, float]:
    """The shares of renders that took no longer than their p50 and their p90."""
    renders = range(LEARNT, len(batch))
    estimates = [said(batch, place) for place in renders]
    took = [batch[place].seconds for place in renders]
    return (
        sum(t <= e.p50_s for t, e in zip(took, estimates, strict=True)) / len(took),
        sum(t <= e.p90_s for t, e in zip(took, estimates, strict=True)) / len(took),
    )


def test_the_p90_covers_nine_of_ten_renders_of_a_recorded_mixed_batch() -> None:
    """Canvases, lengths, steps, prompts and what is kept all vary; other programs ran beside it."""
    batch = recorded()
    assert len(batch) >= 60
    assert len({(r.spec.width, r.spec.frames, r.spec.steps) for r in batch}) > 40
    half, nine = coverage(batch)
    assert COVERED[0] <= nine <= COVERED[1]
    assert 0.3 <= half <= 0.8


def test_the_estimates_are_near_not_only_wide() -> None:
    """A p90 of a year would cover everything."""
    batch = recorded()
    estimates = [said(batch, place) for place in range(LEARNT, len(batch))]
    took = [render.seconds for render in batch[LEARNT:]]
    off = sorted(abs(math.log(t / e.p50_s)) for t, e in zip(took, estimates, strict=True))
    assert math.exp(off[len(off) // 2]) < 1.25
    wide = sorted(e.p90_s / e.p50_s for e in estimates)
    assert wide[len(wide) // 2] < 1.8


Machine = Callable[[random.Random, int, str, int], float]  # (chance, render, unit, number): ratio


def rendered_on(machine: Machine, seed: int = 5) -> list[Recorded]:
    """The batch on a machine of our own making: a rate, a share beside it, and its ratios."""
    chance = random.Random(seed)  # noqa: S311
    batch = recorded()
    chance.shuffle(batch)
    return [
        dataclasses.replace(
            render,
            units={
                task.unit: [
                    (0.02 + task.work * (2e-7 if task.unit == "assemble" else 1e-10))
                    * machine(chance, place, task.unit, number)
                    for number in range(task.count)
                ]
                for task in tasks_of(NETWORKS, render.spec, render.tokens)
            },
        )
        for place, render in enumerate(batch)
    ]


def steady(chance: random.Random, place: int, unit: str, number: int) -> float:
    """Every unit by itself a little quicker or slower."""
    return math.exp(chance.gauss(0, 0.05))


def busy(chance: random.Random, place: int, unit: str, number: int) -> float:
    """Another program slows whole renders, by up to a half."""
    return steady(chance, place, unit, number) * (1 + 0.5 * math.sin(place * 2.3) ** 2)


def hot(chance: random.Random, place: int, unit: str, number: int) -> float:
    """From one render on everything takes half as long again."""
    return steady(chance, place, unit, number) * (1.5 if place >= 40 else 1.0)


def cold(chance: random.Random, place: int, unit: str, number: int) -> float:
    """Every eighth render begins with weights that are not in memory: four times the first unit."""
    first = place % 8 == 0 and number == 0 and unit in ("encode", "step", "clip")
    return steady(chance, place, unit, number) * (4.0 if first else 1.0)


def sleepy(chance: random.Random, place: int, unit: str, number: int) -> float:
    """In one render of twenty the processes are stopped in the middle of a step."""
    asleep = place % 20 == 3 and unit == "step" and number == 1
    return steady(chance, place, unit, number) * (1000.0 if asleep else 1.0)


@pytest.mark.parametrize("machine", [steady, busy, hot, cold, sleepy])
def test_the_p90_covers_nine_of_ten_on_machines_with_faults(machine: Machine) -> None:
    """Counted over three orders of the batch: a share of seventy has a wide error of its own."""
    shares = [coverage(rendered_on(machine, seed))[1] for seed in (5, 6, 7)]
    assert COVERED[0] <= sum(shares) / len(shares) <= COVERED[1]


def test_the_p90_of_ten_renders_covers_nine_of_ten_and_is_less_than_their_p90s_sum() -> None:
    """A night: ten renders one after the other, said before the first begins."""
    held = []
    for seed in range(5, 13):
        batch = rendered_on(busy, seed)
        for start in range(LEARNT, len(batch) - 10, 10):
            pace = Pace(measurements(batch[:start]), HERE)
            night = batch[start : start + 10]
            spans = [pace.render(tasks_of(NETWORKS, r.spec, r.tokens)) for r in night]
            assert total(spans).p90_s < sum(span.p90_s for span in spans)
            held.append(sum(render.seconds for render in night) <= total(spans).p90_s)
    assert COVERED[0] <= sum(held) / len(held)


def test_predicted_memory_covers_what_was_measured_and_is_near_it() -> None:
    """Above the engine's own peak there are 32 MB that do not grow, the clip that Python holds in
    three copies of f32 and one of bytes, and a margin of half.
    """
    for render in recorded():
        spec = render.spec
        clip = 28 * 3 * spec.width * spec.height * (3 * 4 + 1)
        predicted = max(memory_by_phase(NETWORKS, spec, render.tokens).values())
        assert render.peak_bytes <= predicted, spec
        assert predicted <= 1.5 * render.peak_bytes + (32 << 20) + clip, spec


def test_predicted_disk_covers_what_was_measured() -> None:
    """Raw frames and sound are exact, but for small files; pictures and video may compress."""
    for render in recorded():
        assert render.work_bytes <= disk_for_work(render.spec) <= render.work_bytes + (1 << 16)
        assert render.output_bytes <= disk_for_output(render.spec)
