"""The time a running render still takes, and what its units took, from the moments it reports."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from h3farm.engine.pace import COMMON, Pace, Range, Span, total
from h3farm.engine.work import UNITS, Task

# Three slow steps are the median of five: so an estimate has followed a change of speed after
# three, and one step that took an hour (the lid was closed) never moves it.
RECENT = 5
EVIDENCE_SHARE = 0.1  # of a unit, before what it has taken says something of its end
SETTLED = 3  # units measured in this render, after which little of the p90's distance is left
SETTLED_DISTANCE = 0.5
SEEN_P90 = 1.5  # p90 by p50 of a kind of unit that only this render has measured

_UNIT_OF = {
    "check": "check",
    "encode": "encode",
    "decode_video": "clip",
    "decode_audio": "sound",
    "assemble": "assemble",
}
_COUNTED = ("denoise", "decode_video")  # phases of many units
_TELLING = ("step", "clip")  # units whose speed tells that of others


@dataclass(slots=True)
class _Running:
    """A unit that has begun; `share`: how much of it is done, None where nothing counts inside."""

    unit: str
    step: int
    began: float
    share: float | None = None


class Estimate:
    """Follows one render. `at` is told every moment that the render reports."""

    def __init__(
        self,
        pace: Pace,
        tasks: Sequence[Task],
        *,
        record: Callable[[Task, float], None] = lambda task, seconds: None,
        begun: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """tasks: the whole render's. record: is given every unit that was computed whole, and its
        seconds. now: a monotonic clock in seconds; begun: when the render began on it, None: now.
        """
        self.whole: Range = pace.render(tasks).range
        self._pace = pace
        self._tasks = {task.unit: task for task in tasks}
        self._record = record
        self._now = now
        self._seen = self._before_blocks = now()
        self._running: _Running | None = _Running(
            "check", 0, self._seen if begun is None else begun
        )
        self._ratios: defaultdict[str, list[float]] = defaultdict(list)
        self._telling = ""

    def at(self, phase: str, step: int, steps: int, block: int, blocks: int) -> Range | None:
        """The time that is left. None while nothing like this render was measured, be it earlier or
        in its own steps: how fast a prompt is encoded says little about them.
        """
        now = self._seen = self._now()
        unit = self._unit(phase, step, block)
        counted = phase in _COUNTED
        over = counted and step >= steps
        place = (unit, step if counted else 0)
        if over or self._place != place:
            self._end(self._before_blocks if self._place[0] == "prepare" else now)
        if not over:
            if self._running is None:
                self._running = _Running(*place, self._before_blocks if block else now)
            self._running.share = _share(phase, step, steps, block, blocks)
        if not block:
            self._before_blocks = now
        if self._pace.rough and not self._told:
            return None
        return self._left(UNITS.index(unit) + over).range

    def finish(self) -> None:
        """The render is done: so is the unit that ran."""
        self._end(self._now())

    @property
    def unit_p90_s(self) -> float | None:
        """The p90 of the unit that runs; None between units."""
        if self._running is None or self._running.unit not in self._tasks:
            return None
        task = self._tasks[self._running.unit]
        return round(self._span(task, 1).p90_s, 3)

    @property
    def _place(self) -> tuple[str, int]:
        return (self._running.unit, self._running.step) if self._running else ("", 0)

    def _unit(self, phase: str, step: int, block: int) -> str:
        """Denoising counts no blocks before its first step: the tables are made then."""
        if phase != "denoise":
            return _UNIT_OF[phase]
        unit, began = self._place
        stepping = unit == "step" or block or (unit == "prepare" and step > began)
        return "step" if stepping or (unit != "prepare" and self._ratios["step"]) else "prepare"

    def _end(self, now: float) -> None:
        running, self._running = self._running, None
        if running is None or (task := self._tasks.get(running.unit)) is None:
            return
        seconds = now - running.began
        self._record(task, seconds)
        self._ratios[running.unit].append(seconds / self._expected(task))
        if running.unit in _TELLING:
            self._telling = running.unit

    def _expected(self, task: Task) -> float:
        return max(self._pace.fit(task.unit).expected_s(task.work), 1e-6)

    def _left(self, done: int) -> Span:
        """What is left of the unit that runs, and all that follows; `done` kinds are over."""
        running = self._running
        spans = []
        for task in self._tasks.values():
            if running is not None and task.unit == running.unit:
                spans.append(self._rest(running, task))
                spans.append(self._span(task, max(0, task.count - running.step - 1)))
            elif UNITS.index(task.unit) >= done:
                spans.append(self._span(task, task.count))
        return total(spans)

    def _rest(self, running: _Running, task: Task) -> Span:
        """By the share that is done, else by the time it has had."""
        one = self._span(task, 1)
        share = running.share
        if share is None:
            share = (self._seen - running.began) / one.p50_s if one.p50_s else 1.0
        left = 1 - min(share, 1.0)
        return Span.of(one.p50_s * left, one.p90_s * left, rough=one.rough)

    def _span(self, task: Task, count: int) -> Span:
        """Units that are still to come, at the speed this render has shown."""
        p50 = self._expected(task) * count * self._factor(task.unit)
        fit, seen = self._pace.fit(task.unit), len(self._ratios[task.unit])
        ratio = fit.ratio_p90(task.work) if fit.known or not seen else SEEN_P90
        distance = p50 * (ratio - 1) * (SETTLED_DISTANCE if seen >= SETTLED else 1.0)
        return Span.of(p50, p50 + distance, rough=self._pace.rough)

    def _factor(self, unit: str) -> float:
        """This render's seconds by those expected, for one kind of unit.

        What was not measured in it yet is thought to deviate as the steps or clips do: wholly when
        nothing else is known of it, else by the correlation of deviations.
        """
        known = self._pace.fit(unit).known
        own = [*self._ratios[unit], *self._evidence(unit)][-RECENT:]
        if own:
            prior = [1.0] if known and len(own) < RECENT else []
            return statistics.median([*prior, *own])
        # Another program writes the video: what the engine computes a second says less of it.
        alike = COMMON if known or unit == "assemble" else 1.0
        return self._factor(self._told) ** alike if self._told else 1.0

    @property
    def _told(self) -> str:
        """The kind of unit whose speed, seen in this render last, tells that of the others."""
        unit, _ = self._place
        return unit if unit in _TELLING and self._evidence(unit) else self._telling

    def _evidence(self, unit: str) -> list[float]:
        """What the unit that runs says by the share it has come; nothing for another kind."""
        running = self._running
        if running is None or running.unit != unit or (running.share or 0) < EVIDENCE_SHARE:
            return []
        seconds = self._seen - running.began
        return [seconds / (running.share or 1) / self._expected(self._tasks[unit])]


def _share(phase: str, step: int, steps: int, block: int, blocks: int) -> float | None:
    """How much of a unit is done; None where nothing counts."""
    if phase == "assemble":
        return step / steps if steps else None
    return block / blocks if blocks else None
