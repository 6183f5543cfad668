"""From a picture on the canvas to what the transformer is given of it.

Source: docs/model.md, "Keyframes".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from h3farm.engine._native import Context, Noise, VideoEncoder
from h3farm.engine.configs import Normalization

POSTERIOR_SEED = 42  # of every condition, whatever the request's seed

Floats = npt.NDArray[np.float32]


def condition_latent(
    context: Context,
    encoder: VideoEncoder,
    rgb: npt.NDArray[np.uint8],
    normalization: Normalization,
) -> Floats:
    """The normalised latent float32 [C, t, h, w] of a picture or clip uint8 [n, H, W, 3]."""
    mean, logvar = encoder.encode(rgb)
    return sampled(context, mean, logvar, normalization)


def sampled(context: Context, mean: Floats, logvar: Floats, normalization: Normalization) -> Floats:
    """A draw from the posterior, rounded to half precision as the reference does, normalised."""
    with Noise(context, POSTERIOR_SEED) as noise:
        draw = noise.draw(mean.shape)
    latent = (mean + np.exp(np.float32(0.5) * logvar) * draw).astype(np.float16).astype(np.float32)
    shape = (-1, *[1] * (mean.ndim - 1))
    center, std = (
        np.array(values, np.float32).reshape(shape)
        for values in (normalization.mean, normalization.std)
    )
    return np.ascontiguousarray((latent - center) / std)
