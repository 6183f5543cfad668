"""Files of the renders: ranges, types, and nothing from elsewhere."""

from collections.abc import Callable
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from h3farm.worker.queue import Settings

DAY, FOLDER = "2026-11-30", "1842-red-fox-in-snow-3f2a"
BASE = f"/media/{DAY}/{FOLDER}"
VIDEO = bytes(range(256)) * 8


@pytest.fixture(autouse=True)
def folder(render: Callable[..., Path]) -> Path:
    path = render(day=DAY, folder=FOLDER)
    (path / "video.mp4").write_bytes(VIDEO)
    return path


@pytest.mark.parametrize(
    ("wanted", "status", "content_range", "body"),
    [
        ("bytes=0-0", 206, "bytes 0-0/2048", VIDEO[:1]),
        ("bytes=0-", 206, "bytes 0-2047/2048", VIDEO),
        ("bytes=100-299", 206, "bytes 100-299/2048", VIDEO[100:300]),
        ("bytes=-48", 206, "bytes 2000-2047/2048", VIDEO[-48:]),
        ("bytes=2000-9999", 206, "bytes 2000-2047/2048", VIDEO[2000:]),
    ],
)
def test_a_range_is_answered_with_that_part(
    client: FlaskClient, wanted: str, status: int, content_range: str | None, body: bytes
) -> None:
    answer = client.get(f"{BASE}/video.mp4", headers={"Range": wanted})
    assert answer.status_code == status
    assert answer.headers.get("Content-Range") == content_range
    assert answer.data == body
    assert int(answer.headers["Content-Length"]) == len(body)


def test_a_range_outside_of_the_file_is_refused(client: FlaskClient) -> None:
    answer = client.get(f"{BASE}/video.mp4", headers={"Range": "bytes=5000-"})
    assert answer.status_code == 416


def test_an_unchanged_file_is_not_sent_again(client: FlaskClient) -> None:
    first = client.get(f"{BASE}/poster.jpg")
    again = client.get(f"{BASE}/poster.jpg", headers={"If-None-Match": first.headers["ETag"]})
    assert again.status_code == 304


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("video.mp4", "video/mp4"),
        ("poster.jpg", "image/jpeg"),
        ("render.json", "application/json"),
    ],
)
def test_a_file_has_its_type_and_is_taken_for_nothing_else(
    client: FlaskClient, name: str, kind: str
) -> None:
    answer = client.get(f"{BASE}/{name}")
    assert answer.mimetype == kind
    assert answer.headers["Accept-Ranges"] == "bytes"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_download_is_named_after_its_render(client: FlaskClient) -> None:
    disposition = client.get(f"{BASE}/video.mp4?download=1").headers["Content-Disposition"]
    assert disposition == f"attachment; filename={FOLDER}-video.mp4"


TRAVERSALS = (
    f"{BASE}/../../secret.txt",
    f"{BASE}/..%2f..%2fsecret.txt",
    f"{BASE}/%2e%2e/secret.txt",
    f"{BASE}/secret.txt",
    f"{BASE}/video.mp4%00.jpg",
    f"{BASE}/video.mp4/",
    f"/media/{DAY}/../video.mp4",
    f"/media/{DAY}/%2e%2e/video.mp4",
    "/media/../outside/video.mp4",
    "/media/%2e%2e/outside/video.mp4",
    "/media/..%2foutside/x/video.mp4",
    "/media/..%5coutside/x/video.mp4",
    "/media/%252e%252e/outside/video.mp4",
    f"/media/./{FOLDER}/video.mp4",
    f"/media//{FOLDER}/video.mp4",
    "/media//etc/passwd",
    "/media/%2fetc/x/video.mp4",
    f"/media/{DAY}/{FOLDER}%0a/video.mp4",
    f"/media/{DAY}/{FOLDER}%00/video.mp4",
    f"/media/{DAY}/~/video.mp4",
    f"/media/{DAY}/{'x' * 5000}/video.mp4",
    f"/media/{DAY}/.hidden/video.mp4",
    f"/media/{DAY}/linked/video.mp4",
    f"/media/{DAY}/filelink/video.mp4",
    "/media/linked-day/x/video.mp4",
    f"/media/{DAY}/folder/video.mp4",
)


@pytest.fixture
def outside(tmp_path: Path, settings: Settings) -> None:
    """Secrets beside the outputs, and links to them that somebody left inside."""
    secret = tmp_path / "outside" / "x"
    secret.mkdir(parents=True)
    for path in (secret / "video.mp4", secret.parent / "video.mp4", tmp_path / "secret.txt"):
        path.write_text("secret")
    day = settings.outputs / DAY
    (day / FOLDER / "secret.txt").write_text("secret")
    (day / ".hidden").mkdir()
    (day / ".hidden" / "video.mp4").write_text("secret")
    (day / "linked").symlink_to(secret)
    (day / "filelink").mkdir()
    (day / "filelink" / "video.mp4").symlink_to(secret / "video.mp4")
    (day / "folder" / "video.mp4").mkdir(parents=True)
    (settings.outputs / "linked-day").symlink_to(secret.parent)


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_address_leads_out_of_the_outputs(client: FlaskClient, path: str) -> None:
    answer = client.get(path, follow_redirects=True)
    assert answer.status_code == 404
    assert b"secret" not in answer.data


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize("path", [f"/gallery/{DAY}/linked", "/gallery/%2e%2e/outside"])
def test_no_page_is_made_of_what_is_outside(client: FlaskClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_outputs_that_are_themselves_a_link_are_served(
    client: FlaskClient, settings: Settings, tmp_path: Path
) -> None:
    """People keep them on another disk."""
    moved = settings.outputs.rename(tmp_path / "elsewhere")
    settings.outputs.symlink_to(moved)
    assert client.get(f"{BASE}/video.mp4").data == VIDEO
