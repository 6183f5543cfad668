"""Draws scenes: things, paths, backgrounds; seeded, and split into trained and held out."""

import hashlib

import numpy as np

from .geometry import Shape
from .world import FOREGROUNDS, LINEAR, MOTIONS, PALETTE, SHAPES, Scene, Thing, Track

Rng = np.random.Generator

SIZES = {"": (26.0, 31.0), "small": (23.0, 25.0), "large": (32.0, 35.0)}
HELD_OUT = 0.06  # fraction of (shape, colour, motion, background) combinations never trained on


def is_held_out(shape: str, colour: str, motion: str, background: tuple[str, ...]) -> bool:
    """Whether this combination is held out: fixed by its name, whatever the seed."""
    key = f"{shape}/{colour}/{motion}/{'-'.join(background)}"
    return hashlib.sha256(key.encode()).digest()[0] < 256 * HELD_OUT


def contrast(colour: str, background: tuple[str, ...]) -> float:
    """The least RGB distance between a colour and any shade of a background from top to bottom."""
    first, last = (np.array(PALETTE[background[i]], float) for i in (0, -1))
    steps = np.linspace(0, 1, 9)[:, None]
    return float(np.linalg.norm(first + (last - first) * steps - PALETTE[colour], axis=1).min())


def draw_background(rng: Rng) -> tuple[str, ...]:
    """One colour name, or two for a background that is graded from top to bottom."""
    names = list(PALETTE)
    if rng.random() < 0.75:
        return (str(rng.choice(names)),)
    first, last = (str(name) for name in rng.choice(names, 2, replace=False))
    return first, last


def linear_track(
    rng: Rng, motion: str, length: int, radius: float, box: tuple[float, ...]
) -> Track:
    """Straight travel inside `box` (left, top, right, bottom) over most of its length."""
    left, top, right, bottom = box
    margin = min(0.95 * radius, 0.45 * (right - left), 0.45 * (bottom - top))
    low = np.array([left + margin, top + margin])
    high = np.array([right - margin, bottom - margin])
    middle = (low + high) / 2 + (high - low) * rng.uniform(-0.35, 0.35, 2)
    axis = 0 if LINEAR[motion][0] else 1
    travel = rng.uniform(0.55, 1.0) * (high - low)[axis]
    start = rng.uniform(low[axis], high[axis] - travel)
    path = start + travel * np.linspace(0, 1, length)
    if sum(LINEAR[motion]) < 0:
        path = path[::-1]
    points = np.repeat(middle[None], length, 0)
    points[:, axis] = path
    return _track(points, np.full(length, radius))


def through_track(rng: Rng, motion: str, shape: Shape, radius: float) -> Track:
    """Straight travel from anywhere, even out of the canvas, as continued clips have it."""
    start = rng.uniform(0.2, 0.8, 2) * (shape.width, shape.height)
    points = np.repeat(start[None], shape.frames, 0)
    axis = 0 if LINEAR[motion][0] else 1
    points[:, axis] += sum(LINEAR[motion]) * rng.uniform(1.6, 3.2) * np.arange(shape.frames)
    return _track(points, np.full(shape.frames, radius))


def bounce_track(rng: Rng, length: int, radius: float, size: tuple[int, int]) -> Track:
    """Falls to the floor and comes back; slow enough for four frames to one latent."""
    width, height = size
    period = rng.uniform(20, 24)
    drop = min(rng.uniform(34, 44), height - 2.0 * radius)
    phase = np.arange(length) / period + rng.uniform(-0.12, 0.12)
    x = width / 2 + rng.uniform(-0.3, 0.3) * (width - 2 * radius)
    y = height - radius - drop * np.abs(np.cos(np.pi * phase))
    offset = phase[0]
    hits = tuple(
        float((k + 0.5 - offset) * period)
        for k in range(-1, 4)
        if 0 <= (k + 0.5 - offset) * period < length - 1
    )
    return _track(np.stack([np.full(length, x), y], 1), np.full(length, radius), hits)


def orbit_track(rng: Rng, length: int, radius: float, size: tuple[int, int]) -> Track:
    """Clockwise around the middle of the canvas."""
    reach = min(rng.uniform(22, 30), min(size) / 2 - 0.75 * radius)
    angle = rng.uniform(0, 2 * np.pi) + 2 * np.pi * np.arange(length) / rng.uniform(34, 42)
    centre = np.array(size) / 2 + rng.uniform(-4, 4, 2)
    points = centre + reach * np.stack([np.cos(angle), np.sin(angle)], 1)
    return _track(points, np.full(length, radius))


def place_track(rng: Rng, motion: str, length: int, radius: float, size: tuple[int, int]) -> Track:
    """Stays at one place; grows or shrinks there when the motion says so."""
    width, height = size
    radii = np.full(length, radius)
    if motion in ("grow", "shrink"):
        low, high = rng.uniform(15, 19), rng.uniform(35, 42)
        radii = np.linspace(low, high, length)
        if motion == "shrink":
            radii = radii[::-1]
    room = np.maximum(np.array(size) / 2 - radii.max(), 0)
    at = np.array([width, height]) / 2 + rng.uniform(-1, 1, 2) * room
    return _track(np.repeat(at[None], length, 0), radii)


def _track(points: np.ndarray, radius: np.ndarray, hits: tuple[float, ...] = ()) -> Track:
    x, y = points.astype(np.float32).T
    return Track(x=x.copy(), y=y.copy(), radius=radius.astype(np.float32), hits=hits)


def draw_track(rng: Rng, motion: str, shape: Shape, radius: float) -> Track:
    """The path of a lone thing that stays on the canvas."""
    length, size = shape.frames, (shape.width, shape.height)
    if motion in LINEAR:
        return linear_track(rng, motion, length, radius, (0.0, 0.0, float(size[0]), float(size[1])))
    if motion == "bounce":
        return bounce_track(rng, length, radius, size)
    if motion == "orbit":
        return orbit_track(rng, length, radius, size)
    return place_track(rng, motion, length, radius, size)


def maybe_through(rng: Rng, motion: str, shape: Shape, radius: float, chance: float) -> Track:
    """Like `draw_track`, but straight paths may leave the canvas with this chance."""
    if motion in LINEAR and rng.random() < chance:
        return through_track(rng, motion, shape, radius)
    return draw_track(rng, motion, shape, radius)


def lone_scene(rng: Rng, shape: Shape, *, held_out: bool = False, through: float = 0.0) -> Scene:
    """A scene with one thing; `through` is the chance that a straight path may leave the canvas."""
    while True:
        background = draw_background(rng)
        kind, colour, motion = (str(rng.choice(names)) for names in (SHAPES, FOREGROUNDS, MOTIONS))
        if contrast(colour, background) < 110:
            continue
        if len(background) > 1 and contrast_of(background) < 100:
            continue
        if is_held_out(kind, colour, motion, background) == held_out:
            break
    size = ""
    if motion not in ("grow", "shrink") and rng.random() < 0.3:
        size = str(rng.choice(["small", "large"]))
    track = maybe_through(rng, motion, shape, rng.uniform(*SIZES[size]), through)
    rgb = PALETTE[colour]
    thing = Thing(shape=kind, colour=colour, motion=motion, track=track, rgb=rgb, size=size)
    return _scene(rng, shape, background, (thing,))


def contrast_of(background: tuple[str, ...]) -> float:
    """RGB distance between the two ends of a graded background."""
    first, last = (np.array(PALETTE[background[i]], float) for i in (0, -1))
    return float(np.linalg.norm(first - last))


def lane_scene(rng: Rng, shape: Shape, count: int) -> Scene:
    """Two or three things, each in a lane of its own, going straight along it or standing still."""
    width, height, length = shape.width, shape.height, shape.frames
    across = bool(width > height or (width == height and rng.random() < 0.5))  # lanes side by side
    ways = ["up", "down", "still"] if across else ["left", "right", "still"]
    edges = np.linspace(0, width if across else height, count + 1)
    good: list[str] = []
    while len(good) < count:
        background = draw_background(rng)
        good = [name for name in FOREGROUNDS if contrast(name, background) >= 110]
    colours = [str(name) for name in rng.choice(good, count, replace=False)]
    things = []
    for i, colour in enumerate(colours):
        low, high = float(edges[i]), float(edges[i + 1])
        box = (low, 0.0, high, float(height)) if across else (0.0, low, float(width), high)
        radius = min(rng.uniform(23, 26), 0.4 * (high - low))
        motion, kind = str(rng.choice(ways)), str(rng.choice(SHAPES))
        track = linear_track(rng, motion if motion in LINEAR else ways[0], length, radius, box)
        if motion == "still":
            points = np.repeat([[track.x.mean(), track.y.mean()]], length, 0)
            track = _track(points, np.full(length, radius))
        rgb = PALETTE[colour]
        things.append(Thing(shape=kind, colour=colour, motion=motion, track=track, rgb=rgb))
    return _scene(rng, shape, background, tuple(things))


def _scene(rng: Rng, shape: Shape, background: tuple[str, ...], things: tuple[Thing, ...]) -> Scene:
    return Scene(
        width=shape.width,
        height=shape.height,
        frames=shape.frames,
        background=background,
        background_rgb=tuple(PALETTE[name] for name in background),
        things=things,
        silent=bool(rng.random() < 0.15),
    )


def crowded_scene(rng: Rng, shape: Shape) -> Scene:
    """Things in loose colours over each other: what the video VAE trains on, for its many edges."""

    def loose(name: str) -> tuple[float, float, float]:
        if rng.random() < 0.25:
            red, green, blue = rng.uniform(0, 255, 3)
        else:
            red, green, blue = np.clip(rng.normal(PALETTE[name], 6), 0, 255)
        return float(red), float(green), float(blue)

    background = draw_background(rng)
    things = []
    for _ in range(int(rng.integers(1, 4))):
        colour, kind, motion = (str(rng.choice(names)) for names in (FOREGROUNDS, SHAPES, MOTIONS))
        track = maybe_through(rng, motion, shape, rng.uniform(22, 35), 0.5)
        rgb = loose(colour)
        things.append(Thing(shape=kind, colour=colour, motion=motion, track=track, rgb=rgb))
    return Scene(
        width=shape.width,
        height=shape.height,
        frames=shape.frames,
        background=background,
        background_rgb=tuple(loose(name) for name in background),
        things=tuple(things),
    )
