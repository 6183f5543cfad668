"""The ladder: after want of memory or a crash a job is tried again with one named change.

Never as it was, and once for want of memory: what fails again fails. The rung with which a job was
done in the end is remembered for its machine, model and canvas, so that the next one begins there.
"""

import json
import logging
import os
import platform
from collections import Counter
from pathlib import Path
from typing import Any

from h3farm.engine.durable import write_durably
from h3farm.engine.errors import EngineError
from h3farm.engine.limits import Limits
from h3farm.engine.machine import Machine
from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue import RenderJob

logger = logging.getLogger(__name__)


# From the top down; each holds the changes above it too. None of them changes a bit of the result.
ONE_NETWORK, FEWER_THREADS = "one network at a time", "one network at a time, half the threads"
RUNGS = (ONE_NETWORK, FEWER_THREADS)


def limits_of(rung: str | None, threads: int = 0) -> Limits:
    """What a rung means to the engine. threads: what the engine has otherwise; 0: all cores."""
    if rung not in RUNGS:
        return Limits()
    half = max(1, (threads or os.cpu_count() or 1) // 2)
    return Limits(one_network=True, threads=half if rung == FEWER_THREADS else 0)


def next_rung(rung: str | None) -> str | None:
    """The rung below; None at the end of the ladder. A rung of another version is none."""
    below = RUNGS.index(rung) + 1 if rung in RUNGS else 0
    return RUNGS[below] if below < len(RUNGS) else None


def climbed_down(job: RenderJob) -> dict[str, Any] | None:
    """What changes of a job that is tried again a rung lower; None at the end of the ladder."""
    rung = next_rung(job.rung)
    return None if rung is None else {"rung": rung, "retries": [*job.retries, rung]}


class Ladder:
    """Remembers which rung a model needs here for a canvas, in a file that may be deleted."""

    def __init__(self, path: Path, *, machine: Machine | None = None) -> None:
        """`path` is read when asked, so that a file that somebody deletes is forgotten."""
        self._path = path
        memory = (machine or Machine()).total_memory() or 0
        self._machine = f"{platform.node()}, {memory / 1e9:.0f} GB"

    def first(self, spec: RenderSpec) -> str | None:
        """The rung that such a job begins with."""
        rung = self._read().get(self._key(spec))
        return rung if rung in RUNGS else None

    def learn(self, job: RenderJob) -> None:
        """A job is done: remember its rung if that was what helped.

        A single crash may have been a power cut: it takes two in one place to blame the render.
        """
        chance = job.crashes > 0 and max(Counter(job.crash_places).values(), default=0) < 2
        if not job.retries or job.rung is None or chance:
            return
        known = self._read() | {self._key(job.spec): job.rung}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self._path, json.dumps(known, indent=1, ensure_ascii=False).encode())
        except (OSError, EngineError) as error:
            logger.warning("%s could not be written: %s", self._path, error)
        else:
            logger.info("%s: such jobs begin with %r from now on", job.id, job.rung)

    def _key(self, spec: RenderSpec) -> str:
        return f"{self._machine} / {spec.model} / {spec.width}x{spec.height}, {spec.frames} frames"

    def _read(self) -> dict[str, str]:
        try:
            known = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}
