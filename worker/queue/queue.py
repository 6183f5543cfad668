"""The queue as its clients see it: submit, look, control, follow."""

from h3farm.worker.queue.batch_control import BatchControl
from h3farm.worker.queue.editing import Editing
from h3farm.worker.queue.farm_control import FarmControl
from h3farm.worker.queue.forgetting import Forgetting
from h3farm.worker.queue.ordering import Ordering
from h3farm.worker.queue.settling import Settling


class RenderQueue(Settling, Editing, Ordering, BatchControl, FarmControl, Forgetting):
    """The one queue. Threads and processes may each use their own or share one.

    Its parts are told in `core`, `reading`, `batches`, `intake`, `same`, `submission`,
    `batch_submission`, `settling`, `control`, `editing`, `ordering`, `retrying`, `batch_control`,
    `farm_control` and `forgetting`, one subject each.
    """
