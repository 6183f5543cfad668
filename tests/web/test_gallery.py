"""The gallery, made from what lies in the output folders."""

import html
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from h3farm.web.outputs import Outputs
from h3farm.worker.queue import Settings

DAY = "2026-11-30"


def test_an_empty_gallery_says_what_to_do(client: FlaskClient) -> None:
    """The outputs folder does not even exist."""
    page = client.get("/gallery").text
    assert "Nothing has been rendered yet." in page


def test_renders_are_shown_newest_first(client: FlaskClient, render: Callable[..., Path]) -> None:
    render(folder="0900-b-0001")
    render(day="2026-12-01", folder="0800-c-0002")
    render(folder="2300-a-0003")
    page = client.get("/gallery").text
    places = [page.index(name) for name in ("0800-c-0002", "0900-b-0001", "2300-a-0003")]
    assert places[0] < min(places[1:])


def test_a_render_shows_its_settings_and_can_be_queued_again(
    client: FlaskClient, render: Callable[..., Path]
) -> None:
    render(folder="1842-fox-3f2a", prompt="a fox\n<b>", steps=12, seed=123456, frames=39)
    page = client.get(f"/gallery/{DAY}/1842-fox-3f2a").text
    for shown in ("a fox\n&lt;b&gt;", "39 frames = 1.62 s", "123456", "864 × 480 px", "tiny-h3"):
        assert shown in page
    assert f'src="/media/{DAY}/1842-fox-3f2a/video.mp4"' in page
    again = client.get(f"/?render={DAY}/1842-fox-3f2a").text
    assert 'name="steps" value="12"' in again
    assert 'name="seed" value="123456"' in again
    assert "a fox\n&lt;b&gt;</textarea>" in again


@pytest.mark.parametrize(
    ("words", "found"),
    [("FOX", 2), ("fox red", 1), ("snow fox", 1), ("cat", 0), ("  ", 2), ("<x>", 0), ("ß", 0)],
)
def test_search_finds_every_word_of_the_prompt(
    client: FlaskClient, render: Callable[..., Path], words: str, found: int
) -> None:
    render(folder="1-a", prompt="A red Fox")
    render(folder="2-b", prompt="a fox in snow")
    page = client.get("/gallery", query_string={"search": words}).text
    assert page.count('class="card"') == found
    assert ("No prompt has all of these words" in page) == (found == 0)
    assert html.escape(words.strip()) in page


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"null",
        b'{"spec": 5}',
        b'{"spec": {"frames": "x", "width": null}, "timings": [1], "ended_at": 7}',
        b'{"spec": {"prompt": 5}, "timings": {"denoise": "x"}, "peak_bytes": "x"}',
    ],
)
def test_a_sidecar_of_any_content_spoils_nothing(
    client: FlaskClient, render: Callable[..., Path], content: bytes
) -> None:
    render(folder="1-good")
    (render(folder="2-bad") / "render.json").write_bytes(content)
    assert client.get("/gallery").status_code == 200
    assert "1-good" in client.get("/gallery").text
    assert client.get(f"/gallery/{DAY}/2-bad").status_code in (200, 404)
    assert client.get(f"/?render={DAY}/2-bad").status_code in (200, 404)


def test_half_made_renders_are_not_shown(
    client: FlaskClient, render: Callable[..., Path], settings: Settings
) -> None:
    render(folder=".1842-fox-3f2a.abc.partial")
    (settings.outputs / DAY / "empty").mkdir()
    (settings.outputs / "a file").write_text("x")
    assert "Nothing has been rendered yet." in client.get("/gallery").text


def test_a_long_gallery_comes_in_pages(client: FlaskClient, render: Callable[..., Path]) -> None:
    for number in range(50):
        render(folder=f"{number:04d}-x")
    first, second = client.get("/gallery").text, client.get("/gallery?start=48").text
    assert (first.count('class="card"'), second.count('class="card"')) == (48, 2)
    assert 'href="/gallery?start=48"' in first
    assert 'href="/gallery?start=0"' in second


@pytest.mark.parametrize("start", ["-5", "x", "99999999999999999999"])
def test_a_page_that_does_not_exist_is_an_empty_one_or_the_first(
    client: FlaskClient, render: Callable[..., Path], start: str
) -> None:
    render()
    assert client.get(f"/gallery?start={start}").status_code == 200


def test_a_sidecar_is_read_once_until_it_changes(
    render: Callable[..., Path], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar = render() / "render.json"
    reads: list[Path] = []
    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (reads.append(path), original(path))[1])
    outputs = Outputs(settings.outputs)
    for _ in range(3):
        assert outputs.page().total == 1
    assert reads == [sidecar]
    changed = json.loads(sidecar.read_text()) | {"peak_bytes": 12345}
    sidecar.write_text(json.dumps(changed) + " ")
    assert outputs.page().renders[0].sidecar.peak_bytes == 12345


def test_a_render_without_a_poster_still_has_its_card(
    client: FlaskClient, render: Callable[..., Path]
) -> None:
    (render() / "poster.jpg").unlink()
    page = client.get("/gallery").text
    assert page.count('class="card"') == 1
    assert "<img" not in page
