"""Every failure of the API has one shape, and the words of the command line."""

from collections.abc import Callable

import pytest
from flask import Flask
from flask.testing import FlaskClient

from h3farm.web import api
from h3farm.worker.queue import RenderJob

JSON = "application/json"
GOOD = {"prompt": "a red fox", "model": "tiny-h3"}

BODY = 'the body must be {"spec": {...}, "priority": "normal", "anyway": false}'
PRIORITIES = "priority must be urgent or normal or idle"
UNGUIDED = (
    "cfg has no meaning here: the model is guidance-distilled, it has neither a guidance scale "
    "nor a negative prompt"
)
# Body; status, kind, field, sentence.
REFUSED: tuple[tuple[object, tuple[int, str, str, str]], ...] = (
    ({}, (422, "invalid_spec", "", "a spec must be a JSON object, got null")),
    ([], (400, "bad_request", "", BODY)),
    ({"specs": GOOD}, (400, "bad_request", "", BODY)),
    (
        {"spec": {"model": "tiny-h3"}},
        (422, "invalid_spec", "prompt", "prompt is missing: a spec must have one"),
    ),
    (
        {"spec": GOOD | {"steps": 0}},
        (422, "invalid_spec", "steps", "steps must be a whole number from 1 to 200, got 0"),
    ),
    ({"spec": GOOD | {"cfg": 7}}, (422, "invalid_spec", "cfg", UNGUIDED)),
    (
        {"spec": GOOD | {"model": "other"}},
        (422, "unknown_model", "model", "model must be one of tiny-h3, got 'other'"),
    ),
    (
        {"spec": GOOD, "priority": "high"},
        (422, "invalid_spec", "priority", f'{PRIORITIES}, got "high"'),
    ),
    (
        {"spec": GOOD, "priority": ["x"]},
        (422, "invalid_spec", "priority", f"{PRIORITIES}, got an array"),
    ),
)


@pytest.mark.parametrize(("body", "expected"), REFUSED)
def test_a_refused_submit_says_which_field_and_why(
    client: FlaskClient, body: object, expected: tuple[int, str, str, str]
) -> None:
    answer = client.post("/api/jobs", json=body)
    error = answer.get_json()["error"]
    assert set(error) <= {"kind", "message", "field"}
    found = (answer.status_code, error["kind"], error.get("field", ""), error["message"])
    assert found == expected


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "kind"),
    [
        ("GET", "/api/nothing", {}, 404, "not_found"),
        ("GET", "/api/jobs/none", {}, 404, "unknown_job"),
        ("POST", "/api/jobs/none/cancel", {}, 404, "unknown_job"),
        ("PUT", "/api/jobs", {}, 405, "method_not_allowed"),
        ("GET", "/api/jobs/x/cancel", {}, 405, "method_not_allowed"),
        (
            "POST",
            "/api/jobs",
            {"data": "{", "content_type": "application/json"},
            400,
            "bad_request",
        ),
        ("POST", "/api/jobs", {}, 415, "unsupported_media_type"),
        ("POST", "/api/jobs", {"data": "x=1"}, 415, "unsupported_media_type"),
        ("POST", "/api/jobs", {"json": "x" * 300_000}, 413, "request_entity_too_large"),
        ("GET", "/api/jobs?state=lost", {}, 400, "bad_request"),
        ("GET", "/api/jobs?limit=-1", {}, 400, "bad_request"),
        ("GET", "/api/jobs?limit=501", {}, 400, "bad_request"),
        ("GET", "/api/status", {"headers": {"Host": "evil.example"}}, 403, "foreign_host"),
        ("POST", "/api/jobs", {"headers": {"Origin": "null"}}, 403, "cross_site"),
    ],
)
def test_every_failure_has_the_same_shape(
    *,
    client: FlaskClient,
    method: str,
    path: str,
    options: dict[str, object],
    status: int,
    kind: str,
) -> None:
    answer = client.open(path, method=method, **options)
    error = answer.get_json()["error"]
    assert answer.status_code == status
    assert error["kind"] == kind
    assert set(error) <= {"kind", "message", "field"}
    assert error["message"]


def test_a_finished_job_cannot_be_cancelled(
    client: FlaskClient, submit: Callable[..., RenderJob], worker: object
) -> None:
    job = submit()
    worker.finish(job)
    answer = client.post(f"/api/jobs/{job.id}/cancel")
    assert answer.status_code == 409
    assert answer.get_json()["error"]["kind"] == "invalid_transition"


@pytest.mark.parametrize("path", ["/api/status", "/api/jobs", "/api/jobs/x", "/api/models"])
def test_a_store_that_is_away_is_a_503_that_says_how_to_start_it(
    away: FlaskClient, path: str
) -> None:
    answer = away.get(path)
    assert answer.status_code == 503
    assert answer.get_json()["error"]["kind"] == "store_unavailable"
    assert "start it with `h3farm run`" in answer.get_json()["error"]["message"]


def test_a_mistake_of_ours_tells_no_secrets(
    app: Flask, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(api, "farm", broken)
    answer = client.get("/api/status")
    assert answer.status_code == 500
    assert answer.get_json()["error"]["kind"] == "internal_server_error"
    assert "secret" not in answer.text


def test_a_page_that_fails_is_a_page(client: FlaskClient) -> None:
    answer = client.get("/nothing")
    assert answer.status_code == 404
    assert answer.mimetype == "text/html"
    assert "There is no such page." in answer.text


def test_a_refused_method_says_which_are_allowed(client: FlaskClient) -> None:
    assert set(client.put("/api/jobs").headers["Allow"].split(", ")) >= {"GET", "POST"}
