"""The packed sequence that the transformer reads: rows, rotary positions, tags and timesteps.

    [ text | conditions in order | target audio | target video ]

Rows are tokens. A condition is a keyframe (on the target's grid and clock) or a reference (on its
own); a text-to-video request has none. Positions are (t, h, w) in float64, and one unit of t is an
audio latent. Source: docs/model.md, "Packing" and "Rotary positions".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from h3farm.engine.geometry import AUDIO_CHANNELS

VIDEO, TEXT, AUDIO = 0, 1, 2  # modality tags
PATCH = 2  # latents of a video row, each way
SPATIAL_EXTENT = 32.0  # a square grid runs from 0 to this
LATENT_FRAMES = (1, 4, 4, 4, 4)  # video frames behind each latent frame of a clip
FRAME_SPAN = 5 / 3  # audio latents that a video frame lasts
CONDITION_TIME = 0.999
REFERENCE_AUDIO_TIME = 1.0

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
LatentShape = tuple[int, int, int]  # frames, height, width


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something given that the transformer sees beside the text.

    `first` and `last` are keyframes: one latent frame of the target's size. The others are
    references: an `image` or `video` has a latent of its own size, a `video` perhaps sound too, an
    `audio` only sound.
    """

    kind: Literal["first", "last", "image", "video", "audio"]
    latent: LatentShape | None = None
    audio_latents: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSequence:
    """One request's rows in packed order.

    The index lists give the packed place of the text, video and audio rows; conditions come first
    in each, so the target is what follows `condition_video_rows` and `condition_audio_rows`.
    """

    positions: Doubles  # [rows, 3]
    tags: Ints  # [rows]
    text_indices: Ints
    video_indices: Ints
    audio_indices: Ints
    condition_video_rows: int
    condition_audio_rows: int


def build_t2va(text_rows: int, latent: LatentShape, audio_latents: int) -> PackedSequence:
    """The layout of a text-to-video request."""
    return pack(np.full(text_rows, TEXT, np.int32), latent, audio_latents)


def pack(
    text_tags: Ints,
    latent: LatentShape,
    audio_latents: int,
    conditions: Sequence[Condition] = (),
) -> PackedSequence:
    """The layout of any request.

    text_tags: int32 [text rows]; the rows of a picture's block are tagged VIDEO, other text TEXT.
    latent: frames, height and width of the target; audio_latents: of the target, per channel.
    """
    target = _Grid(latent)
    blocks = _Blocks(text_tags)
    for condition in conditions:
        blocks.add_condition(condition, target)
    condition_rows = blocks.rows(VIDEO), blocks.rows(AUDIO)
    blocks.add(AUDIO, target.audio_positions(blocks.clock, audio_latents))
    blocks.add(VIDEO, target.positions(blocks.clock))
    return blocks.finish(*condition_rows)


class _Grid:
    """Coordinates of a latent of one size."""

    def __init__(self, latent: LatentShape) -> None:
        self.frames, height, width = latent
        if self.frames < 1 or min(height, width) < PATCH or height % PATCH or width % PATCH:
            raise ValueError(f"latent {latent}: height and width must be multiples of {PATCH}")
        side = np.sqrt(height * width)
        self.h, self.w = _axis(height, side), _axis(width, side)
        spans = FRAME_SPAN * np.resize(LATENT_FRAMES, self.frames)
        self.offsets = np.cumsum(np.concatenate(([0.0], spans[:-1])))
        self.duration = float(np.sum(spans))

    def positions(self, clock: float) -> Doubles:
        """Of every row of the video, starting at `clock`."""
        return _product(clock + self.offsets, self.h, self.w)

    def frame_positions(self, time: float) -> Doubles:
        """Of one latent frame, all at `time`."""
        return _product(np.array([time]), self.h, self.w)

    def audio_positions(self, clock: float, latents: int) -> Doubles:
        """Of all left rows, then all right rows, pinned to the picture's left and right edge."""
        times = clock + np.arange(latents, dtype=np.float64)
        edges = (self.w[:1], self.w[-1:])
        return np.concatenate([_product(times, np.zeros(1), edge) for edge in edges])


def _axis(latents: int, side: np.float64) -> Doubles:
    """Coordinates of the rows along an axis: centred, with the same step on both axes."""
    ratio = latents / side
    left = (1 - ratio) / 2
    # The reference's own expression, so that positions are equal to the last bit.
    rows = np.linspace(left, left + ratio, latents // PATCH, endpoint=False, dtype=np.float64)
    return rows * SPATIAL_EXTENT


def _product(t: Doubles, h: Doubles, w: Doubles) -> Doubles:
    """Every (t, h, w), w fastest: [len(t) x len(h) x len(w), 3]."""
    return np.stack(np.meshgrid(t, h, w, indexing="ij"), axis=-1).reshape(-1, 3)


class _Blocks:
    """A sequence in the making; `clock` is where the next reference or the target starts."""

    def __init__(self, text_tags: Ints) -> None:
        count = len(text_tags)
        self.clock = float(count)
        positions = np.zeros((count, 3))
        positions[:, 0] = np.arange(count)
        self.positions = [positions]
        self.tags = [np.asarray(text_tags, np.int32)]
        # What a row is, as its list of indices tells it: the tag of a text row may be VIDEO.
        self.kinds = [np.full(count, TEXT, np.int32)]

    def rows(self, kind: int) -> int:
        """How many rows of a kind there are so far."""
        return sum(int(np.count_nonzero(kinds == kind)) for kinds in self.kinds)

    def add(self, kind: int, positions: Doubles) -> None:
        """Rows of one kind at these positions."""
        self.positions.append(positions)
        self.kinds.append(np.full(len(positions), kind, np.int32))
        self.tags.append(self.kinds[-1])

    def add_condition(self, condition: Condition, target: _Grid) -> None:
        """A keyframe, or a reference, which moves the clock on."""
        match condition.kind:
            case "first":
                self.add(VIDEO, target.frame_positions(self.clock))
            case "last":
                time = self.clock + target.duration - FRAME_SPAN
                self.add(VIDEO, target.frame_positions(time))
            case "audio":
                self.add(AUDIO, target.audio_positions(self.clock, condition.audio_latents))
                self.clock += condition.audio_latents
            case _:
                self._add_reference(condition)

    def _add_reference(self, condition: Condition) -> None:
        if condition.latent is None:
            raise ValueError(f"a condition of kind {condition.kind!r} needs a latent")
        grid = _Grid(condition.latent)
        if condition.kind == "image":
            self.add(VIDEO, grid.frame_positions(self.clock))
            self.clock += 1
            return
        if condition.audio_latents:
            self.add(AUDIO, grid.audio_positions(self.clock, condition.audio_latents))
        self.add(VIDEO, grid.positions(self.clock))
        self.clock += max(condition.audio_latents, grid.duration)

    def finish(self, condition_video_rows: int, condition_audio_rows: int) -> PackedSequence:
        """The sequence."""
        kinds = np.concatenate(self.kinds)
        places = {kind: np.flatnonzero(kinds == kind).astype(np.int32) for kind in (0, 1, 2)}
        return PackedSequence(
            positions=np.concatenate(self.positions),
            tags=np.concatenate(self.tags),
            text_indices=places[TEXT],
            video_indices=places[VIDEO],
            audio_indices=places[AUDIO],
            condition_video_rows=condition_video_rows,
            condition_audio_rows=condition_audio_rows,
        )


def row_timesteps(sequence: PackedSequence, video_t: float, audio_t: float) -> Floats:
    """The timestep of every row in a pass: float32 [rows]; t runs from 0 (noise) to 1 (data)."""
    times = np.full(len(sequence.tags), video_t, np.float32)
    times[sequence.audio_indices] = audio_t
    conditions = sequence.video_indices[: sequence.condition_video_rows]
    times[conditions] = max(np.float32(video_t), np.float32(CONDITION_TIME))
    times[sequence.audio_indices[: sequence.condition_audio_rows]] = REFERENCE_AUDIO_TIME
    return times


def run_times(
    sequence: PackedSequence, video_times: Sequence[float], audio_times: Sequence[float]
) -> tuple[list[tuple[float, int]], list[Ints]]:
    """What DitRun needs to know of the timesteps of all steps of a request.

    Returns every distinct (t, tag mask), ascending, and for each step the index into that list of
    every row: int32 [rows].
    """
    steps = [
        row_timesteps(sequence, video_t, audio_t)
        for video_t, audio_t in zip(video_times, audio_times, strict=True)
    ]
    values = np.unique(np.concatenate([np.unique(step) for step in steps]))
    indices = [np.searchsorted(values, step).astype(np.int32) for step in steps]
    masks = np.zeros(len(values), np.int64)
    for step in indices:
        np.bitwise_or.at(masks, step, 1 << sequence.tags.astype(np.int64))
    return [(float(t), int(mask)) for t, mask in zip(values, masks, strict=True)], indices


def patchify(latent: Floats) -> Floats:
    """A latent [C, T, h, w] as video rows [T x h/2 x w/2, C x 4]."""
    channels, frames, height, width = latent.shape
    split = latent.reshape(channels, frames, height // PATCH, PATCH, width // PATCH, PATCH)
    rows = split.transpose(1, 2, 4, 0, 3, 5)
    return np.ascontiguousarray(rows.reshape(-1, channels * PATCH * PATCH))


def unpatchify(rows: Floats, latent: LatentShape) -> Floats:
    """The inverse of patchify: video rows to [C, T, h, w]."""
    frames, height, width = latent
    split = rows.reshape(frames, height // PATCH, width // PATCH, -1, PATCH, PATCH)
    return np.ascontiguousarray(split.transpose(3, 0, 1, 4, 2, 5).reshape(-1, *latent))


def audio_to_rows(latent: Floats) -> Floats:
    """An audio latent [channels, C, T] as rows [channels x T, C], all left rows first."""
    return np.ascontiguousarray(latent.transpose(0, 2, 1).reshape(-1, latent.shape[1]))


def rows_to_audio(rows: Floats) -> Floats:
    """The inverse of audio_to_rows."""
    split = rows.reshape(AUDIO_CHANNELS, -1, rows.shape[1])
    return np.ascontiguousarray(split.transpose(0, 2, 1))


def add_condition_noise(clean: Floats, noise: Floats) -> Floats:
    """A condition as the transformer is given it: nearly clean, at CONDITION_TIME."""
    t = np.float32(CONDITION_TIME)
    return t * clean + (np.float32(1) - t) * noise
