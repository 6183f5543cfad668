"""Dimensions of the four networks, as their config files give them. Standard library only.

Those with the name of a network mirror a struct of csrc/h3f.h, name by name: `checkpoints` makes
them from either layout's files, `_native` hands them to C, which holds them against the tensors.
"""

from dataclasses import dataclass
from typing import Literal

Component = Literal["text_encoder", "transformer", "video_vae", "audio_vae"]
COMPONENTS: tuple[Component, ...] = ("text_encoder", "transformer", "video_vae", "audio_vae")

# The prompt's embedding is the state after this many of the encoder's layers.
TEXT_LAYERS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoderConfig:
    """Qwen3-VL's language model; `layers` counts those to run."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    layers: int
    rms_eps: float
    rope_theta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DitConfig:
    """The transformer. `video_dim` and `audio_dim` are the values of one row."""

    hidden: int
    layers: int
    refiner_layers: int
    heads: int
    head_dim: int
    ffn: int
    video_dim: int
    audio_dim: int
    text_dim: int
    freq_dim: int
    time_hidden: int
    time_dim: int
    rope_freqs: int
    rope_theta: float
    norm_eps: float
    qk_norm_eps: float
    final_norm_eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoVaeConfig:
    """The video VAE's decoder. `tile` and `tile_overlap` are pixels; tile 0 means no tiling."""

    latent_channels: int
    layers: int
    heads: int
    head_dim: int
    ffn: int
    registers: int
    spatial_factor: int
    temporal_factor: int
    clip_length: int
    token_drop: int
    rope_dim: int
    rope_theta: float
    norm_eps: float
    tile: int
    tile_overlap: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoEncoderConfig:
    """The video VAE's encoder: one entry of `channels`, `spatial` and `temporal` for each level.

    `spatial` and `temporal` are what a level divides sides and frames by; `resnets` are the
    residual blocks of a level. Tiles as in VideoVaeConfig.
    """

    latent_channels: int
    channels: tuple[int, ...]
    spatial: tuple[int, ...]
    temporal: tuple[int, ...]
    resnets: int
    groups: int
    norm_eps: float
    clip_length: int
    token_drop: int
    tile: int
    tile_overlap: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioVaeConfig:
    """The audio VAE's decoder: a stage per rate, a residual block per kernel size in each."""

    latent_channels: int
    rates: tuple[int, ...]
    kernel_sizes: tuple[int, ...]
    dilations: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """Per channel: the transformer's latent is (VAE latent - mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifts:
    """How far the sigma schedule of each stream is shifted towards noise."""

    video: float
    audio: float
