"""Sizes of the demo model as the official configs spell them, and diffusers' configs.

What the official layout does not name is fixed as in the release: 32 norm groups, 4 register
tokens, feed-forward factor 4 in the video decoder; 8 heads, kernels 3, 7, 11 and dilations 1, 3, 5
in the audio VAE.
"""

import math
from typing import Any

Config = dict[str, Any]

LATENT_CHANNELS = 16
AUDIO_LATENT_CHANNELS = 16
# Posterior standard deviation of the video VAE, the same everywhere: what the decoder learns to
# tolerate.
POSTERIOR_STD = 0.1

TRANSFORMER: Config = {
    "_class_name": "MiniMaxH3DiTModel",
    "_diffusers_version": "0.32.2",
    "hidden_size": 192,
    "num_layers": 6,
    "token_refiner_num_layers": 2,
    "num_attention_heads": 4,
    "attention_head_dim": 48,
    "ffn_hidden_size": 512,
    "latents_dim": LATENT_CHANNELS,
    "audio_latents_dim": AUDIO_LATENT_CHANNELS,
    "patch_size": [1, 2, 2],
    "text_dim": 64,
    "timestep_input_dim": 64,
    "time_embed_hidden_size": 128,
    "time_embed_dim": 32,
    "rope_inv_freq_len": 7,
    "norm_eps": 1e-05,
    "qk_norm_eps": 1e-05,
    "final_norm_eps": 1e-05,
    "adaln_out_features": 6 * 3 * 192,
    "final_adaln_out_features": 2 * 192,
}

USED_TEXT_LAYERS = 50  # hidden_states[50] conditions the transformer
TRAINED_TEXT_LAYERS = 4  # the others are identities: their output projections are zero
TEXT: Config = {
    "hidden_size": 64,
    "num_hidden_layers": USED_TEXT_LAYERS
    + 1,  # a stack cut at 50 would give a normed state instead
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "mrope_section": [4, 2, 2],
}
VISION: Config = {
    "hidden_size": 16,
    "depth": 1,
    "num_heads": 1,
    "intermediate_size": 16,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}

VIDEO_VAE: Config = {
    "ch": 32,
    "ch_mult": [1, 1, 1, 2],
    "num_res_blocks": 1,
    "space_down": [2, 2, 2, 2],
    "time_down": [1, 2, 2, 1],
    "decoder_heads": 4,
    "decoder_dim_head": 32,
    "decoder_layers": 5,
}

AUDIO_VAE: Config = {
    "encoder_dim": 4,
    "encoder_rates": [2, 4, 4, 5, 5],
    "latent_dim": 128,
    "decoder_dim": 64,
    "decoder_rates": [5, 5, 4, 4, 2],
    "decoder_kernel_sizes": [9, 9, 8, 8, 4],
}


def diffusers_transformer(cfg: Config = TRANSFORMER) -> Config:
    """Arguments of diffusers' transformer."""
    return {
        "num_attention_heads": cfg["num_attention_heads"],
        "attention_head_dim": cfg["attention_head_dim"],
        "hidden_size": cfg["hidden_size"],
        "num_layers": cfg["num_layers"],
        "num_refiner_layers": cfg["token_refiner_num_layers"],
        "ffn_dim": cfg["ffn_hidden_size"],
        "in_channels": cfg["latents_dim"],
        "audio_in_channels": cfg["audio_latents_dim"],
        "patch_size": cfg["patch_size"],
        "text_dim": cfg["text_dim"],
        "freq_dim": cfg["timestep_input_dim"],
        "time_embed_hidden_dim": cfg["time_embed_hidden_size"],
        "time_embed_dim": cfg["time_embed_dim"],
        "rope_freq_dim": cfg["rope_inv_freq_len"],
        "norm_eps": cfg["norm_eps"],
        "qk_norm_eps": cfg["qk_norm_eps"],
        "final_norm_eps": cfg["final_norm_eps"],
    }


def official_video_vae(mean: list[float], std: list[float]) -> tuple[Config, Config]:
    """(config.json, source/config.json) of the official video VAE folder."""
    dims = VIDEO_VAE
    wrapper = {
        "_class_name": "MiniMaxH3VideoVAE",
        "_diffusers_version": "0.32.2",
        "mode": "standalone",
        "source_path": "source",
        "source_class_name": "AutoencoderKLLegacy",
        "vae_clip_length": 17,
        "vae_token_drop": 3,
        "vae_encoder_tiling": 1,
        "vae_decoder_tiling": 1,
        "vae_parallel_tiling": 1,
        "vae_tile_size": 256,
        "vae_tile_overlap_min": 64,
        "vae_encoder_parallel": 0,
        "vae_decoder_parallel": 0,
        "vae_chunk_dim": -1,
        "source_safetensors_path": "model.safetensors",
        "latent_channels": LATENT_CHANNELS,
        "latents_mean": mean,
        "latents_std": std,
    }
    source = {
        "_class_name": "AutoencoderKLLegacy",
        "_diffusers_version": "0.32.2",
        "causal_decoder": False,
        "causal_encoder": True,
        "ch": dims["ch"],
        "ch_mult": dims["ch_mult"],
        "embed_dim": LATENT_CHANNELS,
        "in_channels": 3,
        "num_res_blocks": dims["num_res_blocks"],
        "num_res_blocks_decoder": None,
        "out_ch": 3,
        "padding_mode": "reflect",
        "padding_mode_t": None,
        "pixel_norm_type": "imagenet",
        "scaling_factor": 1.0,
        "shift_factor": 0.0,
        "space_down": dims["space_down"],
        "space_up": dims["space_down"][::-1],
        "time_down": dims["time_down"],
        "time_up": None,
        "use_3d_conv": True,
        "use_t_isolated_gn": True,
        "use_vit_decoder": True,
        "vae_ratio": math.prod(dims["space_down"]),
        "vae_ratio_t": math.prod(dims["time_down"]),
        "vit_decoder_kwargs": {
            "dim_head": dims["decoder_dim_head"],
            "ffn_activation_fn": "silu",
            "ffn_use_gated": True,
            "heads": dims["decoder_heads"],
            "norm_affine": True,
            "norm_type": "rms_norm",
            "num_layers": dims["decoder_layers"],
            "qk_norm_affine": False,
            "qk_norm_type": "rms_norm",
            "rope_dim_ratio": 0.75,
            "rope_theta": 100.0,
        },
        "z_channels": LATENT_CHANNELS,
        "zq_ch_decoder": None,
        "zq_ch_encoder": None,
    }
    return wrapper, source


def diffusers_video_vae(mean: list[float] | None = None, std: list[float] | None = None) -> Config:
    """Arguments of diffusers' video VAE."""
    dims = VIDEO_VAE
    return {
        "latent_channels": LATENT_CHANNELS,
        "block_out_channels": [dims["ch"] * mult for mult in dims["ch_mult"]],
        "layers_per_block": dims["num_res_blocks"],
        "spatial_downsample_factors": dims["space_down"],
        "temporal_downsample_factors": dims["time_down"],
        "norm_num_groups": 32,
        "decoder_num_layers": dims["decoder_layers"],
        "decoder_num_attention_heads": dims["decoder_heads"],
        "decoder_attention_head_dim": dims["decoder_dim_head"],
        "decoder_num_register_tokens": 4,
        "decoder_ffn_mult": 4,
        "decoder_rope_theta": 100.0,
        "decoder_rope_dim_ratio": 0.75,
        "clip_length": 17,
        "token_drop": 3,
        "latents_mean": mean or [0.0] * LATENT_CHANNELS,
        "latents_std": std or [1.0] * LATENT_CHANNELS,
    }


def official_audio_vae(mean: list[float], std: list[float]) -> tuple[Config, Config]:
    """(config.json, metadata.json) of the official audio VAE folder."""
    config = {
        "_class_name": "MiniMaxH3AudioVAE",
        "_diffusers_version": "0.32.2",
        "output_channel": 2,
        "sample_rate": 32000,
        "source_config_path": "config.yaml",
        "source_safetensors_path": "model.safetensors",
        "source_metadata_path": "metadata.json",
        "latent_channels": AUDIO_LATENT_CHANNELS,
        "latents_mean": mean,
        "latents_std": std,
    }
    kwargs = {
        "attn_proj": True,
        "decoder_dim": AUDIO_VAE["decoder_dim"],
        "decoder_rates": AUDIO_VAE["decoder_rates"],
        "decoder_type": "bigvgan",
        "encoder_dim": AUDIO_VAE["encoder_dim"],
        "encoder_rates": AUDIO_VAE["encoder_rates"],
        "latent_dim": AUDIO_VAE["latent_dim"],
        "sample_rate": 32000,
        "vae_latent_channels": AUDIO_LATENT_CHANNELS,
    }
    return config, {"metadata": {"kwargs": kwargs}}


def diffusers_audio_vae(mean: list[float] | None = None, std: list[float] | None = None) -> Config:
    """Arguments of diffusers' audio VAE."""
    return {
        **AUDIO_VAE,
        "latent_channels": AUDIO_LATENT_CHANNELS,
        "num_attention_heads": 8,
        "resblock_kernel_sizes": [3, 7, 11],
        "resblock_dilation_sizes": [[1, 3, 5]] * 3,
        "sampling_rate": 32000,
        "latents_mean": mean,
        "latents_std": std,
    }
