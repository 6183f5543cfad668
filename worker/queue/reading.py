"""Looking at the queue: jobs, counts, models, worker."""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from redis.client import Pipeline
from rq.suspension import WORKERS_SUSPENDED

from h3farm.worker.queue.core import WORKER_NAME, QueueCore, store_errors
from h3farm.worker.queue.errors import AmbiguousJob, InvalidTransition, UnknownJob
from h3farm.worker.queue.farm_state import FarmRecord
from h3farm.worker.queue.job import RenderJob, WorkerStatus, stamp
from h3farm.worker.queue.records import FARM, as_text, record_key, state_key
from h3farm.worker.queue.states import OVER, WAITING, State
from h3farm.worker.queue.waiting import Situation, why
from h3farm.worker.queue.watch import Watch

WORKER_KEY = f"rq:worker:{WORKER_NAME}"
AMBIGUOUS_SHOWN = 4


class Reading(QueueCore):
    """The part of the queue that is asked."""

    def get(self, job_id: str) -> RenderJob:
        """One job; UnknownJob."""
        with store_errors(self.settings):
            positions = self._positions()
            return self.explained(self._settle_strays([self.records.get(job_id)]), positions)[0]

    def resolve(self, given: str) -> str:
        """The id of the job that is meant: `given`, or the one that begins with it. UnknownJob,
        AmbiguousJob.
        """
        with store_errors(self.settings):
            if not given or self.records.exists(given):
                return given
            ids = [job_id for state in State for job_id, _ in self.records.ids(state)]
        found = sorted(job_id for job_id in ids if job_id.startswith(given))
        if len(found) > 1:
            raise AmbiguousJob(given, found[:AMBIGUOUS_SHOWN])
        if not found:
            raise UnknownJob(given)
        return found[0]

    def list(
        self,
        states: Collection[str] | None = None,
        limit: int | None = None,
        waiting: int | None = None,
    ) -> list[RenderJob]:
        """The jobs as a line of time, newest last: those that are over (by their end), those that
        run, those that wait (in the order in which they will run).

        states: only these. limit: of the jobs that are over at most so many, the newest. waiting:
        of those in each state of waiting at most so many, the next to run. All others are there.
        """
        wanted = [state for state in State if states is None or state in states]
        with store_errors(self.settings):
            over = [
                row for state in wanted if state in OVER for row in self.records.ids(state, limit)
            ]
            over.sort(key=lambda row: row[1])
            kept = over if limit is None else over[len(over) - min(limit, len(over)) :]
            positions = self._positions()
            live: list[str] = []
            for state in wanted:
                if state not in OVER:
                    ids = [job_id for job_id, _ in self.records.ids(state)]
                    live += _next(ids, positions, waiting) if state in WAITING else ids
            jobs = self.records.get_many([*(job_id for job_id, _ in kept), *live])
            found = self.explained(self._settle_strays(jobs, positions), positions)
        # A job may have moved on while we read: what it is now decides.
        return sorted((job for job in found if job.state in wanted), key=_time_line)

    def first_in_line(self, count: int) -> Sequence[RenderJob]:
        """The jobs that run next, at most so many."""
        with store_errors(self.settings):
            ids = self.connection.lrange(self.rq_queue.key, 0, count - 1)
            return self.records.get_many(as_text(each) for each in ids)

    def saved(self) -> dict[str, int]:
        """What the farm has saved so far by encoding prompts once: `opens` of text encoders, and
        `bytes` of them that were not read.
        """
        with store_errors(self.settings):
            return self.records.saved()

    def held(self) -> Sequence[RenderJob]:
        """The jobs that wait for room, on the disk or in memory: `waits` says for what."""
        return [job for job in self.list([State.PAUSED]) if job.hold]

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state; every state has a key."""
        with store_errors(self.settings):
            return {str(state): count for state, count in self.records.counts().items()}

    def models(self) -> dict[str, dict[str, Any]]:
        """The models that jobs may name, with what `h3farm model info` says of them; empty when
        there are none or no worker has looked yet.
        """
        with store_errors(self.settings):
            return self.records.models() or {}

    def worker(self) -> WorkerStatus | None:
        """The worker, or None when none runs."""
        with store_errors(self.settings):
            return _worker(self.connection.hgetall(WORKER_KEY))

    def watch(self, timeout_s: float = 1.0) -> Watch:
        """Follow what happens to the jobs; see Watch."""
        return Watch(self.connection, timeout_s, self.settings.store_name)

    def _watch(self, pipeline: "Pipeline", job_id: str) -> None:
        """Have the transaction refused when the line or the job changes before it."""
        pipeline.watch(self.rq_queue.key, record_key(job_id))  # type: ignore[no-untyped-call]

    def _positions(self) -> dict[str, int]:
        ids = self.connection.lrange(self.rq_queue.key, 0, -1)
        return {as_text(job_id): place for place, job_id in enumerate(ids)}

    def explained(
        self, jobs: Sequence[RenderJob], positions: Mapping[str, int]
    ) -> Sequence[RenderJob]:
        """The jobs with their places in line and why they wait."""
        if all(job.over for job in jobs):
            return jobs
        situation = self._situation()
        placed = [
            job.at(positions.get(job.id)) if job.state is State.QUEUED else job for job in jobs
        ]
        return [replace(job, waits=why(job, situation)) for job in placed]

    def _situation(self) -> Situation:
        with self.connection.pipeline(transaction=False) as pipeline:
            pipeline.get(FARM)
            pipeline.hgetall(WORKER_KEY)
            pipeline.exists(WORKERS_SUSPENDED)
            pipeline.zcard(state_key(State.RUNNING))
            farm, worker, suspended, running = pipeline.execute()
        return Situation(
            farm=FarmRecord.parse(farm),
            worker=_worker(worker) is not None,
            suspended=bool(suspended),
            running=running,
            now=self._clock(),
        )

    def _settle_strays(
        self, jobs: Sequence[RenderJob], positions: dict[str, int] | None = None
    ) -> Sequence[RenderJob]:
        """Take over what RQ's own tools did: a job of ours that waits, but which RQ has cancelled
        or deleted, is cancelled.
        """
        if not any(job.state is State.QUEUED for job in jobs):
            return jobs
        placed = self._positions() if positions is None else positions
        return [
            self._settled(job) if job.state is State.QUEUED and job.id not in placed else job
            for job in jobs
        ]

    def _settled(self, job: RenderJob) -> RenderJob:
        rq_job = self.fetch_rq_job(job.id)
        if rq_job is not None and not rq_job.is_canceled:
            return job  # just popped, and about to run
        with contextlib.suppress(InvalidTransition):
            return self.records.move(job.id, State.CANCELLED, ended_at=stamp(self._clock()))
        return self.records.get(job.id)


def _worker(raw: Mapping[bytes | str, bytes | str]) -> WorkerStatus | None:
    row = {as_text(name): as_text(value) for name, value in raw.items()}
    if "pid" not in row or "death" in row:
        return None
    return WorkerStatus(
        name=WORKER_NAME,
        host=row.get("hostname", ""),
        pid=int(row["pid"]),
        state={"started": "starting"}.get(row.get("state", ""), row.get("state", "starting")),
        job_id=row.get("current_job"),
        heartbeat_at=row.get("last_heartbeat", ""),
    )


def _next(ids: Sequence[str], positions: dict[str, int], count: int | None) -> Sequence[str]:
    """As many of the ids as are wanted, those next to run first.

    Who is in no line (being begun, cancelled by RQ, or waiting outside) is looked at before them.
    """
    if count is None:
        return ids
    return sorted(ids, key=lambda job_id: positions.get(job_id, -1))[:count]


def _time_line(job: RenderJob) -> tuple[int, str, int]:
    """Over, running, waiting in the order of the queue, waiting outside of it."""
    if job.over:
        return 0, job.ended_at or job.created_at, 0
    if job.state is State.RUNNING:
        return 1, job.started_at or "", 0
    if job.position is not None:
        return 2, "", job.position
    return (2, "", -1) if job.state is State.QUEUED else (3, job.order, 0)
