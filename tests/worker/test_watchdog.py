"""A render that does not come on is noticed, and one that is only slow or asleep is not."""

from dataclasses import replace

import pytest

from h3farm.engine.progress import Progress
from h3farm.worker.watchdog import DEAF_S, LEAST_S, UNKNOWN_S, Alarm, Watchdog, limit_s

AT = Progress(phase="denoise", step=3, steps=20, block=1, blocks=50)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def passes(clock: Clock, dog: Watchdog, seconds: float, progress: Progress | None) -> Alarm | None:
    """Time in which somebody looks every second."""
    alarm = None
    for _ in range(round(seconds)):
        clock.now += 1
        alarm = dog.look(progress, asked=False)
    return alarm


@pytest.mark.parametrize(
    ("expected", "limit"), [(None, UNKNOWN_S), (1.0, LEAST_S), (1000.0, 3000.0)]
)
def test_the_limit_follows_what_a_step_takes_here(expected: float | None, limit: float) -> None:
    assert limit_s(replace(AT, unit_p90_s=expected)) == limit


def test_a_quiet_render_is_stopped_and_a_deaf_engine_killed() -> None:
    clock = Clock()
    dog, here = Watchdog(clock), replace(AT, unit_p90_s=1.0)
    dog.look(here, asked=False)
    assert passes(clock, dog, LEAST_S - 1, here) is None
    assert passes(clock, dog, 1, here) is Alarm.STOP
    assert dog.stopped
    assert passes(clock, dog, DEAF_S - 1, here) is Alarm.STOP
    assert passes(clock, dog, 1, here) is Alarm.KILL


def test_an_engine_that_ignores_a_wish_is_deaf_too() -> None:
    """Blocks that still come are no excuse."""
    clock = Clock()
    dog = Watchdog(clock)
    for second in range(round(DEAF_S)):
        clock.now += 1
        alarm = dog.look(replace(AT, block=second), asked=True)
        assert alarm is (Alarm.KILL if second == DEAF_S - 1 else None)
    assert not dog.stopped


def test_a_block_that_is_done_is_progress() -> None:
    clock = Clock()
    dog, here = Watchdog(clock), replace(AT, unit_p90_s=1.0)
    for block in range(5):
        now = replace(here, block=block)
        dog.look(now, asked=False)
        assert passes(clock, dog, LEAST_S - 1, now) is None


def test_an_estimate_that_changes_is_no_progress() -> None:
    clock = Clock()
    dog, here = Watchdog(clock), replace(AT, unit_p90_s=1.0)
    dog.look(here, asked=False)
    passes(clock, dog, LEAST_S - 1, here)
    assert passes(clock, dog, 1, replace(here, elapsed_s=700, remaining_s=9)) is Alarm.STOP


def test_a_process_that_was_stopped_has_not_waited() -> None:
    """SIGSTOP, a debugger, a sleeping machine whose clock went on."""
    clock = Clock()
    dog, here = Watchdog(clock), replace(AT, unit_p90_s=1.0)
    dog.look(here, asked=False)
    clock.now += 100 * LEAST_S
    assert dog.look(here, asked=False) is None
    assert dog.quiet_s < 3


def test_a_render_that_never_reports_is_noticed_too() -> None:
    clock = Clock()
    dog = Watchdog(clock)
    assert passes(clock, dog, UNKNOWN_S, None) is Alarm.STOP
