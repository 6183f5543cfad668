"""The memory that a render needs, known before it begins. Standard library only.

Source of the formulas: docs/model.md, "How it fits in memory". They err on the large side by
design: a refusal before the start costs seconds, running out of memory at step 17 costs the night.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from h3farm.engine.configs import DitConfig, TextEncoderConfig, VideoVaeConfig
from h3farm.engine.geometry import (
    AUDIO_CHANNELS,
    audio_latents,
    latent_size,
    samples_for,
    video_latents,
)
from h3farm.engine.spec import RenderSpec

F32 = 4
CHUNK_ROWS = 1024  # rows that pass through a feed-forward layer at once: csrc/block.c
SMALL_CHANGE = 32 << 20  # buffers that do not grow with the render
SOUND_SIGNALS = 5 * 6400  # values of the vocoder's five signals, an audio latent
LISTS = 4  # floats' worth of indices and pointers that a row has
CLIP_LATENTS_IN = 7  # latent frames that make one clip


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """Dimensions of a model, as far as they decide what a render costs."""

    text_encoder: TextEncoderConfig
    transformer: DitConfig
    video_vae: VideoVaeConfig

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON values; `from_json` gives equal dimensions back."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; KeyError or TypeError for what it cannot have written."""
        return cls(
            text_encoder=TextEncoderConfig(**record["text_encoder"]),
            transformer=DitConfig(**record["transformer"]),
            video_vae=VideoVaeConfig(**record["video_vae"]),
        )

    def signature(self, weight_bytes: int) -> str:
        """Names a speed: equal for models of the same dimensions, stored in as many bytes."""
        text = json.dumps([self.to_json(), weight_bytes], sort_keys=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows (tokens) of the packed sequence of a render."""

    text: int
    video: int
    audio: int

    @property
    def total(self) -> int:
        """Rows of the whole sequence."""
        return self.text + self.video + self.audio


def rows_of(spec: RenderSpec, text_rows: int) -> Rows:
    """The sequence of a text-to-video render with a prompt of `text_rows` tokens."""
    height, width = latent_size(spec.width, spec.height)
    return Rows(
        text=text_rows,
        video=video_latents(spec.frames) * (height // 2) * (width // 2),
        audio=AUDIO_CHANNELS * audio_latents(spec.frames),
    )


def tiles_of(vae: VideoVaeConfig, spec: RenderSpec) -> tuple[int, int]:
    """(tiles a clip is decoded in, latent positions of one tile and frame)."""
    tiles, area = 1, 1
    for side in (spec.width, spec.height):
        tiled = 0 < vae.tile < side
        stride = vae.tile - vae.tile_overlap
        tiles *= math.ceil((side - vae.tile_overlap) / stride) if tiled else 1
        area *= (vae.tile if tiled else side) // vae.spatial_factor
    return tiles, area


def memory_by_phase(networks: Networks, spec: RenderSpec, text_rows: int) -> dict[str, int]:
    """Bytes that each phase allocates at most. Mapped weights are not among them."""
    phases = {
        "encode": _encode_bytes(networks.text_encoder, text_rows),
        "denoise": _denoise_bytes(networks.transformer, spec, rows_of(spec, text_rows)),
        "decode_video": _decode_bytes(networks.video_vae, spec),
    }
    if spec.audio:
        samples = AUDIO_CHANNELS * samples_for(spec.frames)
        phases["decode_audio"] = F32 * (SOUND_SIGNALS * audio_latents(spec.frames) + 4 * samples)
    return {name: size + SMALL_CHANGE for name, size in phases.items()}


def _encode_bytes(encoder: TextEncoderConfig, rows: int) -> int:
    """Residual, its normalised copy, query, key, value, attention; gate and value of the FFN."""
    heads = (2 * encoder.heads + 2 * encoder.kv_heads) * encoder.head_dim
    chunk = min(rows, CHUNK_ROWS)
    return F32 * (rows * (3 * encoder.hidden + heads) + chunk * 3 * encoder.ffn)


def _denoise_bytes(dit: DitConfig, spec: RenderSpec, rows: Rows) -> int:
    """Residual, key and value of every row; a chunk of everything else; the modulation tables.

    A step has two times: the picture's modulates video and text rows, the sound's audio rows.
    """
    inner = dit.heads * dit.head_dim
    kept = dit.hidden + 2 * inner + 6 * dit.rope_freqs + LISTS
    text = rows.text * (dit.text_dim + dit.hidden)
    widest_in = max(dit.hidden, dit.text_dim, dit.video_dim, dit.audio_dim)
    widest = max(dit.hidden, inner, dit.ffn)
    of_row = dit.hidden + max(inner, 2 * dit.ffn) + widest + widest_in + 6 * LISTS
    times = dit.freq_dim + 2 * dit.time_hidden + 3 * dit.time_dim + 2 * dit.hidden
    tables = spec.steps * (dit.layers * 3 * 6 * dit.hidden + 2 * times)
    latents = 4 * (rows.video * dit.video_dim + rows.audio * dit.audio_dim)
    chunk = min(rows.total, CHUNK_ROWS) * of_row
    return F32 * (rows.total * kept + text + chunk + tables + latents)


def _decode_bytes(vae: VideoVaeConfig, spec: RenderSpec) -> int:
    """One tile's activations; the clip as f32 twice (blended, and handed out) and as bytes."""
    hidden = vae.heads * vae.head_dim
    _, area = tiles_of(vae, spec)
    tokens = CLIP_LATENTS_IN * area + vae.registers + 1
    frames = CLIP_LATENTS_IN * vae.temporal_factor
    tile = tokens * (6 * hidden + 3 * vae.ffn) + frames * 3 * area * vae.spatial_factor**2
    clip = frames * 3 * spec.width * spec.height
    return F32 * (tile + 3 * clip) + clip
