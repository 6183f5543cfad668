"""How long work takes on this machine, learnt from what it took. Standard library only.

A unit of work w takes about `b (w + c)` seconds: a rate, and a share that does not grow with the
work. Both are fitted by medians over whole renders, so that a few slow ones change nothing. What is
left, the ratio of measured to fitted, gives the p90.

Half of every deviation's variance is taken as common to all that runs here (another program, heat:
they slow every unit alike) and half as the unit's own. Common parts add up, own parts add as
variances, so the p90 of a queue is less than the sum of its p90s and more than if all were
independent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from h3farm.engine.measurements import Measurement, Setting
from h3farm.engine.work import Task

COMMON = 0.5  # share of a deviation's variance that is common; so the correlation of two deviations
HALF_LIFE = 8  # renders after which one counts half: load and heat change in hours
FAR = 4.0  # times the smallest or largest work measured, from where on a fit is a guess
FAR_P90 = 2.0
# Ratios of measured to fitted that are thought to have been seen beside the real ones, so that two
# equal measurements are not taken for certainty: of this setting; of another model or engine; none.
# Weights and half-life were chosen by the p90's coverage in tests/engine/test_calibration.py.
KNOWN_RATIOS = (0.8, 1.0, 1.5, 2.0)
OTHER_RATIOS = (0.4, 1.0, 2.0, 3.0)
ROUGH_RATIOS = (0.25, 1.0, 4.0)
THOUGHT_WEIGHT = 0.4
# Before anything was measured: two cores of a server compute 1e11 operations a second
# (docs/performance.md), x264 writes 2e7 pixels; (seconds a unit of work, seconds beside).
ROUGH_RATE = (1e-11, 0.01)
ROUGH_RATES = {"check": (1.0, 0.0), "assemble": (5e-8, 1.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Seconds: half of the times it takes less than p50, nine times of ten less than p90.

    rough: guessed from the size of the work; this model was never measured here.
    """

    p50_s: float
    p90_s: float
    rough: bool = False

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON values with a key per field."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A duration that can be added to others: p50, and its distance to the p90 in two parts."""

    p50_s: float = 0.0
    common_s: float = 0.0
    own_s: float = 0.0
    rough: bool = False

    @classmethod
    def of(cls, p50_s: float, p90_s: float, *, rough: bool = False) -> Span:
        """The span with these quantiles."""
        distance = max(0.0, p90_s - p50_s)
        return cls(
            p50_s=p50_s,
            common_s=distance * math.sqrt(COMMON),
            own_s=distance * math.sqrt(1 - COMMON),
            rough=rough,
        )

    def __add__(self, other: Span) -> Span:
        """One after the other."""
        return Span(
            p50_s=self.p50_s + other.p50_s,
            common_s=self.common_s + other.common_s,
            own_s=math.hypot(self.own_s, other.own_s),
            rough=self.rough or other.rough,
        )

    @property
    def p90_s(self) -> float:
        """Nine times of ten it takes less."""
        return self.p50_s + math.hypot(self.common_s, self.own_s)

    @property
    def range(self) -> Range:
        """Its two quantiles, rounded to what is worth saying."""
        return Range(p50_s=round(self.p50_s, 3), p90_s=round(self.p90_s, 3), rough=self.rough)


def total(spans: Iterable[Span]) -> Span:
    """All of them, one after the other."""
    return sum(spans, Span())


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Seconds of one kind of unit: `rate * (work + beside)`; p90 as a ratio to that."""

    rate: float
    beside: float
    p90_ratio: float
    smallest: float = 0.0
    largest: float = math.inf
    known: bool = False

    def expected_s(self, work: float) -> float:
        """The p50 of a unit."""
        return self.rate * (work + self.beside)

    def ratio_p90(self, work: float) -> float:
        """The p90 of a unit of this work as a ratio to its p50."""
        near = self.smallest / FAR <= work <= self.largest * FAR
        return self.p90_ratio if near else max(self.p90_ratio, FAR_P90)


class Pace:
    """The fits of one setting. Kinds of unit that were never measured get rough ones."""

    def __init__(self, measurements: Sequence[Measurement], setting: Setting | None) -> None:
        """Learn. What other settings took counts, with wide p90s, where this one took nothing;
        setting None: nothing measured was taken with this model as it is.
        """
        here: defaultdict[str, list[Measurement]] = defaultdict(list)
        elsewhere: defaultdict[str, list[Measurement]] = defaultdict(list)
        for measurement in measurements:
            chosen = here if measurement.setting == setting else elsewhere
            chosen[measurement.unit].append(measurement)
        self._fits = {
            unit: _fitted(renders_of(found), OTHER_RATIOS, known=False)
            for unit, found in elsewhere.items()
        } | {
            unit: _fitted(renders_of(found), KNOWN_RATIOS, known=True)
            for unit, found in here.items()
        }

    def fit(self, unit: str) -> Fit:
        """What is known of a kind of unit."""
        return self._fits.get(unit) or _rough(unit)

    @property
    def rough(self) -> bool:
        """Whether no step of this setting was ever measured."""
        return not self.fit("step").known

    def span(self, task: Task, count: int | None = None) -> Span:
        """All units of a task, or `count` of them. Units of one render deviate together."""
        fit = self.fit(task.unit)
        p50 = fit.expected_s(task.work) * (task.count if count is None else count)
        return Span.of(p50, p50 * fit.ratio_p90(task.work), rough=self.rough)

    def render(self, tasks: Iterable[Task]) -> Span:
        """A whole render."""
        return total(self.span(task) for task in tasks)


def newest_setting(measurements: Sequence[Measurement], model: str) -> Setting | None:
    """How this machine renders with a model now: as it rendered last, whatever the model."""
    if not measurements:
        return None
    last = measurements[-1].setting
    return Setting(model=model, engine=last.engine, isa=last.isa, threads=last.threads)


@dataclass(frozen=True, slots=True)
class Rendered:
    """Units of one kind and size in one render: work and seconds of one, on average."""

    work: float
    seconds: float
    weight: float


def renders_of(measurements: Iterable[Measurement]) -> list[Rendered]:
    """Measurements of one kind of unit, by render, the newest weighing most."""
    sums: dict[tuple[str, float], tuple[float, int]] = {}
    for measurement in measurements:
        key = (measurement.job, measurement.work)
        seconds, count = sums.pop(key, (0.0, 0))
        sums[key] = (seconds + measurement.seconds, count + 1)  # popped: the newest stands last
    return [
        Rendered(key[1], max(seconds / count, 1e-6), 0.5 ** ((len(sums) - 1 - place) / HALF_LIFE))
        for place, (key, (seconds, count)) in enumerate(sums.items())
    ]


def quantile(weighted: Iterable[tuple[float, float]], share: float) -> float:
    """The smallest value with at least `share` of the (value, weight) pairs' weight up to it."""
    ordered = sorted(weighted)
    wanted = share * sum(weight for _, weight in ordered)
    seen = 0.0
    for value, weight in ordered:
        seen += weight
        if seen >= wanted * (1 - 1e-12):
            return value
    raise ValueError("a quantile of nothing")


def _fitted(renders: Sequence[Rendered], ratios: Sequence[float], *, known: bool) -> Fit:
    """Of the possible shares beside the rate, the one that leaves the least deviation."""
    works = [render.work for render in renders]
    low, high = min(works), max(works)
    besides = [0.0]
    if high > low * 1.01:  # one size of work does not tell a rate from what is beside it
        besides += [low * 2**power for power in range(-4, math.ceil(math.log2(high / low)) + 8)]
    fits = [(*_rate(renders, beside), beside) for beside in besides]
    _, rate, beside = min(fits)
    seen = [(render.seconds / (rate * (render.work + beside)), render.weight) for render in renders]
    return Fit(
        rate=rate,
        beside=beside,
        p90_ratio=max(1.0, quantile([*seen, *((ratio, THOUGHT_WEIGHT) for ratio in ratios)], 0.9)),
        smallest=low,
        largest=high,
        known=known,
    )


def _rate(renders: Sequence[Rendered], beside: float) -> tuple[float, float]:
    """(mean absolute logarithm of what the best rate leaves, that rate)."""
    logs = [(math.log(r.seconds / (r.work + beside)), r.weight) for r in renders]
    middle = quantile(logs, 0.5)
    weight = sum(weight for _, weight in logs)
    left = sum(abs(log - middle) * weight for log, weight in logs) / weight
    return left, math.exp(middle)


def _rough(unit: str) -> Fit:
    rate, beside_s = ROUGH_RATES.get(unit, ROUGH_RATE)
    return Fit(rate=rate, beside=beside_s / rate, p90_ratio=max(ROUGH_RATIOS))
