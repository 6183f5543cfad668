"""The queue as its clients see it: submit, look, control, follow."""

from h3farm.worker.queue.control import Control
from h3farm.worker.queue.submission import Submission


class RenderQueue(Submission, Control):
    """The one queue. Threads and processes may each use their own or share one.

    Its parts are told in `core`, `reading`, `submission` and `control`, one subject each.
    """
