"""The dashboard in a browser, while the test plays the worker."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.e2e

Open = Callable[..., Page]
Play = Callable[[Locator], dict[str, float]]
expect.set_options(timeout=20_000)


def test_a_render_is_queued_with_the_keyboard_alone(open_page: Open, dashboard) -> None:
    page = open_page(dashboard.url)
    expect(page.locator("#prompt")).to_be_focused()
    page.keyboard.type("A red fox\n‹in> <b>snow</b>")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="1344×768")).to_be_checked()
    page.keyboard.press("Control+Enter")
    expect(page.locator("#compose")).to_contain_text("Queued as")
    expect(page.locator("#prompt")).to_be_focused()
    expect(page.locator("#prompt")).to_have_value("")
    [job] = dashboard.queue.list()
    assert job.spec.prompt == "A red fox\n‹in> <b>snow</b>"
    assert (job.spec.width, job.spec.height) == (1344, 768)
    expect(page.locator("#lists .prompt")).to_have_text("A red fox\n‹in> <b>snow</b>")


def test_a_fault_is_shown_where_it_is_and_the_prompt_stays(open_page: Open, dashboard) -> None:
    page = open_page(dashboard.url)
    page.fill("#prompt", "a long prompt")
    page.fill("#steps", "0")
    page.click("text=Queue render")
    expect(page.locator("#steps-fault")).to_have_text(
        "steps must be a whole number from 1 to 200, got 0"
    )
    expect(page.locator("#steps")).to_be_focused()
    expect(page.locator("#prompt")).to_have_value("a long prompt")
    assert dashboard.queue.list() == []
    page.fill("#steps", "5")
    expect(page.locator("#steps-fault")).to_have_count(0)


def test_the_form_says_what_will_be_made(open_page: Open, dashboard) -> None:
    page = open_page(dashboard.url)
    page.fill("#length", "10")
    page.select_option("#unit", "seconds")
    expect(page.locator("#plan")).to_contain_text("243 frames = 10.12 s")
    page.locator("text=Own size").click()
    expect(page.locator("#width")).to_be_focused()
    page.fill("#width", "100")
    expect(page.locator("#plan")).to_contain_text("width must be a multiple of 32")


def test_a_running_job_is_followed_live(open_page: Open, dashboard, video: bytes) -> None:
    page = open_page(dashboard.url)
    job = dashboard.submit("followed")
    expect(page.locator("#lists .job .place")).to_have_text("1")
    dashboard.begin(job)
    running = page.locator("#running")
    expect(running).to_contain_text("Starting")
    dashboard.report(job, step=4, block=25, blocks=50)
    expect(running).to_contain_text("Denoising, step 5 of 20")
    dashboard.report(job, step=9, block=30, blocks=50)
    expect(running).to_contain_text("Denoising, step 10 of 20")
    expect(running).to_contain_text("block 30 of 50")
    expect(running).to_contain_text("about 1 min 30 s left")
    assert running.locator("progress").evaluate("bar => bar.value") == pytest.approx(0.48)
    expect(running.locator(".current")).to_have_text("denoise")
    dashboard.finish(job, video)
    expect(page.locator("#lists .state")).to_have_text("done")
    expect(page.locator("#running .active")).to_have_count(0)


def test_a_video_plays_on_while_other_jobs_change(
    open_page: Open, dashboard, video: bytes, play: Play
) -> None:
    job = dashboard.submit("mine")
    dashboard.begin(job)
    page = open_page(f"{dashboard.url}jobs/{job.id}")
    dashboard.finish(job, video)
    player = page.locator("video")
    player.evaluate("video => { video.loop = true; video.play(); }")
    dashboard.submit("another")
    expect(page.locator("#status")).to_have_text("Ready, 1 waiting")
    dashboard.submit("and another")
    expect(page.locator("#status")).to_have_text("Ready, 2 waiting")
    assert play(player)["brightest"] > 100
    assert player.evaluate("video => video.played.length") == 1


def test_a_page_opened_in_the_middle_shows_the_middle(open_page: Open, dashboard) -> None:
    job = dashboard.submit("in the middle")
    dashboard.begin(job)
    dashboard.report(job, step=7)
    pages = [open_page(dashboard.url), open_page(f"{dashboard.url}jobs/{job.id}")]
    for page in pages:
        expect(page.locator(".progress")).to_contain_text("Denoising, step 8 of 20")
    dashboard.report(job, step=8)
    for page in pages:
        expect(page.locator(".progress")).to_contain_text("Denoising, step 9 of 20")


def test_a_page_comes_back_with_the_dashboard(open_page: Open, dashboard) -> None:
    page = open_page(dashboard.url)
    page.fill("#prompt", "half written")
    expect(page.locator("#status")).to_have_text("Ready")
    dashboard.stop()
    dashboard.submit("meanwhile")
    dashboard.start()
    expect(page.locator("#lists .prompt")).to_have_text("meanwhile")
    expect(page.locator("#prompt")).to_have_value("half written")
    page.click("text=Queue render")  # the token is still the farm's
    expect(page.locator("#compose")).to_contain_text("Queued as")


def test_cancelling_leaves_what_was_typed(open_page: Open, dashboard) -> None:
    job = dashboard.submit("not wanted")
    page = open_page(dashboard.url)
    page.fill("#prompt", "half written")
    page.click(f"#cancel-{job.id}")
    expect(page.locator("#lists .state")).to_have_text("cancelled")
    expect(page.locator("#prompt")).to_have_value("half written")


def test_a_running_job_is_asked_about(open_page: Open, dashboard) -> None:
    job = dashboard.submit("runs")
    dashboard.begin(job)
    page = open_page(dashboard.url)
    page.click(f"#cancel-{job.id}")
    page.keyboard.press("Escape")
    expect(page.locator("#ask")).not_to_be_visible()
    assert not dashboard.queue.get(job.id).cancel_requested
    page.click(f"#cancel-{job.id}")
    page.get_by_role("button", name="Cancel the render").click()
    expect(page.locator("#running")).to_contain_text("Stopping…")
    assert dashboard.queue.get(job.id).cancel_requested


def finished(dashboard, video: bytes, *prompts: str) -> None:
    for prompt in prompts:
        job = dashboard.submit(prompt)
        dashboard.begin(job)
        dashboard.finish(job, video)


PAUSED = """video => new Promise((done, failed) => {
    if (video.paused) done(true);
    video.addEventListener("pause", () => done(true));
    setTimeout(() => failed(new Error("it plays on")), 20000);
})"""


def test_the_gallery_plays_with_the_keyboard(
    open_page: Open, dashboard, video: bytes, play: Play
) -> None:
    finished(dashboard, video, "one", "two")
    page = open_page(f"{dashboard.url}gallery")
    page.locator("[data-open]").first.focus()
    page.keyboard.press("Enter")
    player = page.locator("#lightbox video")
    player.wait_for()
    assert play(player)["brightest"] > 100
    shown = page.locator("#lightbox .prompt")
    first = shown.text_content()
    page.keyboard.press(" ")
    assert player.evaluate(PAUSED)
    page.keyboard.press("ArrowRight")
    expect(shown).not_to_have_text(first)
    page.keyboard.press("ArrowLeft")
    expect(shown).to_have_text(first)
    page.keyboard.press("Escape")
    expect(page.locator("#lightbox")).not_to_be_visible()
    expect(page.locator("[data-open]").first).to_be_focused()


def test_a_video_can_be_wound_to_any_place(open_page: Open, dashboard, video: bytes) -> None:
    finished(dashboard, video, "wind")
    page = open_page(f"{dashboard.url}gallery")
    page.locator("[data-open]").click()
    at = page.locator("#lightbox video").evaluate(
        """video => new Promise(done => {
            video.addEventListener("seeked", () => done(video.currentTime), {once: true});
            const wind = () => { video.pause(); video.currentTime = 1.5; };
            video.readyState ? wind() : video.addEventListener("loadedmetadata", wind);
        })"""
    )
    assert at == pytest.approx(1.5)


def test_a_render_is_queued_again_with_a_change(open_page: Open, dashboard, video: bytes) -> None:
    finished(dashboard, video, "again <i>\n  please")
    page = open_page(f"{dashboard.url}gallery")
    page.locator("[data-open]").click()
    page.click("text=Queue again with changes")
    expect(page.locator("#prompt")).to_have_value("again <i>\n  please")
    expect(page.locator("#width")).to_have_value("192")
    page.fill("#steps", "5")
    page.click("text=Queue render")
    expect(page.locator("#compose")).to_contain_text("Queued as")
    [job] = dashboard.queue.list(["queued"])
    assert (job.spec.steps, job.spec.prompt) == (5, "again <i>\n  please")


def test_everything_works_without_scripts(open_page: Open, dashboard) -> None:
    page = open_page(dashboard.url, java_script_enabled=False)
    page.fill("#prompt", "plain")
    page.locator("text=Own size").click()
    page.fill("#width", "192")
    page.fill("#height", "128")
    page.click("text=Queue render")
    expect(page.locator("#compose")).to_contain_text("Queued as")
    [job] = dashboard.queue.list()
    assert (job.spec.prompt, job.spec.width, job.spec.height) == ("plain", 192, 128)
    dashboard.begin(job)
    page.reload()
    page.click(f"#cancel-{job.id}")
    page.get_by_role("button", name="Cancel the render").click()
    expect(page.locator("#running")).to_contain_text("Stopping…")


SIZES = [{"width": w, "height": h} for w, h in ((390, 844), (320, 568), (640, 450))]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size["width"]))
@pytest.mark.parametrize("path", ["", "gallery", "jobs/{id}"])
def test_no_page_is_wider_than_its_window(
    open_page: Open, dashboard, video: bytes, path: str, size: dict[str, int]
) -> None:
    """A phone, a small one, and a desktop at 200 %."""
    finished(dashboard, video, "x" * 300, "words " * 100)
    job = dashboard.submit("‹scene> " + "y" * 300)
    dashboard.begin(job)
    page = open_page(dashboard.url + path.format(id=job.id), viewport=size)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["", "gallery", "jobs/{id}"])
def test_text_can_be_read_in_both_schemes(
    open_page: Open, dashboard, video: bytes, path: str, scheme: str
) -> None:
    """WCAG's contrast of 4.5 between each text and what is behind it."""
    finished(dashboard, video, "done")
    job = dashboard.submit("waits", frames=23)
    page = open_page(dashboard.url + path.format(id=job.id), color_scheme=scheme)
    assert page.evaluate(CONTRAST) == []


CONTRAST = """() => {
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
    const colour = text => text.match(/[\\d.]+/g).map(Number);
    const behind = element => {
        for (let at = element; at; at = at.parentElement) {
            const found = colour(getComputedStyle(at).backgroundColor);
            if (found.length === 3 || found[3] === 1) return found;
        }
        return [255, 255, 255];
    };
    const faint = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
        if (!own || !element.checkVisibility() || element.closest(".unseen, .skip")) continue;
        const [a, b] = [light(colour(getComputedStyle(element).color)), light(behind(element))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const text = element.textContent.trim().slice(0, 30);
        if (ratio < 4.5) faint.push(`${text}: ${ratio.toFixed(2)}`);
    }
    return faint;
}"""


@pytest.mark.parametrize("path", ["", "gallery", "jobs/{id}", "jobs/{id}/cancel", "nothing"])
def test_every_control_has_a_name(open_page: Open, dashboard, video: bytes, path: str) -> None:
    finished(dashboard, video, "done")
    job = dashboard.submit("waits")
    page = open_page(dashboard.url + path.format(id=job.id))
    controls = page.locator("a, button, input:not([type=hidden]), select, textarea, summary")
    tree = page.locator("body").aria_snapshot()
    assert controls.count() > 0
    for role in ("link", "button", "textbox", "combobox", "radio", "checkbox", "searchbox"):
        nameless = [line for line in tree.splitlines() if line.strip().rstrip(":") == f"- {role}"]
        assert nameless == []
