"""From the config files of either layout to the dimensions that the C engine asks for.

Values that official files leave out are those of the release, from docs/model.md.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from h3farm.engine._config_files import ConfigFile
from h3farm.engine.configs import (
    TEXT_LAYERS,
    AudioVaeConfig,
    DitConfig,
    Normalization,
    TextEncoderConfig,
    VideoEncoderConfig,
    VideoVaeConfig,
)
from h3farm.engine.errors import CheckpointError
from h3farm.engine.geometry import (
    AUDIO_CHANNELS,
    AUDIO_HOP,
    CLIP_FRAMES,
    SAMPLE_RATE,
    SPATIAL_FACTOR,
)

PATCH_SIZE = [1, 2, 2]
TEMPORAL_FACTOR = 4
TOKEN_DROP = 3
# As csrc/h3f.h has room for.
MAX_STAGES, MAX_KERNELS, MAX_DILATIONS, MAX_LEVELS = 8, 4, 4, 8

# What the official files do not say.
ROPE_THETA = 10_000.0
REGISTERS = 4
FFN_FACTOR = 4
DECODER_EPS = 1e-5
TILE, TILE_OVERLAP = 256, 64
NORM_GROUPS = 32
ENCODER_EPS = 1e-6
KERNEL_SIZES = (3, 7, 11)
DILATIONS = (1, 3, 5)

# The keys of the transformer's config, official and diffusers.
_DIT_KEYS = {
    "hidden": ("hidden_size", "hidden_size"),
    "layers": ("num_layers", "num_layers"),
    "refiner_layers": ("token_refiner_num_layers", "num_refiner_layers"),
    "heads": ("num_attention_heads", "num_attention_heads"),
    "head_dim": ("attention_head_dim", "attention_head_dim"),
    "ffn": ("ffn_hidden_size", "ffn_dim"),
    "text_dim": ("text_dim", "text_dim"),
    "freq_dim": ("timestep_input_dim", "freq_dim"),
    "time_hidden": ("time_embed_hidden_size", "time_embed_hidden_dim"),
    "time_dim": ("time_embed_dim", "time_embed_dim"),
    "rope_freqs": ("rope_inv_freq_len", "rope_freq_dim"),
}
_LATENT_KEYS = {"video": ("latents_dim", "in_channels"),
                "audio": ("audio_latents_dim", "audio_in_channels")}  # fmt: skip


def text_encoder(folder: Path) -> TextEncoderConfig:
    """From Qwen3-VL's config.json, the same in both layouts."""
    file = ConfigFile.read(folder / "config.json")
    text = file.section("text_config") if file.has("text_config") else file
    text.require("attention_bias", False, default=False)
    text.require("hidden_act", "silu", default="silu")
    layers = text.integer("num_hidden_layers")
    if layers < TEXT_LAYERS:
        raise text.fault("num_hidden_layers", layers, f"{TEXT_LAYERS} or more")
    heads, kv_heads = text.integer("num_attention_heads"), text.integer("num_key_value_heads")
    if heads % kv_heads:
        raise text.fault("num_key_value_heads", kv_heads, f"a divisor of the {heads} heads")
    # transformers 5 moved the rotary settings into an object of their own.
    rope = text if text.has("rope_theta") else text.section("rope_parameters")
    return TextEncoderConfig(
        hidden=text.integer("hidden_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=text.integer("head_dim"),
        ffn=text.integer("intermediate_size"),
        vocab=text.integer("vocab_size"),
        layers=TEXT_LAYERS,
        rms_eps=text.number("rms_norm_eps"),
        rope_theta=rope.number("rope_theta"),
    )


def dit(folder: Path) -> DitConfig:
    """From the transformer's config.json of either layout."""
    file = ConfigFile.read(folder / "config.json")
    column = 1 if file.has("ffn_dim") else 0
    sizes = {name: file.integer(keys[column]) for name, keys in _DIT_KEYS.items()}
    file.require("patch_size", PATCH_SIZE)
    if 6 * sizes["rope_freqs"] > sizes["head_dim"]:
        allowed = f"at most a sixth of the head size {sizes['head_dim']}"
        raise file.fault(_DIT_KEYS["rope_freqs"][column], sizes["rope_freqs"], allowed)
    if sizes["freq_dim"] % 2:
        raise file.fault(_DIT_KEYS["freq_dim"][column], sizes["freq_dim"], "an even number")
    file.require("adaln_out_features", 18 * sizes["hidden"], default=18 * sizes["hidden"])
    return DitConfig(
        **sizes,
        video_dim=file.integer(_LATENT_KEYS["video"][column]) * prod(PATCH_SIZE),
        audio_dim=file.integer(_LATENT_KEYS["audio"][column]),
        rope_theta=file.number("rope_theta", ROPE_THETA),
        norm_eps=file.number("norm_eps"),
        qk_norm_eps=file.number("qk_norm_eps"),
        final_norm_eps=file.number("final_norm_eps"),
    )


def video_vae(folder: Path) -> VideoVaeConfig:
    """From vae/config.json, or from video_vae/config.json and source/config.json."""
    file = ConfigFile.read(folder / "config.json")
    if file.has("vae_clip_length", "source_path"):
        return _official_video_vae(file, ConfigFile.read(source_folder(folder) / "config.json"))
    file.require("clip_length", CLIP_FRAMES)
    file.require("token_drop", TOKEN_DROP)
    for key, factor in (("spatial", SPATIAL_FACTOR), ("temporal", TEMPORAL_FACTOR)):
        steps = file.integers(f"{key}_downsample_factors", most=16)
        if prod(steps) != factor:
            raise file.fault(f"{key}_downsample_factors", steps, f"factors of {factor}")
    heads = file.integer("decoder_num_attention_heads")
    head_dim = file.integer("decoder_attention_head_dim")
    ratio = file.number("decoder_rope_dim_ratio")
    return VideoVaeConfig(
        latent_channels=file.integer("latent_channels"),
        layers=file.integer("decoder_num_layers"),
        heads=heads,
        head_dim=head_dim,
        ffn=heads * head_dim * file.integer("decoder_ffn_mult", FFN_FACTOR),
        registers=file.integer("decoder_num_register_tokens", REGISTERS, minimum=0),
        spatial_factor=SPATIAL_FACTOR,
        temporal_factor=TEMPORAL_FACTOR,
        clip_length=CLIP_FRAMES,
        token_drop=TOKEN_DROP,
        rope_dim=_rotated(file, "decoder_rope_dim_ratio", head_dim, ratio),
        rope_theta=file.number("decoder_rope_theta"),
        norm_eps=file.number("decoder_norm_eps", DECODER_EPS),
        tile=TILE,
        tile_overlap=TILE_OVERLAP,
    )


def _official_video_vae(file: ConfigFile, source: ConfigFile) -> VideoVaeConfig:
    file.require("vae_clip_length", CLIP_FRAMES)
    file.require("vae_token_drop", TOKEN_DROP)
    source.require("vae_ratio", SPATIAL_FACTOR)
    source.require("vae_ratio_t", TEMPORAL_FACTOR)
    source.require("use_vit_decoder", True)
    vit = source.section("vit_decoder_kwargs")
    vit.require("ffn_activation_fn", "silu", default="silu")
    vit.require("ffn_use_gated", True, default=True)
    vit.require("norm_type", "rms_norm", default="rms_norm")
    vit.require("qk_norm_type", "rms_norm", default="rms_norm")
    vit.require("qk_norm_affine", False, default=False)
    heads, head_dim = vit.integer("heads"), vit.integer("dim_head")
    tile = file.integer("vae_tile_size", TILE)
    overlap = file.integer("vae_tile_overlap_min", TILE_OVERLAP, minimum=0)
    if overlap >= tile:
        raise file.fault("vae_tile_overlap_min", overlap, f"less than the tile size {tile}")
    return VideoVaeConfig(
        latent_channels=source.integer("z_channels"),
        layers=vit.integer("num_layers"),
        heads=heads,
        head_dim=head_dim,
        ffn=heads * head_dim * FFN_FACTOR,
        registers=REGISTERS,
        spatial_factor=SPATIAL_FACTOR,
        temporal_factor=TEMPORAL_FACTOR,
        clip_length=CLIP_FRAMES,
        token_drop=TOKEN_DROP,
        rope_dim=_rotated(vit, "rope_dim_ratio", head_dim, vit.number("rope_dim_ratio")),
        rope_theta=vit.number("rope_theta"),
        norm_eps=DECODER_EPS,
        tile=tile if file.flag("vae_decoder_tiling", True) else 0,
        tile_overlap=overlap,
    )


def video_encoder(folder: Path) -> VideoEncoderConfig:
    """The encoder's part of the files that `video_vae` reads."""
    file = ConfigFile.read(folder / "config.json")
    if file.has("vae_clip_length", "source_path"):
        return _official_video_encoder(
            folder, file, ConfigFile.read(source_folder(folder) / "config.json")
        )
    file.require("spatial_padding_mode", "reflect", default="reflect")
    channels = file.integers("block_out_channels", most=MAX_LEVELS)
    return VideoEncoderConfig(
        **_shared_with_decoder(folder),
        channels=channels,
        spatial=_factors(file, "spatial_downsample_factors", len(channels)),
        temporal=_factors(file, "temporal_downsample_factors", len(channels)),
        resnets=file.integer("layers_per_block"),
        groups=file.integer("norm_num_groups", NORM_GROUPS),
        norm_eps=file.number("norm_eps", ENCODER_EPS),
        tile=TILE,
    )


def _official_video_encoder(
    folder: Path, file: ConfigFile, source: ConfigFile
) -> VideoEncoderConfig:
    source.require("causal_encoder", True, default=True)
    source.require("use_t_isolated_gn", True, default=True)
    source.require("padding_mode", "reflect", default="reflect")
    width, multiples = source.integer("ch"), source.integers("ch_mult", most=MAX_LEVELS)
    tile = file.integer("vae_tile_size", TILE)
    return VideoEncoderConfig(
        **_shared_with_decoder(folder),
        channels=tuple(width * multiple for multiple in multiples),
        spatial=_factors(source, "space_down", len(multiples)),
        temporal=_factors(source, "time_down", len(multiples)),
        resnets=source.integer("num_res_blocks"),
        groups=NORM_GROUPS,
        norm_eps=ENCODER_EPS,
        tile=tile if file.flag("vae_encoder_tiling", True) else 0,
    )


def _shared_with_decoder(folder: Path) -> dict[str, Any]:
    decoder = video_vae(folder)
    keys = ("latent_channels", "clip_length", "token_drop", "tile_overlap")
    return {key: getattr(decoder, key) for key in keys}


def _factors(file: ConfigFile, key: str, levels: int) -> tuple[int, ...]:
    """What each level of the encoder divides by; a factor may be left out for the last ones."""
    found = file.integers(key, most=MAX_LEVELS)
    if len(found) > levels:
        raise file.fault(key, found, f"at most {levels} factors, one a level")
    return (*found, *[1] * (levels - len(found)))


def _rotated(file: ConfigFile, key: str, head_dim: int, ratio: float) -> int:
    """Rotated channels of a head: pairs on three axes."""
    rotated = int(head_dim * ratio)
    if rotated > head_dim or rotated % 6 or not rotated:
        allowed = f"a share of the head size {head_dim} that is a multiple of 6"
        raise file.fault(key, ratio, allowed)
    return rotated


def source_folder(folder: Path) -> Path:
    """Where the official video VAE keeps its weights."""
    name = ConfigFile.read(folder / "config.json").text("source_path", "source")
    return inside(folder, name)


def inside(folder: Path, name: str) -> Path:
    """A path that a file of the model names; never outside the folder."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise CheckpointError(f"{folder}: a file of the model names '{name}', outside the folder")
    return folder / path


def audio_vae(folder: Path) -> AudioVaeConfig:
    """From audio_vae/config.json, with the official layout's metadata.json."""
    file = ConfigFile.read(folder / "config.json")
    if not file.has("decoder_rates"):
        return _official_audio_vae(folder, file)
    file.require("sampling_rate", SAMPLE_RATE)
    kernels = file.integers("resblock_kernel_sizes", KERNEL_SIZES, most=MAX_KERNELS)
    default = [list(DILATIONS)] * len(kernels)
    lists = file.lists("resblock_dilation_sizes", default, most=MAX_DILATIONS)
    if lists != [lists[0]] * len(kernels):
        raise file.fault("resblock_dilation_sizes", lists, f"{len(kernels)} equal lists")
    return AudioVaeConfig(
        latent_channels=file.integer("latent_channels"),
        rates=_rates(file),
        kernel_sizes=kernels,
        dilations=lists[0],
    )


def _official_audio_vae(folder: Path, file: ConfigFile) -> AudioVaeConfig:
    file.require("sample_rate", SAMPLE_RATE)
    file.require("output_channel", AUDIO_CHANNELS, default=AUDIO_CHANNELS)
    name = file.text("source_metadata_path", "metadata.json")
    kwargs = ConfigFile.read(inside(folder, name)).section("metadata").section("kwargs")
    kwargs.require("decoder_type", "bigvgan", default="bigvgan")
    return AudioVaeConfig(
        latent_channels=file.integer("latent_channels"),
        rates=_rates(kwargs),
        kernel_sizes=KERNEL_SIZES,
        dilations=DILATIONS,
    )


def _rates(file: ConfigFile) -> tuple[int, ...]:
    rates = file.integers("decoder_rates", most=MAX_STAGES)
    if prod(rates) != AUDIO_HOP:
        raise file.fault("decoder_rates", rates, f"factors of {AUDIO_HOP}")
    return rates


def normalization(folder: Path, channels: int) -> Normalization:
    """Mean and deviation of a VAE's latent channels."""
    file = ConfigFile.read(folder / "config.json")
    return Normalization(
        mean=file.numbers("latents_mean", channels),
        std=file.numbers("latents_std", channels, positive=True),
    )
