"""When jobs will start and end: durations from what was measured, times from the order of the line.

The line is walked twice. Once every job takes its p50. Once each takes what it adds to the p90 of
all that run up to it: so the p90 of an end is that of the sum (see `engine.pace`: half of the
variance common, half of it added up), not a sum of p90s. Nothing is drawn, nothing is stored: the
same queue gives the same answer, and a job behind others leaves theirs alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from h3farm.engine.costs import Networks
from h3farm.engine.measurements import Measurement, Measurements
from h3farm.engine.pace import Pace, Range, Span, newest_setting, total
from h3farm.engine.spec import RenderSpec
from h3farm.engine.work import tasks_of
from h3farm.worker.queue.job import RenderJob, stamp
from h3farm.worker.queue.states import Priority, State

HORIZON = timedelta(days=60)  # what would end later has no time
STUCK_S = 600.0
STUCK_UNITS = 20.0

Models = Mapping[str, Mapping[str, Any]]
# From when to when a job may run, given a moment: the interval that holds it or the next one.
# An end of None: for good. None: nobody knows (it is paused).
Opening = Callable[[RenderJob, datetime], tuple[datetime, datetime | None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEstimate:
    """What is expected of a job that is not over: what is left of it in seconds, and UTC stamps.

    The moments are None where nobody knows when it may start. rough: its model was never measured.
    """

    p50_s: float
    p90_s: float
    rough: bool
    starts_at: str | None = None
    ends_at_p50: str | None = None
    ends_at_p90: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def overdue(progress_age_s: float, unit_p90_s: float | None) -> bool:
    """Whether a running job has been without progress for too long.

    progress_age_s: since anything of it was reported. unit_p90_s: `Progress.unit_p90_s`, of the
    step or clip that runs. Patience is twenty times that, and ten minutes at least.
    """
    return progress_age_s > max(STUCK_S, STUCK_UNITS * (unit_p90_s or 0.0))


class Paces:
    """The paces of the models there are; learnt again when the file has grown."""

    def __init__(self, file: Measurements) -> None:
        """Nothing is read yet."""
        self._file = file
        self._stamp: tuple[int, int] | None = None
        self._measurements: Sequence[Measurement] = ()
        self._paces: dict[str, Pace] = {}

    def of(self, signature: str) -> Pace:
        """How this machine renders with the model of this signature."""
        if (now := self._file.stamp()) != self._stamp:
            self._stamp, self._measurements, self._paces = now, self._file.read(), {}
        if signature not in self._paces:
            setting = newest_setting(self._measurements, signature)
            self._paces[signature] = Pace(self._measurements, setting)
        return self._paces[signature]


def span_of(spec: RenderSpec, models: Models, paces: Paces) -> Span | None:
    """How long a render takes; None when its model is not known, or damaged."""
    model = models.get(spec.model) or {}
    if not model.get("networks"):
        return None
    tasks = tasks_of(Networks.from_json(model["networks"]), spec)
    return paces.of(model["signature"]).render(tasks)


def durations(specs: Iterable[RenderSpec], models: Models, paces: Paces) -> Range | None:
    """How long renders take, one after the other; None when that is not known of one of them."""
    spans = [span_of(spec, models, paces) for spec in specs]
    known = [span for span in spans if span is not None]
    return total(known).range if len(known) == len(spans) else None


def forecast(
    jobs: Iterable[RenderJob], models: Models, paces: Paces, now: datetime, opening: Opening
) -> dict[str, JobEstimate]:
    """What is expected of the jobs that run or wait, by id; `jobs` in the order they will run."""
    waiting: list[_Waiting] = []
    for job in jobs:
        span = None if job.over else _left(job, models, paces)
        if span is not None:
            waiting.append(_Waiting(job=job, span=span))
    medians = _walk(waiting, now, opening, _medians())
    late = _walk(waiting, now, opening, _increments())
    return {
        each.job.id: JobEstimate(
            p50_s=each.span.range.p50_s,
            p90_s=each.span.range.p90_s,
            rough=each.span.rough,
            starts_at=_stamp(medians.starts.get(each.job.id)),
            ends_at_p50=_stamp(medians.ends.get(each.job.id)),
            ends_at_p90=_stamp(late.ends.get(each.job.id)),
        )
        for each in waiting
    }


def _left(job: RenderJob, models: Models, paces: Paces) -> Span | None:
    """What is left of a job: as its render says, or all of it."""
    progress = job.progress if job.state is State.RUNNING else None
    if progress is None or progress.remaining_s is None:
        return span_of(job.spec, models, paces)
    p90 = progress.remaining_p90_s or progress.remaining_s
    return Span.of(progress.remaining_s, p90)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    job: RenderJob
    span: Span

    @property
    def urgent(self) -> bool:
        return self.job.priority is Priority.URGENT

    @property
    def rank(self) -> int:
        """An urgent job goes before the one that runs, that one before the others."""
        running = self.job.state is State.RUNNING and not self.urgent
        return 1 if running else 2 * list(Priority).index(self.job.priority)


@dataclass(slots=True)
class _Walk:
    starts: dict[str, datetime] = field(default_factory=dict)
    ends: dict[str, datetime] = field(default_factory=dict)


def _medians() -> Callable[[Span], float]:
    return lambda span: span.p50_s


def _increments() -> Callable[[Span], float]:
    """What each span adds to the p90 of all so far."""
    so_far = Span()

    def added(span: Span) -> float:
        nonlocal so_far
        before, so_far = so_far, so_far + span
        return so_far.p90_s - before.p90_s

    return added


def _walk(
    waiting: Sequence[_Waiting], now: datetime, opening: Opening, takes: Callable[[Span], float]
) -> _Walk:
    """Run the jobs in thought. `takes`: seconds of a job, asked as they begin."""
    walk = _Walk()
    line = sorted(waiting, key=lambda each: each.rank)  # stable: else in the order given
    left: dict[str, timedelta] = {}
    moment = now
    while line and moment - now < HORIZON:
        found = _next(line, moment, opening)
        if found is None:
            break
        each, start, end = found
        moment, job_id = max(moment, start), each.job.id
        if job_id not in left:
            walk.starts[job_id] = moment
            left[job_id] = timedelta(seconds=takes(each.span))
        done = moment + left[job_id]
        stop = min(filter(None, (done, end, _preempted(line, each, moment, opening))))
        left[job_id] -= stop - moment
        moment = stop
        if stop == done:
            walk.ends[job_id] = done
            line.remove(each)
    return walk


def _next(
    line: Sequence[_Waiting], moment: datetime, opening: Opening
) -> tuple[_Waiting, datetime, datetime | None] | None:
    """The first that may run now, else the one that may soonest; and from when to when."""
    soonest: tuple[_Waiting, datetime, datetime | None] | None = None
    for each in line:
        interval = opening(each.job, moment)
        if interval is None:
            continue
        if soonest is None or interval[0] < soonest[1]:
            soonest = (each, *interval)
        if interval[0] <= moment:
            return (each, *interval)
    return soonest


def _preempted(
    line: Sequence[_Waiting], running: _Waiting, moment: datetime, opening: Opening
) -> datetime | None:
    """When an urgent job takes the place of one that is not."""
    intervals = (
        opening(each.job, moment)
        # The urgent ones are the first of the line.
        for each in itertools.takewhile(lambda each: each.urgent and not running.urgent, line)
    )
    return min((interval[0] for interval in intervals if interval), default=None)


def _stamp(moment: datetime | None) -> str | None:
    return None if moment is None else stamp(moment)
