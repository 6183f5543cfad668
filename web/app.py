"""The application factory."""

import logging

from flask import Flask, Response, jsonify, render_template, request
from werkzeug.exceptions import HTTPException

from h3farm.web import api, batch_api, batches, errors, gallery, media, queue, security, words
from h3farm.web.farm import EXTENSION, Farm, board, pulse, render_of
from h3farm.web.hub import Hub, Message
from h3farm.web.outputs import Outputs
from h3farm.worker.queue import JobEvent, RenderQueue, Settings

MAX_BODY = 256 * 1024  # a prompt of 20000 characters, encoded for a form, takes up to 240 kB

logger = logging.getLogger(__name__)


def create_app(config: Settings, *, render_queue: RenderQueue | None = None) -> Flask:
    """The dashboard of the farm that `config` describes; nothing is sent to the store yet.

    render_queue: in place of a queue connected by `config`.
    """
    app = Flask(__name__)
    app.config.update(MAX_CONTENT_LENGTH=MAX_BODY, MAX_FORM_MEMORY_SIZE=MAX_BODY)
    jobs = render_queue or RenderQueue(config)
    app.extensions[EXTENSION] = Farm(
        queue=jobs, outputs=Outputs(config.outputs), hub=Hub(jobs.watch, describe)
    )
    security.install(app, config.port, config.state / "web-token")
    app.jinja_env.filters.update(words.FILTERS)
    app.jinja_env.globals.update(
        board=board, phases=words.PHASE_LABELS, pulse=pulse, render_of=render_of
    )
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    for part in (queue, batches, gallery, media, api, batch_api):
        app.register_blueprint(part.blueprint)
    for known in (*errors.KNOWN, HTTPException):
        app.register_error_handler(known, refuse)
    app.register_error_handler(Exception, fail)
    return app


def describe(event: JobEvent) -> Message:
    """What open pages are told of a job's progress."""
    progress = event.progress
    if progress is None:
        return {"job": event.job_id}
    return {
        "job": event.job_id,
        "phase": progress.phase,
        "doing": words.doing(progress),
        "inside": words.inside(progress),
        "fraction": words.fraction(progress),
        "remaining": words.remaining(progress),
    }


def refuse(error: Exception) -> Response:
    """Answer a failure that has a reason: JSON for the API, a page for people."""
    status, _ = errors.status_and_kind(error)
    if request.path.startswith("/api/"):
        response = jsonify(errors.as_json(error))
    else:
        response = Response(
            render_template(
                "error.html",
                status=status,
                title=errors.TITLES.get(status, errors.TITLE),
                sentence=errors.sentence(error),
            )
        )
    response.status_code = status
    if isinstance(error, HTTPException):
        for name, value in error.get_headers():
            if name == "Allow":
                response.headers[name] = value
    return response


def fail(error: Exception) -> Response:
    """Answer a mistake of ours, and log where it is."""
    logger.exception("%s %s failed", request.method, request.path)
    return refuse(error)
