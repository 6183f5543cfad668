"""The queue's pages as plain HTML: what a browser without scripts gets."""

import html
import re
from collections.abc import Callable

import pytest
from flask.testing import FlaskClient

from h3farm.engine.machine import Machine
from h3farm.engine.progress import Progress
from h3farm.engine.spec import FIELDS
from h3farm.worker.queue import RenderJob, RenderQueue, Settings

SCRIPT = "<script>alert(1)</script> & \"q\" 'a' {{ 7*7 }}"
HOSTILE = f"\n‹scene> {SCRIPT}\n  (S1)\t</textarea>\r\nend\n\n"


@pytest.fixture
def form(token: str) -> dict[str, str]:
    """A form as a browser sends it."""
    return {
        "csrf_token": token,
        "prompt": "a red fox",
        "model": "tiny-h3",
        "canvas": "512x512",
        "width": "864",
        "height": "480",
        "length": "50",
        "unit": "frames",
        "steps": "4",
        "seed": "7",
        "priority": "normal",
        "video_shift": "12",
        "audio_shift": "3",
        "audio": "on",
    }


def textarea(page: str) -> str:
    """The prompt that a browser would show: it drops the line break after the tag."""
    found = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


def test_a_submitted_form_becomes_a_job(
    client: FlaskClient, queue: RenderQueue, form: dict[str, str]
) -> None:
    answer = client.post("/", data=form)
    [job] = queue.list()
    assert answer.status_code == 303
    assert answer.headers["Location"] == f"/?settings={job.id}&queued={job.id}"
    made = job.spec
    assert (made.prompt, made.model, made.steps, made.seed) == ("a red fox", "tiny-h3", 4, 7)
    assert (made.width, made.height) == (512, 512)
    assert (made.frames, made.frames_asked) == (56, 50)
    assert (made.audio, made.keep_frames, made.keep_latents) == (True, False, False)


def test_after_a_submit_the_settings_stay_and_the_prompt_goes(
    client: FlaskClient, form: dict[str, str]
) -> None:
    page = client.post("/", data=form, follow_redirects=True).text
    assert textarea(page) == ""
    assert "Queued as" in page
    assert 'id="steps" name="steps" value="4"' in page
    assert 'id="seed" name="seed" value="-1"' in page
    assert 'id="length" name="length" value="50"' in page


def test_a_script_gets_the_form_alone(client: FlaskClient, form: dict[str, str]) -> None:
    good = client.post("/", data=form, headers={"X-Fragment": "1"})
    bad = client.post("/", data=form | {"steps": "0"}, headers={"X-Fragment": "1"})
    assert (good.status_code, bad.status_code) == (201, 422)
    assert good.text.lstrip().startswith('<form class="panel compose"')
    assert bad.text.lstrip().startswith('<form class="panel compose"')


@pytest.mark.parametrize(
    ("field", "change", "sentence"),
    [
        ("prompt", {"prompt": " "}, "prompt must not be empty or only spaces"),
        ("steps", {"steps": "0"}, "steps must be a whole number from 1 to 200, got 0"),
        ("steps", {"steps": "ten"}, 'steps must be a whole number from 1 to 200, got "ten"'),
        ("steps", {"steps": ""}, 'steps must be a whole number from 1 to 200, got ""'),
        ("length", {"length": "0"}, "frames must be a whole number from 1 to 1450, got 0"),
        (
            "length",
            {"length": "nan", "unit": "seconds"},
            "seconds must be a number from 0.01 to 60, got NaN",
        ),
        (
            "width",
            {"canvas": "custom", "width": "500"},
            "width must be a multiple of 32 from 32 to 4096, got 500: nearest are 480 and 512",
        ),
        ("model", {"model": "other"}, "model must be one of tiny-h3, got 'other'"),
        (
            "priority",
            {"priority": "high"},
            'priority must be urgent or normal or idle, got "high"',
        ),
    ],
)
def test_a_fault_is_shown_beside_its_field_and_nothing_is_lost(
    *,
    client: FlaskClient,
    queue: RenderQueue,
    form: dict[str, str],
    field: str,
    change: dict[str, str],
    sentence: str,
) -> None:
    """The sentence is the command line's own."""
    answer = client.post("/", data={"prompt": HOSTILE} | form | {"keep_latents": "on"} | change)
    assert answer.status_code == 422
    assert f'<p class="fault" id="{field}-fault">{html.escape(sentence, quote=True)}' in (
        answer.text.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")
    )
    assert f'aria-describedby="{field}-fault"' in answer.text
    assert re.search(r'name="keep_latents" checked', answer.text)
    assert queue.list() == []


def test_a_prompt_survives_to_the_letter(
    client: FlaskClient, queue: RenderQueue, form: dict[str, str]
) -> None:
    """Line breaks come from a browser as CR LF and mean LF."""
    client.post("/", data=form | {"prompt": HOSTILE.replace("\r\n", "\n").replace("\n", "\r\n")})
    [job] = queue.list()
    assert job.spec.prompt == HOSTILE.replace("\r\n", "\n")
    for address in ("/", f"/jobs/{job.id}", f"/jobs/{job.id}/cancel", "/live"):
        page = client.get(address).text
        assert "<script>alert" not in page
        assert SCRIPT in html.unescape(page)
    assert textarea(client.get(f"/?again={job.id}").text) == job.spec.prompt


def test_seconds_can_be_asked_for(
    client: FlaskClient, queue: RenderQueue, form: dict[str, str]
) -> None:
    client.post("/", data=form | {"length": "2.5", "unit": "seconds"})
    [job] = queue.list()
    assert (job.spec.frames, job.spec.seconds_asked) == (73, 2.5)
    page = client.get(f"/?again={job.id}").text
    assert 'name="length" value="2.5"' in page
    assert "<option selected>seconds</option>" in page


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("length=56&unit=frames", "56 frames = 2.33 s"),
        ("length=50&unit=frames", "56 frames = 2.33 s"),
        ("length=10&unit=seconds", "243 frames = 10.12 s"),
        ("length=0&unit=frames", "frames must be a whole number"),
        ("length=56&canvas=custom&width=100", "width must be a multiple of 32"),
        ("length=56&canvas=custom&width=2048&height=1152", "larger than the 1344x768"),
    ],
)
def test_the_plan_says_what_will_be_made(client: FlaskClient, query: str, expected: str) -> None:
    assert expected in client.get(f"/plan?{query}").text


def test_the_form_offers_every_field_of_a_spec(client: FlaskClient) -> None:
    """But those of one value only, and the length, which has its own two fields."""
    page = client.get("/").text
    names = set(re.findall(r'name="([a-z_]+)"', page))
    wanted = {field.name for field in FIELDS if field.group != "record" and len(field.choices) != 1}
    assert names >= wanted - {"frames", "seconds"} | {"length", "unit", "priority"}


def test_a_running_job_shows_how_far_it_is(
    client: FlaskClient, queue: RenderQueue, submit: Callable[..., RenderJob], worker: object
) -> None:
    job = submit(prompt="runs")
    worker.begin(job)
    progress = Progress(
        phase="denoise", step=2, steps=20, block=10, blocks=50, elapsed_s=30.0, remaining_s=200.0
    )
    queue.records.report(job.id, "x", progress, queue.make_rq_job(job).key)
    for address in ("/", "/live", f"/jobs/{job.id}"):
        page = client.get(address).text
        assert "Denoising, step 3 of 20" in page
        assert "block 10 of 50" in page
        assert "about 3 min 20 s left" in page
        assert 'value="0.11"' in page


def test_the_waiting_ones_are_in_order(
    client: FlaskClient, queue: RenderQueue, submit: Callable[..., RenderJob]
) -> None:
    first, second = submit(prompt="first"), submit(prompt="second")
    urgent = queue.submit(first.spec, priority="urgent")
    page = client.get("/live").text
    found = re.findall(r'href="/jobs/([^"/]+)"', page)
    assert found == [urgent.id, first.id, second.id]


def test_a_failed_job_says_why_and_what_to_do(
    client: FlaskClient, submit: Callable[..., RenderJob], worker: object
) -> None:
    job = submit()
    worker.fail(job, "There were only <3 GB left.")
    assert "There were only &lt;3 GB left." in client.get("/").text
    page = client.get(f"/jobs/{job.id}").text
    assert "There were only &lt;3 GB left." in page
    assert "Use a smaller canvas." in page
    assert "Queue again with changes" in page


def test_a_finished_job_plays(
    client: FlaskClient, submit: Callable[..., RenderJob], worker: object
) -> None:
    job = submit()
    worker.finish(job)
    address = "/media/2026-11-30/1842-red-fox-in-snow-3f2a/video.mp4"
    assert f'src="{address}"' in client.get(f"/jobs/{job.id}").text


def test_a_job_whose_video_is_gone_says_so(
    client: FlaskClient, settings: Settings, submit: Callable[..., RenderJob], worker: object
) -> None:
    job = submit()
    worker.finish(job)
    settings.outputs.rename(settings.outputs.with_name("moved"))
    assert "it was moved or deleted" in client.get(f"/jobs/{job.id}").text
    assert client.get("/").status_code == 200


def test_a_job_shows_the_end_of_its_log(
    client: FlaskClient, queue: RenderQueue, submit: Callable[..., RenderJob]
) -> None:
    job = submit()
    queue.log(job.id).write_text("early line\n" + "<b>line</b>\n" * 2000)
    page = client.get(f"/jobs/{job.id}").text
    assert "&lt;b&gt;line&lt;/b&gt;" in page
    assert "early line" not in page


def test_a_failed_job_shows_where_it_stood_and_what_was_changed(
    client: FlaskClient, queue: RenderQueue, submit: Callable[..., RenderJob]
) -> None:
    job = submit()
    queue.records.move(
        job.id, "running", place="denoise 12 of 20", rung="fewer threads", retries=["fewer threads"]
    )
    page = client.get(f"/jobs/{job.id}").text
    assert "<dt>Reached</dt><dd>denoise 12 of 20</dd>" in page
    assert "<dt>Rendered with</dt><dd>fewer threads, after a failure</dd>" in page


def test_a_disk_without_room_is_said_and_can_be_overruled(
    client: FlaskClient, form: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "free_disk", lambda self, folder: (1, 1000))
    answer = client.post("/", data=form)
    assert answer.status_code == 507
    assert "There is not enough room at" in answer.text
    assert 'name="anyway"' in answer.text
    assert client.post("/", data=form | {"anyway": "on"}).status_code == 303
    body = {"spec": {"prompt": "a red fox", "model": "tiny-h3"}}
    refused = client.post("/api/jobs", json=body)
    assert (refused.status_code, refused.json["error"]["kind"]) == (507, "not_enough_disk")
    assert client.post("/api/jobs", json=body | {"anyway": True}).status_code == 201
    odd = client.post("/api/jobs", json=body | {"anyway": "yes"})
    assert (odd.status_code, odd.json["error"]["field"]) == (400, "anyway")


def test_a_held_job_says_what_it_waits_for(
    client: FlaskClient, queue: RenderQueue, submit: Callable[..., RenderJob], worker: object
) -> None:
    job = submit()
    worker.begin(job)
    hold = {"kind": "disk", "sentence": "disk full: 2 GB <needed>", "since": job.created_at}
    queue.records.move(job.id, "paused", hold=hold)
    assert client.get("/api/status").json["held"] == {job.id: "disk full: 2 GB <needed>"}
    queue.connection.hset("rq:worker:h3farm", mapping={"pid": 1, "state": "idle"})
    page = client.get(f"/jobs/{job.id}").text
    assert "disk full: 2 GB &lt;needed&gt;. It goes on by itself." in page
    assert "1 held: the disk is full" in page


def test_a_log_is_plain_text(
    client: FlaskClient, queue: RenderQueue, submit: Callable[..., RenderJob]
) -> None:
    job = submit()
    assert client.get(f"/api/jobs/{job.id}/log").text == ""
    queue.log(job.id).write_bytes("<b>ä</b>\n\xff\n".encode("latin-1"))
    queue.log(job.id).with_name("log.txt.1").write_text("earlier\n")
    answer = client.get(f"/api/jobs/{job.id}/log")
    assert answer.text == "earlier\n<b>\ufffd</b>\n\ufffd\n"
    assert answer.mimetype == "text/plain"


def test_cancelling_a_waiting_job(
    client: FlaskClient, queue: RenderQueue, token: str, submit: Callable[..., RenderJob]
) -> None:
    job = submit()
    answer = client.post(f"/jobs/{job.id}/cancel", data={"csrf_token": token})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    assert queue.get(job.id).state == "cancelled"


def test_a_running_job_is_asked_about_first(
    client: FlaskClient,
    queue: RenderQueue,
    token: str,
    submit: Callable[..., RenderJob],
    worker: object,
) -> None:
    job = submit()
    worker.begin(job)
    page = client.get("/").text
    assert f'href="/jobs/{job.id}/cancel"' in page
    assert f'action="/jobs/{job.id}/cancel"' not in page
    assert f"Cancel {job.id}?" in client.get(f"/jobs/{job.id}/cancel").text
    client.post(f"/jobs/{job.id}/cancel", data={"csrf_token": token})
    assert queue.get(job.id).cancel_requested
    assert "Stopping…" in client.get("/").text


def test_an_empty_queue_says_what_to_do(client: FlaskClient) -> None:
    page = client.get("/").text
    assert "The queue is empty. Describe a video" in page
    assert "start it with <code>h3farm run</code>" in page  # no worker either


def test_a_long_queue_is_cut_and_counted(
    client: FlaskClient, submit: Callable[..., RenderJob]
) -> None:
    for _ in range(103):
        submit()
    page = client.get("/live").text
    assert page.count('class="job"') == 100
    assert "and 3 more" in page


@pytest.mark.parametrize("address", ["/", "/live", "/gallery", "/?again=x"])
def test_pages_live_on_while_the_store_is_away(away: FlaskClient, address: str) -> None:
    answer = away.get(address)
    assert answer.status_code == 200
    assert "Farm not running" in answer.text


def test_a_page_says_how_to_start_the_farm(away: FlaskClient) -> None:
    assert "start it with `h3farm run`" in away.get("/").text
    answer = away.get("/jobs/x")
    assert answer.status_code == 503
    assert "start it with `h3farm run`" in answer.text


def test_a_prompt_is_kept_when_the_store_is_away(away: FlaskClient, form: dict[str, str]) -> None:
    token = away.application.config["CSRF_TOKEN"]
    answer = away.post("/", data=form | {"csrf_token": token})
    assert answer.status_code == 503
    assert textarea(answer.text) == "a red fox"
    assert "start it with `h3farm run`" in answer.text


def test_a_prompt_is_kept_when_the_disk_refuses(
    client: FlaskClient, queue: RenderQueue, settings: Settings, form: dict[str, str]
) -> None:
    settings.jobs.parent.mkdir(exist_ok=True)
    settings.jobs.write_text("a file where the job folders should be")
    answer = client.post("/", data=form)
    assert answer.status_code == 507
    assert textarea(answer.text) == "a red fox"
    assert "could not be written" in answer.text
    assert queue.list() == []


def test_an_unknown_job_is_not_found(client: FlaskClient) -> None:
    for address in ("/jobs/none", "/jobs/none/live", "/jobs/none/cancel", "/?again=none"):
        assert client.get(address).status_code == 404


def test_a_waiting_job_needs_no_scripts_to_be_seen(
    client: FlaskClient, submit: Callable[..., RenderJob]
) -> None:
    job = submit(prompt="seen")
    page = client.get(f"/jobs/{job.id}").text
    assert "It is next." in page
    assert "data-live=" in page


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("", "No worker"),
        ("started", "Worker starting"),
        ("suspended", "Suspended"),
        ("idle", "Ready"),
    ],
)
def test_every_page_says_how_the_farm_is(
    client: FlaskClient,
    queue: RenderQueue,
    submit: Callable[..., RenderJob],
    state: str,
    sentence: str,
) -> None:
    if state:
        queue.connection.hset("rq:worker:h3farm", mapping={"pid": "1", "state": state})
    assert f'id="status">{sentence}</p>' in client.get("/gallery").text
    submit()
    assert f'id="status">{sentence}, 1 waiting</p>' in client.get("/live").text


def test_a_long_queue_is_counted_and_only_its_front_is_shown(
    client: FlaskClient,
    queue: RenderQueue,
    submit: Callable[..., RenderJob],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("h3farm.web.farm.SHOWN_WAITING", 2)
    jobs = [submit(seed=seed) for seed in range(5)]
    before = queue.connection.info("commandstats")["cmdstat_hgetall"]["calls"]
    page = client.get("/live").text
    assert 'count">5</span>' in page
    assert "and 3 more" in page
    assert [job.id in page for job in jobs] == [True, True, False, False, False]
    read = queue.connection.info("commandstats")["cmdstat_hgetall"]["calls"] - before
    assert read <= 2 + 3  # the jobs that are shown; the worker, twice; the farm


def test_a_failed_job_is_tried_again_from_its_page(
    client: FlaskClient, queue: RenderQueue, submit: Callable[..., RenderJob], token: str, worker
) -> None:
    job = submit()
    worker.fail(job, "It was too large.")
    assert ">Try again</button>" in client.get(f"/jobs/{job.id}").text
    answer = client.post(f"/jobs/{job.id}/retry", data={"csrf_token": token})
    assert (answer.status_code, answer.location) == (303, f"/jobs/{job.id}")
    assert queue.get(job.id).position == 0
    assert ">Try again</button>" not in client.get(f"/jobs/{job.id}").text
    assert client.post(f"/api/jobs/{job.id}/retry").status_code == 409


def test_a_job_links_to_its_batch_and_to_the_job_it_is_the_same_as(
    client: FlaskClient, queue: RenderQueue, submit: Callable[..., RenderJob]
) -> None:
    job = queue.batch_jobs(queue.submit_many([submit().spec]).id)[0]
    assert f'href="/batches/{job.batch}"' in client.get(f"/jobs/{job.id}").text
    queue.connection.hset(f"h3farm:job:{job.id}", "same_as", '"other"')
    assert 'href="/jobs/other"' in client.get(f"/jobs/{job.id}").text


def test_the_api_lists_as_many_that_wait_as_are_asked_for(
    client: FlaskClient, submit: Callable[..., RenderJob]
) -> None:
    jobs = [submit(seed=seed) for seed in range(3)]
    for query, count in (("", 3), ("?waiting=2", 2), ("?waiting=0", 0)):
        found = (client.get(f"/api/jobs{query}").json or {})["jobs"]
        assert [job["id"] for job in found] == [job.id for job in jobs[:count]]
    answer = client.get("/api/jobs?waiting=many")
    assert (answer.json or {})["error"]["field"] == "waiting"
