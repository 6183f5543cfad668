"""Giving a job that was in a worker's hands back. For the holder of the worker's lock only."""

import logging
from collections.abc import Callable
from typing import Any

from redis.client import Pipeline
from rq.job import Job

from h3farm.worker.queue.errors import JobNotSaved, UnknownJob
from h3farm.worker.queue.queue import RenderQueue
from h3farm.worker.queue.states import State

logger = logging.getLogger(__name__)


def put_back(
    queue: RenderQueue,
    job_id: str,
    *,
    also: Callable[["Pipeline"], None] = lambda _: None,
    to: State = State.QUEUED,
    **fields: Any,
) -> None:
    """A job that was popped or running waits again, in one step of the store.

    It stands in front of those of its priority if it had been begun, else where it was. `to`:
    `paused` or `scheduled` keep it out of line. also: what else belongs into the transaction.
    fields: of the record, what changes along; only for a job that was running.
    """
    rq_job = _rq_job(queue, job_id)
    with queue.connection.pipeline() as pipeline:
        also(pipeline)
        pipeline.lrem(queue.rq_queue.intermediate_queue_key, 0, job_id)
        if rq_job is not None:
            pipeline.lrem(queue.rq_queue.key, 0, job_id)
            queue.rq_queue.failed_job_registry.remove(rq_job, pipeline=pipeline)
            rq_job.worker_name = None
            queue.rq_queue._prepare_for_queue(rq_job)
            queue.rq_queue._persist_job(rq_job, pipeline)
            # Refused by the script for a job that was popped but not begun: it is queued.
            queue.records.move_in(pipeline, job_id, State.INTERRUPTED, **fields)
            queue.records.move_in(pipeline, job_id, to, progress=None)
            queue.records.insert(job_id, pipeline)
        pipeline.execute()
    try:
        queue.records.save_folder(job_id)
    except JobNotSaved as error:
        # The store has it; the disk will, with the next change, when there is room again.
        logger.warning("%s: %s", job_id, error)


def _rq_job(queue: RenderQueue, job_id: str) -> Job | None:
    """RQ's half of a job, made anew when it is gone but ours is not."""
    rq_job = queue.fetch_rq_job(job_id)
    if rq_job is not None:
        return rq_job
    try:
        return queue.make_rq_job(queue.records.get(job_id))
    except UnknownJob:
        return None
