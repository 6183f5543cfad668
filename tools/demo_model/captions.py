"""Words for scenes: many wordings of the same facts, some of them kept for scoring."""

from dataclasses import dataclass

import numpy as np

from .world import Scene, Thing

Rng = np.random.Generator

COLOURS = {
    "red": ("red", "red", "crimson", "scarlet"),
    "green": ("green", "green", "emerald"),
    "blue": ("blue", "blue", "cobalt"),
    "yellow": ("yellow", "yellow", "golden"),
    "cyan": ("cyan", "cyan", "turquoise", "aqua"),
    "magenta": ("magenta", "magenta", "pink", "fuchsia"),
    "white": ("white", "white", "snow-white"),
    "black": ("black", "black", "jet-black"),
    "gray": ("gray", "grey"),
}
SHAPES = {
    "circle": ("circle", "circle", "disc", "ball", "dot"),
    "square": ("square", "square", "box", "block"),
    "triangle": ("triangle", "triangle", "wedge"),
    "star": ("star", "star", "five-pointed star"),
    "cross": ("cross", "cross", "plus sign"),
}
SIZES = {"small": ("small", "little"), "large": ("large", "big"), "": ("",)}
# Third person, participle.
MOTIONS = {
    "left": (
        ("moves left", "moving left"),
        ("moves to the left", "moving to the left"),
        ("drifts to the left", "drifting to the left"),
        ("slides left", "sliding left"),
        ("travels leftwards", "travelling leftwards"),
        ("glides from right to left", "gliding from right to left"),
    ),
    "right": (
        ("moves right", "moving right"),
        ("moves to the right", "moving to the right"),
        ("drifts to the right", "drifting to the right"),
        ("slides right", "sliding right"),
        ("travels rightwards", "travelling rightwards"),
        ("glides from left to right", "gliding from left to right"),
    ),
    "up": (
        ("moves up", "moving up"),
        ("rises", "rising"),
        ("drifts upwards", "drifting upwards"),
        ("floats to the top", "floating to the top"),
        ("climbs", "climbing"),
    ),
    "down": (
        ("moves down", "moving down"),
        ("sinks", "sinking"),
        ("drifts downwards", "drifting downwards"),
        ("slides to the bottom", "sliding to the bottom"),
        ("descends", "descending"),
    ),
    "bounce": (
        ("bounces", "bouncing"),
        ("bounces up and down", "bouncing up and down"),
        ("bounces on the floor", "bouncing on the floor"),
        ("hops", "hopping"),
    ),
    "orbit": (
        ("orbits the centre", "orbiting the centre"),
        ("circles around the middle", "circling around the middle"),
        ("goes round and round", "going round and round"),
        ("moves in a circle", "moving in a circle"),
    ),
    "grow": (
        ("grows", "growing"),
        ("gets bigger", "getting bigger"),
        ("expands", "expanding"),
        ("becomes larger", "becoming larger"),
    ),
    "shrink": (
        ("shrinks", "shrinking"),
        ("gets smaller", "getting smaller"),
        ("contracts", "contracting"),
        ("becomes smaller", "becoming smaller"),
    ),
    "still": (
        ("stays still", "staying still"),
        ("does not move", "not moving"),
        ("rests", "resting"),
        ("stands still", "standing still"),
        ("stays in place", "staying in place"),
    ),
}
GRADES = ("{a} to {b} gradient", "{a}-to-{b}", "graded {a} to {b}", "{a} fading to {b}")
QUIET = (", silent", ", no sound", ", without sound", " in silence", ", muted")
AUDIBLE = (", with sound", ", with a tone", ", humming")

# {s} things with finite verbs, {p} things with participles, {b} background.
TEMPLATES = (
    "{s} on a {b} background",
    "{p} on a {b} background",
    "{b} background; {p}",
    "{b} background, {p}",
    "on a {b} background {s}",
    "{p}, {b} background",
    "against a {b} backdrop, {s}",
    "{p} in front of a {b} backdrop",
    "a video of {p} over a {b} background",
    "{s}. The background is {b}",
    "the background is {b}. {s}",
    "we see {p} on {b}",
    "{p}, {b} backdrop",
    "background {b}: {p}",
)
HELD_OUT_TEMPLATES = (
    "in front of a {b} backdrop {s}",
    "the background is {b}, and {s}",
    "a video of {p}, {b} background",
    "{b} backdrop. {s}",
    "we see {p} against a {b} backdrop",
    "over a {b} background {s}",
)

CHINESE_COLOURS = {
    "red": "红色",
    "green": "绿色",
    "blue": "蓝色",
    "yellow": "黄色",
    "cyan": "青色",
    "magenta": "粉色",
    "white": "白色",
    "black": "黑色",
    "gray": "灰色",
}
CHINESE_SHAPES = {
    "circle": "圆形",
    "square": "方块",
    "triangle": "三角形",
    "star": "星星",
    "cross": "十字",
}
CHINESE_MOTIONS = {
    "left": ("向左移动", "往左移动"),
    "right": ("向右移动", "往右移动"),
    "up": ("向上移动", "上升"),
    "down": ("向下移动", "下降"),
    "bounce": ("弹跳", "上下弹跳"),
    "orbit": ("绕圈", "绕着中心转"),
    "grow": ("变大", "慢慢变大"),
    "shrink": ("变小", "慢慢变小"),
    "still": ("静止不动", "不动"),
}
CHINESE_SIZES = {"small": "小", "large": "大", "": ""}
CHINESE_TEMPLATES = ("{s}，{b}背景", "{b}背景，{s}", "在{b}背景上，{s}", "{b}背景上{s}")
CHINESE_QUIET = ("，无声", "，静音")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Which wordings a caption may use: share of Chinese, templates kept for scoring."""

    chinese: float = 0.12
    held_out: bool = False


def _pick(rng: Rng, options: tuple[str, ...]) -> str:
    return options[int(rng.integers(len(options)))]


def _article(words: str) -> str:
    return ("an " if words[0] in "aeiou" else "a ") + words


def _english_thing(rng: Rng, thing: Thing, *, finite: bool, article: bool) -> str:
    size = _pick(rng, SIZES[thing.size]) if rng.random() < 0.8 else ""
    noun = f"{_pick(rng, COLOURS[thing.colour])} {_pick(rng, SHAPES[thing.shape])}"
    verbs = MOTIONS[thing.motion]
    verb = verbs[int(rng.integers(len(verbs)))][0 if finite else 1]
    noun = f"{size} {noun}".strip()
    return f"{_article(noun) if article else noun} {verb}"


def _english_background(rng: Rng, names: tuple[str, ...]) -> str:
    words = [_pick(rng, COLOURS[name]) for name in names]
    if len(words) == 1:
        return words[0]
    return _pick(rng, GRADES).format(a=words[0], b=words[1])


def english(rng: Rng, scene: Scene, *, held_out: bool = False) -> str:
    """One English wording of a scene."""
    template = _pick(rng, HELD_OUT_TEMPLATES if held_out else TEMPLATES)
    article = "{s}" in template or bool(rng.random() < 0.7)
    things = [
        _english_thing(rng, thing, finite="{s}" in template, article=article)
        for thing in scene.things
    ]
    joined = " and ".join([", ".join(things[:-1]), things[-1]] if len(things) > 1 else things)
    background = _english_background(rng, scene.background)
    text = template.format(s=joined, p=joined, b=background)
    if scene.silent:
        text += _pick(rng, QUIET)
    elif rng.random() < 0.15:
        text += _pick(rng, AUDIBLE)
    if rng.random() < 0.5:
        text = text[0].upper() + text[1:]
    return text + ("." if rng.random() < 0.4 else "")


def chinese(rng: Rng, scene: Scene) -> str:
    """One Chinese wording of a scene."""
    things = "和".join(
        f"一个{CHINESE_COLOURS[thing.colour]}的{CHINESE_SIZES[thing.size]}"
        f"{CHINESE_SHAPES[thing.shape]}{_pick(rng, CHINESE_MOTIONS[thing.motion])}"
        for thing in scene.things
    )
    colours = [CHINESE_COLOURS[name] for name in scene.background]
    background = colours[0] if len(colours) == 1 else f"{colours[0]}到{colours[1]}渐变"
    text = _pick(rng, CHINESE_TEMPLATES).format(s=things, b=background)
    if scene.silent:
        text += _pick(rng, CHINESE_QUIET)
    return text + ("。" if rng.random() < 0.4 else "")


def caption(rng: Rng, scene: Scene, style: Style | None = None) -> str:
    """A wording of a scene, drawn by `style`."""
    style = style or Style()
    if rng.random() < style.chinese:
        return chinese(rng, scene)
    return english(rng, scene, held_out=style.held_out)
