"""Tried again with one named change; what helped is remembered."""

from dataclasses import replace
from pathlib import Path

import pytest
from farmtest import spec

from h3farm.engine.limits import Limits
from h3farm.engine.machine import Machine
from h3farm.worker.ladder import (
    FEWER_THREADS,
    ONE_NETWORK,
    RUNGS,
    Ladder,
    climbed_down,
    limits_of,
    next_rung,
)
from h3farm.worker.queue import Priority, RenderJob, State

JOB = RenderJob(
    id="1130-1842-3f2a",
    state=State.DONE,
    priority=Priority.NORMAL,
    created_at="2026-12-01T05:00:00.000Z",
    spec=spec(),
)
HELPED = replace(JOB, rung=ONE_NETWORK, retries=[ONE_NETWORK])


class Sized(Machine):
    def __init__(self, memory: int) -> None:
        self.memory = memory

    def total_memory(self) -> int:
        return self.memory


def test_each_rung_is_a_change_and_holds_those_above_it() -> None:
    assert limits_of(None) == limits_of("of another version") == Limits()
    assert limits_of(ONE_NETWORK, threads=8) == Limits(one_network=True)
    assert limits_of(FEWER_THREADS, threads=8) == Limits(one_network=True, threads=4)
    assert limits_of(FEWER_THREADS, threads=1).threads == 1


def test_the_ladder_ends() -> None:
    job, seen = JOB, []
    while changes := climbed_down(job):
        job = replace(job, **changes)
        seen.append(job.rung)
    assert tuple(seen) == RUNGS
    assert job.retries == seen


def test_a_rung_of_another_version_is_the_top() -> None:
    assert next_rung("smaller tiles") == RUNGS[0]


def test_what_helped_is_where_the_next_such_job_begins(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ladder.json"
    assert Ladder(path).first(JOB.spec) is None
    Ladder(path).learn(HELPED)
    assert Ladder(path).first(JOB.spec) == ONE_NETWORK


@pytest.mark.parametrize(
    "other",
    [spec(width=256, height=256), spec(frames=39), replace(spec(), model="another")],
)
def test_another_canvas_length_or_model_begins_at_the_top(tmp_path: Path, other: object) -> None:
    Ladder(tmp_path / "l.json").learn(HELPED)
    assert Ladder(tmp_path / "l.json").first(other) is None  # type: ignore[arg-type]


def test_another_prompt_and_seed_are_such_a_job(tmp_path: Path) -> None:
    Ladder(tmp_path / "l.json").learn(HELPED)
    assert Ladder(tmp_path / "l.json").first(spec("a hare", seed=5)) == ONE_NETWORK


def test_another_machine_begins_at_the_top(tmp_path: Path) -> None:
    """The same disk in a larger Mac, or memory that was added."""
    path = tmp_path / "l.json"
    Ladder(path, machine=Sized(16 * 10**9)).learn(HELPED)
    assert Ladder(path, machine=Sized(16 * 10**9)).first(JOB.spec) == ONE_NETWORK
    assert Ladder(path, machine=Sized(64 * 10**9)).first(JOB.spec) is None


@pytest.mark.parametrize(
    ("job", "learnt"),
    [
        (JOB, False),
        (replace(JOB, rung=ONE_NETWORK), False),  # it began there: nothing new
        (replace(HELPED, crashes=1), False),  # may have been a power cut
        (replace(HELPED, crashes=1, crash_places=["denoise 3 of 20"]), False),
        (replace(HELPED, crashes=2, crash_places=["denoise 3 of 20", "denoise 9 of 20"]), False),
        (replace(HELPED, crashes=2, crash_places=["denoise 3 of 20", "denoise 3 of 20"]), True),
    ],
)
def test_only_what_helped_is_remembered(tmp_path: Path, job: RenderJob, learnt: bool) -> None:
    ladder = Ladder(tmp_path / "l.json")
    ladder.learn(job)
    assert (ladder.first(job.spec) is not None) is learnt


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"x": 3}'])
def test_a_file_that_cannot_be_read_remembers_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "l.json"
    path.write_text(text)
    assert Ladder(path).first(JOB.spec) is None
    Ladder(path).learn(HELPED)
    assert Ladder(path).first(JOB.spec) == ONE_NETWORK
