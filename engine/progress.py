"""How far a render has come: the one shape in which engine, worker, page and shell speak of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

PHASES = ("check", "encode", "denoise", "decode_video", "decode_audio", "assemble")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One moment of a render.

    `step` of `steps` counts what is finished: denoise steps in "denoise", clips in "decode_video",
    frames in "assemble"; `block` of `blocks` counts inside the running step (layers, blocks or
    tiles). Both totals are 0 where there is nothing to count. `remaining_s` is the estimate for the
    whole render, that it will not take longer than `remaining_p90_s` nine times of ten; both None
    until something has been measured. `unit_p90_s`: the p90 of the step, clip or phase that runs.
    """

    phase: str
    step: int = 0
    steps: int = 0
    block: int = 0
    blocks: int = 0
    elapsed_s: float = 0.0
    remaining_s: float | None = None
    remaining_p90_s: float | None = None
    unit_p90_s: float | None = None

    def to_json(self) -> dict[str, object]:
        """A dict of JSON values with a key per field."""
        return asdict(self)

    @classmethod
    def from_json(cls, obj: Mapping[str, object]) -> Progress:
        """The inverse of `to_json`; ValueError for anything it cannot have written."""
        phase = obj.get("phase")
        if phase not in PHASES:
            raise ValueError(f"progress has no phase {phase!r}: known are {', '.join(PHASES)}")
        return cls(
            phase=str(phase),
            step=_count(obj, "step"),
            steps=_count(obj, "steps"),
            block=_count(obj, "block"),
            blocks=_count(obj, "blocks"),
            elapsed_s=_seconds(obj.get("elapsed_s"), "elapsed_s"),
            remaining_s=_maybe_seconds(obj, "remaining_s"),
            remaining_p90_s=_maybe_seconds(obj, "remaining_p90_s"),
            unit_p90_s=_maybe_seconds(obj, "unit_p90_s"),
        )


def _count(obj: Mapping[str, object], name: str) -> int:
    value = obj.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"progress needs a whole number as {name}, got {value!r}")
    return value


def _maybe_seconds(obj: Mapping[str, object], name: str) -> float | None:
    return None if (value := obj.get(name)) is None else _seconds(value, name)


def _seconds(value: object, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"progress needs seconds as {name}, got {value!r}")
    return float(value)
