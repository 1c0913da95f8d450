"""The home page: what needs a person, interventions, and the fleet."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Locator, Page, expect

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests.console.conftest import HOSTILE, InterruptibleProxy, PageMonitor
from tests.console.shifts import READ_SHIFT, RECORD_SHIFTS
from tests.server.conftest import demo_settings, looping
from tests.server.test_app import wait_for_ticket
from tests.server.test_approvals import request_termination
from tests.server.test_attention import report_waiting

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_empty_fleet_links_to_connecting_an_agent(running_service: RunningService, page: Page) -> None:
    await page.goto(running_service.url)

    await expect(page.get_by_text("Nothing needs you.")).to_be_visible()
    await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    await page.get_by_role("link", name="Connect an agent").click()
    await expect(page).to_have_url(f"{running_service.url}/console/connect")


async def test_stuck_agent_appears_without_a_reload_and_is_acknowledged_by_keyboard(
    running_service: RunningService, page: Page, http: httpx.AsyncClient
) -> None:
    """B112: an action shows its outcome, and works by keyboard alone."""
    await page.goto(running_service.url)
    await expect(page.get_by_text("Nothing needs you.")).to_be_visible()

    ticket_id = await wait_for_ticket(running_service)
    await expect(page.get_by_role("row").filter(has_text="looper")).to_contain_text("stuck")
    acknowledge = page.get_by_role("button", name="Acknowledge")
    await acknowledge.focus()
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("status").filter(has_text="Acknowledged")).to_be_visible()
    assert (await http.get(f"/api/tickets/{ticket_id}")).json()["acknowledged_at"]


@pytest.mark.parametrize("width", [390, 1280])
async def test_message_does_not_cover_the_page(
    running_service: RunningService, page: Page, width: int
) -> None:
    """The page ends where messages start."""
    await wait_for_ticket(running_service)
    await page.set_viewport_size({"width": width, "height": 844})
    await page.goto(running_service.url)
    await page.get_by_role("button", name="Acknowledge").click()
    message = page.get_by_role("status").filter(has_text="Acknowledged")
    await expect(message).to_be_visible()

    [content_box, message_box] = [await box.bounding_box() for box in (page.get_by_role("main"), message)]
    assert content_box
    assert message_box
    assert content_box["y"] + content_box["height"] <= message_box["y"]
    assert message_box["y"] + message_box["height"] <= 844


@pytest.mark.parametrize("other_items", [0, 1])
async def test_item_that_arrives_does_not_move_the_page_of_a_phone(
    running_service: RunningService, page: Page, other_items: int
) -> None:
    """The new item is announced without moving the page, and shown on request."""
    await running_service.service.ingest(
        list(looping(running_service.service.clock(), agent="well", times=2))
    )
    if other_items:
        await report_waiting(running_service, "writer", "Which title?")
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(running_service.url)
    items = page.get_by_role("list", name="Needs you")
    await expect(items).to_contain_text("Which title?" if other_items else "Nothing needs you.")
    await expect(page.get_by_label("Loading")).to_have_count(0)
    await page.evaluate(RECORD_SHIFTS)
    shift_before = await page.evaluate(READ_SHIFT)

    await wait_for_ticket(running_service, agent="well")
    announcement = page.get_by_role("button", name="Show 1 new")
    await expect(announcement).to_be_visible()
    await expect(page.get_by_role("row").filter(has_text="well")).to_contain_text("stuck")
    assert await page.evaluate(READ_SHIFT) - shift_before <= 0.01
    await expect(items.get_by_role("button", name="Acknowledge")).to_have_count(0)

    await announcement.press("Enter")
    await expect(items.get_by_role("button", name="Acknowledge")).to_be_visible()
    await expect(announcement).to_have_count(0)
    await expect(items).to_be_focused()


async def test_termination_request_is_denied_where_it_is_listed(
    running_service: RunningService, page: Page, http: httpx.AsyncClient
) -> None:
    approval = await request_termination(running_service)
    await page.goto(running_service.url)

    item = page.get_by_role("list", name="Needs you").get_by_role("listitem")
    await expect(item).to_have_count(1)
    await expect(item.locator(f"a[href='/console/tickets/{approval.ticket_id}']")).to_be_visible()
    deny = page.get_by_role("button", name="Deny")
    await page.get_by_role("button", name="Approve termination…").dblclick()
    dialog = page.get_by_role("dialog", name="Terminate looper?")
    await expect(dialog).to_contain_text("Session looper-session")
    await expect(dialog).to_contain_text("Incarnation one")
    await expect(dialog).to_contain_text("It loops. Now: search was called 20 times")
    await dialog.get_by_role("button", name="Cancel").click()
    await deny.dblclick()

    await expect(page.get_by_role("status").filter(has_text="Denied")).to_have_count(1)
    await expect(deny).to_have_count(0)
    await expect(page.get_by_role("list", name="Needs you")).to_be_focused()
    approvals = (await http.get("/api/approvals")).json()["approvals"]
    assert [(row["approval_id"], row["status"]) for row in approvals] == [(approval.approval_id, "denied")]
    ticket = (await http.get(f"/api/tickets/{approval.ticket_id}")).json()
    assert not ticket["acknowledged_at"], "the second click does not hit a button that moved there"


async def test_dialog_shows_a_decision_made_meanwhile(
    running_service: RunningService, page: Page, http: httpx.AsyncClient
) -> None:
    """B112: the dialog stays open and sends nothing."""
    approval = await request_termination(running_service)
    await page.goto(running_service.url)
    await page.get_by_role("button", name="Approve termination…").click()
    dialog = page.get_by_role("dialog", name="Terminate looper?")
    await expect(dialog.get_by_role("button", name="Terminate")).to_be_visible()

    await http.post(f"/api/approvals/{approval.approval_id}/deny", json={"by": "ada"})

    await expect(dialog.get_by_role("alert")).to_contain_text("In the meantime, it was denied by ada.")
    await expect(dialog.get_by_role("button", name="Terminate")).to_have_count(0)
    await dialog.get_by_role("button", name="Close").click()
    await expect(dialog).to_have_count(0)


async def test_filters_are_in_the_url_and_applied_by_the_service(
    running_service: RunningService, page: Page
) -> None:
    """B113: the service filters and sorts."""
    now = running_service.service.clock()
    await running_service.service.ingest(list(looping(now, agent="well", times=1)))
    await wait_for_ticket(running_service)
    await page.goto(f"{running_service.url}/console/?health=healthy,odd")
    rows = page.get_by_role("table", name="Sessions").get_by_role("row")

    await expect(rows.filter(has_text="well")).to_be_visible()
    await expect(rows.filter(has_text="looper")).to_have_count(0)
    await expect(page.get_by_text("Ignored in the URL: health odd.")).to_be_visible()
    await page.get_by_role("button", name="healthy").click()
    await expect(rows.filter(has_text="looper")).to_be_visible()
    await page.get_by_role("button", name="stuck").click()
    await expect(page).to_have_url(f"{running_service.url}/console/?health=stuck")
    await page.go_back()
    await expect(page).to_have_url(f"{running_service.url}/console/")
    await expect(rows.filter(has_text="well")).to_be_visible()
    await page.get_by_role("searchbox").fill("loop")
    await expect(rows.filter(has_text="well")).to_have_count(0)
    await expect(page).to_have_url(f"{running_service.url}/console/?search=loop")
    await page.keyboard.press("Control+k")
    await expect(page.get_by_role("dialog", name="Search")).to_be_visible()
    await page.keyboard.type("well")
    await page.get_by_role("option", name="well").click()
    await expect(page).to_have_url(f"{running_service.url}/console/agents/well?session=well-session")


async def test_ended_sessions_are_listed_on_request(running_service: RunningService, page: Page) -> None:
    """B113: the list shows running sessions; the URL can select ended ones."""
    now = running_service.service.clock()
    await running_service.service.ingest(list(looping(now, agent="well", times=1)))
    for agent in ("first", "second"):
        await running_service.service.ingest(list(looping(now, agent=agent, times=1, ended=True)))
    await page.goto(running_service.url)
    rows = page.get_by_role("table", name="Sessions").get_by_role("row")

    await expect(page.get_by_role("heading", name="Fleet 1")).to_be_visible()
    await expect(rows.filter(has_text="well")).to_be_visible()
    await expect(rows.filter(has_text="completed")).to_have_count(0)
    await page.get_by_role("button", name="Show 2 ended").click()
    await expect(page).to_have_url(f"{running_service.url}/console/?health=ended")
    await expect(rows.filter(has_text="completed")).to_have_count(2)
    await expect(rows.filter(has_text="well")).to_have_count(0)


async def test_search_distinguishes_sessions_of_one_agent_on_a_phone(
    running_service: RunningService, page: Page
) -> None:
    now = running_service.service.clock()
    for number, has_ended in enumerate([True, False, True]):
        events = looping(now - 60 * number, agent="twin", times=1, ended=has_ended)
        session = f"0192f0a1-7000-7000-8000-{number:012}"
        await running_service.service.ingest([replace(event, session_id=session) for event in events])
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(running_service.url)
    await expect(page.get_by_role("row").filter(has_text="twin")).to_be_visible()
    await page.keyboard.press("Control+k")
    await expect(page.get_by_role("dialog", name="Search")).to_be_visible()
    await page.keyboard.type("twin")
    options = page.get_by_role("option").filter(has_text="twin")
    await expect(options).to_have_count(3)

    texts = await options.all_inner_texts()
    assert len(set(texts)) == 3
    assert "healthy" in texts[0], "running sessions are first"
    assert all("started" in text for text in texts)
    overflow = "list => list.scrollWidth - list.clientWidth"
    assert await page.get_by_role("listbox").evaluate(overflow) == 0
    for option in await options.all():
        await expect(option).to_be_in_viewport(ratio=1)


async def test_search_lists_names_with_the_prefix_first(running_service: RunningService, page: Page) -> None:
    now = running_service.service.clock()
    for agent in ("archivist", "surveyor", "researcher"):
        events = looping(now, agent=agent, times=20 if agent == "archivist" else 1)
        owner = {"owner": "research"}
        await running_service.service.ingest(
            [replace(event, data={**event.data, **owner}) for event in events]
        )
    await page.goto(running_service.url)
    await expect(page.get_by_role("row").filter(has_text="researcher")).to_be_visible()
    await page.keyboard.press("Control+k")
    await expect(page.get_by_role("dialog", name="Search")).to_be_visible()
    await page.keyboard.type("res")
    options = page.get_by_role("option").filter(has_text="started")
    await expect(options).to_have_count(3)
    await expect(options.first).to_contain_text("researcher")

    await page.keyboard.press("Escape")

    await expect(page.get_by_role("dialog")).to_have_count(0)


def report_tokens(running_service: RunningService, *, tokens: int) -> AgentEvent:
    return AgentEvent(
        type=EventType.LLM_CALL_COMPLETED,
        time=running_service.service.clock(),
        agent_id="spender",
        session_id="spender-session",
        data={"model": "m", "input_tokens": tokens, "output_tokens": 0},
    )


def read_tokens(page: Page, tokens: int) -> Locator:
    row = page.get_by_role("row").filter(has_text="spender")
    return row.get_by_role("img", name=re.compile(f"^{tokens:,} tokens"))


async def test_lost_connection_stops_the_clocks_and_catches_up(
    running_service: RunningService, proxy: InterruptibleProxy, page: Page
) -> None:
    """B111: the browser repeats `Last-Event-ID`; only the replay has the tokens of the gap."""
    await page.goto(proxy.url)
    await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    await running_service.service.ingest([report_tokens(running_service, tokens=100)])
    await expect(read_tokens(page, 100)).to_be_visible()

    proxy.disconnect()
    await expect(page.get_by_role("alert").filter(has_text="No connection to the service")).to_be_visible()
    await running_service.service.ingest([report_tokens(running_service, tokens=11)])
    await running_service.service.ingest(
        list(looping(running_service.service.clock(), agent="meanwhile", times=1))
    )
    uptime = await page.get_by_text("Watching. Up for").inner_text()
    await asyncio.sleep(2.2)  # the browser's clock ticks once a second
    assert await page.get_by_text("Watching. Up for").inner_text() == uptime
    proxy.is_connected = True

    await expect(page.get_by_role("row").filter(has_text="meanwhile")).to_be_visible()
    await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await expect(read_tokens(page, 111)).to_be_visible()
    await running_service.service.ingest([report_tokens(running_service, tokens=1_000)])
    await expect(read_tokens(page, 1_111)).to_be_visible()


async def test_silent_network_is_noticed_and_reconnected(
    running_service: RunningService, proxy: InterruptibleProxy, page: Page
) -> None:
    """B111: no keep-alive arrives either. The page requests the events `after` the last one."""
    await page.clock.install()
    await page.goto(proxy.url)
    await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    await running_service.service.ingest([report_tokens(running_service, tokens=100)])
    await expect(read_tokens(page, 100)).to_be_visible()
    await asyncio.sleep(6)  # idle connections are closed; only the stream is open

    proxy.silence()
    await running_service.service.ingest([report_tokens(running_service, tokens=11)])
    await running_service.service.ingest(
        list(looping(running_service.service.clock(), agent="meanwhile", times=1))
    )
    await page.clock.fast_forward(30_000)
    await expect(page.get_by_role("alert")).to_have_count(0)
    await page.clock.fast_forward(15_000)
    await page.clock.fast_forward(3_000)
    await expect(page.get_by_role("alert").filter(has_text="No connection to the service")).to_be_visible()
    proxy.is_connected = True

    await expect(page.get_by_role("row").filter(has_text="meanwhile")).to_be_visible()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await expect(read_tokens(page, 111)).to_be_visible()


async def test_idle_page_requests_nothing(
    running_service: RunningService, page: Page, page_monitor: PageMonitor
) -> None:
    """B113: the page is updated by the event stream."""
    await wait_for_ticket(running_service)
    await page.goto(running_service.url)
    await expect(page.get_by_role("row").filter(has_text="looper")).to_contain_text("stuck")
    for _ in range(30):  # until the requests that the ticket causes are done
        page_monitor.requests.clear()
        await page.wait_for_timeout(2_000)
        if not page_monitor.requests:
            break

    await page.wait_for_timeout(3_000)

    assert page_monitor.requests == []


async def test_agent_text_is_not_markup(
    running_service: RunningService, page: Page, page_monitor: PageMonitor
) -> None:
    """B114: names, a question, and the queen's reason for a stop are not markup."""
    await request_termination(running_service, HOSTILE)
    await wait_for_ticket(running_service, agent=HOSTILE)
    await report_waiting(running_service, "writer", HOSTILE)
    await page.goto(running_service.url)

    await expect(page.get_by_role("link", name=HOSTILE).first).to_be_visible()
    for agent in ("looper", "writer"):
        item = page.get_by_role("list", name="Needs you").get_by_role("listitem").filter(has_text=agent)
        await expect(item.get_by_text(HOSTILE)).to_be_visible()
    assert await page.locator("img, script:not([src^='/console/'])").count() == 0
    assert [url for url in page_monitor.requests if not url.startswith((running_service.url, "data:"))] == []


async def report_fleet(running_service: RunningService, count: int) -> None:
    now = running_service.service.clock()
    events = [
        AgentEvent(type=EventType.EXECUTION_STARTED, time=now, agent_id=f"agent-{n:05}", session_id="s")
        for n in range(count)
    ]
    await running_service.service.ingest(events)


async def test_change_reloads_few_pages_of_a_long_list(
    running_service: RunningService, page: Page, page_monitor: PageMonitor
) -> None:
    """B113: scrolling back reads the pages that were not reloaded."""
    await report_fleet(running_service, 800)
    await page.goto(f"{running_service.url}/console/?sort=agent")
    rows = page.get_by_role("table", name="Sessions").get_by_role("row")
    scroll = page.get_by_label("Sessions of the fleet")
    await expect(rows.filter(has_text="agent-00000")).to_be_visible()
    for _ in range(40):
        await scroll.evaluate("list => list.scrollTop = list.scrollHeight")
        await page.wait_for_timeout(100)
        if await rows.filter(has_text="agent-00799").count():
            break
    await expect(rows.filter(has_text="agent-00799")).to_be_visible()
    await page.wait_for_timeout(1_500)

    page_monitor.requests.clear()
    now = running_service.service.clock()
    await running_service.service.ingest(list(looping(now, agent="agent-00790", times=1)))
    await page.wait_for_timeout(3_000)

    list_requests = [url for url in page_monitor.requests if "/api/agents?" in url]
    assert 1 <= len(list_requests) <= 8, (
        list_requests
    )  # four pages, or eight if the change arrived in two parts
    for _ in range(40):
        await scroll.evaluate("list => list.scrollTop = Math.max(0, list.scrollTop - 1500)")
        await page.wait_for_timeout(100)
    await expect(rows.filter(has_text="agent-00000")).to_be_visible()


async def test_list_that_becomes_shorter_shows_its_end(running_service: RunningService, page: Page) -> None:
    """B113: the end of the list stays visible."""
    await report_fleet(running_service, 400)
    await page.goto(f"{running_service.url}/console/?sort=agent&health=healthy")
    rows = page.get_by_role("table", name="Sessions").get_by_role("row")
    scroll = page.get_by_label("Sessions of the fleet")
    for _ in range(40):
        await scroll.evaluate("list => list.scrollTop = list.scrollHeight")
        await page.wait_for_timeout(100)
        if await rows.filter(has_text="agent-00399").count():
            break
    await expect(rows.filter(has_text="agent-00399")).to_be_visible()

    now = running_service.service.clock()
    ends = [
        AgentEvent(type=EventType.EXECUTION_COMPLETED, time=now, agent_id=f"agent-{n:05}", session_id="s")
        for n in range(100, 400)
    ]
    await running_service.service.ingest(ends)

    await expect(rows.filter(has_text="agent-00099")).to_be_visible()
    for _ in range(10):
        await scroll.evaluate("list => list.scrollTop = Math.max(0, list.scrollTop - 1500)")
        await page.wait_for_timeout(100)
    await expect(rows.filter(has_text="agent-00000")).to_be_visible()


async def test_progress_tokens_and_cost_are_drawn_live(running_service: RunningService, page: Page) -> None:
    await running_service.service.ingest(
        list(looping(running_service.service.clock(), agent="spender", times=1))
    )
    await page.goto(running_service.url)
    row = page.get_by_role("row").filter(has_text="spender")
    await expect(row).to_be_visible()
    now = running_service.service.clock()
    call = AgentEvent(
        type=EventType.LLM_CALL_COMPLETED,
        time=now,
        agent_id="spender",
        session_id="spender-session",
        data={"model": "m", "input_tokens": 1200, "output_tokens": 34, "cost_usd": 0.25},
    )
    step = replace(call, id="step", type=EventType.STEP_COMPLETED, data={"verdict": "ACCEPT"})

    await running_service.service.ingest([call, step])

    await expect(row.get_by_role("img", name="1,234 tokens in the last 2 min")).to_be_visible()
    fleet = page.get_by_role("region", name="Fleet")
    for chart in ("$0.25 of model calls", "1 accepted steps and checkpoints"):
        # of the fleet, and of its only worker
        await expect(fleet.get_by_role("img", name=f"{chart} in the last 2 min")).to_have_count(2)


@pytest.mark.parametrize("sessions", [1_000, 10_000])
async def test_long_fleet_is_sixty_rows_at_most(
    running_service: RunningService, page: Page, sessions: int
) -> None:
    """B113: the length of the fleet makes no difference."""
    await report_fleet(running_service, sessions)
    await page.goto(f"{running_service.url}/console/?sort=agent")
    rows = page.get_by_role("table", name="Sessions").get_by_role("row")

    await expect(rows.filter(has_text="agent-00000")).to_be_visible()
    for _ in range(20):
        await page.get_by_label("Sessions of the fleet").evaluate("list => list.scrollBy(0, 4000)")
        await page.wait_for_timeout(50)
        assert await rows.count() <= 60
    await expect(rows.filter(has_text="agent-00100")).to_have_count(0)


class TestOperator:
    """A service in which only a person decides escalations."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return demo_settings(tmp_path / "storage", orchestrator="none")

    async def test_escalation_is_decided_in_its_item(
        self, running_service: RunningService, page: Page, http: httpx.AsyncClient
    ) -> None:
        await wait_for_ticket(running_service)
        await http.post("/api/agents/looper/escalate", json={"reason": "It loops."})
        await page.goto(running_service.url)

        await page.get_by_role("button", name="More time…").click()
        await page.get_by_role("dialog").get_by_label("Reason").fill("It is nearly done.")
        await page.get_by_role("dialog").get_by_role("button", name="More time").click()

        await expect(page.get_by_role("status").filter(has_text="Decided for looper")).to_be_visible()
        [escalation] = (await http.get("/api/escalations")).json()["escalations"]
        assert (escalation["decision"], escalation["status"]) == ("more_time", "decided")
