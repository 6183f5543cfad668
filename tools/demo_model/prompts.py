"""The scenes and wordings that scores are taken on: held-out combinations in held-out templates."""

from dataclasses import dataclass

import numpy as np

from .captions import Style, caption
from .geometry import Shape
from .scenes import lone_scene
from .world import Scene

SEED = 5
# Canvas and length by turns: every second one the smallest, the others everything else.
TURNS = (
    (128, 128, 22),
    (192, 128, 22),
    (128, 128, 22),
    (128, 192, 22),
    (128, 128, 22),
    (128, 128, 39),
    (128, 128, 22),
    (192, 128, 56),
)
CHINESE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One scored render: what is asked, in words and in fact, and its noise seed."""

    scene: Scene
    words: str
    shape: Shape
    seed: int


def trials(count: int) -> list[Trial]:
    """The first `count` trials; always the same."""
    rng = np.random.default_rng(SEED)
    found = []
    for seed in range(count):
        width, height, frames = TURNS[seed % len(TURNS)]
        shape = Shape(width=width, height=height, frames=frames)
        scene = lone_scene(rng, shape, held_out=True)
        words = caption(rng, scene, Style(chinese=CHINESE, held_out=True))
        found.append(Trial(scene=scene, words=words, shape=shape, seed=seed))
    return found
