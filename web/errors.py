"""What a request can fail with, and the one table that gives each failure a status and a word."""

import re
from typing import Any

from werkzeug.exceptions import HTTPException

from h3farm.engine.spec import SpecError
from h3farm.worker.queue import (
    InvalidTransition,
    StoreUnavailable,
    UnknownJob,
    UnknownModel,
)
from h3farm.worker.queue.errors import BadSchedule, JobNotSaved, NotEnoughDisk, UnknownBatch
from h3farm.worker.queue.faults import BatchError


class WebError(Exception):
    """Base of the failures that only the dashboard has; `str()` is a sentence for the user."""

    status = 400
    kind = "bad_request"
    field = ""


class BadRequestError(WebError):
    """The request cannot be read; `field` names the parameter at fault."""

    def __init__(self, sentence: str, field: str = "") -> None:
        """The sentence for the user, and the name of the parameter."""
        super().__init__(sentence)
        self.field = field


class ForeignHostError(WebError):
    """The Host header is not ours: a page elsewhere may have pointed its name at this machine."""

    status = 403
    kind = "foreign_host"


class CrossSiteError(WebError):
    """Another site's page asked for this."""

    status = 403
    kind = "cross_site"


class StaleTokenError(WebError):
    """A change came without the token that this farm's pages carry."""

    status = 403
    kind = "stale_token"


class NoSuchRenderError(WebError):
    """The outputs hold no such folder or file."""

    status = 404
    kind = "unknown_render"


class TooManyStreamsError(WebError):
    """As many pages are watching as there are streams: this one polls."""

    status = 503
    kind = "too_many_streams"


STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (UnknownModel, 422, "unknown_model"),
    (BatchError, 422, "invalid_batch"),
    (BadSchedule, 422, "invalid_schedule"),
    (SpecError, 422, "invalid_spec"),
    (UnknownJob, 404, "unknown_job"),
    (UnknownBatch, 404, "unknown_batch"),
    (InvalidTransition, 409, "invalid_transition"),
    (JobNotSaved, 507, "job_not_saved"),
    (NotEnoughDisk, 507, "not_enough_disk"),
    (StoreUnavailable, 503, "store_unavailable"),
)
KNOWN: tuple[type[Exception], ...] = (WebError, *(row[0] for row in STATUS))

TITLES = {404: "Not found", 403: "Not allowed", 500: "Our mistake", 503: "The farm does not answer"}
TITLE = "That did not work"

# What Flask itself refuses, in our words.
SENTENCES = {
    404: "There is no such page.",
    405: "This address does not take that method.",
    413: "The request is too large: a prompt has at most 20000 characters. Longer lists of prompts "
    "are for `h3farm submit --prompts`.",
    415: "The body must be JSON, with the content type application/json.",
    500: "The dashboard made a mistake; its log says more. Queue and worker are not affected.",
}


def status_and_kind(error: Exception) -> tuple[int, str]:
    """The HTTP status of a failure and its word for programs."""
    if isinstance(error, WebError):
        return error.status, error.kind
    if isinstance(error, HTTPException):
        return error.code or 500, re.sub(r"\W+", "_", error.name.lower())
    for known, status, kind in STATUS:
        if isinstance(error, known):
            return status, kind
    return 500, "internal_server_error"


def sentence(error: Exception) -> str:
    """What went wrong, for a person."""
    if isinstance(error, HTTPException):
        return SENTENCES.get(error.code or 500) or error.description or error.name
    if isinstance(error, KNOWN):
        return str(error)
    return SENTENCES[500]


def as_json(error: Exception) -> dict[str, Any]:
    """The one shape in which the API speaks of a failure."""
    _, kind = status_and_kind(error)
    shape: dict[str, Any] = {"kind": kind, "message": sentence(error)}
    field = getattr(error, "field", "")
    if field:
        shape["field"] = field
    if isinstance(error, BatchError):
        shape["faults"] = [fault.to_json() for fault in error.faults]
    return {"error": shape}
