"""What is learnt from measurements: rates, their spread, and sums of durations."""

import math
import random

import pytest

from h3farm.engine.measurements import Measurement, Setting
from h3farm.engine.pace import Pace, Span, newest_setting, quantile, total
from h3farm.engine.work import Task

HERE = Setting(model="m", engine="1", isa="avx2", threads=2)


def measured(
    job: object, work: float, seconds: float, unit: str = "step", setting: Setting = HERE
) -> Measurement:
    at = "2026-12-01T06:00:00+00:00"
    return Measurement(at=at, job=str(job), unit=unit, work=work, seconds=seconds, setting=setting)


def steps(work: float, count: int = 1) -> Task:
    return Task(unit="step", count=count, work=work)


def test_before_anything_was_measured_it_says_that_it_is_rough() -> None:
    span = Pace((), HERE).span(steps(1e12))
    assert span.rough
    assert span.p50_s == pytest.approx(10, rel=0.01)
    assert span.p90_s == pytest.approx(40, rel=0.01)


def test_a_rate_and_what_is_beside_it_are_told_apart() -> None:
    """1 s for 1e9, and 2 s whatever the size: half the size takes 2.5 s, not 1.5."""
    pace = Pace([measured(w, w * 1e9, 2.0 + w) for w in (1, 2, 4, 8, 1, 2, 4, 8)], HERE)
    for work in (1, 3, 8, 16):
        assert pace.span(steps(work * 1e9)).p50_s == pytest.approx(2.0 + work, rel=0.1)
    assert not pace.rough


def test_one_render_that_was_asleep_changes_nothing() -> None:
    usual = [measured(job, 1e9, 10.0 + job % 3) for job in range(9)]
    asleep = [measured("asleep", 1e9, 3600.0)]
    assert Pace([*usual, *asleep], HERE).span(steps(1e9)).p50_s == pytest.approx(11, abs=1)


def test_a_machine_that_has_become_slow_is_believed_after_some_renders() -> None:
    quick = [measured(job, 1e9, 10.0) for job in range(40)]
    slow = [measured(f"slow {job}", 1e9, 30.0) for job in range(9)]
    assert Pace([*quick, *slow], HERE).span(steps(1e9)).p50_s == pytest.approx(30)


def test_steps_of_one_render_count_as_one_that_takes_their_average() -> None:
    """The first step of a render reads the weights: a sum has to hold it."""
    pace = Pace([measured(job, 1e9, s) for job in range(5) for s in (13.0, 1.0, 1.0)], HERE)
    assert pace.span(steps(1e9, 3)).p50_s == pytest.approx(15)


def test_few_measurements_leave_the_p90_wide() -> None:
    def ratio(count: int) -> float:
        span = Pace([measured(job, 1e9, 10.0) for job in range(count)], HERE).span(steps(1e9))
        return span.p90_s / span.p50_s

    assert ratio(1) == pytest.approx(2.0)
    assert ratio(60) == pytest.approx(1.0)


def test_another_model_or_engine_is_a_hint_and_no_more() -> None:
    other = Setting(model="other", engine="1", isa="avx2", threads=2)
    seen = [
        measured(job, 1e9 * (1 + job % 5), 5.0 * (1 + job % 5), setting=other) for job in range(30)
    ]
    pace = Pace(seen, HERE)
    span = pace.span(steps(2e9))
    assert span.rough
    assert span.p50_s == pytest.approx(10, rel=0.1)
    mixed = Pace([*seen, measured("own", 2e9, 40.0)], HERE)
    assert mixed.span(steps(2e9)).p50_s == pytest.approx(40)


def test_far_from_what_was_measured_the_p90_is_wide() -> None:
    pace = Pace([measured(job, 1e9, 10.0) for job in range(60)], HERE)
    assert pace.span(steps(1e9)).p90_s == pytest.approx(10)
    assert pace.span(steps(1e11)).p90_s == pytest.approx(2000)


def test_the_machine_is_as_it_rendered_last() -> None:
    newer = Setting(model="other", engine="2", isa="avx512", threads=4)
    seen = [measured(1, 1e9, 1.0), measured(2, 1e9, 1.0, setting=newer)]
    assert newest_setting(seen, "m") == Setting(model="m", engine="2", isa="avx512", threads=4)
    assert newest_setting((), "m") is None


def test_the_p90_of_a_sum_is_less_than_the_sum_of_the_p90s() -> None:
    """And more than if the parts had nothing in common: a busy machine slows them all."""
    ten = total([Span.of(100, 140)] * 10)
    assert ten.p50_s == pytest.approx(1000)
    independent = 1000 + 40 * math.sqrt(10)
    assert independent < ten.p90_s < 1400
    assert total([]).range.p90_s == 0


def test_the_p90_of_a_sum_holds_where_half_of_the_variance_is_common() -> None:
    """Drawn sums of 12 lognormal parts, whose logarithms have the correlation 0.5."""
    chance, spread, sums = random.Random(1), 0.25, []  # noqa: S311
    for _ in range(4000):
        common = chance.gauss(0, spread * math.sqrt(0.5))
        own = [chance.gauss(0, spread * math.sqrt(0.5)) for _ in range(12)]
        sums.append(sum(10 * math.exp(common + part) for part in own))
    said = total([Span.of(10, 10 * math.exp(1.2816 * spread))] * 12).p90_s
    assert 0.85 < sum(each <= said for each in sums) / len(sums) < 0.95


def test_a_quantile_is_one_of_the_values_by_their_weights() -> None:
    assert quantile([(3, 1), (1, 1), (2, 1)], 0.5) == 2
    assert quantile([(1, 1), (5, 10)], 0.5) == 5
    with pytest.raises(ValueError, match="nothing"):
        quantile([], 0.5)
