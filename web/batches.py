"""The pages of batches: many prompts at once, planned before they are queued, then followed."""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flask import Blueprint, Response, redirect, render_template, request, url_for
from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response as AnyResponse

from h3farm.engine.spec import SpecError, draw_seed
from h3farm.web import forms
from h3farm.web.errors import status_and_kind
from h3farm.web.farm import farm, model_names
from h3farm.worker.queue import RenderQueue, StoreUnavailable
from h3farm.worker.queue.batch import Batch
from h3farm.worker.queue.description import Description
from h3farm.worker.queue.errors import JobNotSaved
from h3farm.worker.queue.expansion import expand
from h3farm.worker.queue.faults import BatchError
from h3farm.worker.queue.plan import Plan
from h3farm.worker.queue.tables import from_prompts, number_of
from h3farm.worker.queue.wordlists import Wordlists

SHOWN_JOBS = 200
SHOWN_BATCHES = 50
LIST = "the list"  # what faults call the field of prompts

ACTIONS: Mapping[str, Callable[[RenderQueue, str], Batch]] = {
    "cancel": RenderQueue.cancel_batch,
    "pause": RenderQueue.pause_batch,
    "resume": RenderQueue.resume_batch,
    "retry": RenderQueue.retry_batch,
}

blueprint = Blueprint("batches", __name__, url_prefix="/batches")


@dataclass(slots=True, kw_only=True)
class BatchForm:
    """What the form shows: the settings of a render, and what makes many of it.

    planned: names the jobs that the plan showed; changed: they are others by now. token: of this
    page; what was planned on it is queued once, however often the button is pressed.
    """

    settings: forms.SubmitForm
    name: str = ""
    count: str = "1"
    template: bool = True
    draw_seed: str = ""
    token: str = ""
    planned: str = ""
    plan: Plan | None = None
    changed: bool = False
    failures: list[str] = field(default_factory=list)


@blueprint.get("")
def home() -> str:
    """The form for many prompts, and the batches."""
    return _home(BatchForm(settings=forms.blank()))


@blueprint.post("")
def submit() -> Response | AnyResponse:
    """Show the plan of what the form describes; queue it when exactly this plan has been seen."""
    form = _posted(request.form)
    queue = farm().queue
    try:
        description = _description(form)
        specs = expand(description, Wordlists(queue.settings.wordlists).lines)
        form.plan = queue.plan(specs, name=form.name, draw_seed=description.draw_seed)
        seen, form.planned = form.planned, _names(form.plan)
        form.changed = "queue" in request.form and seen != form.planned
        if "queue" in request.form and not form.changed:
            queued = queue.submit_many(
                specs,
                name=form.name,
                priority=forms.priority_of(form.settings.values["priority"]),
                key=f"page-{form.token}-{form.planned}",
                anyway=True,  # the plan has warned
            )
            return redirect(url_for("batches.batch", batch_id=queued.id), code=303)
    except (SpecError, JobNotSaved, StoreUnavailable) as error:
        form.failures = _sentences(error)
        return Response(_home(form), status=status_and_kind(error)[0])
    return Response(_home(form))


@blueprint.get("/<batch_id>")
def batch(batch_id: str) -> str:
    """One batch and its jobs."""
    return render_template("batches/batch.html", **_batch_page(batch_id))


@blueprint.get("/<batch_id>/live")
def batch_live(batch_id: str) -> str:
    """The part of the batch's page that changes by itself."""
    return render_template("batches/_batch.html", fragment=True, **_batch_page(batch_id))


@blueprint.get("/<batch_id>/<action>")
def ask(batch_id: str, action: str) -> str:
    """Ask before all of a batch is cancelled."""
    if action != "cancel":
        raise NotFound
    return render_template("batches/cancel.html", batch=farm().queue.batch(batch_id))


@blueprint.post("/<batch_id>/<action>")
def control(batch_id: str, action: str) -> AnyResponse:
    """Cancel, pause, resume or retry a batch."""
    if action not in ACTIONS:
        raise NotFound
    ACTIONS[action](farm().queue, batch_id)
    return redirect(url_for("batches.batch", batch_id=batch_id), code=303)


def _home(form: BatchForm) -> str:
    try:
        found = farm().queue.batches(SHOWN_BATCHES)
    except StoreUnavailable as error:
        found = []
        form.failures = form.failures or [str(error)]
    return render_template(
        "batches/home.html",
        form=form,
        batches=found[::-1],
        more=len(found) == SHOWN_BATCHES,
        models=model_names(),
        priorities=forms.PRIORITIES,
        shown=SHOWN_JOBS,
    )


def _batch_page(batch_id: str) -> dict[str, Any]:
    queue = farm().queue
    found: Batch = queue.batch(batch_id)
    jobs = queue.batch_jobs(found.id)
    return {"batch": found, "jobs": jobs[:SHOWN_JOBS], "more": max(0, len(jobs) - SHOWN_JOBS)}


def _posted(sent: Mapping[str, str]) -> BatchForm:
    """The form as it came back."""
    return BatchForm(
        settings=forms.posted(sent),
        name=sent.get("name", ""),
        count=sent.get("count", "1"),
        template="template" in sent,
        draw_seed=sent.get("draw_seed") or str(draw_seed()),
        token=sent.get("token") or secrets.token_hex(8),
        planned=sent.get("planned", ""),
    )


def _description(form: BatchForm) -> Description:
    """What the form describes; BatchError."""
    defaults = forms.fields_of(form.settings)
    rows = from_prompts(str(defaults.pop("prompt")), LIST)
    return Description.build(
        rows=rows,
        name=form.name,
        defaults=defaults,
        expand="all" if form.template else "none",
        count=number_of(form.count.strip()),
        draw_seed=number_of(form.draw_seed),
    )


def _names(plan: Plan) -> str:
    """Names the jobs of a plan, to tell it from any other."""
    text = "\n".join(job.spec.hash for job in plan.jobs)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sentences(error: Exception) -> list[str]:
    if isinstance(error, BatchError):
        return [fault.sentence for fault in error.faults]
    return [str(error)]
