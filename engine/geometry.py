"""Frame counts, latent counts and canvas sizes of MiniMax-H3. Standard library only.

Frames are made in clips of 17 that overlap by 5, so a video has 17k + 5 frames and 5k + 2 latent
frames.
Source: docs/model.md, "Request geometry".
"""

import math

FPS = 24
SAMPLE_RATE = 32_000
AUDIO_CHANNELS = 2
AUDIO_LATENTS_PER_SECOND = 40
AUDIO_HOP = SAMPLE_RATE // AUDIO_LATENTS_PER_SECOND  # samples a latent

CLIP_FRAMES = 17
CLIP_LATENTS = 5
REST_FRAMES = 5  # what a video has beyond whole clips
REST_LATENTS = 2
MIN_FRAMES = CLIP_FRAMES + REST_FRAMES  # the decoder makes no clip of less

SPATIAL_FACTOR = 16  # pixels a latent
CANVAS_MULTIPLE = 32  # pixels a video row of the transformer, each way
SHORT_EDGE = 768
MAX_PIXELS = 768 * 1344
MIN_ASPECT, MAX_ASPECT = 0.25, 4.0


def align_frames(asked: int) -> int:
    """The smallest frame count on the 17k + 5 grid that is at least `asked` (1 or more).

    5 is on the grid but too short to decode: a render has MIN_FRAMES or more.
    """
    if asked < 1:
        raise ValueError(f"a video has at least 1 frame, not {asked}")
    return asked + (REST_FRAMES - asked) % CLIP_FRAMES


def frames_for_seconds(seconds: float) -> int:
    """The frame count on the grid that lasts at least `seconds`.

    Seconds within a millionth of a frame of a whole count mean that count.
    """
    return align_frames(max(1, math.ceil(round(seconds * FPS, 6))))


def video_latents(frames: int) -> int:
    """Latent frames of a video of `frames` frames, which must be on the grid."""
    clips, rest = divmod(frames - REST_FRAMES, CLIP_FRAMES)
    if frames < 1 or rest:
        raise ValueError(f"{frames} frames are not on the 17k + 5 grid")
    return clips * CLIP_LATENTS + REST_LATENTS


def audio_latents(frames: int) -> int:
    """Audio latents per channel that sound as long as `frames` frames, rounded half to even."""
    return round(frames / FPS * AUDIO_LATENTS_PER_SECOND)


def audio_samples(frames: int) -> int:
    """Samples per channel of the sound made with `frames` frames."""
    return audio_latents(frames) * AUDIO_HOP


def latent_size(width: int, height: int) -> tuple[int, int]:
    """(height, width) of the latent of a canvas in pixels; both sides are multiples of 32."""
    if width < 1 or height < 1 or width % CANVAS_MULTIPLE or height % CANVAS_MULTIPLE:
        raise ValueError(
            f"canvas {width}x{height}: both sides must be multiples of {CANVAS_MULTIPLE}"
        )
    return height // SPATIAL_FACTOR, width // SPATIAL_FACTOR


def canvas_for_aspect(
    aspect_width: float,
    aspect_height: float,
    *,
    short_edge: int = SHORT_EDGE,
    max_pixels: int = MAX_PIXELS,
    multiple: int = CANVAS_MULTIPLE,
) -> tuple[int, int]:
    """(width, height) in pixels of the automatic canvas for an aspect ratio between 1:4 and 4:1.

    The short side is `short_edge` unless that makes more than `max_pixels`; both sides are then
    rounded to the nearest multiple, half to even, so the area may end slightly above the cap.
    """
    ratio = aspect_width / aspect_height
    if not MIN_ASPECT <= ratio <= MAX_ASPECT:
        raise ValueError(f"aspect {aspect_width}:{aspect_height} is outside 1:4 to 4:1")
    wide = short_edge * max(ratio, 1.0)
    high = short_edge / min(ratio, 1.0)
    if wide * high > max_pixels:
        scale = math.sqrt(max_pixels / (wide * high))
        wide, high = wide * scale, high * scale
    width, height = (max(multiple, multiple * round(side / multiple)) for side in (wide, high))
    return width, height


def samples_for(frames: int) -> int:
    """Samples per channel that last as long as `frames` frames, to the nearest."""
    return round(frames * SAMPLE_RATE / FPS)
