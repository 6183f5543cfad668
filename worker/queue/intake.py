"""Jobs into the store: any number of them in one call, all or none, once for each key.

Keys: `h3farm:keys` (hash: idempotency key to the id of the job or batch that it was given for),
`h3farm:batches` (sorted set: ids of batches by the millisecond of their submit),
`h3farm:batch:<id>` (its record as JSON), `h3farm:batch-frames:<id>` (hash: its jobs' frames).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rq.job import Job, JobStatus

from h3farm.worker.queue.core import QueueCore
from h3farm.worker.queue.job import RenderJob
from h3farm.worker.queue.records import KEYS, as_text, encode, milliseconds, stored_fields
from h3farm.worker.queue.scripts import PLACE

BATCHES = "h3farm:batches"

# KEYS: the list, RQ's set of queues. ARGV: score, rank, key ("": none), what it is given for, batch
# ("": none), its record; then for each job: id, state, frames, event, record, RQ's half ("": none)
# as objects of texts, and the one field of RQ's half that is not text.
INTAKE = (
    PLACE
    + """
if ARGV[3] ~= '' then
  local first = redis.call('HGET', 'h3farm:keys', ARGV[3])
  if first then return first end
  redis.call('HSET', 'h3farm:keys', ARGV[3], ARGV[4])
end
if ARGV[5] ~= '' then
  redis.call('ZADD', 'h3farm:batches', ARGV[1], ARGV[5])
  redis.call('SET', 'h3farm:batch:' .. ARGV[5], ARGV[6])
end
local function write(key, object)
  local pairs_ = {}
  for name, value in pairs(cjson.decode(object)) do
    pairs_[#pairs_ + 1] = name
    pairs_[#pairs_ + 1] = value
  end
  redis.call('HSET', key, unpack(pairs_))
end
local waiting = {}
for i = 7, #ARGV, 7 do
  local id, state = ARGV[i], ARGV[i + 1]
  write('h3farm:job:' .. id, ARGV[i + 4])
  redis.call('ZADD', 'h3farm:state:' .. state, ARGV[1], id)
  if ARGV[5] ~= '' then redis.call('HSET', 'h3farm:batch-frames:' .. ARGV[5], id, ARGV[i + 2]) end
  if ARGV[i + 5] ~= '' then
    write('rq:job:' .. id, ARGV[i + 5])
    redis.call('HSET', 'rq:job:' .. id, 'data', ARGV[i + 6])
    if state == 'queued' then waiting[#waiting + 1] = id end
  end
  redis.call('PUBLISH', 'h3farm:events', ARGV[i + 3])
end
redis.call('SADD', KEYS[2], KEYS[1])
local before = place(KEYS[1], tonumber(ARGV[2]))
local behind = redis.call('LRANGE', KEYS[1], before, -1)
if before == 0 then
  redis.call('DEL', KEYS[1])
else
  redis.call('LTRIM', KEYS[1], 0, before - 1)
end
for _, ids in ipairs({waiting, behind}) do
  for i = 1, #ids, 1000 do
    redis.call('RPUSH', KEYS[1], unpack(ids, i, math.min(i + 999, #ids)))
  end
end
return ''
"""
)

# KEYS: the jobs that are done. ARGV: hashes of specs. For each the newest job that made it, or "".
SAME = """
local wanted, found = {}, {}
for i, hash in ipairs(ARGV) do wanted[hash] = true end
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local fields = redis.call('HMGET', 'h3farm:job:' .. id, 'spec_hash', 'same_as')
  if fields[1] and wanted[fields[1]] and (not fields[2] or fields[2] == 'null') then
    found[fields[1]] = id
  end
end
local answer = {}
for i, hash in ipairs(ARGV) do answer[i] = found[hash] or '' end
return answer
"""


class Intake(QueueCore):
    """The part of the queue that brings new jobs into the store."""

    def first_with(self, key: str) -> str | None:
        """The id of the job or batch that the key was first given for."""
        found = self.connection.hget(KEYS, key)
        return None if found is None else as_text(cast("bytes", found))

    def take_in(
        self,
        jobs: Sequence[RenderJob],
        *,
        key: str | None = None,
        batch: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Put new jobs of one priority into the store, in one call; those queued get in line.

        key: when it has been given before, nothing happens, and what it was given for is returned.
        batch: the record of the batch that they are, with its `id`.
        """
        what = batch["id"] if batch is not None else jobs[0].id
        head: list[str | int | bytes] = [
            milliseconds(self._clock()),
            list(type(jobs[0].priority)).index(jobs[0].priority),
            key or "",
            what,
            what if batch is not None else "",
            json.dumps(batch, ensure_ascii=False),
        ]
        rows = [part for job in jobs for part in self._row(job)]
        script = self.connection.register_script(INTAKE)
        keys = [self.rq_queue.key, self.rq_queue.redis_queues_keys]
        first = as_text(cast("bytes", script(keys=keys, args=[*head, *rows])))
        return first or None

    def same_done(self, hashes: Sequence[str]) -> list[str | None]:
        """For each hash of a spec the newest job that is done with it."""
        if not hashes:
            return []
        script = self.connection.register_script(SAME)
        found = script(keys=["h3farm:state:done"], args=list(hashes))
        return [as_text(job_id) or None for job_id in cast("list[bytes]", found)]

    def _row(self, job: RenderJob) -> list[str | bytes]:
        """A job as the script takes it."""
        record = encode(stored_fields(job))
        event = self.records.event(job.id, "state", job.state)
        half, data = ("", b"") if job.over else self._rq_half(job)
        head = [job.id, str(job.state), str(job.spec.frames), event]
        return [*head, json.dumps(record), half, data]

    def _rq_half(self, job: RenderJob) -> tuple[str, bytes]:
        """What RQ itself would store of a job in the queue."""
        rq_job: Job = self.make_rq_job(job)
        self.rq_queue._prepare_for_queue(rq_job)
        fields = {**rq_job.to_dict(), "status": JobStatus.QUEUED.value}
        data: bytes = fields.pop("data")
        return json.dumps({name: _text(value) for name, value in fields.items()}), data


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
