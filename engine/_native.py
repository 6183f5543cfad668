"""The C engine as Python objects: networks, noise and schedule.

Arrays must be C-contiguous and of the type and shape that a docstring names; another one is a
ValueError before C sees a pointer. `_bridge` says when objects close.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from h3farm.engine._bridge import (
    Checkpoint,
    Context,
    Floats,
    Handle,
    TensorInfo,
    checked,
    raw,
    version,
)
from h3farm.engine.configs import (
    AudioVaeConfig,
    DitConfig,
    TextEncoderConfig,
    VideoEncoderConfig,
    VideoVaeConfig,
)

if TYPE_CHECKING:
    from h3farm.engine.packing import PackedSequence

__all__ = [
    "AudioVae",
    "Checkpoint",
    "Context",
    "Dit",
    "DitRun",
    "Noise",
    "TensorInfo",
    "TextEncoder",
    "VideoEncoder",
    "VideoVae",
    "euler_step",
    "pixels_to_rgb",
    "sigmas",
    "version",
]


class _Network(Handle):
    """A network over a checkpoint, which stays open as long as the network."""

    def __init__(
        self, name: str, context: Context, checkpoint: Checkpoint, config: dict[str, Any]
    ) -> None:
        """Open `name`; CheckpointError when a tensor does not fit the config."""
        opened = context.open(f"h3f_{name}_open", context, checkpoint, [config])
        super().__init__(opened, f"h3f_{name}_close", context, checkpoint)
        self._context = context


class TextEncoder(_Network):
    """Qwen3-VL's language model up to the layer that conditions the transformer."""

    def __init__(self, context: Context, checkpoint: Checkpoint, config: TextEncoderConfig) -> None:
        """Check every tensor against the config."""
        super().__init__("text_encoder", context, checkpoint, asdict(config))
        self.config = config

    def encode(self, ids: npt.NDArray[np.int32]) -> Floats:
        """Token ids int32 [n] to hidden states float32 [n, hidden], without a final norm."""
        (count,) = checked("ids", ids, np.int32, None)
        hidden = np.empty((count, self.config.hidden), np.float32)
        self._context.call("h3f_text_encoder_encode", self, ids, count, hidden)
        return hidden


class Dit(_Network):
    """The transformer."""

    def __init__(self, context: Context, checkpoint: Checkpoint, config: DitConfig) -> None:
        """Check every tensor against the config."""
        super().__init__("dit", context, checkpoint, asdict(config))
        self.config = config

    def begin(
        self, sequence: PackedSequence, text: Floats, times: Sequence[tuple[float, int]]
    ) -> DitRun:
        """Start a run over a packed sequence.

        text: float32 [text rows, text_dim]. times: (t, tag mask) for every timestep that will
        occur, the mask with a bit (1 << tag) for each tag of the rows that will have it.
        """
        return DitRun(self._context, self, sequence, text, times)


class DitRun(Handle):
    """One request on the transformer: its refined text, layout and modulation tables."""

    def __init__(
        self,
        context: Context,
        dit: Dit,
        sequence: PackedSequence,
        text: Floats,
        times: Sequence[tuple[float, int]],
    ) -> None:
        """See Dit.begin."""
        (self._rows,) = checked("tags", sequence.tags, np.int32, None)
        checked("positions", sequence.positions, np.float64, self._rows, 3)
        packed: dict[str, Any] = {
            "rows": self._rows, "positions": sequence.positions, "tags": sequence.tags
        }  # fmt: skip
        for kind in ("text", "video", "audio"):
            indices = getattr(sequence, f"{kind}_indices")
            (packed[f"{kind}_rows"],) = checked(f"{kind}_indices", indices, np.int32, None)
            packed[f"{kind}_indices"] = indices
        checked("text", text, np.float32, packed["text_rows"], dit.config.text_dim)
        grid = [{"t": t, "tag_mask": mask} for t, mask in times]
        opened = context.open("h3f_dit_begin", dit, [packed], text, grid, len(grid))
        super().__init__(opened, "h3f_dit_end", dit)
        self._context = context
        self._video = (packed["video_rows"], dit.config.video_dim)
        self._audio = (packed["audio_rows"], dit.config.audio_dim)

    def step(
        self, row_times: npt.NDArray[np.int32], video: Floats, audio: Floats
    ) -> tuple[Floats, Floats]:
        """One forward pass: the data-ward velocities of all video and audio rows.

        row_times: int32 [rows], index into the run's times. video: float32 [video rows, video_dim],
        audio: float32 [audio rows, audio_dim], conditions first; the results have the same shapes.
        """
        checked("row_times", row_times, np.int32, self._rows)
        checked("video", video, np.float32, *self._video)
        checked("audio", audio, np.float32, *self._audio)
        velocities = np.empty(self._video, np.float32), np.empty(self._audio, np.float32)
        self._context.call("h3f_dit_step", self, row_times, video, audio, *velocities)
        return velocities


def sigmas(context: Context, shift: float, points: int) -> Floats:
    """The shifted sigma grid from 1 to the terminal 0: float32 [points].

    Equal neighbours are dropped, so there can be fewer.
    """
    grid = np.empty(max(points, 1), np.float32)
    (count,) = context.counts("h3f_sigmas", context, shift, points, grid, results=1)
    return grid[:count].copy()


def euler_step(grid: Floats, step: int, velocity: Floats, sample: Floats) -> None:
    """Move `sample` in place from grid[step] to grid[step + 1] along the velocity of its shape."""
    (points,) = checked("grid", grid, np.float32, None)
    if not 0 <= step < points - 1:
        raise ValueError(f"step is {step}, not 0 to {points - 2}")
    checked("sample", sample, np.float32, *sample.shape)
    checked("velocity", velocity, np.float32, *sample.shape)
    raw("h3f_euler_step", grid, step, velocity, sample.size, sample)


class Noise(Handle):
    """Standard normal numbers in the order in which torch's CPU generator draws them."""

    def __init__(self, context: Context, seed: int) -> None:
        """A fresh generator; `seed` from 0 to 2**64 - 1."""
        opened = context.open("h3f_noise_new", context, seed)
        super().__init__(opened, "h3f_noise_free", context)

    def draw(self, shape: tuple[int, ...]) -> Floats:
        """One torch.randn call: float32 of that shape."""
        numbers = np.empty(shape, np.float32)
        raw("h3f_noise_draw", self, numbers.size, numbers)
        return numbers


class VideoVae(_Network):
    """The video decoder: latents to ImageNet-normalised pixels, clip by clip."""

    def __init__(self, context: Context, checkpoint: Checkpoint, config: VideoVaeConfig) -> None:
        """Check every tensor of the decoder against the config."""
        super().__init__("video_vae", context, checkpoint, asdict(config))
        self.config = config

    def plan(self, latent_frames: int) -> tuple[int, int, int]:
        """(clips, frames, most frames of one clip); EngineError below 3 latent frames."""
        clips, frames, most = self._context.counts(
            "h3f_video_vae_plan", self, latent_frames, results=3
        )
        return clips, frames, most

    def new_carry(self, height: int, width: int) -> Floats:
        """What decode_clip hands from clip to clip, for a latent of that size."""
        return np.zeros((3, raw("h3f_video_vae_overlap", self), *self._pixels(height, width)), "f4")

    def decode_clip(self, latent: Floats, clip: int, carry: Floats) -> Floats:
        """Pixels float32 [3, n, H, W] of one clip of a de-normalised latent [C, T, h, w].

        Clips go in order, starting with 0; `carry` (new_carry) is updated in place.
        """
        struct, frames, size = self._latent(latent)
        checked("carry", carry, np.float32, 3, None, *size)
        room = np.empty(3 * self.plan(frames)[2] * prod(size), np.float32)
        (made,) = self._context.counts(
            "h3f_video_vae_decode_clip", self, [struct], clip, carry, room, results=1
        )
        return room[: 3 * made * prod(size)].reshape(3, made, *size)

    def decode_raw(self, latent: Floats) -> Floats:
        """One decoder call without clips or tiles, for tests: [C, T, h, w] to [3, 4T, H, W]."""
        struct, frames, size = self._latent(latent)
        pixels = np.empty((3, self.config.temporal_factor * frames, *size), np.float32)
        self._context.call("h3f_video_vae_decode_raw", self, [struct], pixels)
        return pixels

    def _latent(self, latent: Floats) -> tuple[dict[str, Any], int, tuple[int, int]]:
        """An h3f_latent, its frames, and the (height, width) of its pixels."""
        channels = self.config.latent_channels
        _, frames, height, width = checked("latent", latent, np.float32, channels, *[None] * 3)
        struct = {"data": latent, "frames": frames, "height": height, "width": width}
        return struct, frames, self._pixels(height, width)

    def _pixels(self, height: int, width: int) -> tuple[int, int]:
        return height * self.config.spatial_factor, width * self.config.spatial_factor


class VideoEncoder(_Network):
    """The video encoder: pictures and clips to the posterior of their latent."""

    def __init__(
        self, context: Context, checkpoint: Checkpoint, config: VideoEncoderConfig
    ) -> None:
        """Check every tensor of the encoder against the config."""
        struct = {**asdict(config), "levels": len(config.channels)}
        super().__init__("video_encoder", context, checkpoint, struct)
        self.config = config

    def encode(self, rgb: npt.NDArray[np.uint8]) -> tuple[Floats, Floats]:
        """Mean and clamped log variance, float32 [C, t, h, w] both, of uint8 [n, H, W, 3].

        One frame is a picture; more are a clip, encoded 17 frames at a time.
        """
        frames, height, width, _ = checked("rgb", rgb, np.uint8, None, None, None, 3)
        factor = prod(self.config.spatial)
        latents = int(raw("h3f_video_encoder_latents", self, frames))
        shape = (self.config.latent_channels, latents, height // factor, width // factor)
        mean, logvar = np.empty(shape, np.float32), np.empty(shape, np.float32)
        struct = {"data": rgb, "frames": frames, "height": height, "width": width}
        self._context.call("h3f_video_encoder_encode", self, [struct], mean, logvar)
        return mean, logvar


def pixels_to_rgb(context: Context, pixels: Floats) -> npt.NDArray[np.uint8]:
    """ImageNet-normalised float32 [3, n, H, W] to rounded uint8 [n, H, W, 3]."""
    _, *size = checked("pixels", pixels, np.float32, 3, None, None, None)
    rgb = np.empty((*size, 3), np.uint8)
    context.call("h3f_pixels_to_rgb", context, pixels, *size, rgb)
    return rgb


class AudioVae(_Network):
    """The audio decoder: latents to sound."""

    def __init__(self, context: Context, checkpoint: Checkpoint, config: AudioVaeConfig) -> None:
        """Check every tensor of the decoder against the config."""
        struct = {
            "latent_channels": config.latent_channels,
            "stages": len(config.rates),
            "rates": config.rates,
            "kernels": len(config.kernel_sizes),
            "kernel_sizes": config.kernel_sizes,
            "dilations": len(config.dilations),
            "dilation_sizes": config.dilations,
        }
        super().__init__("audio_vae", context, checkpoint, struct)
        self.config = config

    @property
    def hop(self) -> int:
        """Samples a latent."""
        return int(raw("h3f_audio_vae_hop", self))

    def decode(self, latent: Floats) -> Floats:
        """De-normalised float32 [channels, C, T] to a wave float32 [channels, T x hop], -1 to 1."""
        shape = (None, self.config.latent_channels, None)
        channels, _, latents = checked("latent", latent, np.float32, *shape)
        wave = np.empty((channels, latents * self.hop), np.float32)
        self._context.call("h3f_audio_vae_decode", self, latent, channels, latents, wave)
        return wave

    def activation(self, name: str, signal: Floats) -> Floats:
        """The alias-free activation `name` alone, for tests: float32 [C, length] to the same."""
        _, length = checked("signal", signal, np.float32, None, None)
        out = np.empty_like(signal)
        self._context.call("h3f_audio_vae_activation", self, name, signal, length, out)
        return out
