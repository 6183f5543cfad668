"""The order of the jobs that wait: moving one, giving it another priority.

A job's place is its `order`, a decimal number of twelve digits and, when it was moved between two
others, a fraction. There is always room between two of them.
"""

from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

import redis
from redis.client import Pipeline

from h3farm.worker.queue.core import store_errors
from h3farm.worker.queue.errors import BadSchedule, CannotChange
from h3farm.worker.queue.job import RenderJob
from h3farm.worker.queue.reading import Reading
from h3farm.worker.queue.records import FIRST_ORDER, encode, record_key
from h3farm.worker.queue.states import Priority, State

IN_LINE = (State.QUEUED, State.SCHEDULED, State.PAUSED)
Place = Callable[[Sequence[RenderJob], RenderJob], tuple[Priority, str]]
EXACT = Context(prec=5000)  # each move between two neighbours adds a digit


def between(low: str | None, high: str | None) -> str:
    """A place behind `low` and in front of `high`; None where there is no neighbour."""
    if low and high:
        value = EXACT.multiply(EXACT.add(Decimal(low), Decimal(high)), Decimal("0.5"))
    elif low:
        value = Decimal(low).to_integral_value(ROUND_FLOOR) + 1
    elif high:
        value = Decimal(high).to_integral_value(ROUND_CEILING) - 1
    else:
        value = Decimal(FIRST_ORDER)
    whole, _, fraction = f"{value:f}".partition(".")
    fraction = fraction.rstrip("0")
    return f"{int(whole):012d}" + (f".{fraction}" if fraction else "")


class Ordering(Reading):
    """The part of the queue that changes its order."""

    def move(
        self,
        job_id: str,
        *,
        front: bool = False,
        before: str | None = None,
        after: str | None = None,
        to: int | None = None,
    ) -> RenderJob:
        """Give a waiting job another place: one of the four is given.

        front: before all of its priority. before, after: beside another waiting job; it gets the
        priority of that one. to: the place among the queued ones of its priority, from 1; a number
        beyond the end means the end. CannotChange when one of them does not wait.
        """
        if sum((front, before is not None, after is not None, to is not None)) != 1:
            raise BadSchedule("place", "", "one of front, before, after and to")
        if to is not None and to < 1:
            raise BadSchedule("to", str(to), "a whole number from 1")
        anchor = before or after
        if anchor == job_id:
            raise BadSchedule("before" if before else "after", job_id, "another job")

        def place(line: Sequence[RenderJob], job: RenderJob) -> tuple[Priority, str]:
            other = _waiting(self.records.get(anchor), "a neighbour") if anchor else job
            row = [each for each in line if each.priority is other.priority and each.id != job_id]
            if anchor:
                index = [each.id for each in row].index(anchor) + (0 if before else 1)
            elif front:
                index = 0
            else:
                queued = [n for n, each in enumerate(row) if each.state is State.QUEUED]
                index = queued[to - 1] if to and to <= len(queued) else len(row)
            neighbours = [None, *(each.order for each in row), None]
            return other.priority, between(neighbours[index], neighbours[index + 1])

        return self._reorder(job_id, place, "moved")

    def set_priority(self, job_id: str, priority: str) -> RenderJob:
        """Give a job another priority: it stands behind all of that and of higher ones. Of the job
        that runs it decides whether an urgent one goes first. CannotChange when it is over.
        """
        wanted = Priority(priority)
        with store_errors(self.settings):
            job = self.records.get(job_id)
            if job.state is State.RUNNING:
                self.connection.hset(record_key(job_id), mapping=encode({"priority": wanted}))
                self.records.save_folder(job_id)
                return self.get(job_id)
            if job.priority is wanted and not job.over:
                return self.get(job_id)
            [order] = self.records.next_orders()
        return self._reorder(job_id, lambda _, __: (wanted, order), "given another priority")

    def _reorder(self, job_id: str, place: Place, wanted: str) -> RenderJob:
        """Change priority and order in one step; begun anew when the queue moves meanwhile."""
        with store_errors(self.settings), self.connection.pipeline() as pipeline:
            while True:
                self._watch(pipeline, job_id)
                job = _waiting(self.records.get(job_id), wanted)
                if job.state is State.QUEUED and job_id not in self._positions():
                    raise CannotChange(job_id, "about to start", wanted)
                priority, order = place(self._line(), job)
                if self._put(pipeline, job_id, priority, order):
                    break
        self.records.save_folder(job_id)
        return self.get(job_id)

    def _put(self, pipeline: "Pipeline", job_id: str, priority: Priority, order: str) -> bool:
        pipeline.multi()
        fields = encode({"priority": priority, "order": order})
        pipeline.hset(record_key(job_id), mapping=fields)
        self.records.reorder(job_id, pipeline)
        self.records.announce(job_id, pipeline)
        try:
            pipeline.execute()
        except redis.WatchError:
            return False
        return True

    def _line(self) -> list[RenderJob]:
        """All that wait, in the order in which they would run if all could."""
        ids = [job_id for state in IN_LINE for job_id, _ in self.records.ids(state)]
        ranks = list(Priority)
        jobs = self.records.get_many(ids)
        return sorted(jobs, key=lambda job: (ranks.index(job.priority), job.order))


def _waiting(job: RenderJob, wanted: str) -> RenderJob:
    if job.state not in IN_LINE:
        raise CannotChange(job.id, job.state, wanted)
    return job
