"""The pages of batches, without scripts."""

import re

import pytest
from flask.testing import FlaskClient

from h3farm.worker.queue import RenderQueue

FORM = {
    "prompt": "a {red|grey} fox\r\n\r\n# later\r\nhare",
    "template": "on",
    "model": "tiny-h3",
    "width": "64",
    "height": "96",
    "length": "22",
    "unit": "frames",
    "steps": "2",
    "count": "2",
    "priority": "normal",
    "audio": "on",
}


@pytest.fixture
def form(token: str) -> dict[str, str]:
    return FORM | {"csrf_token": token}


def hidden(page: str) -> dict[str, str]:
    """The fields that the page hands from the plan to the button."""
    found = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page))
    return {name: found[name] for name in ("draw_seed", "token", "planned")}


def test_the_plan_is_shown_before_anything_is_queued(
    client: FlaskClient, queue: RenderQueue, form: dict[str, str]
) -> None:
    page = client.post("/batches", data=form | {"plan": "1"}).text
    for part in ("6 to render", "a red fox", "a grey fox", "hare", "Queue 6 jobs"):
        assert part in page
    assert queue.list() == []
    answer = client.post("/batches", data=form | hidden(page) | {"queue": "1", "name": "foxes"})
    batch = queue.batches()[0]
    assert (answer.status_code, answer.location) == (303, f"/batches/{batch.id}")
    assert batch.name == "foxes"
    shown = re.findall(r"<span>seed (\d+)</span>", page)
    assert [str(job.spec.seed) for job in queue.batch_jobs(batch.id)] == shown
    assert [job.spec.prompt for job in queue.list()][::2] == ["a red fox", "a grey fox", "hare"]


def test_pressing_twice_queues_once(
    client: FlaskClient, queue: RenderQueue, form: dict[str, str]
) -> None:
    seen = hidden(client.post("/batches", data=form | {"plan": "1"}).text)
    places = {client.post("/batches", data=form | seen | {"queue": "1"}).location for _ in "ab"}
    assert len(places) == 1
    assert len(queue.batches()) == 1


@pytest.mark.parametrize("change", [{"prompt": "an owl"}, {"steps": "3"}, {"count": "3"}])
def test_what_was_not_shown_is_not_queued(
    client: FlaskClient, queue: RenderQueue, form: dict[str, str], change: dict[str, str]
) -> None:
    seen = hidden(client.post("/batches", data=form | {"plan": "1"}).text)
    page = client.post("/batches", data=form | seen | change | {"queue": "1"}).text
    assert "It has changed since it was shown" in page
    assert queue.list() == []
    again = client.post("/batches", data=form | change | hidden(page) | {"queue": "1"})
    assert again.status_code == 303


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": ""}, "the list has nothing to render in it"),
        ({"prompt": "a {b"}, "the list line 1: prompt: { has no } behind it"),
        ({"steps": "0"}, "the list line 1: steps must be a whole number from 1 to 200, got 0"),
        ({"count": "x"}, "count must be a whole number from 1 to 10000"),
        ({"model": "huge"}, "model must be one of tiny-h3"),
        ({"name": "{day}"}, "name has {day} in it"),
        ({"draw_seed": "x"}, "draw_seed must be a whole number"),
    ],
)
def test_faults_are_shown_and_the_form_keeps_what_was_typed(
    client: FlaskClient, form: dict[str, str], change: dict[str, str], sentence: str
) -> None:
    answer = client.post("/batches", data=form | change | {"plan": "1"})
    assert answer.status_code == 422
    assert sentence in answer.text.replace("&#39;", "'").replace("&#34;", '"')
    assert (form | change)["prompt"].replace("\r", "") in answer.text


def test_without_templates_prompts_are_taken_word_for_word(
    client: FlaskClient, form: dict[str, str]
) -> None:
    del form["template"]
    page = client.post("/batches", data=form | {"plan": "1"}).text
    assert "4 to render" in page
    assert "a {red|grey} fox</p>" in page


def test_batches_are_listed_and_have_a_page(client: FlaskClient, queue: RenderQueue) -> None:
    assert "Renders that are queued together appear here" in client.get("/batches").text
    body = {"prompts": ["<b>fox"], "defaults": {"model": "tiny-h3"}, "count": 2, "name": "<i>"}
    client.post("/api/batches", json=body)
    batch = queue.batches()[0]
    page = client.get("/batches").text
    assert f'href="/batches/{batch.id}"' in page
    assert "0 of 2 done" in page
    for path in (f"/batches/{batch.id}", f"/batches/{batch.id}/live"):
        page = client.get(path).text
        assert "&lt;i&gt;" in page
        assert page.count("&lt;b&gt;fox") == 2
        assert "0 of 248 frames" in page


def test_an_unknown_batch_is_a_page(client: FlaskClient) -> None:
    answer = client.get("/batches/nope")
    assert answer.status_code == 404
    assert "There is no batch" in answer.text


def test_the_page_works_while_the_store_is_away(away: FlaskClient) -> None:
    answer = away.get("/batches")
    assert answer.status_code == 200
    assert "The farm is not running" in answer.text


def test_a_batch_is_controlled_from_its_page(
    client: FlaskClient, queue: RenderQueue, token: str
) -> None:
    body = {"prompts": ["fox"], "defaults": {"model": "tiny-h3"}, "count": 2}
    batch = (client.post("/api/batches", json=body).json or {})["id"]

    def press(action: str) -> object:
        answer = client.post(f"/batches/{batch}/{action}", data={"csrf_token": token})
        assert answer.location == f"/batches/{batch}"
        return queue.batch(batch).counts

    assert press("pause") == {"paused": 2}
    page = client.get(f"/batches/{batch}").text
    assert ">Resume</button>" in page
    assert ">Pause</button>" not in page
    assert press("resume") == {"queued": 2}
    assert "0 of 2 are done and stay" in client.get(f"/batches/{batch}/cancel").text
    assert press("cancel") == {"cancelled": 2}
    assert "nothing to cancel" in client.get(f"/batches/{batch}/cancel").text
    for method in (client.get, client.post):
        assert method(f"/batches/{batch}/dance", data={"csrf_token": token}).status_code == 404
