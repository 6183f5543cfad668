"""Bringing many jobs into the queue at once, as a batch: all of them or none."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from h3farm.engine.durable import sync_many
from h3farm.engine.errors import DiskError
from h3farm.engine.spec import RenderSpec, SpecError
from h3farm.worker.queue.batch import Batch, batch_name, free_name
from h3farm.worker.queue.core import store_errors
from h3farm.worker.queue.description import MAX_JOBS
from h3farm.worker.queue.disk import PREPARED
from h3farm.worker.queue.errors import JobNotSaved, NotEnoughDisk
from h3farm.worker.queue.faults import batch_error
from h3farm.worker.queue.job import RenderJob, stamp
from h3farm.worker.queue.manifests import submitting
from h3farm.worker.queue.plan import Plan, PlannedJob, make_plan
from h3farm.worker.queue.room import check_room
from h3farm.worker.queue.same import distinct
from h3farm.worker.queue.schedule import AT_ONCE, Schedule
from h3farm.worker.queue.states import Priority, State
from h3farm.worker.queue.submission import Submission


class BatchSubmission(Submission):
    """The part of the queue that takes batches in."""

    def submit_many(
        self,
        specs: Sequence[RenderSpec],
        *,
        name: str = "",
        priority: str = Priority.NORMAL,
        key: str | None = None,
        again: bool = False,
        anyway: bool = False,
        schedule: Schedule = AT_ONCE,
    ) -> Batch:
        """Queue renders as one batch, in their order: all or none, in one call to the store.

        name: may hold `{date}`, `{time}` and `{jobs}`; another batch of this name makes it end in a
        number. Equal specs in it are queued once. key, again, anyway, schedule: as for `submit`;
        the answer to a key that was given before is the first batch. BatchError, UnknownModel,
        NotEnoughDisk and JobNotSaved queue nothing.
        """
        _check_count(len(specs))
        with store_errors(self.settings), submitting(self.settings.submit_lock):
            if (first := self._first(key)) is not None:
                return self._first_batch(first)
            moment = self._clock()
            wanted = self._wanted(specs, again=again)
            record: dict[str, Any] = {
                "name": self._free_name(name, wanted, moment),
                "created_at": stamp(moment),
                "priority": str(Priority(priority)),
                "key": key,
                "jobs": len(wanted),
                "left_out": len(specs) - len(wanted),
            }
            record["id"] = self._new_batch_id(moment, len(wanted))
            orders = self.records.next_orders(len(wanted))
            jobs = _jobs(record, wanted, orders, schedule, schedule.state(moment))
            with self._prepared([job.id for job in jobs], record["id"]):
                if not again:
                    jobs = self.known(jobs)
                if not anyway:
                    self._check_room(jobs)
                self._put_down(jobs, record)
            first = self.take_in(jobs, key=key, batch=record)
            if first is not None:  # another submit with this key was faster
                self._release([job.id for job in jobs], record["id"])
                return self._first_batch(first)
            return self._accepted(record["id"])

    def plan(
        self,
        specs: Sequence[RenderSpec],
        *,
        name: str = "",
        draw_seed: int | None = None,
        again: bool = False,
    ) -> Plan:
        """What `submit_many` would queue of these specs now; refuses what it would refuse, but
        warns when the disk is short.

        draw_seed: from which they were drawn, to be told.
        """
        _check_count(len(specs))
        with store_errors(self.settings):
            wanted = self._wanted(specs, again=again)
            others = [None] * len(wanted) if again else self.same(wanted)
            new = [spec for spec, other in zip(wanted, others, strict=True) if other is None]
            warnings = []
            if new:
                try:
                    check_room(self.connection, self.settings, new, self.machine)
                except NotEnoughDisk as error:
                    warnings.append(str(error))
            return make_plan(
                name=self._free_name(name, wanted, self._clock()),
                jobs=[
                    PlannedJob(spec=spec, same_as=other.id if other else None)
                    for spec, other in zip(wanted, others, strict=True)
                ],
                left_out=len(specs) - len(wanted),
                draw_seed=draw_seed,
                warnings=warnings,
            )

    def _wanted(self, specs: Sequence[RenderSpec], *, again: bool) -> list[RenderSpec]:
        """The specs with their seeds, equal ones once; UnknownModel."""
        for model in dict.fromkeys(spec.model for spec in specs):
            self._check_model(model)
        seeded = [spec.with_seed() for spec in specs]
        return seeded if again else distinct(seeded)

    def _free_name(self, name: str, specs: Sequence[RenderSpec], moment: datetime) -> str:
        return free_name(batch_name(name, specs, moment), set(self.batch_names().values()))

    def _put_down(self, jobs: Sequence[RenderJob], record: Mapping[str, Any]) -> None:
        """Everything of a batch on disk, the manifest last."""
        for job in jobs:
            self.folders.prepare(job.id, job.durable(), durably=False)
        try:
            sync_many([self.folders.path(job.id) / PREPARED for job in jobs])
        except DiskError as error:
            raise JobNotSaved(f"The batch could not be written to disk: {error}.") from error
        self.manifests.prepare(record["id"], {**record, "job_ids": [job.id for job in jobs]})

    def _first_batch(self, batch_id: str) -> Batch:
        """The batch that a key was first given for, now acknowledged, if it was not before."""
        if self.records.exists(batch_id):
            sentence = f"key was given for the job {batch_id}: take another one for a batch"
            raise SpecError("key", batch_id, "a key of its own", sentence)
        return self._accepted(batch_id)

    def _accepted(self, batch_id: str) -> Batch:
        """The batch, which the store has taken: the disk is told so. Again, it changes nothing."""
        self.manifests.accept(batch_id)
        for job_id in self.batch_job_ids(batch_id):
            self.folders.accept(job_id)
        return self.batch(batch_id)

    def _new_batch_id(self, moment: datetime, count: int) -> str:
        """As a job's, with a b in front. Whoever makes the first job's folder has the id."""
        start = moment.astimezone().strftime("b%m%d-%H%M")
        while True:
            batch_id = f"{start}-{self._suffix()}"
            if self.folders.reserve(next(_ids(batch_id, count))):
                return batch_id


def _check_count(count: int) -> None:
    if not count:
        raise batch_error("", 0, "renders", "a batch must have at least one render")
    if count > MAX_JOBS:
        sentence = f"a batch has at most {MAX_JOBS} jobs, got {count}"
        raise batch_error("", count, f"at most {MAX_JOBS} jobs", sentence)


def _jobs(
    record: Mapping[str, Any],
    specs: Sequence[RenderSpec],
    orders: Sequence[str],
    schedule: Schedule,
    state: State,
) -> list[RenderJob]:
    """The jobs of a batch with their places in line, none of them queued yet."""
    return [
        RenderJob(
            id=job_id,
            spec=spec,
            state=state,
            priority=Priority(record["priority"]),
            created_at=record["created_at"],
            not_before=schedule.not_before,
            window=schedule.window,
            batch=record["id"],
            batch_index=index,
            order=order,
        )
        for index, (job_id, spec, order) in enumerate(
            zip(_ids(record["id"], len(specs)), specs, orders, strict=True)
        )
    ]


def _ids(batch_id: str, count: int) -> Iterator[str]:
    """The ids of a batch's jobs: sorted, they are in its order."""
    width = max(3, len(str(count)))
    return (f"{batch_id}-{number:0{width}}" for number in range(1, count + 1))
