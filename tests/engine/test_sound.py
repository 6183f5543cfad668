"""The decoded sound: its length and its faults."""

import numpy as np
import pytest

from h3farm.engine._sound import faults, fitted
from h3farm.engine.errors import NumericError


@pytest.mark.parametrize(
    ("samples", "want"), [(3, [1, 2, 3]), (4, [1, 2, 3, 4]), (6, [1, 2, 3, 4, 0, 0])]
)
def test_a_sound_is_cut_or_lengthened_with_silence(samples: int, want: list[int]) -> None:
    wave = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
    made = fitted(wave, samples)
    assert made.shape == (2, samples)
    assert made[0].tolist() == want


def tone(level: float) -> np.ndarray:
    return (level * np.sin(np.arange(32_000) / 10)).clip(-1, 1).astype(np.float32)[None]


@pytest.mark.parametrize(
    ("wave", "sentences"),
    [
        (tone(0.5), []),
        (tone(1.0)[:, :1000] * 0.9, []),
        (tone(1e-5), ["the sound is silent"]),
        (np.zeros((2, 0), np.float32), ["the sound is silent"]),
        (tone(2.0), ["the sound is clipped in 67% of its samples"]),
    ],
)
def test_a_sound_that_cannot_be_meant_is_named(wave: np.ndarray, sentences: list[str]) -> None:
    assert faults(wave) == sentences


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sound_that_is_no_number_stops_the_render(value: float) -> None:
    wave = tone(0.5)
    wave[0, 77] = value
    with pytest.raises(NumericError, match="NaN or infinity in the decoded sound"):
        faults(wave)
