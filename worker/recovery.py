"""What a worker that starts (or ends) puts right: jobs in nobody's hands, keys of dead workers.

Only for the holder of the worker's lock: nobody else works on the queue then, so every job that
counts as begun was begun by a worker that is dead.
"""

import logging
import socket
from collections.abc import Callable
from typing import Any

import redis
from redis.client import Pipeline
from rq import worker_registration
from rq.executions import Execution
from rq.job import Job, JobStatus

from h3farm.worker.failures import WORKER_DIED, failure
from h3farm.worker.identity import process_start
from h3farm.worker.ladder import climbed_down
from h3farm.worker.queue import RenderJob, RenderQueue, State, UnknownJob
from h3farm.worker.queue.job import stamp, utc_now
from h3farm.worker.queue.records import as_text
from h3farm.worker.queue.returning import put_back

logger = logging.getLogger(__name__)

MAX_CRASHES = 3
START_FIELD = "process_start"  # beside RQ's own fields in the worker's hash


def live_workers(connection: "redis.Redis") -> list[dict[str, str]]:
    """Workers that run on this machine, and those of other machines whose key has not expired.

    The keys of those that died here are dropped: RQ refuses a second worker of the same name for
    as long as they live, which is minutes.
    """
    alive = []
    for key in worker_registration.get_keys(connection=connection):
        row = {as_text(k): as_text(v) for k, v in connection.hgetall(key).items()}
        if row and "death" not in row and not _dead_here(row):
            alive.append(row)
            continue
        with connection.pipeline() as pipeline:
            pipeline.delete(key)
            pipeline.srem(worker_registration.REDIS_WORKER_KEYS, key)
            for name in filter(None, row.get("queues", "").split(",")):
                pipeline.srem(worker_registration.WORKERS_BY_QUEUE_KEY % name, key)
            pipeline.execute()
    return alive


def _dead_here(row: dict[str, str]) -> bool:
    if row.get("hostname") != socket.gethostname() or not row.get("pid"):
        return False
    start = process_start(int(row["pid"]))
    return start is None or row.get(START_FIELD, start) != start


def recover(queue: RenderQueue) -> None:
    """Every job that a dead worker had in hand goes back to the front, or to its end."""
    queue.settle()
    begun = queue.rq_queue.started_job_registry.get_job_and_execution_ids(cleanup=False)
    executions = dict(begun)
    popped = queue.rq_queue.intermediate_queue.get_job_ids()
    running = [job_id for job_id, _ in queue.records.ids(State.RUNNING)]
    # Pushed to the front one after the other: what ran comes last, and so stands first.
    for job_id in dict.fromkeys([*reversed(popped), *executions, *running]):
        _recover_job(queue, job_id, executions.get(job_id))
    _recover_strays(queue)


def _recover_job(queue: RenderQueue, job_id: str, execution_id: str | None) -> None:
    try:
        job: RenderJob | None = queue.records.get(job_id)
    except UnknownJob:
        job = None
    crashed = False

    def forget(pipeline: "Pipeline") -> None:
        if execution_id is not None:
            rq_job = queue.fetch_rq_job(job_id) or Job(job_id, connection=queue.connection)
            rq_job.origin = queue.rq_queue.name
            Execution(execution_id, job_id, queue.connection).delete(job=rq_job, pipeline=pipeline)

    if job is not None and job.state is State.RUNNING:
        job, crashed = _end_of_crashed(queue, job), True
    elif job is not None and job.state is State.QUEUED and job.cancel_requested:
        job = queue.records.move(job_id, State.CANCELLED, ended_at=stamp(utc_now()))
    if job is not None and job.over:
        _settle(queue, job, forget)
    else:
        fields: dict[str, Any] = {}
        if job is not None and crashed:
            # Not as it was: most often the system ended the worker for want of memory.
            fields = {"crashes": job.crashes + 1, **(climbed_down(job) or {})}
        put_back(queue, job_id, also=forget, **fields)


def _end_of_crashed(queue: RenderQueue, job: RenderJob) -> RenderJob:
    """The end that a job whose worker died has come to, if it has."""
    disk = queue.folders.read(job.id) or {}
    if disk.get("state") in (State.DONE, State.FAILED, State.CANCELLED):
        # The worker died between the disk and the store.
        fields: dict[str, Any] = {n: disk.get(n) for n in ("result", "error", "ended_at")}
        return queue.records.move(job.id, State(disk["state"]), **fields)
    now = stamp(utc_now())
    if job.cancel_requested:
        return queue.records.move(job.id, State.CANCELLED, ended_at=now)
    if job.crashes + 1 < MAX_CRASHES:
        logger.warning("%s: its worker died: it goes back to the front of the queue", job.id)
        return job
    sentence = f"the worker died {MAX_CRASHES} times while it rendered this job"
    error = failure(sentence, "worker_died", WORKER_DIED)
    logger.error("%s: failed: %s", job.id, sentence)
    return queue.records.move(
        job.id, State.FAILED, ended_at=now, error=error, crashes=job.crashes + 1
    )


def _settle(queue: RenderQueue, job: RenderJob, forget: Callable[["Pipeline"], None]) -> None:
    """Bring RQ's half of a job that is over to the same end."""
    rq_job = queue.fetch_rq_job(job.id)
    with queue.connection.pipeline() as pipeline:
        forget(pipeline)
        pipeline.lrem(queue.rq_queue.intermediate_queue_key, 0, job.id)
        if rq_job is not None and job.state is State.DONE:
            rq_job.set_status(JobStatus.FINISHED, pipeline=pipeline)
            queue.rq_queue.failed_job_registry.remove(rq_job, pipeline=pipeline)
            queue.rq_queue.finished_job_registry.add(rq_job, -1, pipeline=pipeline)
        elif rq_job is not None and job.state is State.FAILED:
            sentence = job.error["sentence"] if job.error else ""
            rq_job.set_status(JobStatus.FAILED, pipeline=pipeline)
            queue.rq_queue.failed_job_registry.add(
                rq_job, ttl=-1, exc_string=sentence, pipeline=pipeline
            )
        pipeline.execute()
    if rq_job is not None and job.state is State.CANCELLED and not rq_job.is_canceled:
        rq_job.cancel()


def _recover_strays(queue: RenderQueue) -> None:
    """Jobs that wait but stand in no list: a client died in mid-command, or the store forgot."""
    listed = {as_text(job_id) for job_id in queue.connection.lrange(queue.rq_queue.key, 0, -1)}
    waiting = [job_id for job_id, _ in queue.records.ids(State.QUEUED) if job_id not in listed]
    for job in queue.records.get_many(waiting):
        rq_job = queue.fetch_rq_job(job.id)
        if job.cancel_requested or (rq_job is not None and rq_job.is_canceled):
            queue.records.move(job.id, State.CANCELLED, ended_at=stamp(utc_now()))
        else:
            queue.push(job)
