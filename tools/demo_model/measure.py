"""Reads a clip back: what moves, its colour, shape and way, over what, and how it sounds.

numpy only, no network: thresholds, boxes, templates, a Fourier transform. On true clips it is right
every time (`python -m tools.demo_model.measure` shows it); what it misreads in a render is the
render's fault.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .geometry import Shape
from .scenes import Rng, lone_scene
from .world import (
    CANVASES,
    HOP,
    LENGTHS,
    LINEAR,
    PALETTE,
    PITCHES,
    SAMPLE_RATE,
    SHAPES,
    Scene,
    paint,
    shape_distance,
    sound,
)

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]

FIGURE_DISTANCE = 60.0  # RGB distance from the background that makes a pixel part of a thing
BOX = 48  # side of the grid on which shapes are compared
SILENCE_RMS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a clip shows: names of the world's tables, or "none"."""

    background: tuple[str, ...]
    colour: str
    shape: str
    motion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """What is heard: the shape whose pitch it is ("" for silence), strikes, way of panning."""

    voice: str
    clicks: int
    pan: int


def nearest_colour(rgb: Floats) -> str:
    """Name of the palette colour closest to an RGB triple."""
    names = list(PALETTE)
    distances = [float(np.linalg.norm(rgb - np.float32(PALETTE[name]))) for name in names]
    return names[int(np.argmin(distances))]


def background_rows(frames: Pixels) -> Floats:
    """The background's colour in each row [H, 3]: a grade through the medians of both sides."""
    sides = np.concatenate([frames[:, :, :6], frames[:, :, -6:]], axis=2).astype(np.float32)
    rows = np.median(sides, axis=(0, 2))
    y = np.linspace(-1, 1, len(rows))
    slope, level = np.polyfit(y, rows, 1)
    if np.linalg.norm(2 * slope) < 60:
        slope = np.zeros(3)
    return (level + y[:, None] * slope).astype(np.float32)


def background_names(rows: Floats) -> tuple[str, ...]:
    """One colour name, or the two ends of a grade."""
    first, last = nearest_colour(rows[0]), nearest_colour(rows[-1])
    return (first,) if first == last else (first, last)


def figure(frames: Pixels, rows: Floats) -> Mask:
    """Pixels [F, H, W] that stand out from the background."""
    difference = frames.astype(np.float32) - rows[None, :, None]
    return np.linalg.norm(difference, axis=-1) > FIGURE_DISTANCE


def boxes(mask: Mask) -> Floats:
    """Left, top, right, bottom of each frame's figure [F, 4]; NaN without one, specks apart."""
    found = np.full((len(mask), 4), np.nan, np.float32)
    for i, frame in enumerate(mask):
        if frame.sum() < 60:
            continue
        for axis, (low, high) in ((0, (0, 2)), (1, (1, 3))):
            line = np.flatnonzero(frame.sum(axis=axis) >= 3)
            if len(line):
                found[i, low], found[i, high] = line[0], line[-1] + 1
    return found


def motion_of(found: Floats) -> str:
    """The motion that a sequence of boxes shows; "none" without a figure."""
    found = found[~np.isnan(found).any(axis=1)]
    if len(found) < 6:
        return "none"
    centre = np.stack([found[:, 0] + found[:, 2], found[:, 1] + found[:, 3]], 1) / 2
    side = np.sqrt((found[:, 2] - found[:, 0]) * (found[:, 3] - found[:, 1]))
    kernel = np.ones(3) / 3
    path = np.stack([np.convolve(centre[:, i], kernel, "valid") for i in (0, 1)], 1)
    growth = side[-3:].mean() / side[:3].mean()
    width, height = np.ptp(path, axis=0)
    net = path[-1] - path[0]
    if growth > 1.4 or growth < 0.7:
        return "grow" if growth > 1 else "shrink"
    if max(width, height) < 8:
        return "still"
    if min(width, height) > 0.3 * max(width, height):
        return "orbit"
    if height > width and np.abs(np.diff(path[:, 1])).sum() > 1.35 * abs(net[1]) + 4:
        return "bounce"
    axis = int(height > width)
    return next(name for name, way in LINEAR.items() if way[axis] == np.sign(net[axis]))


def _on_grid(mask: Mask, box: Floats) -> Floats:
    """A frame's figure resampled to the BOX x BOX grid over its box."""
    left, top, right, bottom = box
    x = np.clip(left + (np.arange(BOX) + 0.5) / BOX * (right - left), 0, mask.shape[1] - 1)
    y = np.clip(top + (np.arange(BOX) + 0.5) / BOX * (bottom - top), 0, mask.shape[0] - 1)
    return mask[y.astype(int)[:, None], x.astype(int)[None]].astype(np.float32)


def _templates() -> dict[str, Floats]:
    """Each shape drawn large and brought to its box."""
    y, x = np.mgrid[-200:200, -200:200].astype(np.float32) + np.float32(0.5)
    out = {}
    for shape in SHAPES:
        mask = shape_distance(shape, x, y, np.float32(120)) < 0
        out[shape] = _on_grid(mask, boxes(mask[None])[0])
    return out


TEMPLATES = _templates()


def shape_of(mask: Mask, found: Floats) -> str:
    """The shape that overlaps most with the mean figure of the frames that show it whole."""
    height, width = mask.shape[1:]
    inside = (
        (found[:, 0] > 1)
        & (found[:, 1] > 1)
        & (found[:, 2] < width - 1)
        & (found[:, 3] < height - 1)
    )
    usable = np.flatnonzero(inside) if inside.any() else np.flatnonzero(~np.isnan(found[:, 0]))
    if not len(usable):
        return "none"
    mean = np.mean([_on_grid(mask[i], found[i]) for i in usable], axis=0)
    overlap = {
        name: np.minimum(mean, template).sum() / np.maximum(mean, template).sum()
        for name, template in TEMPLATES.items()
    }
    return max(overlap, key=overlap.__getitem__)


def look(frames: Pixels) -> Reading:
    """Read frames [F, H, W, 3] that show one thing."""
    rows = background_rows(frames)
    mask = figure(frames, rows)
    found = boxes(mask)
    core = mask.copy()
    for shift, axis in ((2, 1), (-2, 1), (2, 2), (-2, 2)):
        core &= np.roll(mask, shift, axis=axis)
    painted = frames[core if core.any() else mask]
    colour = (
        nearest_colour(np.median(painted, axis=0).astype(np.float32)) if len(painted) else "none"
    )
    return Reading(
        background=background_names(rows),
        colour=colour,
        shape=shape_of(mask, found),
        motion=motion_of(found),
    )


def listen(wave: Floats) -> Hearing:
    """Read a stereo sound [2, samples] at 32 kHz."""
    if np.sqrt(np.mean(np.square(wave))) < SILENCE_RMS:
        return Hearing(voice="", clicks=0, pan=0)
    mono = wave.sum(axis=0)
    spectrum = np.abs(np.fft.rfft(mono * np.hanning(len(mono))))
    hz = np.fft.rfftfreq(len(mono), 1 / SAMPLE_RATE)
    tone = np.where((hz > 150) & (hz < 1500), spectrum, 0)
    peak = float(hz[int(np.argmax(tone))])
    voice = min(PITCHES, key=lambda name: abs(np.log(PITCHES[name] / peak)))
    return Hearing(voice=voice, clicks=_clicks(mono), pan=_pan(wave))


def _clicks(mono: Floats) -> int:
    """Onsets in the strikes' band, by 1/40 s: above the tone's leakage, quiet just before."""
    slots = mono[: len(mono) // HOP * HOP].reshape(-1, HOP)
    power = np.abs(np.fft.rfft(slots, axis=1)) ** 2
    band = power[:, 45:75].sum(axis=1)  # 1.8 to 3 kHz
    loud = band > np.maximum(0.05 * power.sum(axis=1).max(), 30.0)
    return int(loud[0]) + int((loud[1:] & ~loud[:-1]).sum())


def _pan(wave: Floats) -> int:
    third = wave.shape[1] // 3
    sides = [np.square(part).mean(axis=1) + 1e-9 for part in (wave[:, :third], wave[:, -third:])]
    turn = float(np.log(sides[1][1] / sides[1][0]) - np.log(sides[0][1] / sides[0][0]))
    return 0 if abs(turn) < 0.4 else int(np.sign(turn))


def is_heard(heard: Hearing, scene: Scene) -> bool:
    """Whether the sound fits the lone thing: pitch, clicks of a bounce, panning; or silence."""
    if scene.silent:
        return heard.voice == ""
    thing = scene.things[0]
    good = heard.voice == thing.shape
    if thing.motion == "bounce":
        good &= heard.clicks >= 1
    if thing.motion in ("left", "right"):
        good &= heard.pan == LINEAR[thing.motion][0]
    return good


ASPECTS = ("colour", "direction", "shape", "background", "sound")


def verdict(frames: Pixels, wave: Floats, scene: Scene) -> dict[str, bool]:
    """Each aspect of a rendered lone scene: right or wrong."""
    seen, thing = look(frames), scene.things[0]
    return {
        "colour": seen.colour == thing.colour,
        "direction": seen.motion == thing.motion,
        "shape": seen.shape == thing.shape,
        "background": seen.background == scene.background,
        "sound": is_heard(listen(wave), scene),
    }


def to_bytes(pixels: Floats) -> Pixels:
    """Pixels in [0, 255] as a decoder rounds them."""
    return np.clip(np.round(pixels), 0, 255).astype(np.uint8)


def draw_lone(rng: Rng, *, held_out: bool = True) -> Scene:
    """A lone scene on any canvas and length, from the held-out combinations or the trained ones."""
    width, height = CANVASES[int(rng.integers(len(CANVASES)))]
    shape = Shape(width=width, height=height, frames=int(rng.choice(LENGTHS)))
    return lone_scene(rng, shape, held_out=held_out)


def main() -> None:
    """Measure true clips: every fraction must be 1."""
    rng = np.random.default_rng(7)
    verdicts = []
    for _ in range(200):
        scene = draw_lone(rng)
        verdicts.append(verdict(to_bytes(paint(scene)[0]), sound(scene), scene))
        if not all(verdicts[-1].values()):
            print(scene.things[0].shape, scene.things[0].motion, scene.background, verdicts[-1])
    for aspect in ASPECTS:
        print(f"{aspect:12s} {np.mean([v[aspect] for v in verdicts]):.3f}")


if __name__ == "__main__":
    main()
