"""Looking at batches, and keeping store and disk of one mind about them."""

import json
from collections.abc import Sequence
from typing import Any, cast

from h3farm.worker.queue.batch import GONE, Batch
from h3farm.worker.queue.core import store_errors
from h3farm.worker.queue.errors import UnknownBatch
from h3farm.worker.queue.intake import BATCHES
from h3farm.worker.queue.job import RenderJob
from h3farm.worker.queue.manifests import Manifests
from h3farm.worker.queue.reading import Reading
from h3farm.worker.queue.records import as_text
from h3farm.worker.queue.states import State

# ARGV: ids of batches. For each its record, and the jobs and frames in every state, as JSON.
LOOK = """
local answer = {}
for _, id in ipairs(ARGV) do
  local record = redis.call('GET', 'h3farm:batch:' .. id)
  local jobs, frames = {}, {}
  local each = redis.call('HGETALL', 'h3farm:batch-frames:' .. id)
  for i = 1, #each, 2 do
    local state = redis.call('HGET', 'h3farm:job:' .. each[i], 'state') or 'gone'
    jobs[state] = (jobs[state] or 0) + 1
    frames[state] = (frames[state] or 0) + tonumber(each[i + 1])
  end
  answer[#answer + 1] = {record or '', cjson.encode(jobs), cjson.encode(frames)}
end
return answer
"""


class Batches(Reading):
    """The part of the queue that is asked about batches."""

    @property
    def manifests(self) -> Manifests:
        """The batches on disk."""
        return Manifests(self.settings.batches)

    def batches(self, newest: int | None = None) -> list[Batch]:
        """All batches, or only so many of the newest; newest last."""
        with store_errors(self.settings):
            return self._look(self._batch_ids(newest))

    def batch_names(self) -> dict[str, str]:
        """The names of all batches by their ids."""
        with store_errors(self.settings):
            ids = self._batch_ids()
            rows = self.connection.mget(f"h3farm:batch:{each}" for each in ids) if ids else []
        records = cast("list[bytes | None]", rows)
        return {
            each: json.loads(row)["name"] for each, row in zip(ids, records, strict=True) if row
        }

    def batch(self, given: str) -> Batch:
        """The batch with this id or, when there is none, with this name; UnknownBatch."""
        with store_errors(self.settings):
            found = self._look([given])
            if not found:
                named = [each for each, name in self.batch_names().items() if name == given]
                found = self._look(named)
        if len(found) != 1:
            raise UnknownBatch(given, tuple(batch.id for batch in found))
        return found[0]

    def batch_jobs(self, batch_id: str) -> list[RenderJob]:
        """The jobs of a batch in its order; those that were cleared away are not among them."""
        with store_errors(self.settings):
            positions = self._positions()
            jobs = self.records.get_many(self.batch_job_ids(batch_id))
            settled = self._settle_strays(jobs, positions)
            return list(self.explained(settled, positions))

    def batch_job_ids(self, batch_id: str) -> list[str]:
        """The ids of the jobs of a batch, in its order."""
        ids = self.connection.hkeys(f"h3farm:batch-frames:{batch_id}")
        return sorted(as_text(job_id) for job_id in cast("list[bytes]", ids))

    def _batch_ids(self, newest: int | None = None) -> list[str]:
        start = 0 if newest is None else -newest
        ids = cast("list[bytes]", self.connection.zrange(BATCHES, start, -1))
        return [as_text(each) for each in ids]

    def _look(self, ids: Sequence[str]) -> list[Batch]:
        """Those of the batches that exist, in one call."""
        if not ids:
            return []
        rows = cast("list[list[bytes]]", self.connection.register_script(LOOK)(args=list(ids)))
        return [_batch(*(json.loads(part) for part in row)) for row in rows if row[0]]


def _batch(record: dict[str, Any], jobs: Any, frames: Any) -> Batch:
    known = [*map(str, State), GONE]
    return Batch(
        **record,
        counts={state: jobs[state] for state in known if state in jobs},
        frames=sum(dict(frames).values()),
        frames_done=dict(frames).get(State.DONE, 0),
    )
