"""What several tests of the engine share."""

import pytest

from h3farm.engine.configs import DitConfig, TextEncoderConfig, VideoVaeConfig
from h3farm.engine.costs import Networks


@pytest.fixture(scope="session")
def release() -> Networks:
    """Dimensions of the released model."""
    return Networks(
        text_encoder=TextEncoderConfig(
            hidden=5120, heads=64, kv_heads=8, head_dim=128, ffn=25600, vocab=151936, layers=50,
            rms_eps=1e-6, rope_theta=5e6,
        ),
        transformer=DitConfig(
            hidden=5376, layers=50, refiner_layers=2, heads=56, head_dim=128, ffn=14336,
            video_dim=96, audio_dim=32, text_dim=5120, freq_dim=256,
            time_hidden=5376, time_dim=2688,
            rope_freqs=16, rope_theta=1e4, norm_eps=1e-5, qk_norm_eps=1e-5, final_norm_eps=1e-5,
        ),
        video_vae=VideoVaeConfig(
            latent_channels=24, layers=36, heads=32, head_dim=64, ffn=8192, registers=4,
            spatial_factor=16, temporal_factor=4, clip_length=17, token_drop=3, rope_dim=48,
            rope_theta=100.0, norm_eps=1e-5, tile=256, tile_overlap=64,
        ),
    )  # fmt: skip
