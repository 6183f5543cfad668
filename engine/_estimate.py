"""How long a render still takes, from what it has taken so far."""

from __future__ import annotations

import time

from h3farm.engine import costs
from h3farm.engine.model import Model
from h3farm.engine.spec import RenderSpec


class Estimate:
    """Learns the machine's speed from the denoise steps and applies it to what is left.

    Encoding, sound and assembling are left out: they are short beside the other two.
    """

    def __init__(self, model: Model, spec: RenderSpec, text_rows: int) -> None:
        """The work of a step and of a clip; nothing is measured yet."""
        networks = costs.Networks(
            text_encoder=model.encoder_config,
            transformer=model.dit_config,
            video_vae=model.video_vae_config,
        )
        work = costs.work_by_phase(networks, spec, text_rows)
        self._step, self._clip = work["denoise"], work["decode_video"]
        self._steps = spec.steps
        self._clips = (spec.frames - 5) // 17
        self._phase_began: dict[str, float] = {}

    def remaining_s(self, phase: str, step: int, block: int, blocks: int) -> float | None:
        """Seconds that are left; None before anything long has been measured."""
        now = time.monotonic()
        took = now - self._phase_began.setdefault(phase, now)
        done = step + (block / blocks if blocks else 0.0)
        if phase not in ("denoise", "decode_video"):
            return 0.0 if phase in ("decode_audio", "assemble") else None
        if done <= 0:
            return None
        each = took / done
        if phase == "decode_video":
            return round(each * (self._clips - done), 1)
        decode = each * self._clip / self._step * self._clips
        return round(each * (self._steps - done) + decode, 1)
