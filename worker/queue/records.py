"""The farm's half of a job in the store: its record, the indexes by state, and the events.

RQ's half (its job hash, list, registries) lives beside it; the queue and the worker keep the two
in step. Commands are sent on a connection or pipeline that is handed in, so that both halves
change in one transaction.

Keys: `h3farm:job:<id>` (hash: `state` and `priority` as words, the rest as JSON),
`h3farm:state:<state>` (sorted set: ids by the millisecond at which they came to that state),
`h3farm:models` (hash: name to JSON), `h3farm:order` (the last place in line that was given out),
`h3farm:farm` (the state of the whole farm as JSON), `h3farm:saved` (hash: what it saved, in
numbers), `h3farm:events` (channel).
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from redis import Redis
from redis.client import Pipeline

from h3farm.engine.disk_sizes import disk_for_output
from h3farm.engine.progress import Progress
from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue import scripts
from h3farm.worker.queue.disk import JobFolders
from h3farm.worker.queue.errors import InvalidTransition, Superseded, UnknownJob
from h3farm.worker.queue.job import JobEvent, RenderJob, stamp, utc_now
from h3farm.worker.queue.states import OVER, State, check_transition, sources

EVENTS = "h3farm:events"
MODELS = "h3farm:models"
KEYS = "h3farm:keys"
SAVED = "h3farm:saved"
SAVED_FIELDS = ("opens", "bytes")
FARM = "h3farm:farm"
ORDER = "h3farm:order"
FIRST_ORDER = 500_000_000_000  # of twelve digits, with as much room in front as behind
PLAIN = frozenset({"state", "priority", "spec_hash", "order"})  # read by the scripts below
UNSTORED = frozenset({"id", "position", "waits"})


def record_key(job_id: str) -> str:
    """The hash of a job."""
    return f"h3farm:job:{job_id}"


def state_key(state: State) -> str:
    """The sorted set of the jobs in a state."""
    return f"h3farm:state:{state}"


def milliseconds(moment: datetime) -> int:
    """The score of a moment."""
    return int(moment.timestamp() * 1000)


def as_text(value: bytes | str) -> str:
    """What the client library calls bytes or text, and with our connections is always bytes."""
    return value.decode() if isinstance(value, bytes) else value


def encode(fields: Mapping[str, Any]) -> dict[Any, str]:
    """Fields of a job as the hash holds them."""
    return {
        name: str(value) if name in PLAIN else json.dumps(value, ensure_ascii=False)
        for name, value in fields.items()
    }


def decode(raw: Mapping[Any, bytes | str]) -> dict[str, Any]:
    """The inverse of `encode`."""
    fields = {as_text(name): as_text(value) for name, value in raw.items()}
    return {name: value if name in PLAIN else json.loads(value) for name, value in fields.items()}


def stored_fields(job: RenderJob) -> dict[str, Any]:
    """What the store keeps of a job; the hash of its spec is there to find equal ones, the bytes of
    its output to add them up.
    """
    fields = {name: value for name, value in job.to_json().items() if name not in UNSTORED}
    return fields | spec_fields(job.spec)


def spec_fields(spec: RenderSpec) -> dict[str, Any]:
    """What the store keeps of a spec."""
    size = disk_for_output(spec)
    return {"spec": spec.to_json(), "spec_hash": spec.hash, "output_bytes": size}


def _fence(execution: str | None) -> str:
    """An execution as the scripts compare it; "" for any."""
    return "" if execution is None else json.dumps(execution)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the store tells the one who runs a job: the wish, the farm's state as it is stored, and
    the priority of the job that is next.
    """

    wish: str | None
    farm: bytes | None
    next_priority: str | None


class Records:
    """Reads and writes the records. `clock` gives the time of every change."""

    def __init__(
        self,
        connection: "Redis",
        folders: JobFolders,
        line: str,
        *,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """line: the key of RQ's list. Nothing is sent yet."""
        self._connection = connection
        self.folders = folders
        self._line = line
        self.clock = clock
        self._move = connection.register_script(scripts.MOVE)
        self._wish = connection.register_script(scripts.WISH)
        self._unpause = connection.register_script(scripts.UNPAUSE)
        self._report = connection.register_script(scripts.REPORT)
        self._insert = connection.register_script(scripts.INSERT)
        self._reorder = connection.register_script(scripts.REORDER)
        self._line_up = connection.register_script(scripts.LINE_UP)
        self._forget = connection.register_script(scripts.FORGET)
        self._timed = connection.register_script(scripts.TIMED)

    def create(self, job: RenderJob, pipeline: "Pipeline") -> None:
        """Add the record of a new job to a transaction."""
        pipeline.hset(record_key(job.id), mapping=encode(stored_fields(job)))
        pipeline.zadd(state_key(job.state), {job.id: milliseconds(self.clock())})
        if job.key is not None:
            pipeline.hsetnx(KEYS, job.key, job.id)
        pipeline.publish(EVENTS, self.event(job.id, "state", job.state))

    def insert(self, job_id: str, pipeline: "Pipeline") -> None:
        """Add to a transaction that the job stands in line, if it is queued and does not yet."""
        self._insert(keys=[record_key(job_id), self._line], args=[job_id], client=pipeline)

    def line_up(self, job_ids: Sequence[str], pipeline: "Pipeline") -> None:
        """Add to a transaction that the jobs stand in line, those that are queued and do not yet:
        `insert` for many, in one pass.
        """
        self._line_up(keys=[self._line], args=list(job_ids), client=pipeline)

    def reorder(self, job_id: str, pipeline: "Pipeline") -> None:
        """Add to a transaction that a job that stands in line stands where its record says."""
        self._reorder(keys=[record_key(job_id), self._line], args=[job_id], client=pipeline)

    def next_orders(self, count: int = 1) -> list[str]:
        """Places in line, behind all that were given out before."""
        self._connection.set(ORDER, FIRST_ORDER, nx=True)
        last = int(self._connection.incrby(ORDER, count))
        return [f"{number:012d}" for number in range(last - count + 1, last + 1)]

    def get(self, job_id: str) -> RenderJob:
        """One job, without its position; UnknownJob."""
        found = self.get_many([job_id])
        if not found:
            raise UnknownJob(job_id)
        return found[0]

    def exists(self, job_id: str) -> bool:
        """Whether the store has the job."""
        return bool(self._connection.exists(record_key(job_id)))

    def get_many(self, job_ids: Iterable[str]) -> list[RenderJob]:
        """Those of the jobs that exist, in the order asked for."""
        ids = list(job_ids)
        with self._connection.pipeline(transaction=False) as pipeline:
            for job_id in ids:
                pipeline.hgetall(record_key(job_id))
            rows = pipeline.execute()
        return [
            RenderJob.from_json({"id": job_id, **decode(row)})
            for job_id, row in zip(ids, rows, strict=True)
            if row
        ]

    def move(
        self,
        job_id: str,
        to: State,
        *,
        by: str | None = None,
        line: str = "",
        **fields: Any,
    ) -> RenderJob:
        """The state machine: bring a job to a state it may go to, with what changes along.

        Checked and done in one step of the store, so that of two contenders one gets
        InvalidTransition. The end of a running job is on disk before the store says so: a worker
        that dies in between has not rendered in vain.

        by: the execution that says so; Superseded when the job is in another one. line: "in" puts
        it in line, "out" takes a queued one out and is refused when it is being begun already.
        """
        job = self.get(job_id)
        if by is not None and job.execution != by:
            raise Superseded(job_id)
        check_transition(job_id, job.state, to)
        if to is not State.RUNNING:
            fields.setdefault("execution", None)
        if ends := job.state is State.RUNNING and to in OVER:
            self._write_folder(job, to, fields | {"wish": None})
        moved, found = self._run_move(job_id, to, fields, self._connection, by=by, line=line)
        if moved < 0:
            raise Superseded(job_id)
        if not moved:
            raise InvalidTransition(job_id, found.decode() or "gone", to)
        job = self.get(job_id)
        # A client that saved a wish meanwhile may have put the older record back.
        if not ends or (self.folders.read(job_id) or {}).get("state") != job.state:
            self._write_folder(job, job.state, {})
        return job

    def move_in(
        self,
        pipeline: "Pipeline",
        job_id: str,
        to: State,
        *,
        by: str | None = None,
        line: str = "",
        **fields: Any,
    ) -> None:
        """`move` as part of a transaction, where a refusal changes nothing; the folder is the
        caller's to bring up to date.
        """
        self._run_move(job_id, to, fields, pipeline, by=by, line=line)

    def wish(
        self,
        pipeline: "Pipeline",
        job_id: str,
        wish: str,
        state: State,
        *,
        execution: str | None = None,
        at_once: Mapping[str, Any],
        at_end: Mapping[str, Any],
    ) -> None:
        """Add a wish to a pipeline: a job that waits comes to `state`, one that runs (or is being
        taken up) gets the wish. The answer is (what came of it, the state that was found): see
        the script.
        """
        now, then = encode(at_once), encode(at_end)
        pairs = [part for fields in (now, then) for pair in fields.items() for part in pair]
        event = self.event(job_id, "state", state)
        head: list[str | int] = [
            job_id,
            json.dumps(wish),
            str(state),
            milliseconds(self.clock()),
            event,
        ]
        self._wish(
            keys=[record_key(job_id), self._line],
            args=[*head, _fence(execution), len(now), *pairs],
            client=pipeline,
        )

    def unpause(self, pipeline: "Pipeline", job_id: str) -> None:
        """Add to a transaction that a wish to pause is taken back; it answers 0 when there is none
        (any more).
        """
        self._unpause(keys=[record_key(job_id)], client=pipeline)

    def report(
        self, job_id: str, execution: str, progress: Progress | None, rq_job_key: str
    ) -> Look | None:
        """Store and announce progress; what the one who runs the job needs to know, all in one
        step. None when the job is in another execution by now.

        RQ's own `cancel` of a running job and its `delete` change nothing but RQ's status: they
        count as a wish to cancel.
        """
        stored, event = "", ""
        if progress is not None:
            stored = json.dumps(progress.to_json())
            event = self.event(job_id, "progress", State.RUNNING, progress)
        keys = [record_key(job_id), rq_job_key, self._line, FARM]
        answer = cast("list[Any]", self._report(keys=keys, args=[_fence(execution), stored, event]))
        if not answer[0]:
            return None
        _, wish, status, farm, priority = [*answer, None, None, None, None][:5]
        if status in (None, b"canceled"):
            wish = b'"cancel"'
        return Look(
            wish=json.loads(wish) if wish else None,
            farm=farm,
            next_priority=as_text(priority) if priority else None,
        )

    def timed(self) -> list[tuple[str, State, str | None, str | None, str | None]]:
        """Of the jobs that wait for a time: id, state, not_before, window, paused_until."""
        keys = [state_key(State.SCHEDULED), state_key(State.PAUSED)]
        rows = cast("list[list[bytes]]", self._timed(keys=keys))
        return [
            (as_text(row[0]), State(as_text(row[1])), *map(json.loads, row[2:])) for row in rows
        ]

    def ids(self, state: State, newest: int | None = None) -> list[tuple[str, float]]:
        """Ids in a state with their scores, oldest first; `newest`: only so many, the last ones."""
        start = 0 if newest is None else -newest
        if newest == 0:
            return []
        rows = self._connection.zrange(state_key(state), start, -1, withscores=True)
        return [(as_text(row[0]), float(row[1])) for row in cast("list[tuple[bytes, float]]", rows)]

    def counts(self) -> dict[State, int]:
        """How many jobs are in each state."""
        with self._connection.pipeline(transaction=False) as pipeline:
            for state in State:
                pipeline.zcard(state_key(state))
            return dict(zip(State, pipeline.execute(), strict=True))

    def add_saved(self, saved: Mapping[str, int]) -> None:
        """Add to what the farm has saved."""
        with self._connection.pipeline() as pipeline:
            for name in SAVED_FIELDS:
                pipeline.hincrby(SAVED, name, saved.get(name, 0))
            pipeline.execute()

    def saved(self) -> dict[str, int]:
        """What the farm has saved."""
        raw = self._connection.hgetall(SAVED)
        found = {as_text(name): int(value) for name, value in raw.items()}
        return {name: found.get(name, 0) for name in SAVED_FIELDS}

    def publish_models(self, models: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the list of models that jobs may name."""
        with self._connection.pipeline() as pipeline:
            pipeline.delete(MODELS)
            # An empty hash does not exist: the empty name says that a worker has looked.
            rows: dict[Any, str] = {"": "{}"} | {name: json.dumps(m) for name, m in models.items()}
            pipeline.hset(MODELS, mapping=rows)
            pipeline.execute()

    def models(self) -> dict[str, dict[str, Any]] | None:
        """The models by name; None when no worker has ever published any."""
        rows = self._connection.hgetall(MODELS)
        if not rows:
            return None
        models = {as_text(name): json.loads(text) for name, text in rows.items()}
        return {name: models[name] for name in sorted(models) if name}

    def _run_move(
        self,
        job_id: str,
        to: State,
        fields: Mapping[str, Any],
        client: "Redis | Pipeline",
        *,
        by: str | None,
        line: str,
    ) -> tuple[int, bytes]:
        allowed = f",{','.join(sources(to))},"
        pairs = [part for pair in encode(fields).items() for part in pair]
        event = self.event(job_id, "state", to)
        args: list[str | int] = [
            job_id,
            str(to),
            allowed,
            milliseconds(self.clock()),
            event,
            _fence(by),
            line,
            *pairs,
        ]
        answer = self._move(keys=[record_key(job_id), self._line], args=args, client=client)
        return (1, b"") if isinstance(client, Pipeline) else (answer[0], answer[1])

    def save_folder(self, job_id: str) -> None:
        """Bring the job's folder up to date, after changes that were made in a transaction."""
        if self.exists(job_id):
            with contextlib.suppress(UnknownJob):
                self.folders.update(job_id, lambda: self.get(job_id).durable())

    def save_folders(self, job_ids: Iterable[str]) -> None:
        """`save_folder` for many, at the price of a few flushes."""
        records = {job.id: job.durable() for job in self.get_many(job_ids)}
        self.folders.write_many(records)
        for job in self.get_many(records):
            if job.durable() != records[job.id]:  # its worker wrote meanwhile: ours is the older
                self.save_folder(job.id)

    def _write_folder(self, job: RenderJob, to: State, fields: Mapping[str, Any]) -> None:
        changed = {name: value for name, value in fields.items() if name != "progress"}
        self.folders.write(job.id, {**job.durable(), "state": str(to), **changed})

    def announce(self, job_id: str, pipeline: "Pipeline") -> None:
        """Add to a pipeline that a job has changed without another state."""
        state = State(as_text(cast("bytes", self._connection.hget(record_key(job_id), "state"))))
        pipeline.publish(EVENTS, self.event(job_id, "state", state))

    def event(self, job_id: str, kind: str, state: State, progress: Progress | None = None) -> str:
        """What is announced of a job, as it goes over the channel."""
        event = JobEvent(
            job_id=job_id, kind=kind, state=state, progress=progress, at=stamp(self.clock())
        )
        return json.dumps(event.to_json())
