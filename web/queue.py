"""The queue page: submit, watch, cancel; and the page of one job."""

from typing import Any

from flask import Blueprint, Response, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from h3farm.engine.spec import SpecError
from h3farm.web import forms
from h3farm.web.errors import status_and_kind
from h3farm.web.farm import farm, model_names, render_of
from h3farm.worker.queue import RenderJob, StoreUnavailable
from h3farm.worker.queue.errors import JobNotSaved, NotEnoughDisk

LOG_TAIL_BYTES = 8000
FRAGMENT_HEADER = "X-Fragment"  # our scripts ask for the changed part of a page

blueprint = Blueprint("queue", __name__)


@blueprint.get("/")
def home() -> str:
    """The form and the queue. `again=<job>` or `render=<day>/<folder>` fills the form."""
    return _home(_prefilled())


@blueprint.post("/")
def submit() -> Response | AnyResponse:
    """Queue what the form describes; show it again with the faults beside their fields."""
    form = forms.posted(request.form)
    try:
        spec = forms.spec_of(form)
        priority = forms.priority_of(form.values["priority"])
        job = farm().queue.submit(spec, priority=priority, anyway="anyway" in request.form)
    except (SpecError, JobNotSaved, NotEnoughDisk, StoreUnavailable) as error:
        form.fail(error)
        return Response(_form_or_home(form), status=status_and_kind(error)[0])
    if not _wants_fragment():
        return redirect(url_for("queue.home", settings=job.id, queued=job.id), code=303)
    return Response(_form_or_home(_next_form(job)), status=201)


@blueprint.get("/plan")
def plan() -> str:
    """What would be made of the form's settings; nothing is queued."""
    return render_template("queue/_plan.html", plan=forms.plan_of(forms.posted(request.args)))


@blueprint.get("/live")
def live() -> str:
    """The parts of the queue page that change by themselves."""
    return render_template("queue/_board.html")


@blueprint.get("/jobs/<job_id>")
def job(job_id: str) -> str:
    """One job: settings, life, error, video."""
    return render_template("queue/job.html", **_job_page(job_id))


@blueprint.get("/jobs/<job_id>/live")
def job_live(job_id: str) -> str:
    """The part of the job's page that changes by itself."""
    return render_template("queue/_job.html", fragment=True, **_job_page(job_id))


@blueprint.get("/jobs/<job_id>/cancel")
def ask_cancel(job_id: str) -> str:
    """Ask before a job is cancelled."""
    return render_template("queue/cancel.html", job=farm().queue.get(job_id))


@blueprint.post("/jobs/<job_id>/cancel")
def cancel(job_id: str) -> AnyResponse:
    """Cancel a job that waits or runs."""
    farm().queue.cancel(job_id)
    return redirect(url_for("queue.home"), code=303)


@blueprint.post("/jobs/<job_id>/retry")
def retry(job_id: str) -> AnyResponse:
    """Queue a job that failed once more."""
    farm().queue.retry(job_id)
    return redirect(url_for("queue.job", job_id=job_id), code=303)


def _home(form: forms.SubmitForm) -> str:
    return render_template("queue/home.html", **_form_parts(form))


def _form_or_home(form: forms.SubmitForm) -> str:
    if _wants_fragment():
        return render_template("queue/_form.html", **_form_parts(form))
    return _home(form)


def _form_parts(form: forms.SubmitForm) -> dict[str, Any]:
    return {
        "form": form,
        "models": model_names(),
        "canvases": forms.CANVASES,
        "priorities": forms.PRIORITIES,
        "plan": forms.plan_of(form),
    }


def _wants_fragment() -> bool:
    return FRAGMENT_HEADER in request.headers


def _prefilled() -> forms.SubmitForm:
    """The form as the address wants it filled."""
    again, render, settings = (request.args.get(key) for key in ("again", "render", "settings"))
    try:
        if render:
            day, _, folder = render.partition("/")
            return forms.of_render(farm().outputs.get(day, folder).sidecar)
        if again:
            return forms.of_spec(farm().queue.get(again).spec.to_json())
        if settings:
            return _next_form(farm().queue.get(settings))
    except StoreUnavailable:
        pass  # the page says so anyway
    return forms.blank()


def _next_form(queued: RenderJob) -> forms.SubmitForm:
    """After a submit: the same settings, no prompt, a new seed, and where the last one is."""
    spec = queued.spec.to_json() | {"prompt": "", "seed": -1}
    form = forms.of_spec(spec)
    form.values["priority"] = str(queued.priority)
    form.queued = queued
    return form


def _job_page(job_id: str) -> dict[str, Any]:
    found = farm().queue.get(job_id)
    return {"job": found, "render": render_of(found), "log": _log_tail(job_id)}


def _log_tail(job_id: str) -> str:
    """The last lines of the job's log; "" before a worker has begun it."""
    try:
        with farm().queue.log(job_id).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_TAIL_BYTES))
            tail = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return tail if size <= LOG_TAIL_BYTES else tail.partition("\n")[2]
