"""Each part of the console, used by mouse and by keyboard alone, on all screens, in both themes."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests.console.walk import Hand, all_ways
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

pytestmark = [pytest.mark.asyncio(loop_scope="session"), all_ways]

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
        self, running: RunningService, page: Page, hand: Hand, http: httpx.AsyncClient
    ) -> None:
        """A permission, an approval, a ticket and an incident, until none is left."""
        approval = await request_termination(running)
        await fail_agents(running, "a", "b", "c")
        async with open_telemetry_client(running) as telemetry:
            waiting = await request_permission(telemetry)
            await wait_for_request(http)
            await page.goto(running.url)
            needs = page.get_by_role("list", name="Needs you").get_by_role("listitem")
            await expect(needs).to_have_count(3)

            await hand.press(needs.get_by_role("button", name="Allow"))
            await wait_for_text(page, "Allowed Bash")
            answer = (await waiting).json()
        assert answer["hookSpecificOutput"]["decision"]["behavior"] == "allow"
        looper = needs.filter(has_text="looper")
        await hand.press(looper.get_by_role("button", name="Deny"))
        await wait_for_text(page, "Denied")
        if page.viewport_size and page.viewport_size["width"] == 390:
            # The looper's ticket arrives now; a phone lists it on request.
            await hand.press(page.get_by_role("button", name="Show 1 new"))
        await hand.press(looper.get_by_role("button", name="Acknowledge"))
        await expect(looper).to_have_count(0)
        await hand.press(needs.get_by_role("button", name="Acknowledge all"))

        await expect(page.get_by_text("Nothing needs you.")).to_be_visible()
        [decided] = (await http.get("/api/approvals")).json()["approvals"]
        assert (decided["approval_id"], decided["status"]) == (approval.approval_id, "denied")
        assert all(ticket.acknowledged_at for ticket in running.service.tickets.open_tickets())


async def test_fleet_is_filtered_and_searched(running: RunningService, page: Page, hand: Hand) -> None:
    """Filters, sorting, the search in the list, and the global search, which leads to the session."""
    await running.service.ingest(list(looping(running.service.clock(), agent="well", times=1)))
    await wait_for_ticket(running)
    await page.goto(running.url)
    rows = page.get_by_role("table", name="Sessions").get_by_role("row")
    await expect(rows.filter(has_text="well")).to_be_visible()

    stuck = page.get_by_role("group", name="Filters").get_by_role("button", name=re.compile("^stuck"))
    await hand.press(stuck)
    await expect(page).to_have_url(re.compile("health=stuck"))
    await expect(rows.filter(has_text="well")).to_have_count(0)
    await hand.press(stuck)
    await hand.write(page.get_by_role("searchbox"), "loop")
    await expect(page).to_have_url(re.compile("search=loop"))
    await expect(rows.filter(has_text="well")).to_have_count(0)
    await hand.press(rows.filter(has_text="looper").get_by_role("link", name="looper"))
    await expect(page).to_have_url(re.compile("/console/agents/looper"))

    if hand.has_mouse:
        await page.get_by_role("button", name="Search").click()
    else:
        await page.keyboard.press("Control+k")
    await expect(page.get_by_role("combobox", name=re.compile("Search for agents"))).to_be_focused()
    await page.keyboard.type("well")
    found = page.get_by_role("option", name="well")
    if hand.has_mouse:
        await found.click()
    else:
        await expect(found).to_be_visible()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{running.url}/console/agents/well?session=well-session")


async def test_session_is_opened_and_acted_on(
    running: RunningService, page: Page, hand: Hand, http: httpx.AsyncClient
) -> None:
    """Its steps, with one opened; a question to the queen; a nudge; a termination."""
    await wait_for_ticket(running)
    await page.goto(f"{running.url}{SESSION}")
    # A ticket in "Needs you" also has a Terminate button.
    actions = page.get_by_role("group", name="Actions")
    dialog = page.get_by_role("dialog")

    await hand.press(page.get_by_role("group", name="Kinds of steps").get_by_role("button", name="Findings"))
    await expect(page).to_have_url(re.compile("kinds=finding"))
    step = page.get_by_role("list", name="Steps, newest first").get_by_role("button").first
    await hand.press(step)
    await expect(page.get_by_text("Kind", exact=True)).to_be_visible()
    await hand.write(page.get_by_label("Question to the queen"), "What is wrong?")
    await page.keyboard.press("Enter")
    talk = page.get_by_role("log", name="Conversation with the queen")
    await expect(talk.get_by_text("What is wrong?")).to_be_visible()

    await hand.press(actions.get_by_role("button", name="Nudge…"))
    await hand.write(dialog.get_by_label("Message"), "Look elsewhere.")
    await hand.press(dialog.get_by_role("button", name="Send"))
    await expect(dialog).to_have_count(0)
    await hand.press(actions.get_by_role("button", name="Terminate…"))
    await hand.write(dialog.get_by_label("Reason"), "It loops.")
    await hand.press(dialog.get_by_role("button", name="Terminate", exact=True))
    await expect(dialog).to_have_count(0)
    done = (await http.get("/api/interventions", params={"agent_id": "looper"})).json()["interventions"]
    assert {"Look elsewhere.", "It loops."} <= {one["message"] or one["reason"] for one in done}


async def test_session_is_replayed(running: RunningService, page: Page, hand: Hand) -> None:
    """Scrub, change a threshold, share a moment, export."""
    await wait_for_ticket(running)
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto(f"{running.url}{SESSION}")

    await hand.press(page.get_by_role("link", name="Flight recorder"))
    await hand.slide(page.get_by_label("Moment of the session"))
    await expect(page).to_have_url(re.compile("at="))
    await hand.press(page.get_by_role("button", name="Next moment"))
    await hand.slide(page.get_by_role("slider", name=re.compile(r"loops\.")).first)
    await expect(page.get_by_role("columnheader", name="Changed thresholds")).to_be_visible()
    await hand.press(page.get_by_role("button", name="Copy link to this moment"))
    await wait_for_text(page, "Copied the link to this moment.")
    assert await page.evaluate("navigator.clipboard.readText()") == page.url
    async with page.expect_download():
        await hand.press(page.get_by_role("link", name="Export as fixture"))


async def test_ticket_is_found_and_handled(
    running: RunningService, page: Page, hand: Hand, http: httpx.AsyncClient
) -> None:
    """From the list: acknowledge it, withdraw that, terminate the worker."""
    ticket_id = await wait_for_ticket(running)
    await page.goto(running.url)
    dialog = page.get_by_role("dialog")

    await hand.press(page.get_by_label("Pages").get_by_role("link", name="Tickets"))
    filters = page.get_by_role("group", name="Filters")
    await hand.choose(filters.get_by_label("Severity"), "critical")
    await expect(page).to_have_url(re.compile("severity=critical"))
    await hand.press(page.get_by_role("region", name="Tickets").get_by_role("link").first)
    await expect(page).to_have_url(re.compile(f"/console/tickets/{ticket_id}"))

    await hand.press(page.get_by_role("button", name="Acknowledge"))
    await expect(page.get_by_text("Acknowledged by").first).to_be_visible()
    await hand.press(page.get_by_role("button", name="Withdraw acknowledgement"))
    await wait_for_text(page, "The acknowledgement is withdrawn.")
    await hand.press(page.get_by_role("button", name="Terminate the worker…"))
    await hand.write(dialog.get_by_label("Reason"), "It loops.")
    await hand.press(dialog.get_by_role("button", name="Terminate", exact=True))
    await expect(dialog).to_have_count(0)
    [stop] = (await http.get("/api/interventions", params={"kind": "terminate"})).json()["interventions"]
    assert (stop["session_id"], stop["reason"]) == ("looper-session", "It loops.")


async def test_incident_is_opened_and_acknowledged(running: RunningService, page: Page, hand: Hand) -> None:
    await fail_agents(running, "a", "b", "c")
    await page.goto(running.url)

    await hand.press(page.get_by_label("Pages").get_by_role("link", name="Incidents"))
    await hand.press(page.get_by_role("link", name="Provider anthropic"))
    await expect(page.get_by_role("heading", level=1)).to_have_text("Provider anthropic")
    await hand.press(page.get_by_role("button", name="Acknowledge all"))

    await wait_for_text(page, "Acknowledged")
    assert all(ticket.acknowledged_at for ticket in running.service.tickets.open_tickets())
    tickets = page.locator("section.panel").filter(has=page.get_by_role("heading", name="Tickets"))
    await hand.press(tickets.get_by_role("link", name=re.compile("^b: ")))
    await expect(page).to_have_url(re.compile("/console/tickets/"))


async def test_service_is_operated(
    running: RunningService, page: Page, hand: Hand, http: httpx.AsyncClient
) -> None:
    """
    Stop all actions and allow them, deny a termination, open audit trail and settings, copy the connect
    command.
    """
    approval = await request_termination(running)
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto(running.url)
    dialog = page.get_by_role("dialog")

    await hand.press(page.get_by_label("Pages").get_by_role("link", name="Operate"))
    for opens, confirms, is_on in (
        ("Stop all actions…", "Stop all actions", True),
        ("Allow actions again…", "Allow actions", False),
    ):
        await hand.press(page.get_by_role("button", name=opens))
        await hand.write(dialog.get_by_label("Reason"), "A drill.")
        await hand.press(dialog.get_by_role("button", name=confirms))
        await expect(dialog).to_have_count(0)
        assert (await http.get("/api/emergency-stop")).json()["on"] is is_on
    await hand.press(page.get_by_role("button", name="Deny"))
    await wait_for_text(page, "Denied")
    [decided] = (await http.get("/api/approvals")).json()["approvals"]
    assert (decided["approval_id"], decided["status"]) == (approval.approval_id, "denied")

    sections = page.get_by_label("Sections")
    heading = page.get_by_role("heading", level=1)
    for section in ("Circuit breakers", "Recoveries", "Silences", "Telemetry", "Tokens", "Settings"):
        await hand.press(sections.get_by_role("link", name=section))
        await expect(heading).to_have_text(section)
    await hand.write(page.get_by_label("Filter by name or value"), "retention")
    await expect(page).to_have_url(re.compile("search=retention"))
    await hand.press(sections.get_by_role("link", name="Audit trail"))
    await hand.write(page.get_by_label("Agent"), "looper")
    await expect(page).to_have_url(re.compile("agent=looper"))

    await hand.press(page.get_by_label("Pages").get_by_role("link", name="Connect"))
    await hand.press(page.get_by_label("Kinds of agents").get_by_role("link", name="Codex"))
    await hand.press(page.get_by_role("button", name="Copy").first)
    await expect(page.get_by_role("button", name="Copied").first).to_be_visible()
    assert running.otlp_url in await page.evaluate("navigator.clipboard.readText()")


async def test_agent_is_loaded_and_talked_with(home: AgentService, page: Page, hand: Hand) -> None:
    """
    Load, start with inputs, pause, resume, answer in the chat and in the item that needs a person, unload.
    """
    chat = page.get_by_role("log", name="Conversation with guide")
    dialog = page.get_by_role("dialog")
    active = page.locator("svg g.waits")

    async def start() -> None:
        await hand.press(page.get_by_role("button", name="Start start…"))
        await hand.write(dialog.get_by_label("topic"), "bees")
        await hand.press(dialog.get_by_role("button", name="Start"))
        await expect(chat.get_by_text("Who are you?")).to_be_visible()

    await page.goto(f"{home.http.base_url}/console/talk")
    await hand.press(page.get_by_role("button", name="Load…"))
    await expect(dialog.get_by_label("Agent")).to_have_value(re.compile("guide"))
    await hand.press(dialog.get_by_role("button", name="Load"))
    await wait_for_text(page, "Loaded guide")
    await start()
    await expect(active).to_contain_text("talk")
    await expect(active).to_contain_text("waits for a user")

    await hand.press(page.get_by_role("button", name="Pause"))
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()
    await expect(active).to_have_count(0)
    await hand.press(page.get_by_role("button", name="Resume"))
    await expect(active).to_contain_text("talk")
    await hand.write(page.get_by_label("Answer to guide"), "Ada")
    await hand.press(page.get_by_role("button", name="Answer"))
    await expect(chat.get_by_text("Thank you.")).to_be_visible()
    await expect(page.get_by_role("link", name="session_").get_by_text("completed")).to_be_visible()

    await start()
    await hand.press(page.get_by_label("Pages").get_by_role("link", name="Fleet"))
    reply, new = page.get_by_label("Reply to guide"), page.get_by_role("button", name="Show 1 new")
    await expect(reply.or_(new)).to_be_visible()
    if await new.is_visible():  # on a phone, if it arrives after the page
        await hand.press(new)
    await hand.write(reply, "Bo")
    await hand.press(page.get_by_role("button", name="Reply"))
    await wait_for_text(page, "Sent your reply to guide.")
    await expect(page.get_by_text("Nothing needs you.")).to_be_visible()

    await hand.press(page.get_by_label("Pages").get_by_role("link", name="Talk"))
    await hand.press(page.get_by_role("main").get_by_role("link", name="guide").first)
    await hand.press(page.get_by_role("button", name="Unload…"))
    await hand.press(dialog.get_by_role("button", name="Unload"))
    await expect(page.get_by_text("guide is not loaded")).to_be_visible()
