"""Frame counts, latents and canvases beyond what the golden vectors hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3farm.engine import geometry


@given(st.integers(1, 10_000))
def test_frames_go_up_to_the_next_count_on_the_grid(asked: int) -> None:
    aligned = geometry.align_frames(asked)
    assert aligned % 17 == 5
    assert 0 <= aligned - asked < 17
    assert geometry.align_frames(aligned) == aligned


@given(st.integers(1, 10_000))
def test_sound_and_picture_last_equally_long_to_half_a_latent(asked: int) -> None:
    frames = geometry.align_frames(asked)
    assert abs(geometry.audio_samples(frames) / 32_000 - frames / 24) <= 0.0125


def test_seconds_that_are_whole_frames_are_not_rounded_up() -> None:
    assert geometry.frames_for_seconds(56 / 24) == 56
    assert geometry.frames_for_seconds(56 / 24 + 0.01) == 73


@pytest.mark.parametrize("frames", [-12, 0, 21, 23])
def test_a_count_off_the_grid_has_no_latents(frames: int) -> None:
    with pytest.raises(ValueError, match="not on the 17k"):
        geometry.video_latents(frames)


@given(st.floats(0.25, 4))
def test_a_canvas_keeps_its_aspect_and_the_multiple(ratio: float) -> None:
    width, height = geometry.canvas_for_aspect(ratio, 1)
    assert width % 32 == height % 32 == 0
    assert abs(width / height / ratio - 1) < 0.05
    assert width * height < geometry.MAX_PIXELS * 1.05


@pytest.mark.parametrize(("width", "height"), [(5, 1), (1, 5)])
def test_an_aspect_beyond_four_to_one_is_refused(width: int, height: int) -> None:
    with pytest.raises(ValueError, match="outside 1:4 to 4:1"):
        geometry.canvas_for_aspect(width, height)


@pytest.mark.parametrize(("width", "height"), [(100, 64), (64, 0), (-32, 64)])
def test_a_canvas_off_the_multiple_has_no_latent(width: int, height: int) -> None:
    with pytest.raises(ValueError, match="multiples of 32"):
        geometry.latent_size(width, height)
