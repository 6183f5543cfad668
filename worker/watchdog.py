"""Notices a render that does not come on any more, and an engine that does not stop when told to.

What counts is the time in which somebody looked: a process that was stopped, or a machine that
slept, has not been waiting for its engine meanwhile.
"""

import os
import signal
import time
from collections.abc import Callable
from enum import StrEnum

from h3farm.engine.progress import Progress

# Quiet for so many times what the running step, clip or phase takes at most nine times of ten; and
# a block or tile of it, which is what has to come, is a small part of that.
PATIENCE = 3.0
LEAST_S = 600.0
# While nothing has been measured: one block of the release's model can take minutes.
UNKNOWN_S = 7200.0
DEAF_S = 60.0  # an engine that obeys has stopped in a second
LOOK_S = 2.0  # a look counts for no more: they are made several times a second


class Stalled(Exception):  # noqa: N818 - what was found
    """The render was stopped because nothing came of it any more."""


class Alarm(StrEnum):
    """What is called for: `stop` a quiet render, `kill` the process when its engine is deaf."""

    STOP = "stop"
    KILL = "kill"


class Watchdog:
    """Watches one render. `stopped`: it has called for the end of it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """now: a monotonic clock in seconds."""
        self._now = now
        self._looked = now()
        self._place: tuple[object, ...] = ()
        self._asked_s = 0.0
        self.quiet_s = 0.0
        self.stopped = False

    def look(self, progress: Progress | None, *, asked: bool) -> Alarm | None:
        """To be called often, with the newest progress. asked: the engine has been told to stop at
        once, and has not yet.
        """
        now = self._now()
        passed, self._looked = min(now - self._looked, LOOK_S), now
        self.quiet_s += passed
        if (place := _place(progress)) != self._place:
            self._place, self.quiet_s = place, 0.0
        if self.stopped or asked:
            self._asked_s += passed
            if self._asked_s >= DEAF_S:
                return Alarm.KILL
        self.stopped |= not asked and self.quiet_s >= limit_s(progress)
        return Alarm.STOP if self.stopped else None

    def kill(self) -> None:
        """End this process at once: nothing else stops a C call that does not look."""
        os.kill(os.getpid(), signal.SIGKILL)


def limit_s(progress: Progress | None) -> float:
    """Seconds without any progress after which a render is given up."""
    expected = progress.unit_p90_s if progress else None
    return UNKNOWN_S if expected is None else max(LEAST_S, PATIENCE * expected)


def _place(progress: Progress | None) -> tuple[object, ...]:
    if progress is None:
        return ()
    return progress.phase, progress.step, progress.block
