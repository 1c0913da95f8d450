"""The status page in a real browser."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, async_playwright, expect

from queenright.server.ops.programs import find_program
from queenright.server.up import Running
from tests.server.conftest import looping

expect.set_options(timeout=60_000)  # a busy machine may need it

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
]


@pytest.fixture
async def page() -> Page:  # type: ignore[misc]  # an async generator fixture
    program = find_program("chromium")
    assert program, "this test needs chromium: `make test` fetches it, or set CHROMIUM_BIN"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=FLAGS)
        found = await browser.new_page(viewport={"width": 1280, "height": 900})
        yield found
        await browser.close()


async def test_the_page_shows_a_stuck_agent_without_being_reloaded(running: Running, page: Page) -> None:
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("requestfailed", lambda request: faults.append(request.url))
    await page.goto(running.url)
    await expect(page.get_by_text("No agents yet")).to_be_visible()
    await expect(page.get_by_role("status")).to_have_text("live")

    await running.service.ingest(list(looping(running.service.clock())))

    row = page.get_by_role("row").filter(has_text="looper")
    await expect(row).to_contain_text("stuck")
    await expect(row).to_contain_text("doom loop")
    await expect(page.locator("article.critical, article.high").first).to_contain_text("looper")
    assert faults == []


async def test_ticket_links_to_its_page_and_runbook(running: Running, page: Page) -> None:
    await running.service.ingest(list(looping(running.service.clock())))
    await page.goto(running.url)

    await page.locator("article").get_by_role("link", name="looper").first.click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("looper")
    await page.get_by_role("link", name="QueenrightIntervention").click()

    await expect(page.get_by_role("heading", level=1)).to_contain_text("QueenrightIntervention")


async def test_the_page_fits_a_narrow_window(running: Running, page: Page) -> None:
    await page.set_viewport_size({"width": 480, "height": 800})
    await running.service.ingest(list(looping(running.service.clock())))
    await page.goto(running.url)
    await expect(page.get_by_text("looper").first).to_be_visible()

    overflow = await page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )

    assert overflow <= 0
