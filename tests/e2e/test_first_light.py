"""The whole farm in a browser: a prompt goes in, a real video comes out and plays."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
H3FARM = Path(sys.executable).with_name("h3farm")
START_S = 60
Open = Callable[..., Page]
Play = Callable[[Locator], dict[str, float]]
expect.set_options(timeout=60_000)

# Keeps what the running card said: a tiny render is over before anybody could look.
REMEMBER = """() => {
    window.said = new Set();
    const look = () => {
        for (const part of document.querySelectorAll("[data-doing]")) said.add(part.textContent);
    };
    const all = {childList: true, subtree: true, characterData: true};
    new MutationObserver(look).observe(document.body, all);
}"""


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory, new_port: Callable[[], int]) -> Iterator[str]:
    """`h3farm run` with the tiny checkpoint; the dashboard's address."""
    home = tmp_path_factory.mktemp("farm")
    port = new_port()
    environment = {k: v for k, v in os.environ.items() if k not in ("H3FARM_OUTPUTS", "REDIS_URL")}
    environment |= {
        "H3FARM_HOME": str(home),
        "H3FARM_PORT": str(port),
        "H3FARM_MODELS": str(ROOT / "tests" / "golden" / "tiny-h3"),
        "H3FARM_THREADS": "1",
    }
    with (home / "farm.log").open("w") as log:
        process = subprocess.Popen(
            [H3FARM, "run"], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            wait_until_ready(process, port)
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=30)
    assert code == 0, (home / "farm.log").read_text()


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    """Until the dashboard knows a model; fails when the farm ends or takes too long."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/api/models")
            if json.load(connection.getresponse()).get("models"):
                return
        except OSError:
            pass
        finally:
            connection.close()
        with pytest.raises(subprocess.TimeoutExpired):  # also the pause between two looks
            process.wait(timeout=0.2)
    pytest.fail("the farm did not come up")


def submit(page: Page, prompt: str, **settings: str) -> str:
    """Fill the form and send it with the keyboard; the job's id."""
    page.locator("text=Own size").click()
    for name, value in settings.items():
        page.fill(f"#{name}", value)
    page.locator("#prompt").focus()
    page.keyboard.type(prompt)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#prompt")).to_have_value("")  # the form for the next one
    return str(page.locator("#compose .notice a").text_content())


def test_a_prompt_becomes_a_video_that_plays(open_page: Open, farm: str, play: Play) -> None:
    page = open_page(farm)
    page.evaluate(REMEMBER)
    job = submit(page, "A red fox in ‹snow>", width="192", height="128", length="39", steps="60")
    row = page.locator(f".job:has([href='/jobs/{job}'])")
    expect(row.locator(".state")).to_have_text("done")
    said = page.evaluate("[...said]")
    assert any(line.startswith("Denoising, step ") for line in said), said

    page.get_by_role("link", name="Gallery", exact=True).click()
    page.locator("html.scripted").wait_for(state="attached")
    page.locator("[data-open]").first.focus()
    page.keyboard.press("Enter")
    player = page.locator("#lightbox video")
    player.wait_for()
    seen = play(player)
    assert (seen["width"], seen["height"]) == (192, 128)
    assert seen["duration"] == pytest.approx(39 / 24, abs=0.1)
    assert seen["brightest"] > 20
    assert seen["sound"] > 0
    expect(page.locator("#lightbox .prompt")).to_have_text("A red fox in ‹snow>")
    expect(page.locator("#lightbox")).to_contain_text("39 frames = 1.62 s")


def test_a_running_render_is_cancelled_and_the_next_one_runs(open_page: Open, farm: str) -> None:
    page = open_page(farm)
    long = submit(page, "too long", width="864", height="480", length="124", steps="200")
    after = submit(page, "after", width="192", height="128", length="22", steps="2")
    running = page.locator("#running")
    expect(running).to_contain_text("Denoising, step ")
    expect(page.locator("#lists .place")).to_have_text("1")
    page.click(f"#cancel-{long}")
    page.get_by_role("button", name="Cancel the render").click()
    expect(page.locator(f".job:has([href='/jobs/{long}']) .state")).to_have_text("cancelled")
    expect(page.locator(f".job:has([href='/jobs/{after}']) .state")).to_have_text("done")
    expect(running.locator(".active")).to_have_count(0)
    page.goto(f"{farm}gallery")
    expect(page.locator("[data-open] .prompt", has_text="too long")).to_have_count(0)
