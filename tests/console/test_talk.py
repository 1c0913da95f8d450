"""Chat with an agent that runs in the service: by mouse, and by keyboard alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.server.agents.parts import AgentService

_EXAMPLE = Path(__file__).parents[2] / "examples" / "docs_checker"

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_draft_stays_when_its_question_is_answered_elsewhere(
    agent_service: AgentService, page: Page
) -> None:
    await agent_service.request("POST", "/api/agents", json={"path": "guide"}, status=201)
    _, session = await agent_service.start_waiting_run()
    await page.goto(f"{agent_service.http.base_url}/console/talk?agent=guide&session={session}")
    answer = page.get_by_label("Answer to guide")
    await answer.fill("Ada from the office")
    second_page = await page.context.new_page()
    await second_page.goto(f"{agent_service.http.base_url}/console/")
    reply = second_page.get_by_label("Reply to guide")
    await reply.fill("Ada from home")

    await agent_service.request("POST", "/api/agents/guide/inject", json={"node_id": "talk", "content": "Bo"})

    await expect(second_page.get_by_text("The question is no longer open")).to_be_visible()
    await expect(reply).to_have_value("Ada from home")
    await second_page.get_by_role("button", name="Discard").click()
    await expect(second_page.get_by_text("Nothing needs you.")).to_be_visible()
    await second_page.close()
    message = page.get_by_label("Message to guide")
    await expect(message).to_have_value("Ada from the office")
    await expect(page.get_by_text("Your text was not sent.")).to_be_visible()
    await expect(page.get_by_role("button", name="Send")).to_be_disabled()
    await page.get_by_role("button", name="Use it as a message").click()
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()


async def test_agent_without_chat_shows_its_result_and_path(agent_service: AgentService, page: Page) -> None:
    shutil.copytree(_EXAMPLE, agent_service.roots / "docs_checker")
    await agent_service.request("POST", "/api/agents", json={"path": "docs_checker"}, status=201)
    await page.goto(f"{agent_service.http.base_url}/console/talk?agent=docs_checker")
    await page.get_by_role("button", name="Start check…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("folder").fill(str(_EXAMPLE / "sample"))
    await dialog.get_by_role("button", name="Start", exact=True).click()

    await expect(page.get_by_role("log").get_by_text("report.md").last).to_be_visible()
    graph = page.get_by_role("group", name="Graph docs_checker")
    await expect(graph.get_by_role("img", name="write_report")).to_have_count(1)
    await expect(graph.locator(".visited rect")).to_have_count(5)
    await graph.focus()  # the path scrolls
    await expect(graph).to_be_focused()
