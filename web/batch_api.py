"""The JSON API of batches: many renders planned, queued and looked at as one."""

from typing import Any

from flask import Blueprint, request

from h3farm.web.bodies import schedule_in, switch_in, text_in
from h3farm.web.errors import BadRequestError
from h3farm.web.farm import farm
from h3farm.web.forms import priority_of
from h3farm.worker.queue import Priority
from h3farm.worker.queue.description import Description
from h3farm.worker.queue.expansion import expand
from h3farm.worker.queue.job import utc_now
from h3farm.worker.queue.schedule import parse_moment
from h3farm.worker.queue.wordlists import Wordlists

MAX_BATCH_BODY = 16 * 1024 * 1024
# Beside the parts of a description.
ORDERS = ("priority", "key", "again", "anyway", "not_before", "window", "plan")

blueprint = Blueprint("batch_api", __name__, url_prefix="/api/batches")

JSON = dict[str, Any]


@blueprint.get("")
def batches() -> JSON:
    """All batches, newest last."""
    return {"batches": [batch.to_json() for batch in farm().queue.batches()]}


@blueprint.post("")
def submit() -> tuple[JSON, int]:
    """Queue what a description stands for; with `"plan": true` only say what it would be."""
    request.max_content_length = MAX_BATCH_BODY
    body = request.get_json()
    if not isinstance(body, dict):
        raise BadRequestError('the body must be an object like {"prompts": ["a fox"], "count": 2}')
    again, planned = switch_in(body, "again"), switch_in(body, "plan")
    key = text_in(body, "key")
    priority = priority_of(body.get("priority", Priority.NORMAL))
    parts = {name: value for name, value in body.items() if name not in ORDERS}
    description = Description.from_json(parts)
    queue = farm().queue
    specs = expand(description, Wordlists(queue.settings.wordlists).lines)
    if planned:
        plan = queue.plan(
            specs, name=description.name, draw_seed=description.draw_seed, again=again
        )
        return plan.to_json(), 200
    batch = queue.submit_many(
        specs,
        name=description.name,
        priority=priority,
        key=key,
        again=again,
        anyway=switch_in(body, "anyway"),
        schedule=schedule_in(body),
    )
    return batch.to_json(), 201


@blueprint.get("/<batch_id>")
def batch(batch_id: str) -> JSON:
    """One batch, by its id or its name."""
    return farm().queue.batch(batch_id).to_json()


@blueprint.get("/<batch_id>/jobs")
def batch_jobs(batch_id: str) -> JSON:
    """The jobs of a batch, in its order."""
    queue = farm().queue
    found = queue.batch_jobs(queue.batch(batch_id).id)
    return {"jobs": [job.to_json() for job in found]}


@blueprint.post("/<batch_id>/cancel")
def cancel(batch_id: str) -> JSON:
    """Cancel what is not over of a batch."""
    return farm().queue.cancel_batch(batch_id).to_json()


@blueprint.post("/<batch_id>/pause")
def pause(batch_id: str) -> JSON:
    """Pause what is not over of a batch; `{"until": "22:00"}` says until when."""
    body = request.get_json(silent=True) or {}
    text = text_in(body, "until") if isinstance(body, dict) else None
    until = parse_moment(text, utc_now(), "until") if text else None
    return farm().queue.pause_batch(batch_id, until=until).to_json()


@blueprint.post("/<batch_id>/resume")
def resume(batch_id: str) -> JSON:
    """Let what is paused of a batch go on."""
    return farm().queue.resume_batch(batch_id).to_json()


@blueprint.post("/<batch_id>/retry")
def retry(batch_id: str) -> JSON:
    """Queue what failed of a batch once more."""
    return farm().queue.retry_batch(batch_id).to_json()
