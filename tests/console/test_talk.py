"""Talk with an agent that is loaded in the service: by mouse, and by keyboard alone."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.console.keyboard import press_tab_until
from tests.server.agents.parts import House, guide, house

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def home(tmp_path: Path) -> AsyncIterator[House]:
    guide(tmp_path / "agents" / "guide")
    async with house(tmp_path) as found:
        yield found


async def test_loaded_agent_is_handled_by_mouse(home: House, page: Page) -> None:
    await page.goto(f"{home.http.base_url}/console/talk")
    await page.get_by_role("button", name="Load…").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_label("Agent")).to_have_value(re.compile("guide"))
    await dialog.get_by_role("button", name="Load").click()
    await expect(page.get_by_role("status").filter(has_text="Loaded guide")).to_be_visible()

    await page.get_by_role("button", name="Start start…").click()
    await dialog.get_by_label("topic").fill("bees")
    await dialog.get_by_role("button", name="Start").click()
    chat = page.get_by_role("log", name="Conversation with guide")
    await expect(chat.get_by_text("Who are you?")).to_be_visible()
    active = page.locator("svg g.waits")
    await expect(active).to_contain_text("talk")
    await expect(active).to_contain_text("waits for a user")

    await page.get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()
    await expect(active).to_have_count(0)
    await page.get_by_role("button", name="Resume").click()
    await expect(active).to_contain_text("talk")

    await page.get_by_label("Answer to guide").fill("Ada")
    await page.get_by_role("button", name="Answer").click()
    await expect(chat.get_by_text("Thank you.")).to_be_visible()
    await expect(page.get_by_role("link", name="session_").get_by_text("completed")).to_be_visible()

    await page.get_by_role("button", name="Unload…").click()
    await dialog.get_by_role("button", name="Unload").click()
    await expect(page.get_by_text("guide is not loaded")).to_be_visible()


async def test_loaded_agent_is_handled_by_keyboard_alone(home: House, page: Page) -> None:
    async def press(name: str) -> None:
        await press_tab_until(page, f"element.textContent.trim() === {name!r}")
        await page.keyboard.press("Enter")

    async def start() -> None:
        await expect(page.get_by_role("button", name="Start start…")).to_be_visible()
        await press_tab_until(page, "element.ariaLabel === 'Start start…'")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog").get_by_label("topic")).to_be_focused()
        await page.keyboard.type("bees")
        await press("Start")
        await expect(chat.get_by_text("Who are you?")).to_be_visible()

    chat = page.get_by_role("log", name="Conversation with guide")
    await page.goto(f"{home.http.base_url}/console/talk")
    await expect(page.get_by_role("button", name="Load…")).to_be_visible()
    await press("Load…")
    await expect(page.get_by_role("dialog").get_by_label("Agent")).to_have_value(re.compile("guide"))
    await press("Load")
    await expect(page.get_by_role("status").filter(has_text="Loaded guide")).to_be_visible()

    await start()

    await press("Pause")
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()
    await press("Resume")
    await expect(page.locator("svg g.waits")).to_contain_text("talk")
    await press_tab_until(page, "element.ariaLabel === 'Answer to guide'")
    await page.keyboard.type("Ada")
    await page.keyboard.press("Enter")
    await expect(chat.get_by_text("Thank you.")).to_be_visible()

    await start()
    await page.goto(f"{home.http.base_url}/console/agents/guide")
    await expect(page.get_by_label("Reply to guide")).to_be_visible()
    await press_tab_until(page, "element.ariaLabel === 'Reply to guide'")
    await page.keyboard.type("Bo")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Sent your reply to guide.")).to_be_visible()
    await expect(page.get_by_label("Reply to guide")).to_have_count(0)

    await page.goto(f"{home.http.base_url}/console/talk?agent=guide")
    await expect(page.get_by_role("button", name="Unload…")).to_be_visible()
    await press("Unload…")
    await expect(page.get_by_role("dialog").get_by_role("button", name="Unload")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("guide is not loaded")).to_be_visible()


async def test_draft_stays_when_its_question_is_answered_elsewhere(home: House, page: Page) -> None:
    await home.ask("POST", "/api/agents", json={"path": "guide"}, status=201)
    _, session = await home.begun()
    await page.goto(f"{home.http.base_url}/console/talk?agent=guide&session={session}")
    answer = page.get_by_label("Answer to guide")
    await answer.fill("Ada from the office")
    second = await page.context.new_page()
    await second.goto(f"{home.http.base_url}/console/")
    reply = second.get_by_label("Reply to guide")
    await reply.fill("Ada from home")

    await home.ask("POST", "/api/agents/guide/inject", json={"node_id": "talk", "content": "Bo"})

    await expect(second.get_by_text("The question is not open any more")).to_be_visible()
    await expect(reply).to_have_value("Ada from home")
    await second.get_by_role("button", name="Discard").click()
    await expect(second.get_by_text("Nothing needs you.")).to_be_visible()
    await second.close()
    message = page.get_by_label("Message to guide")
    await expect(message).to_have_value("Ada from the office")
    await expect(page.get_by_text("Your text was not sent.")).to_be_visible()
    await expect(page.get_by_role("button", name="Send")).to_be_disabled()
    await page.get_by_role("button", name="Use it as a message").click()
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
