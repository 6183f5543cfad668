"""The pages of batches in a browser."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.e2e

Open = Callable[..., Page]
expect.set_options(timeout=20_000)


def test_many_prompts_are_planned_queued_and_followed(open_page: Open, dashboard) -> None:
    page = open_page(dashboard.url)
    page.get_by_role("link", name="Batches").click()
    page.get_by_label("Prompts, one a line").fill("a {red|grey} fox\nan owl")
    page.get_by_label("Videos of each").fill("2")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_text("6 to render")).to_be_visible()
    assert dashboard.queue.list() == []
    page.get_by_role("button", name="Queue 6 jobs").click()
    expect(page.get_by_role("heading", name="a red fox")).to_be_visible()
    [batch] = dashboard.queue.batches()
    assert batch.counts == {"queued": 6}
    expect(page.locator("#batch .state")).to_have_text(["queued"] * 6)
    job = dashboard.queue.batch_jobs(batch.id)[0]
    dashboard.begin(job)
    expect(page.locator("#batch .state").first).to_have_text("running")
    dashboard.queue.cancel(dashboard.queue.batch_jobs(batch.id)[5].id)
    expect(page.locator("#batch")).to_contain_text("1 cancelled")


def test_the_page_fits_a_phone(open_page: Open, dashboard) -> None:
    page = open_page(dashboard.url + "batches", viewport={"width": 360, "height": 740})
    page.get_by_label("Prompts, one a line").fill("x" * 300)
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("button", name="Queue 1 job")).to_be_visible()
    widths = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    wide, seen = page.evaluate(widths)
    assert wide <= seen
