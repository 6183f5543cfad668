"""Who may ask for what: every route against everything that must stay outside."""

from collections.abc import Callable
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient

from h3farm.web.app import create_app
from h3farm.web.security import farm_token
from h3farm.worker.queue import RenderJob, RenderQueue, Settings

OURS = "http://127.0.0.1:8642"
WRITES = (
    "POST /",
    "POST /jobs/<job_id>/cancel",
    "POST /api/jobs",
    "POST /api/jobs/<job_id>/cancel",
    "POST /jobs/<job_id>/retry",
    "POST /api/jobs/<job_id>/retry",
    "POST /api/batches",
    "POST /batches",
    "POST /batches/<batch_id>/<action>",
    "POST /api/batches/<batch_id>/cancel",
    "POST /api/batches/<batch_id>/pause",
    "POST /api/batches/<batch_id>/resume",
    "POST /api/batches/<batch_id>/retry",
)
READS = (
    "GET /",
    "GET /plan",
    "GET /live",
    "GET /jobs/<job_id>",
    "GET /jobs/<job_id>/live",
    "GET /jobs/<job_id>/cancel",
    "GET /gallery",
    "GET /gallery/<day>/<folder>",
    "GET /media/<day>/<folder>/<name>",
    "GET /static/<path:filename>",
    "GET /api/status",
    "GET /api/models",
    "GET /api/jobs",
    "GET /api/jobs/<job_id>",
    "GET /api/jobs/<job_id>/log",
    "GET /api/events",
    "GET /batches",
    "GET /batches/<batch_id>",
    "GET /batches/<batch_id>/live",
    "GET /batches/<batch_id>/<action>",
    "GET /api/batches",
    "GET /api/batches/<batch_id>",
    "GET /api/batches/<batch_id>/jobs",
)
FOREIGN_HOSTS = (
    "evil.example",
    "evil.example:8642",
    "127.0.0.1",
    "127.0.0.1:80",
    "127.0.0.1.evil.example:8642",
    "localhost:8642.evil.example",
    "localhost:8642, evil.example",
    "user@localhost:8642",
    "0.0.0.0:8642",
    "",
)


def split(route: str, job: str = "x") -> tuple[str, str]:
    method, path = route.split(" ")
    return method, path.replace("<job_id>", job).replace("<path:filename>", "css/base.css")


def test_the_table_holds_every_route(app: Flask) -> None:
    """A route that is added must be added to the checks below."""
    routes = {
        f"{method} {rule.rule}"
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or ())
        if method not in ("HEAD", "OPTIONS")
    }
    assert routes == {*WRITES, *READS}


@pytest.mark.parametrize("route", [*WRITES, *READS])
def test_a_foreign_host_is_refused_on_every_route(client: FlaskClient, route: str) -> None:
    method, path = split(route)
    answer = client.open(path, method=method, headers={"Host": "evil.example"})
    assert answer.status_code == 403


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_host_that_is_not_to_the_letter_ours_is_refused(client: FlaskClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "LOCALHOST"])
def test_our_own_names_are_answered(client: FlaskClient, name: str) -> None:
    assert client.get("/", headers={"Host": f"{name}:8642"}).status_code == 200


CROSS_SITE = (
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:8188"},  # another program of this machine
    {"Origin": "http://localhost:8642"},  # our other name is another origin
    {"Origin": "https://127.0.0.1:8642"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": OURS, "Sec-Fetch-Site": "cross-site"},
)


@pytest.mark.parametrize("headers", CROSS_SITE, ids=str)
@pytest.mark.parametrize("route", WRITES)
def test_a_write_from_elsewhere_changes_nothing(
    *,
    client: FlaskClient,
    queue: RenderQueue,
    submit: Callable[..., RenderJob],
    token: str,
    route: str,
    headers: dict[str, str],
) -> None:
    """Not even with the token."""
    job = submit()
    method, path = split(route, job.id)
    body = {"json": {}} if path.startswith("/api/") else {"data": {"prompt": "x"}}
    answer = client.open(path, method=method, headers=headers | {"X-CSRF-Token": token}, **body)
    assert answer.status_code == 403
    assert queue.counts()["queued"] == 1
    assert queue.get(job.id).state == "queued"


@pytest.mark.parametrize("given", ["", "wrong", "é"])
@pytest.mark.parametrize("route", WRITES)
def test_a_browsers_write_without_the_token_changes_nothing(
    client: FlaskClient,
    queue: RenderQueue,
    submit: Callable[..., RenderJob],
    route: str,
    given: str,
) -> None:
    job = submit()
    method, path = split(route, job.id)
    headers = {"Origin": OURS, "Sec-Fetch-Site": "same-origin"}
    form, spec = {"csrf_token": given}, {"spec": job.spec.to_json()}
    body = {"json": spec} if path.startswith("/api/") else {"data": form}
    answer = client.open(path, method=method, headers=headers, **body)
    assert answer.status_code == 403
    assert queue.counts()["queued"] == 1


def test_a_form_of_a_program_needs_the_token_too(client: FlaskClient) -> None:
    assert client.post("/", data={"prompt": "x"}).status_code == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
def test_the_api_takes_no_body_that_a_foreign_form_could_send(
    client: FlaskClient, kind: str
) -> None:
    answer = client.post("/api/jobs", data=b'{"spec": {}}', content_type=kind)
    assert answer.status_code == 415


@pytest.mark.parametrize("route", WRITES)
def test_no_write_answers_to_get(
    client: FlaskClient, queue: RenderQueue, submit: Callable[..., RenderJob], route: str
) -> None:
    """The same address may be a page; it changes nothing."""
    job = submit()
    _, path = split(route, job.id)
    client.get(path)
    client.get(f"{path}?prompt=x&model=tiny-h3&csrf_token=x")
    client.head(path)
    assert [(row.id, row.state) for row in queue.list()] == [(job.id, "queued")]


@pytest.mark.parametrize("route", READS)
def test_other_sites_cannot_embed_or_fetch(client: FlaskClient, route: str) -> None:
    _, path = split(route)
    for mode, target in (("no-cors", "image"), ("cors", "empty"), ("navigate", "iframe")):
        headers = {
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": mode,
            "Sec-Fetch-Dest": target,
        }
        assert client.get(path, headers=headers).status_code == 403


@pytest.mark.parametrize("path", ["/", "/gallery", "/api/status"])
def test_a_plain_link_from_another_site_works(client: FlaskClient, path: str) -> None:
    headers = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    assert client.get(path, headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/", "/gallery", "/api/status", "/static/css/base.css", "/no"])
def test_every_answer_carries_the_headers_of_the_door(client: FlaskClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    assert "Set-Cookie" not in headers


def test_open_pages_survive_a_restart(settings: Settings, queue: RenderQueue, token: str) -> None:
    again = create_app(settings, render_queue=queue)
    assert again.config["CSRF_TOKEN"] == token


def test_the_token_is_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "web-token"
    assert len(farm_token(path)) >= 32
    assert path.stat().st_mode & 0o077 == 0
    assert [item.name for item in path.parent.iterdir()] == ["web-token"]
