"""How long a render still takes, from what it has taken so far."""

from __future__ import annotations

import time
from collections.abc import Callable

from h3farm.engine import costs
from h3farm.engine.spec import RenderSpec


class Estimate:
    """Learns the machine's speed from the share of a phase that is done.

    While denoising, decoding the video is added from the ratio of the two phases' work. Encoding,
    sound and assembling are short beside these, and count only while they run.
    """

    def __init__(
        self,
        networks: costs.Networks,
        spec: RenderSpec,
        text_rows: int,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is measured yet. now: a monotonic clock in seconds."""
        work = costs.work_by_phase(networks, spec, text_rows)
        self._decode_by_denoise = work["decode_video"] / work["denoise"]
        self._now = now
        self._phase = ""
        self._began = 0.0
        self._last: float | None = None

    def remaining_s(self, phase: str, share: float) -> float | None:
        """Seconds that are left when `share` (0 to 1) of a phase is done.

        None before denoising has come a way: how fast a prompt is encoded says little about it.
        """
        now = self._now()
        if phase != self._phase or share <= 0:
            # What comes before the first step (modulation tables) is not part of its time.
            self._phase, self._began = phase, now
        elif phase not in ("check", "encode"):
            whole = (now - self._began) / share
            self._last = whole * (1 - share)
            if phase == "denoise":
                self._last += whole * self._decode_by_denoise
        return None if self._last is None else round(self._last, 1)
