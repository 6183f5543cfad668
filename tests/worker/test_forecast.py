"""When jobs will start and end, on a model of the tests' own and a clock that stands."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from h3farm.engine.checkpoints import open_tree
from h3farm.engine.measurements import Measurement, Measurements, Setting
from h3farm.engine.progress import Progress
from h3farm.engine.spec import RenderSpec
from h3farm.engine.work import tasks_of
from h3farm.worker.queue.forecast import (
    JobEstimate,
    Paces,
    durations,
    forecast,
    overdue,
    span_of,
)
from h3farm.worker.queue.job import RenderJob, stamp
from h3farm.worker.queue.states import Priority, State

NETWORKS = open_tree(Path(__file__).parent.parent / "golden" / "tiny-h3").networks()
MODELS = {
    "tiny": {"networks": NETWORKS.to_json(), "signature": "t"},
    "hurt": {"networks": None, "signature": None, "problems": ["a shard is missing"]},
}
NOW = datetime(2026, 12, 1, 23, 0, tzinfo=UTC)
RENDER_S = 1000.0  # what every render of these tests has taken


def spec(**fields: object) -> RenderSpec:
    return RenderSpec.from_json(
        {"prompt": "a fox", "model": "tiny", "width": 64, "height": 64, "frames": 22, "steps": 4}
        | fields
    )


@pytest.fixture
def paces(tmp_path: Path) -> Paces:
    """A machine that has rendered this spec eight times: half of the time in its steps."""
    file = Measurements(tmp_path / "measurements.jsonl")
    setting = Setting(model="t", engine="1", isa="avx2", threads=2)
    for number, noise in enumerate((0.8, 0.9, 1.0, 1.0, 1.0, 1.1, 1.2, 1.0)):
        for task in tasks_of(NETWORKS, spec()):
            seconds = {"step": 125.0, "clip": 300.0, "assemble": 200.0}.get(task.unit, 0.0)
            for _ in range(task.count):
                file.append(
                    Measurement(
                        at="2026-12-01T06:00:00+00:00",
                        job=str(number),
                        unit=task.unit,
                        work=task.work,
                        seconds=seconds * noise,
                        setting=setting,
                    )
                )
    return Paces(file)


def job(name: str, state: State = State.QUEUED, **fields: Any) -> RenderJob:
    return RenderJob(
        **{
            "id": name,
            "spec": spec(),
            "state": state,
            "priority": Priority.NORMAL,
            "created_at": stamp(NOW),
        }
        | fields
    )


def always(job: RenderJob, moment: datetime) -> tuple[datetime, datetime | None]:
    return moment, None


def at(text: str | None) -> float:
    """Seconds from now to a stamp."""
    assert text is not None
    return (datetime.fromisoformat(text) - NOW).total_seconds()


def test_a_line_of_jobs_is_worked_through_in_order(paces: Paces) -> None:
    found = forecast([job("a"), job("b"), job("c")], MODELS, paces, NOW, always)
    assert list(found) == ["a", "b", "c"]
    for place, estimate in enumerate(found.values()):
        assert estimate.p50_s == pytest.approx(RENDER_S, rel=0.01)
        assert not estimate.rough
        assert at(estimate.starts_at) == pytest.approx(place * RENDER_S, rel=0.01)
        assert at(estimate.ends_at_p50) == pytest.approx((place + 1) * RENDER_S, rel=0.01)
        assert at(estimate.ends_at_p90) > at(estimate.ends_at_p50)


def test_the_p90_of_the_last_is_not_the_sum_of_the_p90s(paces: Paces) -> None:
    found = forecast([job(str(n)) for n in range(20)], MODELS, paces, NOW, always)
    late = [at(estimate.ends_at_p90) for estimate in found.values()]
    assert late == sorted(late)
    one = found["0"].p90_s
    assert late[0] == pytest.approx(one, abs=0.01)
    assert 20 * RENDER_S < late[-1] < 20 * RENDER_S + 0.9 * 20 * (one - RENDER_S)


def test_the_running_job_goes_by_its_own_progress_and_no_new_job_changes_that(
    paces: Paces,
) -> None:
    progress = Progress(phase="denoise", step=2, steps=4, remaining_s=700.0, remaining_p90_s=900.0)
    running = job("r", State.RUNNING, progress=progress)
    alone = forecast([running], MODELS, paces, NOW, always)["r"]
    assert alone == JobEstimate(
        p50_s=700.0,
        p90_s=900.0,
        rough=False,
        starts_at=stamp(NOW),
        ends_at_p50=stamp(NOW + timedelta(seconds=700)),
        ends_at_p90=stamp(NOW + timedelta(seconds=900)),
    )
    others = [job(str(n)) for n in range(30)]
    assert forecast([running, *others], MODELS, paces, NOW, always)["r"] == alone
    assert forecast([*others, running], MODELS, paces, NOW, always)["r"] == alone


def test_a_job_behind_others_leaves_theirs_alone(paces: Paces) -> None:
    some = [job("a"), job("b", priority=Priority.IDLE)]
    before = forecast(some, MODELS, paces, NOW, always)
    after = forecast([*some, job("c", priority=Priority.IDLE)], MODELS, paces, NOW, always)
    assert {name: after[name] for name in before} == before


def test_an_urgent_job_takes_the_running_ones_place_which_goes_on_after_it(paces: Paces) -> None:
    running = job("r", State.RUNNING)
    urgent = job("u", priority=Priority.URGENT)
    found = forecast([running, urgent, job("w")], MODELS, paces, NOW, always)
    assert at(found["u"].starts_at) == 0
    assert at(found["r"].ends_at_p50) == pytest.approx(2 * RENDER_S, rel=0.01)
    assert at(found["w"].starts_at) == pytest.approx(2 * RENDER_S, rel=0.01)


def test_an_urgent_job_that_comes_due_breaks_into_the_one_that_runs_then(paces: Paces) -> None:
    due = NOW + timedelta(seconds=400)

    def opening(job: RenderJob, moment: datetime) -> tuple[datetime, None]:
        return max(moment, due if job.id == "u" else moment), None

    jobs = [job("r", State.RUNNING), job("u", State.SCHEDULED, priority=Priority.URGENT)]
    found = forecast(jobs, MODELS, paces, NOW, opening)
    assert at(found["u"].starts_at) == 400
    assert at(found["u"].ends_at_p50) == pytest.approx(400 + RENDER_S, rel=0.01)
    assert at(found["r"].ends_at_p50) == pytest.approx(2 * RENDER_S, rel=0.01)


def test_outside_of_its_window_a_job_stands_still_and_others_go_first(paces: Paces) -> None:
    """Closed after 400 s, open again after 5000: the first goes on then."""
    closes, opens = NOW + timedelta(seconds=400), NOW + timedelta(seconds=5000)

    def opening(job: RenderJob, moment: datetime) -> tuple[datetime, datetime | None]:
        if job.id != "nightly":
            return moment, None
        return (moment, closes) if moment < closes else (max(opens, moment), None)

    found = forecast([job("nightly"), job("any")], MODELS, paces, NOW, opening)
    assert at(found["nightly"].starts_at) == 0
    assert at(found["any"].starts_at) == 400
    assert at(found["any"].ends_at_p50) == pytest.approx(400 + RENDER_S, rel=0.01)
    assert at(found["nightly"].ends_at_p50) == pytest.approx(5000 + RENDER_S - 400, rel=0.01)


def test_of_a_job_that_waits_for_nobody_knows_what_only_the_duration_is_said(
    paces: Paces,
) -> None:
    def opening(job: RenderJob, moment: datetime) -> tuple[datetime, None] | None:
        return None if job.state is State.PAUSED else (moment, None)

    found = forecast([job("p", State.PAUSED), job("q")], MODELS, paces, NOW, opening)
    assert found["p"].starts_at is found["p"].ends_at_p50 is found["p"].ends_at_p90 is None
    assert found["p"].p50_s == pytest.approx(RENDER_S, rel=0.01)
    assert at(found["q"].starts_at) == 0


def test_jobs_that_are_over_or_cannot_be_known_have_no_estimate(paces: Paces) -> None:
    jobs = [
        job("done", State.DONE),
        job("hurt", spec=spec(model="hurt")),
        job("gone", spec=spec(model="gone")),
        job("a"),
    ]
    assert list(forecast(jobs, MODELS, paces, NOW, always)) == ["a"]


def test_nothing_measured_is_rough_and_said_to_be(tmp_path: Path) -> None:
    found = forecast([job("a")], MODELS, Paces(Measurements(tmp_path / "none")), NOW, always)
    assert found["a"].rough
    assert found["a"].p90_s > 2 * found["a"].p50_s


def test_durations_of_a_plan(paces: Paces) -> None:
    found = durations([spec(seed=n) for n in range(10)], MODELS, paces)
    assert found is not None
    assert found.p50_s == pytest.approx(10 * RENDER_S, rel=0.01)
    one = span_of(spec(), MODELS, paces)
    assert one is not None
    assert found.p50_s < found.p90_s < 10 * one.p90_s
    assert durations([spec(), spec(model="gone")], MODELS, paces) is None
    assert durations([], MODELS, paces) == replace(found, p50_s=0.0, p90_s=0.0)


def test_paces_are_learnt_again_when_the_file_has_grown(tmp_path: Path) -> None:
    file = Measurements(tmp_path / "m.jsonl")
    paces = Paces(file)
    assert paces.of("t").rough
    assert paces.of("t") is paces.of("t")
    setting = Setting(model="t", engine="1", isa="avx2", threads=2)
    at = "2026-12-01T06:00:00+00:00"
    file.append(Measurement(at=at, job="a", unit="step", work=1.0, seconds=1.0, setting=setting))
    assert not paces.of("t").rough


@pytest.mark.parametrize(
    ("age_s", "unit_p90_s", "stuck"),
    [
        (599, None, False),
        (601, None, True),
        (601, 1.0, True),
        (599, 1.0, False),
        (1999, 100.0, False),  # a step of minutes: twenty of them
        (2001, 100.0, True),
    ],
)
def test_a_job_is_overdue_by_what_its_steps_take(
    age_s: float, unit_p90_s: float | None, stuck: bool
) -> None:
    assert overdue(age_s, unit_p90_s) is stuck


def test_a_thousand_jobs_are_forecast_by_two_walks_of_the_line(paces: Paces) -> None:
    """Not by the square of their number: the calendar is asked once a job and walk."""
    asked = 0

    def opening(job: RenderJob, moment: datetime) -> tuple[datetime, None]:
        nonlocal asked
        asked += 1
        return moment, None

    forecast([job(str(n)) for n in range(1000)], MODELS, paces, NOW, opening)
    assert asked <= 2000
