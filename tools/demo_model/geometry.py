"""Shapes and rotary positions of a packed request: text, keyframes, sound, picture."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .world import audio_latents

Doubles = NDArray[np.float64]

SPANS = (1, 4, 4, 4, 4)  # pixel frames of a latent frame, from the start of a clip
UNIT = 5 / 3  # rotary time of one pixel frame; one audio latent is 1
VISION_PIXELS = 65536  # the vision tower enlarges smaller pictures to this many


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A canvas and a length in latents and rows."""

    width: int
    height: int
    frames: int

    @property
    def latent(self) -> tuple[int, int, int]:
        """(T, h, w) of the video latent."""
        return self.frames // 17 * 5 + 2, self.height // 16, self.width // 16

    @property
    def rows_a_frame(self) -> int:
        """Video rows of one latent frame."""
        return self.height // 32 * (self.width // 32)

    @property
    def audio(self) -> int:
        """Audio latents of one channel."""
        return audio_latents(self.frames)

    @property
    def vision_grid(self) -> tuple[int, int]:
        """Rows and columns of the vision tower's merged grid for a keyframe of this canvas."""
        height, width = self.height, self.width
        if height * width < VISION_PIXELS:
            factor = float(np.sqrt(VISION_PIXELS / (height * width)))
            return int(np.ceil(height * factor / 32)), int(np.ceil(width * factor / 32))
        return height // 32, width // 32


def times(latent_frames: int) -> Doubles:
    """Rotary time of each latent frame, from 0."""
    spans = [UNIT * SPANS[k % 5] for k in range(latent_frames)]
    return np.concatenate([[0.0], np.cumsum(spans[:-1])])


def grid(cells: int, other: int) -> Doubles:
    """Rotary coordinates along an axis of `cells` latents when the other axis has `other`."""
    count = cells // 2
    ratio = cells / np.sqrt(cells * other)
    left = (1 - ratio) / 2
    return (np.arange(count) * (ratio / count) + left) * 32


def media_positions(shape: Shape, keyframes: tuple[str, ...]) -> Doubles:
    """(t, h, w) of keyframe, audio and video rows; the text's length is not in t yet."""
    frames, height, width = shape.latent
    gh, gw = grid(height, width), grid(width, height)
    plane = np.stack([axis.ravel() for axis in np.meshgrid(gh, gw, indexing="ij")], 1)
    parts = []
    for anchor in keyframes:
        at = 0.0 if anchor == "first" else UNIT * (shape.frames - 1)
        parts.append(np.insert(plane, 0, at, axis=1))
    for side in (gw[0], gw[-1]):
        clock = np.arange(shape.audio, dtype=np.float64)
        parts.append(np.stack([clock, np.zeros_like(clock), np.full_like(clock, side)], 1))
    parts += [np.insert(plane, 0, at, axis=1) for at in times(frames)]
    return np.concatenate(parts)


def patchify(latent: NDArray[np.float32]) -> NDArray[np.float32]:
    """[..., C, T, h, w] -> rows [..., T h/2 w/2, 4 C], channel-major."""
    *batch, channels, frames, height, width = latent.shape
    x = latent.reshape(*batch, channels, frames, height // 2, 2, width // 2, 2)
    lead = tuple(range(len(batch)))
    n = len(batch)
    x = x.transpose(*lead, n + 1, n + 2, n + 4, n, n + 3, n + 5)
    return np.ascontiguousarray(x).reshape(*batch, -1, channels * 4)


def unpatchify(rows: NDArray[np.float32], shape: Shape) -> NDArray[np.float32]:
    """The inverse of `patchify`: rows [..., N, 4 C] -> [..., C, T, h, w]."""
    *batch, _, values = rows.shape
    frames, height, width = shape.latent
    x = rows.reshape(*batch, frames, height // 2, width // 2, values // 4, 2, 2)
    lead = tuple(range(len(batch)))
    n = len(batch)
    x = x.transpose(*lead, n + 3, n, n + 1, n + 4, n + 2, n + 5)
    return np.ascontiguousarray(x).reshape(*batch, values // 4, frames, height, width)
