"""The state of a render between denoise steps, in the end what the decoders read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from h3farm.engine.configs import Normalization

Floats = npt.NDArray[np.float32]


@dataclass(slots=True, kw_only=True)
class Latents:
    """Both streams as the rows that the transformer takes; each step changes them in place."""

    video: Floats  # [video rows, C x 4]
    audio: Floats  # [audio rows, C]


def denormalised(latent: Floats, statistics: Normalization, axis: int = 0) -> Floats:
    """What the decoders take: latent * std + mean, per channel along `axis`."""
    shape = [1] * latent.ndim
    shape[axis] = -1
    mean, std = (
        np.array(values, np.float32).reshape(shape) for values in (statistics.mean, statistics.std)
    )
    return np.ascontiguousarray(latent * std + mean)
