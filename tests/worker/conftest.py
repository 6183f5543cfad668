"""The fixtures of farmtest.py, which tests import their helpers from."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from farmtest import home, queue, settings, start_worker, store

__all__ = ["home", "queue", "settings", "start_worker", "store"]
