"""The time that is left, on a clock of the test's own."""

import pytest

from h3farm.engine import costs
from h3farm.engine._estimate import Estimate
from h3farm.engine.spec import RenderSpec

SPEC = RenderSpec(prompt="fox", model="m", width=864, height=480, frames=56, seed=1)


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def estimate(release: costs.Networks, clock: Clock) -> Estimate:
    return Estimate(release, SPEC, 256, now=clock)


def test_nothing_is_known_before_denoising_has_come_a_way(estimate: Estimate, clock: Clock) -> None:
    for phase, share in (("check", 0.0), ("encode", 0.5), ("denoise", 0.0), ("denoise", 0.0)):
        clock.time += 10
        assert estimate.remaining_s(phase, share) is None


def test_denoising_tells_how_long_decoding_will_take(
    release: costs.Networks, estimate: Estimate, clock: Clock
) -> None:
    """A quarter took 10 s: 30 s are left, and decoding by its share of the work."""
    work = costs.work_by_phase(release, SPEC, 256)
    estimate.remaining_s("denoise", 0.0)
    clock.time += 10
    decode = 40 * work["decode_video"] / work["denoise"]
    assert estimate.remaining_s("denoise", 0.25) == round(30 + decode, 1)


def test_what_comes_before_the_first_step_is_not_taken_for_its_speed(
    estimate: Estimate, clock: Clock
) -> None:
    estimate.remaining_s("denoise", 0.0)
    clock.time += 1000  # modulation tables
    estimate.remaining_s("denoise", 0.0)
    clock.time += 10
    assert (estimate.remaining_s("denoise", 0.5) or 0) < 40


def test_decoding_is_measured_by_itself(estimate: Estimate, clock: Clock) -> None:
    estimate.remaining_s("denoise", 0.0)
    clock.time += 10
    guess = estimate.remaining_s("denoise", 1.0)
    assert estimate.remaining_s("decode_video", 0.0) == guess
    clock.time += 60
    assert estimate.remaining_s("decode_video", 0.75) == 20.0
