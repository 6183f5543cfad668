"""The decoded sound: made as long as the picture, and listened to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from h3farm.engine.errors import NumericError

Floats = npt.NDArray[np.float32]

SILENCE = 1e-4  # -80 dB: below what 16 bits can hold
FULL_SCALE = 0.999
CLIPPED_SHARE = 0.01  # of the samples; loud passages touch full scale now and then


def fitted(wave: Floats, samples: int) -> Floats:
    """`samples` samples of a wave [channels, n], silence added at the end or the rest left off.

    The model decodes whole latents of 25 ms, so its sound is up to half of one longer or shorter
    than the picture.
    """
    made = np.zeros((len(wave), samples), np.float32)
    kept = min(samples, wave.shape[1])
    made[:, :kept] = wave[:, :kept]
    return made


def faults(wave: Floats) -> list[str]:
    """Sentences about a sound that is probably not what was wanted; NumericError for NaN."""
    if not np.isfinite(wave).all():
        raise NumericError("NaN or infinity in the decoded sound")
    level = np.abs(wave)
    if level.max(initial=0.0) < SILENCE:
        return ["the sound is silent"]
    clipped = float(np.mean(level >= FULL_SCALE))
    if clipped > CLIPPED_SHARE:
        return [f"the sound is clipped in {clipped:.0%} of its samples"]
    return []
