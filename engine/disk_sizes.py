"""Bytes that a render takes on the disk, known before it begins. Standard library only."""

from h3farm.engine.geometry import (
    AUDIO_CHANNELS,
    SAMPLE_RATE,
    latent_size,
    samples_for,
    video_latents,
)
from h3farm.engine.spec import RenderSpec

F32 = 4


def disk_for_work(spec: RenderSpec) -> int:
    """Bytes of the raw frames and the raw sound between decoding and assembling."""
    frames = spec.frames * spec.width * spec.height * 3
    return frames + F32 * AUDIO_CHANNELS * samples_for(spec.frames) * spec.audio


def disk_for_output(spec: RenderSpec) -> int:
    """Bytes that the output folder has at most: noise at CRF 18 takes over one byte a pixel."""
    pixels = spec.frames * spec.width * spec.height
    sound = samples_for(spec.frames) * 192_000 // 8 // SAMPLE_RATE
    frames = pixels * 3 * spec.keep_frames
    height, width = latent_size(spec.width, spec.height)
    latent = F32 * 64 * (video_latents(spec.frames) * height * width) * spec.keep_latents
    return pixels * 3 // 2 + sound + frames + latent + (1 << 20)
