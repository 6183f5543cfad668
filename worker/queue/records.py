"""The farm's half of a job in the store: its record, the indexes by state, and the events.

RQ's half (its job hash, list, registries) lives beside it; `queue.py` and the worker keep the two
in step. Commands are sent on a connection or pipeline that is handed in, so that both halves
change in one transaction.

Keys: `h3farm:job:<id>` (hash: `state` and `priority` as words, the rest as JSON),
`h3farm:state:<state>` (sorted set: ids by the millisecond at which they came to that state),
`h3farm:models` (hash: name to JSON), `h3farm:events` (channel).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, cast

from redis import Redis
from redis.client import Pipeline

from h3farm.engine.disk_sizes import disk_for_output
from h3farm.engine.progress import Progress
from h3farm.worker.queue.disk import JobFolders
from h3farm.worker.queue.errors import InvalidTransition, UnknownJob
from h3farm.worker.queue.job import JobEvent, RenderJob, stamp, utc_now
from h3farm.worker.queue.states import OVER, State, check_transition, sources

EVENTS = "h3farm:events"
MODELS = "h3farm:models"
KEYS = "h3farm:keys"
PLAIN = frozenset({"state", "priority", "spec_hash"})  # read by the scripts below
UNSTORED = frozenset({"id", "position", "waits"})

# ARGV: id, new state, allowed old states as ",a,b,", score, event, then fields and values.
MOVE = """
local from = redis.call('HGET', KEYS[1], 'state')
if not from then return {0, ''} end
if not string.find(ARGV[3], ',' .. from .. ',', 1, true) then return {0, from} end
redis.call('HSET', KEYS[1], 'state', ARGV[2], unpack(ARGV, 6))
redis.call('ZREM', 'h3farm:state:' .. from, ARGV[1])
redis.call('ZADD', 'h3farm:state:' .. ARGV[2], ARGV[4], ARGV[1])
redis.call('PUBLISH', 'h3farm:events', ARGV[5])
return {1, from}
"""

# How many stand before a new job of a rank: all of the same or a higher priority.
PLACE = """
local function place(list, wanted)
  local rank = {urgent = 0, normal = 1, idle = 2}
  local ids = redis.call('LRANGE', list, 0, -1)
  for i = #ids, 1, -1 do
    local priority = redis.call('HGET', 'h3farm:job:' .. ids[i], 'priority')
    if (rank[priority or 'normal'] or 1) <= wanted then return i end
  end
  return 0
end
"""

# KEYS: the list; ARGV: id, rank.
INSERT = (
    PLACE
    + """
local before = place(KEYS[1], tonumber(ARGV[2]))
if before == 0 then return redis.call('LPUSH', KEYS[1], ARGV[1]) end
local last = redis.call('LINDEX', KEYS[1], before - 1)
return redis.call('LINSERT', KEYS[1], 'AFTER', last, ARGV[1])
"""
)


# KEYS: the record; ARGV: id, states in which it may go as ",a,b,".
FORGET = """
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return 1 end
if not string.find(ARGV[2], ',' .. state .. ',', 1, true) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', 'h3farm:state:' .. state, ARGV[1])
return 1
"""


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
    return fields | {"spec_hash": job.spec.hash, "output_bytes": disk_for_output(job.spec)}


class Records:
    """Reads and writes the records. `clock` gives the time of every change."""

    def __init__(
        self,
        connection: "Redis",
        folders: JobFolders,
        *,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """Nothing is sent yet."""
        self._connection = connection
        self.folders = folders
        self.clock = clock
        self._move = connection.register_script(MOVE)
        self._insert = connection.register_script(INSERT)
        self._forget = connection.register_script(FORGET)

    def create(self, job: RenderJob, pipeline: "Pipeline") -> None:
        """Add the record of a new job to a transaction."""
        pipeline.hset(record_key(job.id), mapping=encode(stored_fields(job)))
        pipeline.zadd(state_key(job.state), {job.id: milliseconds(self.clock())})
        if job.key is not None:
            pipeline.hsetnx(KEYS, job.key, job.id)
        pipeline.publish(EVENTS, self.event(job.id, "state", job.state))

    def insert(self, list_key: str, job: RenderJob, pipeline: "Pipeline") -> None:
        """Add the job's place in the one list to a transaction."""
        rank = list(type(job.priority)).index(job.priority)
        self._insert(keys=[list_key], args=[job.id, rank], client=pipeline)

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

    def move(self, job_id: str, to: State, **fields: Any) -> RenderJob:
        """The state machine: bring a job to a state it may go to, with what changes along.

        Checked and done in one step of the store, so that of two contenders one gets
        InvalidTransition. The end of a running job is on disk before the store says so: a worker
        that dies in between has not rendered in vain.
        """
        job = self.get(job_id)
        check_transition(job_id, job.state, to)
        if ends := job.state is State.RUNNING and to in OVER:
            self._write_folder(job, to, fields)
        moved, found = self._run_move(job_id, to, fields, self._connection)
        if not moved:
            raise InvalidTransition(job_id, found.decode() or "gone", to)
        if not ends:
            self._write_folder(job, to, fields)
        return self.get(job_id)

    def move_in(self, pipeline: "Pipeline", job_id: str, to: State, **fields: Any) -> None:
        """`move` as part of a transaction, for one who alone has the job in hand."""
        self._run_move(job_id, to, fields, pipeline)

    def report(self, job_id: str, progress: Progress | None, rq_job_key: str) -> bool:
        """Store and announce progress; True when somebody wants the job to stop.

        Looks at our own request and at RQ's status: its `cancel` of a running job and its `delete`
        change nothing else that a worker could see.
        """
        with self._connection.pipeline(transaction=False) as pipeline:
            if progress is not None:
                pipeline.hset(record_key(job_id), mapping=encode({"progress": progress.to_json()}))
                event = self.event(job_id, "progress", State.RUNNING, progress)
                pipeline.publish(EVENTS, event)
            pipeline.hget(record_key(job_id), "wish")
            pipeline.hget(rq_job_key, "status")
            *_, requested, status = pipeline.execute()
        return requested == b'"cancel"' or status in (None, b"canceled")

    def request_cancel(self, job_id: str) -> None:
        """Leave the wish where the worker looks before and while it runs a job."""
        self._connection.hset(record_key(job_id), mapping=encode({"wish": "cancel"}))

    def forget(self, job_id: str) -> bool:
        """Drop the record of a job that is over; False when it has been taken up again."""
        over = f",{','.join(OVER)},"
        return bool(self._forget(keys=[record_key(job_id)], args=[job_id, over]))

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
        self, job_id: str, to: State, fields: Mapping[str, Any], client: "Redis | Pipeline"
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
            *pairs,
        ]
        answer = self._move(keys=[record_key(job_id)], args=args, client=client)
        return (1, b"") if isinstance(client, Pipeline) else (answer[0], answer[1])

    def save_folder(self, job_id: str) -> None:
        """Bring the job's folder up to date, after changes that were made in a transaction."""
        try:
            job = self.get(job_id)
        except UnknownJob:
            return
        self._write_folder(job, job.state, {})

    def _write_folder(self, job: RenderJob, to: State, fields: Mapping[str, Any]) -> None:
        changed = {name: value for name, value in fields.items() if name != "progress"}
        self.folders.write(job.id, {**job.durable(), "state": str(to), **changed})

    def event(self, job_id: str, kind: str, state: State, progress: Progress | None = None) -> str:
        """What is announced of a job, as it goes over the channel."""
        event = JobEvent(
            job_id=job_id, kind=kind, state=state, progress=progress, at=stamp(self.clock())
        )
        return json.dumps(event.to_json())
