"""What is to be rendered: `RenderSpec`, parsed once at the edge and trusted from there on.

JSON form: one object with the fields of `FIELDS`. The length is given as `frames` or as `seconds`
and goes up to the model's 17k + 5 grid; the object written back holds the frames that will be made,
and what was asked as `frames_asked` or `seconds_asked`. JSON knows one kind of number, so 20.0 is
taken where a whole number is wanted; true is not a number, and a text is never read as one.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from h3farm.engine._spec_fields import (
    FIELDS,
    MAX_AREA,
    MAX_FRAMES,
    MAX_PROMPT,
    MAX_SECONDS,
    MAX_SEED,
    Field,
)
from h3farm.engine.geometry import (
    FPS,
    MAX_ASPECT,
    MAX_PIXELS,
    MIN_FRAMES,
    align_frames,
    frames_for_seconds,
)

__all__ = [
    "FIELDS",
    "MAX_AREA",
    "MAX_FRAMES",
    "MAX_PROMPT",
    "MAX_SECONDS",
    "MAX_SEED",
    "Field",
    "RenderSpec",
    "SpecError",
    "draw_seed",
    "field_named",
]

TRAINED_SECONDS = (4, 15)

_BY_NAME = {field.name: field for field in FIELDS}
_LENGTH = ("frames", "seconds", "frames_asked", "seconds_asked")
_UNGUIDED = ("cfg", "cfg_scale", "guidance", "guidance_scale", "negative_prompt")
_LATER_FIELDS = ("first_frame", "last_frame", "references", "loras", "segments")
_LATER_CHOICES = {"task": ("fl2va", "ref2va"), "preset": ("balanced", "draft")}


class SpecError(ValueError):
    """A spec that cannot be rendered. Its text is one sentence; the parts are for a form.

    field: the field at fault ("" for the whole); given: the value as it came; allowed: what may be.
    """

    def __init__(self, field: str, given: object, allowed: str, sentence: str = "") -> None:
        """`sentence` replaces the usual "<field> must be <allowed>, got <given>"."""
        super().__init__(sentence or f"{field} must be {allowed}, got {_shown(given)}")
        self.field = field
        self.given = given
        self.allowed = allowed


def field_named(name: str) -> Field:
    """The row of `FIELDS` for a name; KeyError for a name that is none."""
    return _BY_NAME[name]


def draw_seed() -> int:
    """A seed for `seed: -1`: 32 bits, since no more reach the noise."""
    return secrets.randbelow(2**32)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderSpec:
    """One render, complete and valid: constructing one with a wrong value raises SpecError.

    frames: what will be made, on the grid 17k + 5 from 22 up. `frames_asked` is set when a number
    off the grid was asked for, `seconds_asked` when the length was given in seconds.
    steps: evaluations of the denoiser. The reference pipeline counts the points of its sigma grid,
    the final 0 included: its num_inference_steps is steps + 1.
    """

    prompt: str
    model: str
    task: str = "t2va"
    width: int = 864
    height: int = 480
    frames: int = 124
    frames_asked: int | None = None
    seconds_asked: float | None = None
    steps: int = 20
    seed: int = -1
    video_shift: float = 12.0
    audio_shift: float = 3.0
    preset: str = "reference"
    audio: bool = True
    keep_frames: bool = False
    keep_latents: bool = False
    version: int = 1

    def __post_init__(self) -> None:
        """Check every field and give it its own type (12 as a shift is 12.0)."""
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if value is not None or item.name not in ("frames_asked", "seconds_asked"):
                object.__setattr__(self, item.name, _checked(_BY_NAME[item.name], value))
        _check_canvas(self.width, self.height)
        self._check_length()

    def _check_length(self) -> None:
        """The frames are on the grid, and are what was asked for leads to."""
        if self.frames_asked is not None and self.seconds_asked is not None:
            raise _both("frames_asked", "seconds_asked", self.seconds_asked)
        made = _on_grid(self.frames)
        if self.seconds_asked is not None:
            made = _frames_of(self.seconds_asked)
        elif self.frames_asked is not None:
            made = _on_grid(self.frames_asked)
        if made != self.frames:
            raise SpecError("frames", self.frames, f"{made}, the model's length for what was asked")

    @classmethod
    def from_json(cls, obj: object) -> RenderSpec:
        """The spec that a decoded JSON object describes; SpecError names the first fault.

        `frames` (any number, up to the grid) or `seconds` gives the length; without both it is the
        default. A length field that is null counts as absent.
        """
        if not isinstance(obj, Mapping):
            raise SpecError(
                "", obj, "an object", f"a spec must be a JSON object, got {_shown(obj)}"
            )
        given = {str(name): value for name, value in obj.items()}
        for name, value in given.items():
            _check_known(name, value)
        length = _parse_length(given)
        values = {name: value for name, value in given.items() if name not in _LENGTH}
        for name in ("prompt", "model"):
            if name not in values:
                raise SpecError(
                    name, None, _BY_NAME[name].allowed, f"{name} is missing: a spec must have one"
                )
        return cls(**values, **length)  # type: ignore[arg-type]  # the types are checked there

    def to_json(self) -> dict[str, object]:
        """A dict of JSON values, a key for every field; `from_json` gives an equal spec back."""
        return dataclasses.asdict(self)

    @property
    def hash(self) -> str:
        """Names the work: 64 hex digits over every field but what was asked before the grid."""
        work = {
            k: v for k, v in self.to_json().items() if k not in ("frames_asked", "seconds_asked")
        }
        text = json.dumps(work, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @property
    def duration_s(self) -> float:
        """Length of the video that will be made."""
        return self.frames / FPS

    def with_seed(self, draw: Callable[[], int] = draw_seed) -> RenderSpec:
        """This spec with a drawn seed in place of -1, so that what is stored can be made again."""
        return self if self.seed >= 0 else dataclasses.replace(self, seed=draw())

    def warnings(self) -> tuple[str, ...]:
        """Sentences about what is allowed but outside of what the model was trained on."""
        found = []
        low, high = TRAINED_SECONDS
        if not low <= self.duration_s <= high:
            side = "shorter" if self.duration_s < low else "longer"
            found.append(
                f"{self.frames} frames ({self.duration_s:.1f} s) are {side} than the {low} to "
                f"{high} seconds the model was trained on"
            )
        if self.width * self.height > MAX_PIXELS:
            found.append(
                f"a canvas of {self.width}x{self.height} is larger than the 1344x768 the model was "
                "trained on"
            )
        if max(self.width, self.height) > MAX_ASPECT * min(self.width, self.height):
            found.append(
                f"a canvas of {self.width}x{self.height} is narrower than the 1:{MAX_ASPECT:.0f} "
                "the model was trained on"
            )
        return tuple(found)


def _parse_length(given: Mapping[str, object]) -> dict[str, object]:
    """frames, frames_asked and seconds_asked from whatever of the four length fields is given."""
    asked = {name: given[name] for name in _LENGTH if given.get(name) is not None}
    if "seconds" in asked:
        other = next((name for name in asked if name != "seconds"), None)
        if other:
            raise _both(other, "seconds", asked["seconds"])
        seconds = _number(_BY_NAME["seconds"], asked["seconds"])
        return {"frames": _frames_of(seconds), "seconds_asked": seconds}
    if "frames" not in asked:
        return asked  # a spec of defaults; what was asked without what is made is found out later
    frames = _whole(_BY_NAME["frames"], asked["frames"])
    if len(asked) == 1 and _on_grid(frames) != frames:
        return {"frames": _on_grid(frames), "frames_asked": frames}
    return asked


def _on_grid(frames: int) -> int:
    """The model's shortest length of at least so many frames."""
    return max(MIN_FRAMES, align_frames(frames))


def _frames_of(seconds: float) -> int:
    """The model's shortest length that lasts at least so long."""
    return max(MIN_FRAMES, frames_for_seconds(seconds))


def _both(first: str, second: str, given: object) -> SpecError:
    sentence = f"a spec must have {first} or {second}, not both, got {second} {_shown(given)}"
    return SpecError(second, given, f"absent when {first} is given", sentence)


def _check_known(name: str, given: object) -> None:
    """Refuse a field there is none of, in words that help."""
    if name in _BY_NAME:
        return
    allowed = ", ".join(field.name for field in FIELDS if field.group != "record")
    if name.lower() in _UNGUIDED:
        reason = (
            f"{name} has no meaning here: the model is guidance-distilled, it has neither a "
            "guidance scale nor a negative prompt"
        )
    elif name in _LATER_FIELDS:
        reason = f"{name} is not in this version yet: it renders from text alone"
    else:
        close = difflib.get_close_matches(name, _BY_NAME, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {allowed}"
        reason = f"{_cut(_printable(name))} is not a field of a spec: {hint}"
    raise SpecError(name, given, f"one of {allowed}", reason)


def _checked(field: Field, value: object) -> str | int | float | bool:
    """`value` as the field's own type, or SpecError."""
    if field.type == "switch":
        if isinstance(value, bool):
            return value
        raise SpecError(field.name, value, field.allowed)
    if field.type == "integer":
        return _whole(field, value)
    if field.type == "number":
        return _number(field, value)
    return _choice(field, value) if field.type == "choice" else _text(field, value)


def _whole(field: Field, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(field.name, value, field.allowed)
    _check_bounds(field, value)
    if field.multiple_of and value % field.multiple_of:
        below = value - value % field.multiple_of
        near = [n for n in (below, below + field.multiple_of) if _within(field, n)]
        nearest = f"nearest are {near[0]} and {near[1]}" if near[1:] else f"nearest is {near[0]}"
        sentence = f"{field.name} must be {field.allowed}, got {value}: {nearest}"
        raise SpecError(field.name, value, field.allowed, sentence)
    return value


def _number(field: Field, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(field.name, value, field.allowed)
    _check_bounds(field, value)
    return float(value)


def _check_bounds(field: Field, value: float) -> None:
    if not _within(field, value):  # true for NaN too
        raise SpecError(field.name, value, field.allowed)


def _within(field: Field, value: float) -> bool:
    low = -math.inf if field.minimum is None else field.minimum
    return low <= value <= (math.inf if field.maximum is None else field.maximum)


def _choice(field: Field, value: object) -> str:
    if isinstance(value, str) and value in field.choices:
        return value
    later = _LATER_CHOICES.get(field.name, ())
    if isinstance(value, str) and value in later:
        sentence = f"{field.name} {value} is not in this version yet: it has {field.allowed}"
        raise SpecError(field.name, value, field.allowed, sentence)
    raise SpecError(field.name, value, field.allowed)


def _text(field: Field, value: object) -> str:
    """A text that can be stored, shown and handed to a program; kept as it is, spaces included."""
    if not isinstance(value, str):
        raise SpecError(field.name, value, field.allowed)
    if not value.strip():
        raise SpecError(
            field.name, value, field.allowed, f"{field.name} must not be empty or only spaces"
        )
    if field.maximum is not None and len(value) > field.maximum:
        sentence = f"{field.name} must have at most {field.maximum} characters, got {len(value)}"
        raise SpecError(field.name, value, field.allowed, sentence)
    if bad := _unfit(value):
        raise SpecError(
            field.name, value, field.allowed, f"{field.name} must be plain text, got {bad}"
        )
    if field.name == "model" and (not value.isprintable() or set(value) & {"/", "\\"}):
        allowed = "the name of a model folder, not a path"
        raise SpecError(field.name, value, allowed)
    return value


def _unfit(text: str) -> str:
    """What in a text no file and no tokenizer could take, and where; "" when there is nothing."""
    for index, char in enumerate(text):
        if char == "\0":
            return f"a NUL character at position {index}"
        if "\ud800" <= char <= "\udfff":
            return f"half a surrogate pair (U+{ord(char):04X}) at position {index}"
    return ""


def _check_canvas(width: int, height: int) -> None:
    if width * height > MAX_AREA:
        allowed = f"at most {MAX_AREA} pixels (4096x2304) together with height"
        sentence = (
            f"width x height must be at most {MAX_AREA} pixels (4096x2304), got {width}x{height}, "
            f"which is {width * height}"
        )
        raise SpecError("width", width, allowed, sentence)


def _shown(value: object) -> str:
    """A given value as it would stand in JSON, short enough for a sentence."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    if value is None or isinstance(value, bool | int | float | str):
        return _cut(_printable(json.dumps(value, ensure_ascii=False)))
    return f"an {'object' if isinstance(value, Mapping) else 'array'}"


def _printable(text: str) -> str:
    """Lone surrogates as escapes: a sentence must be fit for any terminal and file."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
