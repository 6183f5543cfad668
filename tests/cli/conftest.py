"""The fixtures of clitest.py and of the farm, which tests import their helpers from."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "worker")]

from clitest import environment, h3farm, start_h3farm  # noqa: E402
from farmtest import home, queue, settings, start_worker, store  # noqa: E402

__all__ = [
    "environment",
    "h3farm",
    "home",
    "queue",
    "settings",
    "start_h3farm",
    "start_worker",
    "store",
]
