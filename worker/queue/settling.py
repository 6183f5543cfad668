"""What submits that died in the middle have left: taken back, or carried to their end.

For a worker that starts and for `h3farm recover`. The store decides: what it has, it was given
whole, so it stays; what it does not have was never acknowledged. A batch whose manifest has its
name was acknowledged, or about to be, even if the store has lost it since.
"""

import json
import logging
from datetime import datetime
from typing import Any

from h3farm.worker.queue.batch_submission import BatchSubmission
from h3farm.worker.queue.core import store_errors
from h3farm.worker.queue.intake import BATCHES
from h3farm.worker.queue.manifests import settling
from h3farm.worker.queue.records import KEYS, milliseconds

logger = logging.getLogger(__name__)


class Settling(BatchSubmission):
    """The part of the queue that brings disk and store together after a crash."""

    def settle(self) -> None:
        """Accept or take back whatever is only prepared, and give the store its batches again.

        Does nothing while somebody submits: what is prepared then is theirs.
        """
        with store_errors(self.settings), settling(self.settings.submit_lock) as alone:
            if not alone:
                return
            self.manifests.sweep()
            for batch_id in self.manifests.prepared():
                if self.connection.zscore(BATCHES, batch_id) is None:
                    logger.warning("%s was never queued whole, and is taken back", batch_id)
                    self.manifests.release(batch_id)
                else:
                    self.manifests.accept(batch_id)
            for job_id in self.folders.unsettled():
                self._settle_job(job_id)
            for manifest in self.manifests.all():
                if self.connection.zscore(BATCHES, manifest["id"]) is None:
                    self._restore(manifest)

    def _settle_job(self, job_id: str) -> None:
        record = self.folders.read_prepared(job_id)
        batch_id = (record or {}).get("batch")
        if self.records.exists(job_id):
            if self.folders.read(job_id) is None:
                self.records.save_folder(job_id)
            self.folders.accept(job_id)
        elif record is not None and batch_id and self.manifests.accepted(batch_id):
            self.folders.accept(job_id)
        else:
            logger.warning("%s was never queued, and is taken back", job_id)
            try:
                self.folders.release(job_id)
            except OSError as error:
                logger.warning("%s is left where it is: %s", self.folders.path(job_id), error)

    def _restore(self, manifest: dict[str, Any]) -> None:
        """A batch that the store has lost; its jobs are restored for themselves."""
        batch_id, job_ids = manifest["id"], manifest["job_ids"]
        record = {name: value for name, value in manifest.items() if name != "job_ids"}
        frames = {
            job_id: found["spec"]["frames"]
            for job_id in job_ids
            if (found := self.folders.read(job_id)) is not None
        }
        with self.connection.pipeline() as pipeline:
            pipeline.zadd(
                BATCHES, {batch_id: milliseconds(datetime.fromisoformat(manifest["created_at"]))}
            )
            pipeline.set(f"h3farm:batch:{batch_id}", json.dumps(record, ensure_ascii=False))
            pipeline.hset(f"h3farm:batch-frames:{batch_id}", mapping=frames)
            if manifest["key"] is not None:
                pipeline.hsetnx(KEYS, manifest["key"], batch_id)
            pipeline.execute()
