"""The time that is left of a running render, on a clock of the test's own."""

from collections.abc import Sequence

import pytest

from h3farm.engine._estimate import Estimate
from h3farm.engine.measurements import Measurement, Setting
from h3farm.engine.pace import Pace
from h3farm.engine.work import Task

HERE = Setting(model="m", engine="1", isa="avx2", threads=2)
# Seconds of one unit on the machine of these tests; its work is a billion a second.
SECONDS = {
    "check": 1.0, "encode": 8.0, "prepare": 4.0, "step": 100.0, "clip": 30.0, "sound": 5.0,
    "assemble": 10.0,
}  # fmt: skip
TASKS = [
    Task(unit=unit, count={"step": 20, "clip": 4}.get(unit, 1), work=seconds * 1e9)
    for unit, seconds in SECONDS.items()
    if unit != "assemble"
] + [Task(unit="assemble", count=1, work=1e7)]
WHOLE = 2148.0


def learnt() -> Pace:
    at = "2026-12-01T06:00:00+00:00"
    return Pace(
        [
            Measurement(
                at=at,
                job=str(job),
                unit=task.unit,
                work=task.work,
                seconds=SECONDS[task.unit] * noise,
                setting=HERE,
            )
            for job, noise in enumerate((0.9, 1.0, 1.1, 1.0, 1.05, 0.95))
            for task in TASKS
        ],
        HERE,
    )


class Night:
    """A machine whose clock the test moves, and the render that runs on it."""

    def __init__(self, pace: Pace, tasks: Sequence[Task] = TASKS) -> None:
        self.time = 100.0
        self.recorded: list[tuple[str, float]] = []
        self.estimate = Estimate(
            pace,
            tasks,
            record=lambda task, seconds: self.recorded.append((task.unit, round(seconds, 6))),
            now=lambda: self.time,
        )
        self.left: float | None = None

    def at(
        self, phase: str, step: int = 0, steps: int = 0, block: int = 0, blocks: int = 0
    ) -> None:
        left = self.estimate.at(phase, step, steps, block, blocks)
        self.left = left.p50_s if left else None

    def start(self) -> None:
        self.time += 1
        self.at("encode")
        self.time += 8
        self.at("denoise", 0, 20)
        self.at("denoise", 0, 20)  # the tables
        self.time += 4
        self.at("denoise", 0, 20)

    def step(self, number: int, seconds: float, blocks: int = 4) -> None:
        for block in range(1, blocks + 1):
            self.time += seconds / blocks
            self.at("denoise", number, 20, block, blocks)
        self.at("denoise", number + 1, 20)

    def rest(self) -> None:
        for clip in range(4):
            self.at("decode_video", clip, 4)
            self.time += 30
            self.at("decode_video", clip, 4, 9, 9)
        self.at("decode_video", 4, 4)
        self.at("decode_audio", 0, 1)
        self.time += 5
        self.at("decode_audio", 1, 1)
        for frame in (0, 10, 20, 20):
            self.at("assemble", frame, 20)
            self.time += 2.5
        self.estimate.finish()


def test_a_machine_that_is_known_says_the_whole_from_the_first_moment() -> None:
    night = Night(learnt())
    assert night.estimate.whole.p50_s == WHOLE
    assert WHOLE * 1.05 < night.estimate.whole.p90_s < WHOLE * 1.5
    night.start()
    assert night.left == pytest.approx(WHOLE - 13)
    night.step(0, 100)
    assert night.left == pytest.approx(WHOLE - 113)


def test_every_unit_is_recorded_once_and_as_long_as_it_took() -> None:
    night = Night(learnt())
    night.start()
    for number in range(20):
        night.step(number, 100 + number)
    night.rest()
    assert night.recorded == [
        ("check", 1), ("encode", 8), ("prepare", 4),
        *(("step", 100 + number) for number in range(20)),
        *[("clip", 30)] * 4,
        ("sound", 5), ("assemble", 10),
    ]  # fmt: skip


def test_a_unit_that_was_broken_off_is_not_recorded() -> None:
    night = Night(learnt())
    night.start()
    night.at("denoise", 0, 20, 3, 4)
    assert [unit for unit, _ in night.recorded] == ["check", "encode", "prepare"]


def test_what_comes_before_the_first_step_is_not_taken_for_its_speed() -> None:
    night = Night(learnt())
    night.start()
    night.time += 1000  # modulation tables
    night.at("denoise", 0, 20)
    night.step(0, 100)
    assert night.recorded[-2:] == [("prepare", 1004), ("step", 100)]
    assert night.left == pytest.approx(WHOLE - 113)


def test_nothing_is_said_before_an_unknown_machine_has_come_a_way_into_a_step() -> None:
    """A tenth of the first step is enough: on a full-width model a step takes minutes."""
    night = Night(Pace((), HERE))
    night.start()
    assert night.left is None
    night.time += 5
    night.at("denoise", 0, 20, 1, 50)
    assert night.left is None
    night.time += 45
    night.at("denoise", 0, 20, 10, 50)
    steps = 19.8 * 250
    assert night.left is not None
    assert night.left > steps
    assert night.left == pytest.approx(steps * (1 + 4 * 30 / 2000), rel=0.1)


def test_a_slow_down_is_followed_within_three_steps() -> None:
    night = Night(learnt())
    night.start()
    for number in range(8):
        night.step(number, 100)
    for number in range(8, 11):
        night.step(number, 300)
    assert night.left is not None
    assert night.left >= 9 * 300
    assert night.left == pytest.approx(9 * 300 + 135 * 3**0.5, rel=0.02)


def test_a_machine_that_is_quick_again_is_believed_within_three_steps() -> None:
    night = Night(learnt())
    night.start()
    for number in range(8):
        night.step(number, 300)
    for number in range(8, 11):
        night.step(number, 100)
    assert night.left == pytest.approx(9 * 100 + 135, rel=0.02)


@pytest.mark.parametrize("asleep_in", [0, 1, 5, 18])
def test_a_sleep_in_a_step_is_forgotten_within_three_steps(asleep_in: int) -> None:
    """Processes that were stopped for eight hours: the step they were in took as long."""
    night = Night(learnt())
    night.start()
    for number in range(asleep_in):
        night.step(number, 100)
    night.step(asleep_in, 8 * 3600)
    for number in range(asleep_in + 1, min(asleep_in + 4, 20)):
        night.step(number, 100)
    left = max(0, 20 - asleep_in - 4) * 100 + 135
    assert night.left == pytest.approx(left, rel=0.02)


def test_a_sleep_on_an_unknown_machine_is_forgotten_too() -> None:
    night = Night(Pace((), HERE))
    night.start()
    night.step(0, 8 * 3600)
    for number in range(1, 4):
        night.step(number, 100)
    assert night.left is not None
    assert night.left < 16 * 100 * 1.2


def test_what_is_left_never_grows_on_a_steady_machine() -> None:
    night = Night(learnt())
    night.start()
    lefts = []
    for number in range(20):
        night.step(number, 100)
        lefts.append(night.left or 0)
    night.rest()
    assert lefts == sorted(lefts, reverse=True)
    assert night.left == pytest.approx(0, abs=0.1)


def test_a_render_that_goes_on_counts_only_what_it_has_to_do() -> None:
    """Resumed at step 12: eight are left."""
    night = Night(learnt())
    night.time += 1
    night.at("denoise", 12, 20)
    night.time += 4
    night.at("denoise", 12, 20)
    night.step(12, 100)
    assert night.left == pytest.approx(7 * 100 + 135)
    night.at("decode_video", 2, 4)
    assert night.left == pytest.approx(2 * 30 + 15)


def test_the_p90_is_nearer_once_the_render_itself_has_shown_its_speed() -> None:
    night = Night(learnt())
    night.start()

    def ratio() -> float:
        left = night.estimate.at("denoise", number + 1, 20, 0, 4)
        assert left
        return left.p90_s / left.p50_s

    number = 0
    night.step(0, 100)
    early = ratio()
    for number in range(1, 6):
        night.step(number, 100)
    assert 1 < ratio() < early


def test_the_p90_of_a_step_is_there_for_the_watchdog_even_on_an_unknown_machine() -> None:
    night = Night(Pace((), HERE))
    night.start()
    night.at("denoise", 0, 20, 1, 50)
    assert (night.estimate.unit_p90_s or 0) >= 4.0  # rough: 1e11 operations in 1 s, four times it
    known = Night(learnt())
    known.start()
    known.step(0, 100)
    assert 100 < (known.estimate.unit_p90_s or 0) < 200
