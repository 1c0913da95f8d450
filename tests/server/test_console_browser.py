"""The console in a real browser: without JavaScript, with the keyboard, on a phone, from other sites."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from queenright.server.console.forms import agent_page
from queenright.server.ops.programs import find_program
from queenright.server.up import Running
from tests.browser import FLAGS
from tests.server.test_app import ticket_on
from tests.server.test_approvals import request_for_looper
from tests.server.test_console import obey_until_stopped, settings
from tests.waiting import until

__all__ = ["settings"]

expect.set_options(timeout=60_000)  # a busy machine may need it

RUNS_OVER = """
() => [...document.querySelectorAll("main *")]
    .filter((e) => !e.closest(".scroll, .unseen, input"))
    .filter((e) => e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1)
    .filter((e) => getComputedStyle(e).display !== "inline")
    .map((e) => `${e.tagName} ${e.className}: ${e.textContent.trim().slice(0, 40)}`)
"""
"""What is wider inside than its own box: it runs over what stands beside it."""

LONG = "<img src=x onerror=alert(1)>" + "long-name-" * 12


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    program = find_program("chromium")
    assert program, "this test needs chromium: `make test` fetches it, or set CHROMIUM_BIN"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        await browser.close()


async def overflow(page: Page) -> int:
    """By how many pixels a page is wider than its window."""
    found = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return int(found)


async def test_everything_works_without_javascript_and_by_keyboard(
    running: Running, chromium: Browser
) -> None:
    approval = await request_for_looper(running)
    page = await (await chromium.new_context(java_script_enabled=False)).new_page()

    # A message's link leads to the ticket: take it on.
    await page.goto(f"{running.url}/tickets/{approval.ticket_id}")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    await page.get_by_role("link", name="Acknowledge").press("Enter")
    name = page.get_by_label("Your name")
    await name.focus()
    await page.keyboard.type("Ada")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("Acknowledged")
    await expect(page.get_by_text("Acknowledged by Ada").first).to_be_visible()

    # Answer what the queen asks: the name is known by now.
    await page.get_by_role("link", name="Answer").press("Enter")
    await expect(page.get_by_label("Your name")).to_have_value("Ada")
    await page.get_by_role("button", name="Deny").press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("Denied")

    # Stop it: it asks why, does nothing without, and does it with.
    await page.goto(f"{running.url}/agents/looper")
    await page.get_by_role("link", name="Terminate").press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Terminate looper?")
    await page.get_by_role("button", name="Terminate").press("Enter")
    await expect(page.get_by_label("Why")).to_be_focused()
    await page.keyboard.type("it loops")
    stopping = asyncio.create_task(obey_until_stopped(running))
    await page.get_by_role("button", name="Terminate").press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("The worker was terminated")
    await stopping


async def test_other_sites_lead_here_and_change_nothing(running: Running, chromium: Browser) -> None:
    ticket_id = await ticket_on(running)
    path = f"{running.url}/tickets/{ticket_id}/acknowledge"
    elsewhere = running.url.replace("127.0.0.1", "localhost") + "/healthz"  # another site, to a browser
    page = await (await chromium.new_context()).new_page()
    await page.goto(f"{running.url}/you")
    await page.get_by_label("Your name").fill("Ada")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("link", name="Ada")).to_be_visible()

    await page.goto(elsewhere)
    await page.set_content(
        f'<form method="post" action="{path}"><input name="by" value="eve"><button>x</button>'
    )
    async with page.expect_navigation():
        await page.get_by_role("button").click()
    await expect(page.locator("body")).to_contain_text("may not change anything here")
    await page.goto(elsewhere)
    await page.set_content(f'<a href="{path}">a chat</a>')
    await page.get_by_role("link").click()
    await expect(page.get_by_label("Your name")).to_have_value("")
    await page.get_by_role("button", name="Acknowledge").click()
    await expect(page.get_by_text("Acknowledged by Ada").first).to_be_visible()


WORST = "w" * 255
"""A name without a place to break it."""


async def test_a_long_name_runs_over_nothing(running: Running, chromium: Browser) -> None:
    service = running.service
    ticket_id = await ticket_on(running, agent=WORST)
    breaker = service.breakers.get("external_api", WORST, WORST)
    for _ in range(breaker.status.threshold):
        breaker.admit().record_failure(WORST)
    async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
        await http.post(f"/api/agents/{WORST}/escalate", json={"reason": WORST, "by": WORST[:100]})
        await http.post(f"/api/agents/{WORST}/nudge", json={"by": WORST[:100]})
        await http.post(f"/api/tickets/{ticket_id}/acknowledge", json={"by": WORST[:100]})
    await until(lambda: service.outbox.status()["active"], "the alert is written down")
    page = await (await chromium.new_context(viewport={"width": 1300, "height": 900})).new_page()

    for path in (
        f"/agents/{WORST}",
        f"/act/nudge?agent={WORST}",
        f"/act/terminate?agent={WORST}",
        "/breakers",
        f"/breakers?name={WORST}",
        "/recoveries",
        "/telemetry",
        f"/tickets/{ticket_id}",
        f"/tickets/{ticket_id}/silence",
        f"/agents/{WORST}-unknown",
    ):
        await page.goto(running.url + path)
        for width in (1300, 360):
            await page.set_viewport_size({"width": width, "height": 900})
            assert await overflow(page) <= 0, (path, width)
            assert await page.evaluate(RUNS_OVER) == [], (path, width)


async def test_pages_fit_a_phone_and_run_nothing_that_a_worker_is_called(
    running: Running, chromium: Browser
) -> None:
    service = running.service
    ticket_id = await ticket_on(running, agent=LONG)
    breaker = service.breakers.get("external_api", LONG, LONG)
    for _ in range(breaker.status.threshold):
        breaker.admit().record_failure(LONG * 3)
    context = await chromium.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = await context.new_page()
    faults: list[str] = []
    page.on("dialog", lambda dialog: faults.append(dialog.message))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text))
    [name] = {worker.vitals.agent_id for worker in service.monitor.workers()}

    await page.goto(running.url + agent_page(name))
    await expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x")
    for path in (
        "/breakers",
        "/recoveries",
        "/telemetry",
        f"/tickets/{ticket_id}",
        f"/tickets/{ticket_id}/silence",
        "/you",
    ):
        await page.goto(running.url + path)
        assert await overflow(page) <= 0, path
    await page.goto(f"{running.url}/agents/nobody")
    await expect(page.get_by_role("alert")).to_contain_text("obody")

    assert name.startswith("<img")
    assert [fault for fault in faults if "404" not in fault] == []


async def test_long_name_of_a_sender_stays_in_its_column(running: Running, chromium: Browser) -> None:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": WORST[:190]}}]}
    body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [{"name": "GET /"}]}]}]}
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.post(f"{running.otlp_url}/v1/traces", json=body)).status_code == 200
    page = await (await chromium.new_context(viewport={"width": 1300, "height": 900})).new_page()

    await page.goto(f"{running.url}/telemetry")
    cell = page.locator(".sources td.name").first

    assert await cell.evaluate("(e) => e.querySelector('bdi').getBoundingClientRect().right") <= (
        await cell.evaluate("(e) => e.getBoundingClientRect().right")
    )
