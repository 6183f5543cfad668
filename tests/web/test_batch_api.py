"""The JSON API of batches."""

from collections.abc import Callable

import pytest
from flask.testing import FlaskClient

from h3farm.worker.queue import RenderJob, RenderQueue

BATCH = {"prompts": ["a {red|grey} fox"], "defaults": {"model": "tiny-h3"}, "seeds": [1, 2]}


def test_a_description_is_queued_as_a_batch(client: FlaskClient, queue: RenderQueue) -> None:
    answer = client.post("/api/batches", json=BATCH | {"name": "foxes", "priority": "idle"})
    batch = queue.batches()[0]
    assert (answer.status_code, answer.json) == (201, batch.to_json())
    assert [(job.spec.prompt, job.spec.seed, job.priority) for job in queue.list()] == [
        (f"a {colour} fox", seed, "idle") for colour in ("red", "grey") for seed in (1, 2)
    ]
    assert client.get("/api/batches").json == {"batches": [batch.to_json()]}
    assert client.get(f"/api/batches/{batch.id}").json == batch.to_json()
    assert client.get("/api/batches/foxes").json == batch.to_json()
    jobs = client.get(f"/api/batches/{batch.id}/jobs").json
    assert jobs == {"jobs": [job.to_json() for job in queue.batch_jobs(batch.id)]}


def test_a_plan_queues_nothing_and_can_be_queued_exactly(
    client: FlaskClient, queue: RenderQueue
) -> None:
    wanted = {"prompts": ["{a|b|c|d}"], "expand": 2, "defaults": {"model": "tiny-h3"}}
    plan = client.post("/api/batches", json=wanted | {"plan": True}).json
    assert plan
    assert (plan["count"], queue.list()) == (2, [])
    client.post("/api/batches", json=wanted | {"draw_seed": plan["draw_seed"]})
    assert [job.spec.to_json() for job in queue.list()] == [job["spec"] for job in plan["jobs"]]


def test_wordlists_are_the_farms_own(client: FlaskClient, queue: RenderQueue) -> None:
    folder = queue.settings.wordlists
    folder.mkdir(parents=True)
    (folder / "place.txt").write_text("snow\nsand\n")
    client.post("/api/batches", json=BATCH | {"prompts": ["in __place__"], "seeds": [1]})
    assert [job.spec.prompt for job in queue.list()] == ["in snow", "in sand"]
    answer = client.post("/api/batches", json=BATCH | {"prompts": ["in __../../etc/passwd__"]})
    assert answer.status_code == 201  # no name of a list: two underscores as they stand


def test_a_key_queues_once(client: FlaskClient, queue: RenderQueue) -> None:
    first, second = (client.post("/api/batches", json=BATCH | {"key": "k"}).json for _ in "ab")
    assert first == second
    body = {"spec": {"prompt": "a", "model": "tiny-h3"}, "key": "one"}
    assert client.post("/api/jobs", json=body).json == client.post("/api/jobs", json=body).json
    assert len(queue.list()) == 5


def test_again_renders_what_is_done(
    client: FlaskClient, queue: RenderQueue, submit: Callable[..., RenderJob], worker: object
) -> None:
    done = submit()
    worker.finish(done)  # type: ignore[attr-defined]
    video = str(queue.settings.outputs / "v.mp4")
    (queue.settings.outputs / "v.mp4").touch()
    queue.connection.hset(f"h3farm:job:{done.id}", "result", f'{{"video": "{video}"}}')
    body = {"spec": done.spec.to_json()}
    assert (client.post("/api/jobs", json=body).json or {})["same_as"] == done.id
    again = client.post("/api/jobs", json=body | {"again": True}).json
    assert (again or {})["state"] == "queued"


def test_every_fault_is_told_with_its_field(client: FlaskClient, queue: RenderQueue) -> None:
    rows = [{"prompt": "a", "steps": 0}, {"prompt": 5}]
    answer = client.post("/api/batches", json=BATCH | {"rows": rows})
    assert answer.status_code == 422
    error = (answer.json or {})["error"]
    assert error["kind"] == "invalid_batch"
    assert [(fault["place"], fault["field"], fault["given"]) for fault in error["faults"]] == [
        ("row 1", "steps", 0),
        ("row 2", "prompt", 5),
    ]
    assert queue.list() == []


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ([], 400, None),
        ({"again": "yes"}, 400, "again"),
        ({"plan": 1}, 400, "plan"),
        ({"key": 5}, 400, "key"),
        ({"key": ""}, 422, "key"),
        ({"priority": "soon"}, 422, "priority"),
        ({"colour": 1}, 422, "colour"),
        ({"prompts": ["a"] * 10_001}, 422, None),
        ({"defaults": {"model": "huge"}}, 422, "model"),
    ],
)
def test_a_wrong_body_is_refused(
    client: FlaskClient, queue: RenderQueue, body: object, status: int, field: str | None
) -> None:
    answer = client.post("/api/batches", json=BATCH | body if isinstance(body, dict) else body)
    assert answer.status_code == status
    assert (answer.json or {})["error"].get("field") == field
    assert queue.list() == []


def test_a_disk_that_is_too_small_is_told_unless_it_is_to_be_anyway(
    client: FlaskClient, queue: RenderQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue.machine, "free_disk", lambda folder: (1, 1000))
    answer = client.post("/api/batches", json=BATCH)
    assert answer.status_code == 507
    assert (answer.json or {})["error"]["kind"] == "not_enough_disk"
    assert client.post("/api/batches", json=BATCH | {"anyway": True}).status_code == 201


def test_an_unknown_batch_is_404(client: FlaskClient) -> None:
    for path in ("/api/batches/nope", "/api/batches/nope/jobs"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert (answer.json or {})["error"]["kind"] == "unknown_batch"


def test_a_batch_may_be_larger_than_a_render(client: FlaskClient, queue: RenderQueue) -> None:
    prompts = [f"{number} " + "x" * 15_000 for number in range(30)]
    assert client.post("/api/batches", json=BATCH | {"prompts": prompts}).status_code == 201
    answer = client.post("/api/batches", json=BATCH | {"prompts": ["x" * 17_000_000]})
    assert answer.status_code == 413


def test_a_batch_is_controlled(client: FlaskClient, queue: RenderQueue) -> None:
    batch = (client.post("/api/batches", json=BATCH).json or {})["id"]

    def counts(action: str, **body: object) -> object:
        return (client.post(f"/api/batches/{batch}/{action}", json=body).json or {})["counts"]

    assert counts("pause", until="+8h") == {"paused": 4}
    assert counts("resume") == {"queued": 4}
    assert counts("cancel") == {"cancelled": 4}
    assert counts("retry") == {"cancelled": 4}
    answer = client.post(f"/api/batches/{batch}/pause", json={"until": "soon"})
    assert answer.status_code == 422
    assert (answer.json or {})["error"]["field"] == "until"
    assert client.post("/api/batches/nope/cancel").status_code == 404


def test_renders_may_be_for_later(client: FlaskClient, queue: RenderQueue) -> None:
    later = {"not_before": "+8h"}
    body = {"spec": {"prompt": "a", "model": "tiny-h3"}}
    assert (client.post("/api/jobs", json=body | later).json or {})["state"] == "scheduled"
    batch = client.post("/api/batches", json=BATCH | later).json or {}
    assert batch["counts"] == {"scheduled": 4}
    answer = client.post("/api/batches", json=BATCH | {"window": "all night"})
    assert answer.status_code == 422
    assert (answer.json or {})["error"]["field"] == "window"
    assert len(queue.list()) == 5
