"""The world of the demo model: coloured shapes that move over a background and sound while they do.

numpy only: the training draws its data here and `measure.py` reads pictures back with the same
tables. Pixels are RGB in [0, 255], x to the right, y down; time runs in frames of 1/24 s; sound is
32 kHz stereo.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

FPS = 24
SAMPLE_RATE = 32000
HOP = 800  # samples of one audio latent, 1/40 s
CANVASES = ((128, 128), (192, 128), (128, 192))  # width, height
LENGTHS = (22, 39, 56)

# Near the corners of the RGB cube: no two foreground colours are neighbours.
PALETTE: dict[str, tuple[int, int, int]] = {
    "red": (225, 30, 30),
    "green": (25, 170, 50),
    "blue": (30, 60, 225),
    "yellow": (245, 220, 30),
    "cyan": (40, 215, 225),
    "magenta": (225, 45, 200),
    "white": (245, 245, 245),
    "black": (12, 12, 12),
    "gray": (128, 128, 128),
}
FOREGROUNDS = tuple(name for name in PALETTE if name != "gray")
SHAPES = ("circle", "square", "triangle", "star", "cross")
LINEAR = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
MOTIONS = (*LINEAR, "bounce", "orbit", "grow", "shrink", "still")
# Multiples of 40 Hz: a steady tone looks the same in each of the 40 latents of a second.
PITCHES = {"circle": 240, "square": 360, "triangle": 520, "star": 760, "cross": 1120}
STRIKE_HZ = (2000, 2800)
STRIKE_DECAY_S = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Centre (x, y) and radius in pixels in each frame; `hits` are frames of contact."""

    x: Floats
    y: Floats
    radius: Floats
    hits: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """A coloured shape and its motion; `rgb` is painted, `colour` is what captions call it."""

    shape: str
    colour: str
    motion: str
    track: Track
    rgb: tuple[float, float, float]
    size: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One clip: canvas, length, background from top to bottom (names, values), things, sound."""

    width: int
    height: int
    frames: int
    background: tuple[str, ...]
    background_rgb: tuple[tuple[float, float, float], ...]
    things: tuple[Thing, ...]
    silent: bool = False


def shape_distance(shape: str, dx: Floats, dy: Floats, radius: Floats) -> Floats:
    """Signed distance in pixels to the outline, negative inside; its bounding box is centred on (0,
    0).
    """
    ax, ay = np.abs(dx), np.abs(dy)
    if shape == "circle":
        return np.hypot(dx, dy) - radius
    if shape == "square":
        return np.maximum(ax, ay) - 0.88 * radius
    if shape == "triangle":
        reach = 1.3 * radius
        below = dy - reach / 4
        return np.maximum(below, 0.8660254 * ax - 0.5 * below) - reach / 2
    if shape == "star":
        return _star_distance(dx, dy, 1.35 * radius)
    if shape == "cross":
        arm, reach = 0.36 * radius, 1.05 * radius
        return np.minimum(
            np.maximum(ax - reach, ay - arm), np.maximum(ax - arm, ay - reach)
        ).astype(np.float32)
    raise ValueError(f"unknown shape {shape!r}")


def _star_distance(dx: Floats, dy: Floats, reach: Floats) -> Floats:
    """Distance to a five-pointed star with a point upwards: one fold of its ten edges."""
    dy = dy - 0.095 * reach  # the box of an upright star is not centred on its centre
    wedge = np.float32(2 * np.pi / 5)
    angle = np.arctan2(dx, -dy)
    angle = np.abs(angle - wedge * np.round(angle / wedge))
    rho = np.hypot(dx, dy)
    px, py = rho * np.cos(angle), rho * np.sin(angle)
    inner_x, inner_y = 0.45 * np.cos(wedge / 2), 0.45 * np.sin(wedge / 2)
    ex, ey = inner_x - 1.0, inner_y
    length = np.hypot(ex, ey)
    return ((px - reach) * ey - py * ex).astype(np.float32) / np.float32(length)


def paint(scene: Scene, *, frames: slice = slice(None)) -> tuple[Floats, Floats]:
    """Pixels [F, H, W, 3] in [0, 255] and the distance [F, H, W] to the nearest thing."""
    y, x = np.mgrid[0 : scene.height, 0 : scene.width].astype(np.float32) + np.float32(0.5)
    count = len(range(scene.frames)[frames])
    fraction = y[:, :1, None] / np.float32(scene.height)
    first, last = (np.float32(scene.background_rgb[i]) for i in (0, -1))
    ground = first + (last - first) * fraction
    pixels = np.broadcast_to(ground, (count, scene.height, scene.width, 3)).astype(np.float32)
    nearest = np.full((count, scene.height, scene.width), 1e3, np.float32)
    for thing in scene.things:
        track = thing.track
        cx, cy, radius = (
            a[frames].astype(np.float32)[:, None, None] for a in (track.x, track.y, track.radius)
        )
        distance = shape_distance(thing.shape, x - cx, y - cy, radius)
        alpha = np.clip(0.5 - distance, 0, 1)[..., None]
        pixels += alpha * (np.float32(thing.rgb) - pixels)
        nearest = np.minimum(nearest, distance)
    return pixels, nearest


def audio_latents(frames: int) -> int:
    """Audio latents of a clip of `frames` frames (never a tie, so plain rounding is exact)."""
    return round(frames / FPS * 40)


def sound(scene: Scene) -> Floats:
    """Stereo sound [2, samples]: a tone for each thing, panned by x, and strikes at contacts."""
    samples = audio_latents(scene.frames) * HOP
    out = np.zeros((2, samples), np.float32)
    if scene.silent:
        return out
    seconds = np.arange(samples, dtype=np.float64) / SAMPLE_RATE
    at = np.clip(seconds * FPS, 0, scene.frames - 1)
    knots = np.arange(scene.frames)
    for thing in scene.things:
        track = thing.track
        turn = np.interp(at, knots, np.clip(track.x / scene.width, 0, 1)) * (np.pi / 2)
        level = np.interp(at, knots, track.radius / 28.0) * (
            0.13 if thing.motion == "still" else 0.3
        )
        voice = np.sin(2 * np.pi * PITCHES[thing.shape] * seconds) * level / len(scene.things)
        for hit in track.hits:
            start = round(hit / FPS * 40) * HOP  # on the latent grid, so that strikes look alike
            since = seconds[start:] - start / SAMPLE_RATE
            ring = sum(np.sin(2 * np.pi * hz * since) for hz in STRIKE_HZ)
            voice[start:] += 0.3 * ring * np.exp(-since / STRIKE_DECAY_S)
        out[0] += (voice * np.cos(turn)).astype(np.float32)
        out[1] += (voice * np.sin(turn)).astype(np.float32)
    return np.clip(out, -1, 1)
