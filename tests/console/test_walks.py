"""Each part of the console, used by mouse and by keyboard alone, on all screens, in both themes."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests.console.walk import User, all_variants
from tests.server.agents.parts import AgentService
from tests.server.conftest import looping
from tests.server.test_app import wait_for_ticket
from tests.server.test_approvals import request_termination
from tests.server.test_permissions import (
    make_answering_settings,
    open_telemetry_client,
    request_permission,
    wait_for_request,
)
from tests.server.test_shared_api import fail_agents

pytestmark = [pytest.mark.asyncio(loop_scope="session"), all_variants]

SESSION = "/console/agents/looper?session=looper-session"


async def wait_for_text(page: Page, text: str) -> None:
    """Wait until the page shows a text."""
    await expect(page.get_by_role("status").filter(has_text=text)).to_be_visible()


class TestNeeds:
    """Items on the home page that need a person."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return make_answering_settings(tmp_path / "storage")

    async def test_requests_are_answered(
        self, running_service: RunningService, page: Page, user: User, http: httpx.AsyncClient
    ) -> None:
        """Answer a permission, an approval, a ticket and an incident, until the list is empty."""
        approval = await request_termination(running_service)
        await fail_agents(running_service, "a", "b", "c")
        async with open_telemetry_client(running_service) as telemetry:
            permission_request = await request_permission(telemetry)
            await wait_for_request(http)
            await page.goto(running_service.url)
            items = page.get_by_role("list", name="Needs you").get_by_role("listitem")
            await expect(items).to_have_count(3)

            await user.press(items.get_by_role("button", name="Allow"))
            await wait_for_text(page, "Allowed Bash")
            answer = (await permission_request).json()
        assert answer["hookSpecificOutput"]["decision"]["behavior"] == "allow"
        looper = items.filter(has_text="looper")
        await user.press(looper.get_by_role("button", name="Deny"))
        await wait_for_text(page, "Denied")
        if page.viewport_size and page.viewport_size["width"] == 390:
            # The looper's ticket arrives now; a phone lists it on request.
            await user.press(page.get_by_role("button", name="Show 1 new"))
        await user.press(looper.get_by_role("button", name="Acknowledge"))
        await expect(looper).to_have_count(0)
        await user.press(items.get_by_role("button", name="Acknowledge all"))

        await expect(page.get_by_text("Nothing needs you.")).to_be_visible()
        [decided_approval] = (await http.get("/api/approvals")).json()["approvals"]
        assert (decided_approval["approval_id"], decided_approval["status"]) == (
            approval.approval_id,
            "denied",
        )
        assert all(ticket.acknowledged_at for ticket in running_service.service.tickets.open_tickets())


async def test_fleet_is_filtered_and_searched(
    running_service: RunningService, page: Page, user: User
) -> None:
    """Filter and search the list, then open a session through the global search."""
    await running_service.service.ingest(
        list(looping(running_service.service.clock(), agent="well", times=1))
    )
    await wait_for_ticket(running_service)
    await page.goto(running_service.url)
    rows = page.get_by_role("table", name="Sessions").get_by_role("row")
    await expect(rows.filter(has_text="well")).to_be_visible()

    stuck_filter = page.get_by_role("group", name="Filters").get_by_role("button", name=re.compile("^stuck"))
    await user.press(stuck_filter)
    await expect(page).to_have_url(re.compile("health=stuck"))
    await expect(rows.filter(has_text="well")).to_have_count(0)
    await user.press(stuck_filter)
    await user.write(page.get_by_role("searchbox"), "loop")
    await expect(page).to_have_url(re.compile("search=loop"))
    await expect(rows.filter(has_text="well")).to_have_count(0)
    await user.press(rows.filter(has_text="looper").get_by_role("link", name="looper"))
    await expect(page).to_have_url(re.compile("/console/agents/looper"))

    if user.has_mouse:
        await page.get_by_role("button", name="Search").click()
    else:
        await page.keyboard.press("Control+k")
    await expect(page.get_by_role("combobox", name=re.compile("Search for agents"))).to_be_focused()
    await page.keyboard.type("well")
    option = page.get_by_role("option", name="well")
    if user.has_mouse:
        await option.click()
    else:
        await expect(option).to_be_visible()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{running_service.url}/console/agents/well?session=well-session")


async def test_session_is_opened_and_acted_on(
    running_service: RunningService, page: Page, user: User, http: httpx.AsyncClient
) -> None:
    """Open a step, ask the queen a question, send a nudge, and terminate the worker."""
    await wait_for_ticket(running_service)
    await page.goto(f"{running_service.url}{SESSION}")
    # A ticket in "Needs you" also has a Terminate button.
    actions = page.get_by_role("group", name="Actions")
    dialog = page.get_by_role("dialog")

    await user.press(page.get_by_role("group", name="Kinds of steps").get_by_role("button", name="Findings"))
    await expect(page).to_have_url(re.compile("kinds=finding"))
    step = page.get_by_role("list", name="Steps, newest first").get_by_role("button").first
    await user.press(step)
    await expect(page.get_by_text("Kind", exact=True)).to_be_visible()
    await user.write(page.get_by_label("Question to the queen"), "What is wrong?")
    await page.keyboard.press("Enter")
    talk = page.get_by_role("log", name="Conversation with the queen")
    await expect(talk.get_by_text("What is wrong?")).to_be_visible()

    await user.press(actions.get_by_role("button", name="Nudge…"))
    await user.write(dialog.get_by_label("Message"), "Look elsewhere.")
    await user.press(dialog.get_by_role("button", name="Send"))
    await expect(dialog).to_have_count(0)
    await user.press(actions.get_by_role("button", name="Terminate…"))
    await user.write(dialog.get_by_label("Reason"), "It loops.")
    await user.press(dialog.get_by_role("button", name="Terminate", exact=True))
    await expect(dialog).to_have_count(0)
    interventions = (await http.get("/api/interventions", params={"agent_id": "looper"})).json()[
        "interventions"
    ]
    assert {"Look elsewhere.", "It loops."} <= {row["message"] or row["reason"] for row in interventions}


async def test_session_is_replayed(running_service: RunningService, page: Page, user: User) -> None:
    """Scrub, change a threshold, share a moment, export."""
    await wait_for_ticket(running_service)
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto(f"{running_service.url}{SESSION}")

    await user.press(page.get_by_role("link", name="Flight recorder"))
    await user.slide(page.get_by_label("Moment of the session"))
    await expect(page).to_have_url(re.compile("at="))
    await user.press(page.get_by_role("button", name="Next moment"))
    await user.slide(page.get_by_role("slider", name=re.compile(r"loops\.")).first)
    await expect(page.get_by_role("columnheader", name="Changed thresholds")).to_be_visible()
    await user.press(page.get_by_role("button", name="Copy link to this moment"))
    await wait_for_text(page, "Copied the link to this moment.")
    assert await page.evaluate("navigator.clipboard.readText()") == page.url
    async with page.expect_download():
        await user.press(page.get_by_role("link", name="Export as fixture"))


async def test_ticket_is_found_and_handled(
    running_service: RunningService, page: Page, user: User, http: httpx.AsyncClient
) -> None:
    """Find a ticket in the list, acknowledge it, withdraw the acknowledgement, and terminate the worker."""
    ticket_id = await wait_for_ticket(running_service)
    await page.goto(running_service.url)
    dialog = page.get_by_role("dialog")

    await user.press(page.get_by_label("Pages").get_by_role("link", name="Tickets"))
    filters = page.get_by_role("group", name="Filters")
    await user.choose(filters.get_by_label("Severity"), "critical")
    await expect(page).to_have_url(re.compile("severity=critical"))
    await user.press(page.get_by_role("region", name="Tickets").get_by_role("link").first)
    await expect(page).to_have_url(re.compile(f"/console/tickets/{ticket_id}"))

    await user.press(page.get_by_role("button", name="Acknowledge"))
    await expect(page.get_by_text("Acknowledged by").first).to_be_visible()
    await user.press(page.get_by_role("button", name="Withdraw acknowledgement"))
    await wait_for_text(page, "The acknowledgement is withdrawn.")
    await user.press(page.get_by_role("button", name="Terminate the worker…"))
    await user.write(dialog.get_by_label("Reason"), "It loops.")
    await user.press(dialog.get_by_role("button", name="Terminate", exact=True))
    await expect(dialog).to_have_count(0)
    [termination] = (await http.get("/api/interventions", params={"kind": "terminate"})).json()[
        "interventions"
    ]
    assert (termination["session_id"], termination["reason"]) == ("looper-session", "It loops.")


async def test_incident_is_opened_and_acknowledged(
    running_service: RunningService, page: Page, user: User
) -> None:
    await fail_agents(running_service, "a", "b", "c")
    await page.goto(running_service.url)

    await user.press(page.get_by_label("Pages").get_by_role("link", name="Incidents"))
    await user.press(page.get_by_role("link", name="Provider anthropic"))
    await expect(page.get_by_role("heading", level=1)).to_have_text("Provider anthropic")
    await user.press(page.get_by_role("button", name="Acknowledge all"))

    await wait_for_text(page, "Acknowledged")
    assert all(ticket.acknowledged_at for ticket in running_service.service.tickets.open_tickets())
    tickets = page.locator("section.panel").filter(has=page.get_by_role("heading", name="Tickets"))
    await user.press(tickets.get_by_role("link", name=re.compile("^b: ")))
    await expect(page).to_have_url(re.compile("/console/tickets/"))


async def test_service_is_operated(
    running_service: RunningService, page: Page, user: User, http: httpx.AsyncClient
) -> None:
    """
    Stop all actions and allow them, deny a termination, open the sections, filter the settings and the
    audit trail, and copy the command that connects an agent.
    """
    approval = await request_termination(running_service)
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto(running_service.url)
    dialog = page.get_by_role("dialog")

    await user.press(page.get_by_label("Pages").get_by_role("link", name="Operate"))
    for opening_label, confirming_label, is_on in (
        ("Stop all actions…", "Stop all actions", True),
        ("Allow actions again…", "Allow actions", False),
    ):
        await user.press(page.get_by_role("button", name=opening_label))
        await user.write(dialog.get_by_label("Reason"), "A drill.")
        await user.press(dialog.get_by_role("button", name=confirming_label))
        await expect(dialog).to_have_count(0)
        assert (await http.get("/api/emergency-stop")).json()["on"] is is_on
    await user.press(page.get_by_role("button", name="Deny"))
    await wait_for_text(page, "Denied")
    [decided_approval] = (await http.get("/api/approvals")).json()["approvals"]
    assert (decided_approval["approval_id"], decided_approval["status"]) == (approval.approval_id, "denied")

    sections = page.get_by_label("Sections")
    heading = page.get_by_role("heading", level=1)
    for section in ("Circuit breakers", "Recoveries", "Silences", "Telemetry", "Tokens", "Settings"):
        await user.press(sections.get_by_role("link", name=section))
        await expect(heading).to_have_text(section)
    await user.write(page.get_by_label("Filter by name or value"), "retention")
    await expect(page).to_have_url(re.compile("search=retention"))
    await user.press(sections.get_by_role("link", name="Audit trail"))
    await user.write(page.get_by_label("Agent"), "looper")
    await expect(page).to_have_url(re.compile("agent=looper"))

    await user.press(page.get_by_label("Pages").get_by_role("link", name="Connect"))
    await user.press(page.get_by_label("Kinds of agents").get_by_role("link", name="Codex"))
    await user.press(page.get_by_role("button", name="Copy").first)
    await expect(page.get_by_role("button", name="Copied").first).to_be_visible()
    assert running_service.otlp_url in await page.evaluate("navigator.clipboard.readText()")


async def test_agent_is_loaded_and_talked_with(agent_service: AgentService, page: Page, user: User) -> None:
    """
    Load an agent, start it with inputs, pause and resume it, answer in the chat and in "Needs you", unload.
    """
    chat = page.get_by_role("log", name="Conversation with guide")
    dialog = page.get_by_role("dialog")
    active_node = page.locator("svg g.waits")

    async def start_run() -> None:
        await user.press(page.get_by_role("button", name="Start start…"))
        await user.write(dialog.get_by_label("topic"), "bees")
        await user.press(dialog.get_by_role("button", name="Start"))
        await expect(chat.get_by_text("Who are you?")).to_be_visible()

    await page.goto(f"{agent_service.http.base_url}/console/talk")
    await user.press(page.get_by_role("button", name="Load…"))
    await expect(dialog.get_by_label("Agent")).to_have_value(re.compile("guide"))
    await user.press(dialog.get_by_role("button", name="Load"))
    await wait_for_text(page, "Loaded guide")
    await start_run()
    await expect(active_node).to_contain_text("talk")
    await expect(active_node).to_contain_text("waits for a user")

    await user.press(page.get_by_role("button", name="Pause"))
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()
    await expect(active_node).to_have_count(0)
    await user.press(page.get_by_role("button", name="Resume"))
    await expect(active_node).to_contain_text("talk")
    await user.write(page.get_by_label("Answer to guide"), "Ada")
    await user.press(page.get_by_role("button", name="Answer"))
    await expect(chat.get_by_text("Thank you.")).to_be_visible()
    await expect(page.get_by_role("link", name="session_").get_by_text("completed")).to_be_visible()

    await start_run()
    await user.press(page.get_by_label("Pages").get_by_role("link", name="Fleet"))
    reply, show_new = page.get_by_label("Reply to guide"), page.get_by_role("button", name="Show 1 new")
    await expect(reply.or_(show_new)).to_be_visible()
    if await show_new.is_visible():  # on a phone, if the question arrives after the page was loaded
        await user.press(show_new)
    await user.write(reply, "Bo")
    await user.press(page.get_by_role("button", name="Reply"))
    await wait_for_text(page, "Sent your reply to guide.")
    await expect(page.get_by_text("Nothing needs you.")).to_be_visible()

    await user.press(page.get_by_label("Pages").get_by_role("link", name="Talk"))
    await user.press(page.get_by_role("main").get_by_role("link", name="guide").first)
    await user.press(page.get_by_role("button", name="Unload…"))
    await user.press(dialog.get_by_role("button", name="Unload"))
    await expect(page.get_by_text("guide is not loaded")).to_be_visible()
