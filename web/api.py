"""The JSON API: everything that the pages do, for programs, and the event stream of the pages."""

from typing import Any

from flask import Blueprint, Response, request

from h3farm.engine.spec import RenderSpec
from h3farm.web.bodies import schedule_in, switch_in, text_in
from h3farm.web.errors import BadRequestError
from h3farm.web.farm import farm
from h3farm.web.forms import priority_of
from h3farm.worker.queue import Priority, State
from h3farm.worker.queue.log_reader import LogReader

MOST_JOBS = 500

blueprint = Blueprint("api", __name__, url_prefix="/api")

JSON = dict[str, Any]


@blueprint.get("/status")
def status() -> JSON:
    """The worker, the jobs by state, what those that are held wait for, and what was saved."""
    queue = farm().queue
    worker = queue.worker()
    return {
        "worker": worker.to_json() if worker else None,
        "counts": queue.counts(),
        "held": {job.id: job.waits for job in queue.held()},
        "saved": queue.saved(),
    }


@blueprint.get("/models")
def models() -> JSON:
    """The models that a spec may name."""
    return {"models": farm().queue.models()}


@blueprint.get("/jobs")
def jobs() -> JSON:
    """Jobs, newest last; `state` (may be repeated) chooses, `limit` bounds those that are over,
    `waiting` those that wait in each state, the next to run.
    """
    states = request.args.getlist("state")
    for name in states:
        if name not in list(State):
            raise BadRequestError(f"state must be one of {', '.join(State)}, got {name!r}", "state")
    found = farm().queue.list(
        states or None, limit=_count_in("limit", 100), waiting=_count_in("waiting")
    )
    return {"jobs": [job.to_json() for job in found]}


@blueprint.post("/jobs")
def submit() -> tuple[JSON, int]:
    """Queue `{"spec": {...}, "priority": "normal", "key": "...", "again": false}`."""
    body = request.get_json()
    parts = {"spec", "priority", "key", "again", "anyway", "not_before", "window"}
    if not isinstance(body, dict) or not set(body) <= parts:
        raise BadRequestError(
            'the body must be {"spec": {...}, "priority": "normal", "anyway": false}'
        )
    spec = RenderSpec.from_json(body.get("spec"))
    job = farm().queue.submit(
        spec,
        priority=priority_of(body.get("priority", Priority.NORMAL)),
        key=text_in(body, "key"),
        again=switch_in(body, "again"),
        anyway=switch_in(body, "anyway"),
        schedule=schedule_in(body),
    )
    return job.to_json(), 201


@blueprint.get("/jobs/<job_id>")
def job(job_id: str) -> JSON:
    """One job."""
    return farm().queue.get(job_id).to_json()


@blueprint.get("/jobs/<job_id>/log")
def log(job_id: str) -> Response:
    """A job's log as plain text; empty before a worker has begun it."""
    text = LogReader(farm().queue.log(farm().queue.get(job_id).id)).read()
    return Response(text, mimetype="text/plain")


@blueprint.post("/jobs/<job_id>/cancel")
def cancel(job_id: str) -> JSON:
    """Cancel a job that waits or runs; a running one stops within a second."""
    return farm().queue.cancel(job_id).to_json()


@blueprint.post("/jobs/<job_id>/retry")
def retry(job_id: str) -> JSON:
    """Queue a job that failed once more; it starts over."""
    return farm().queue.retry(job_id).to_json()


@blueprint.get("/events")
def events() -> Response:
    """Server-sent events: `changed` (jobs that pages should fetch again, null: all), `progress`."""
    return Response(
        farm().hub.stream(), mimetype="text/event-stream", headers={"Cache-Control": "no-store"}
    )


def _count_in(name: str, default: int | None = None) -> int | None:
    """A parameter that bounds a list."""
    text = request.args.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) > MOST_JOBS:
        raise BadRequestError(
            f"{name} must be a whole number from 0 to {MOST_JOBS}, got {text!r}", name
        )
    return int(text)
