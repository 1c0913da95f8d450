"""The other pages: sessions, replay, tickets, incidents; for viewers, on all screens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import httpx
import pytest
from playwright.async_api import Browser, Page, Route, expect

from queenright.health.tickets.incidents import Incident
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.access.roles import Role
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from queenright.server.views.attention import find_incidents
from tests.console.conftest import HOSTILE, InterruptibleProxy, PageMonitor
from tests.console.shifts import READ_SHIFT, RECORD_SHIFTS
from tests.console.walk import SCREENS
from tests.server.access.test_service_with_tokens import create_token
from tests.server.conftest import HOUR, demo_settings, looping
from tests.server.test_app import wait_for_ticket
from tests.server.test_approvals import request_termination
from tests.server.test_attention import report_waiting
from tests.server.test_chat_callbacks import post_notification_webhook
from tests.server.test_permissions import open_telemetry_client, request_permission, wait_for_request
from tests.server.test_shared_api import OVERLOADED_ERROR, end_sessions, fail_agents, make_model_calls
from tests.waiting import until
from tests.warm import queenright

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGES = (
    "/console/",
    "/console/agents/{agent}",
    "/console/agents/{agent}?view=recorder",
    "/console/tickets",
    "/console/tickets/{ticket}",
    "/console/incidents",
    "/console/incidents/{incident}",
    "/console/talk",
    "/console/operate/actions",
    "/console/operate/breakers",
    "/console/operate/recoveries",
    "/console/operate/silences",
    "/console/operate/telemetry",
    "/console/operate/audit",
    "/console/operate/settings",
    "/console/operate/tokens",
    "/console/connect",
)
MEASURE_OVERFLOW: Final = """Math.max(
    ...[document.documentElement, document.querySelector("main")].map(e => e.scrollWidth - e.clientWidth)
)"""


async def prepare_pages(running_service: RunningService, agent: str = "looper") -> list[str]:
    """Let an agent loop and three lose their provider; return the URL of each page."""
    ticket_id = await wait_for_ticket(running_service, agent=agent)
    service = running_service.service
    for other_agent in ("a", "b", "c"):
        await service.ingest(make_model_calls(service.clock(), other_agent, **OVERLOADED_ERROR))
    incidents: list[Incident] = []

    def has_incident() -> bool:
        incidents[:] = find_incidents(service, service.tickets.open_tickets())
        return bool(incidents)

    await until(has_incident, "an incident")
    names = {"ticket": ticket_id, "incident": incidents[0].incident_id, "agent": quote(agent, safe="")}
    return [running_service.url + address.format(**names) for address in PAGES]


@contextlib.asynccontextmanager
async def prepare_all_kinds(running_service: RunningService) -> AsyncIterator[list[str]]:
    """Create one item of each kind that needs a person; yield the URL of each page."""
    async with open_telemetry_client(running_service) as telemetry:
        await request_termination(running_service)
        # The list shows the approval instead of the looper's own ticket.
        await running_service.service.ingest(list(looping(running_service.service.clock(), agent="spinner")))
        await until(
            lambda: (
                (ticket := running_service.service.tickets.open_for("spinner", "spinner-session"))
                and ticket.notified_at
            ),
            "a ticket of another agent",
        )
        await report_waiting(running_service, "writer", "Which title?")
        permission_request = await request_permission(telemetry)
        addresses = await prepare_pages(running_service)
        async with httpx.AsyncClient(base_url=running_service.url, trust_env=False, timeout=60) as http:
            await wait_for_request(http)
            worker = {"agent_id": "looper", "session_id": "looper-session"}
            await http.post("/api/agents/looper/queen", json={"message": "What is wrong?", **worker})
            kinds = {item["kind"] for item in (await http.get("/api/attention")).json()["items"]}
        assert kinds == {"approval", "permission", "question", "ticket", "incident"}
        yield [*addresses, f"{running_service.url}/console/agents/writer"]
        permission_request.cancel()


async def wait_until_loaded(page: Page) -> None:
    """Wait until the page has loaded its data."""
    await expect(page.get_by_role("heading", level=1)).to_have_count(1)
    await expect(page.get_by_label("Loading")).to_have_count(0)


async def test_action_on_a_session_that_was_replaced_is_refused(
    running_service: RunningService, page: Page
) -> None:
    """B112: the action names session and incarnation, and is refused if they have changed."""
    ticket_id = await wait_for_ticket(running_service)
    await page.goto(f"{running_service.url}/console/tickets/{ticket_id}")
    await page.get_by_role("button", name="Terminate the worker…").click()
    await page.get_by_label("Reason").fill("it loops")
    loop_event, *_ = looping(running_service.service.clock())
    successor_event = type(loop_event)(
        type=loop_event.type,
        time=running_service.service.clock(),
        agent_id="looper",
        session_id="looper-session",
        incarnation_id="two",
        data=loop_event.data,
    )
    await running_service.service.ingest([successor_event])

    await page.get_by_role("dialog").get_by_role("button", name="Terminate", exact=True).click()

    await expect(page.get_by_role("dialog").get_by_role("alert")).to_be_visible()


async def test_dialog_whose_code_cannot_be_loaded_leaves_the_page(
    running_service: RunningService, page: Page, page_monitor: PageMonitor
) -> None:
    await wait_for_ticket(running_service)
    await page.goto(f"{running_service.url}/console/agents/looper?session=looper-session")
    await wait_until_loaded(page)
    stop = page.get_by_role("group", name="Actions").get_by_role("button", name="Terminate…")
    await page.get_by_label("Question to the queen").fill("typed before")
    await page.route("**/worker-dialogs-*.js", lambda route: route.abort())

    await stop.click()

    await expect(page.get_by_text("Cannot load the dialog")).to_be_visible()
    await expect(page.get_by_role("button", name="Reload")).to_be_visible()
    await expect(page.get_by_label("Question to the queen")).to_have_value("typed before")
    await page.unroute("**/worker-dialogs-*.js")


async def test_escape_closes_a_dialog_that_was_refused(running_service: RunningService, page: Page) -> None:
    await wait_for_ticket(running_service)
    await page.goto(f"{running_service.url}/console/agents/looper?session=looper-session")
    await wait_until_loaded(page)
    await page.route("**/terminate", lambda route: route.fulfill(status=409, json={"title": "Replaced."}))
    await page.get_by_role("group", name="Actions").get_by_role("button", name="Terminate…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Reason").fill("it loops")
    await dialog.get_by_role("button", name="Terminate", exact=True).click()
    await expect(dialog.get_by_role("alert")).to_be_visible()

    await page.keyboard.press("Escape")

    await expect(dialog).to_have_count(0)


async def test_session_shows_its_calls_and_repeated_calls(
    running_service: RunningService, page: Page
) -> None:
    await wait_for_ticket(running_service)
    await page.goto(f"{running_service.url}/console/?search=looper")

    await page.get_by_role("table", name="Sessions").get_by_role("link", name="looper").click()

    await wait_until_loaded(page)
    await expect(page.get_by_role("heading", level=1)).to_contain_text("looper")
    await expect(page.get_by_text("search").first).to_be_visible()
    await expect(page.get_by_text(re.compile("(\u00d720|20\u00d7)")).first).to_be_visible()


async def test_session_page_has_a_chat_with_the_queen(running_service: RunningService, page: Page) -> None:
    await wait_for_ticket(running_service)
    await page.goto(f"{running_service.url}/console/agents/looper?session=looper-session")
    await wait_until_loaded(page)

    await page.get_by_label("Question to the queen").fill("What is wrong?")
    await page.keyboard.press("Enter")

    talk = page.get_by_role("log", name="Conversation with the queen")
    await expect(talk.get_by_text("What is wrong?")).to_be_visible()


async def test_queen_is_asked_about_a_session_without_a_ticket(
    running_service: RunningService, page: Page
) -> None:
    await running_service.service.ingest(
        list(looping(running_service.service.clock(), agent="well", times=1))
    )
    await page.goto(f"{running_service.url}/console/agents/well?session=well-session")
    await wait_until_loaded(page)

    talk = page.get_by_role("log", name="Conversation with the queen")
    about = {"ticket_id": "", "agent_id": "well", "session_id": "well-session", "question_id": "q"}
    for index, text in enumerate(["I look ", "at it", HOSTILE]):
        data = {**about, "index": index, "text": text}
        running_service.service.bus.fan_out(
            AgentEvent(type=EventType.QUEEN_ANSWER_DELTA, time=1.0, data=data)
        )
    await expect(talk.get_by_text(f"I look at it{HOSTILE}")).to_be_visible()

    await page.get_by_label("Question to the queen").fill("Is it running?")
    await page.keyboard.press("Enter")

    await expect(talk.get_by_text("Is it running?")).to_be_visible()
    await expect(talk.get_by_text("the worker is healthy")).to_be_visible()


async def test_replay_shows_findings_and_exports_the_run(
    running_service: RunningService, page: Page, tmp_path: Path
) -> None:
    """`queenright evaluate` reads the export and gives the same findings."""
    await wait_for_ticket(running_service)
    await page.goto(f"{running_service.url}/console/agents/looper?session=looper-session&view=recorder")
    await wait_until_loaded(page)

    await expect(page.get_by_text("doom loop").locator("visible=true").first).to_be_visible()
    async with page.expect_download() as download:
        await page.get_by_role("link", name=re.compile("Export")).click()
    download_file = await download.value
    file = tmp_path / download_file.suggested_filename
    await download_file.save_as(file)

    evaluation = await asyncio.to_thread(queenright, "evaluate", str(file), "--json", cwd=tmp_path)
    assert evaluation.returncode == 0, evaluation.stderr
    assert "doom_loop" in [finding["kind"] for finding in json.loads(evaluation.stdout)["findings"]]


async def test_link_to_a_moment_of_the_recorder_opens_that_moment(
    running_service: RunningService, page: Page
) -> None:
    """A step has a moment at its start, and others until its end."""
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await wait_for_ticket(running_service)
    await page.goto(f"{running_service.url}/console/agents/looper?session=looper-session&view=recorder")
    slider = page.get_by_label("Moment of the session")
    last = int(await slider.get_attribute("max") or 0)
    other_page = await page.context.new_page()
    for moment in range(0, last + 1, 5):
        await slider.fill(str(moment))
        await page.evaluate("navigator.clipboard.writeText('')")
        await page.get_by_role("button", name="Copy link").click()
        await page.wait_for_function("navigator.clipboard.readText()")
        await other_page.goto(await page.evaluate("navigator.clipboard.readText()"))
        await expect(other_page.get_by_label("Moment of the session")).to_have_value(str(moment))
    await other_page.close()


async def test_focus_returns_after_a_dialog_is_sent(running_service: RunningService, page: Page) -> None:
    await page.goto(f"{running_service.url}/console/operate/actions")
    await page.get_by_role("button", name="Stop all actions…").focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("dialog").get_by_label("Reason").fill("a drill")

    await page.keyboard.press("Enter")

    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(page.get_by_role("button", name="Allow actions again…")).to_be_focused()


async def test_page_opened_without_a_connection_is_loaded_later(
    running_service: RunningService, proxy: InterruptibleProxy, page: Page, page_monitor: PageMonitor
) -> None:
    await page.goto(f"{proxy.url}/console/connect")
    await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    proxy.disconnect()
    await expect(page.get_by_role("alert").filter(has_text="No connection to the service")).to_be_visible()
    await page.get_by_label("Pages").get_by_role("link", name="Tickets").click()
    await expect(page.get_by_text("The page loads when the connection is back.")).to_be_visible()

    proxy.is_connected = True

    await expect(page.get_by_role("heading", level=1, name="Tickets")).to_be_visible()
    # React adds the reason of the error.
    assert all("did not send the code" in fault for fault in page_monitor.faults)
    page_monitor.faults.clear()


async def test_long_name_of_a_tool_fits_a_phone(running_service: RunningService, page: Page) -> None:
    events = looping(running_service.service.clock())
    renamed = [replace(event, data={**event.data, "tool": "T" * 150}) for event in events]
    await running_service.service.ingest(renamed)
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(f"{running_service.url}/console/agents/looper?session=looper-session")
    await wait_until_loaded(page)
    await expect(page.get_by_role("group", name="Repeated calls")).to_be_visible()
    assert await page.evaluate(MEASURE_OVERFLOW) <= 0


async def test_all_navigation_links_are_visible_on_a_tablet(
    running_service: RunningService, page: Page
) -> None:
    await page.set_viewport_size({"width": 768, "height": 1024})
    await page.goto(f"{running_service.url}/console/")
    for link in await page.get_by_label("Pages").get_by_role("link").all():
        await expect(link).to_be_in_viewport(ratio=1)


async def test_replay_reads_a_long_session_in_few_requests(
    running_service: RunningService, page: Page, page_monitor: PageMonitor
) -> None:
    service = running_service.service
    await service.ingest(list(looping(service.clock(), agent="long", times=1_500)))
    await page.goto(f"{running_service.url}/console/agents/long?session=long-session&view=recorder")
    await expect(page.get_by_role("row").filter(has_text="doom loop")).to_be_visible()
    await expect(page.get_by_text(re.compile("^Loading"))).to_have_count(0)

    assert len([url for url in page_monitor.requests if "before=" in url]) <= 4


async def test_session_shows_no_values_before_they_are_loaded(
    running_service: RunningService, page: Page
) -> None:
    await wait_for_ticket(running_service)
    may_answer = asyncio.Event()

    async def answer_later(route: Route) -> None:
        await may_answer.wait()
        await route.continue_()

    await page.route(
        re.compile(r"/steps\?|/api/tickets\?|/api/interventions\?|health\?session_id="), answer_later
    )
    await page.goto(f"{running_service.url}/console/agents/looper")
    await expect(page.get_by_text(re.compile(r"^running for \d+\s(s|min)"))).to_be_visible()
    await expect(page.get_by_label("Loading")).to_have_count(3)  # now, timeline, side
    await expect(page.get_by_label("About the session")).to_have_count(0)
    await expect(page.get_by_text(re.compile("^None|^No turn"))).to_have_count(0)
    await page.get_by_role("link", name="Flight recorder").click()
    loop = page.get_by_role("row").filter(has_text="doom loop")
    await expect(loop).to_contain_text("Loading…")

    may_answer.set()
    await expect(loop).not_to_contain_text("Loading…")
    await expect(page.get_by_text("did not fire")).to_have_count(0)
    await page.get_by_role("link", name="Timeline", exact=True).click()
    await expect(page.get_by_label("Loading")).to_have_count(0)


async def test_current_page_is_visible_in_the_navigation_of_a_phone(
    running_service: RunningService, page: Page
) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(f"{running_service.url}/console/connect")
    await expect(page.get_by_label("Pages").get_by_role("link", name="Connect")).to_be_in_viewport(ratio=1)


async def test_steps_that_arrive_do_not_move_the_page_of_a_phone(
    running_service: RunningService, page: Page
) -> None:
    service = running_service.service
    await service.ingest(list(looping(service.clock(), agent="well", times=2)))
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(f"{running_service.url}/console/agents/well?session=well-session")
    await wait_until_loaded(page)
    await page.evaluate(RECORD_SHIFTS)

    for number in range(3, 10):
        *_, call, step = looping(service.clock() + 30, agent="well", times=number)
        new_hashes = {"args_hash": f"{number:016}", "result_hash": f"{number:016}"}
        accepted = replace(step, data={**step.data, "verdict": "ACCEPT"})
        await service.ingest([replace(call, data={**call.data, **new_hashes}), accepted])
        await expect(page.get_by_role("button", name=f"Tool calls {number}")).to_be_visible()

    assert await page.evaluate(READ_SHIFT) < 0.02


async def test_change_of_health_does_not_move_the_page_of_a_phone(
    running_service: RunningService, page: Page
) -> None:
    """New items that need a person are shown on request."""
    await running_service.service.ingest(
        list(looping(running_service.service.clock(), agent="well", times=2))
    )
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(f"{running_service.url}/console/agents/well?session=well-session")
    await wait_until_loaded(page)
    await page.evaluate(RECORD_SHIFTS)

    await wait_for_ticket(running_service, agent="well")
    needs_button = page.get_by_role("button", name="Needs you (1)")
    await expect(needs_button).to_be_visible()
    assert await page.evaluate(READ_SHIFT) < 0.03

    await needs_button.click()
    await expect(page.get_by_role("list", name="Needs you")).to_contain_text("well")
    await expect(needs_button).to_have_count(0)


async def test_title_names_the_page_and_its_agent_or_ticket(
    running_service: RunningService, page: Page
) -> None:
    ticket_id = await wait_for_ticket(running_service)
    titles = {
        "/console/": "Queenright",
        "/console/agents/looper?session=looper-session": "looper · Queenright",
        f"/console/tickets/{ticket_id}": "looper: doom loop · Queenright",
        "/console/operate/audit": "Audit trail · Queenright",
    }
    for address, title in titles.items():
        await page.goto(running_service.url + address)
        await expect(page).to_have_title(re.compile(rf"^(\(\d+\) )?{title}$"))


async def test_unchanged_heartbeat_causes_no_requests(
    running_service: RunningService, page: Page, page_monitor: PageMonitor
) -> None:
    await wait_for_ticket(running_service)
    beat = AgentEvent(
        type=EventType.AGENT_HEARTBEAT,
        time=running_service.service.clock(),
        agent_id="looper",
        session_id="looper-session",
        data={"interval": 30.0, "token_count": 7},
    )
    await page.goto(f"{running_service.url}/console/agents/looper?session=looper-session")
    await wait_until_loaded(page)
    await running_service.service.ingest([beat])
    for _ in range(20):  # until the requests that the first heartbeat causes are done
        page_monitor.requests.clear()
        await page.wait_for_timeout(2_000)
        if not page_monitor.requests:
            break

    await running_service.service.ingest(
        [replace(beat, time=running_service.service.clock(), id="another-beat")]
    )
    await page.wait_for_timeout(2_500)

    assert page_monitor.requests == []


async def test_receiver_appears_when_alertmanager_has_notified_it(
    running_service: RunningService, page: Page, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running_service)
    await page.goto(f"{running_service.url}/console/tickets/{ticket_id}")
    await wait_until_loaded(page)
    await page.wait_for_timeout(1_500)  # until the requests that the ticket causes are done

    await post_notification_webhook(http, ticket_id, receiver="pagerduty")

    deliveries = page.get_by_role("listitem").filter(has_text="pagerduty")
    await expect(deliveries.filter(has_text="firing").first).to_be_visible()


async def test_incident_list_links_to_the_page_of_an_incident(
    running_service: RunningService, page: Page, http: httpx.AsyncClient
) -> None:
    await fail_agents(running_service, "a", "b", "c")
    [incident] = (await http.get("/api/incidents")).json()["incidents"]
    await page.goto(f"{running_service.url}/console/incidents")
    await page.get_by_role("link", name="Provider anthropic").click()

    await wait_until_loaded(page)
    await expect(page).to_have_url(f"{running_service.url}/console/incidents/{incident['incident_id']}")
    panels = page.locator("section.panel")
    tickets = panels.filter(has=page.get_by_role("heading", name="Tickets"))
    await expect(tickets.get_by_role("listitem").filter(has_text="c: ")).to_be_visible()
    timeline = panels.filter(has=page.get_by_role("heading", name="Timeline"))
    for agent in ("a", "b", "c"):
        await expect(timeline.get_by_text(f"queen → operator: {agent} ").first).to_be_visible()
    await page.get_by_role("button", name="Acknowledge all").click()
    await expect(page.get_by_role("status").filter(has_text="Acknowledged")).to_be_visible()
    assert all(ticket.acknowledged_at for ticket in running_service.service.tickets.open_tickets())
    await expect(page.get_by_role("button", name="Acknowledge all")).to_be_disabled()
    await page.goto(f"{running_service.url}/console/incidents/nothing")
    await expect(page.get_by_text("Incident not found")).to_be_visible()


async def test_incident_is_acknowledged_on_the_home_page(
    running_service: RunningService, page: Page, page_monitor: PageMonitor
) -> None:
    """A double click acknowledges once."""
    await fail_agents(running_service, "a", "b", "c")
    await page.goto(running_service.url)

    acknowledge = page.get_by_role("button", name="Acknowledge all")
    await acknowledge.dblclick()

    await expect(page.get_by_role("status").filter(has_text="Acknowledged")).to_be_visible()
    await expect(acknowledge).to_have_count(0)
    assert len([url for url in page_monitor.requests if url.endswith("/acknowledge")]) == 3
    assert all(ticket.acknowledged_at for ticket in running_service.service.tickets.open_tickets())


async def test_incident_whose_sessions_have_ended_is_acknowledged(
    running_service: RunningService, page: Page
) -> None:
    await fail_agents(running_service, "a", "b", "c")
    await end_sessions(running_service, "a", "b", "c")
    await page.goto(f"{running_service.url}/console/incidents")
    await page.get_by_role("link", name="Provider anthropic").click()
    await expect(page.get_by_text("workers ended", exact=True)).to_be_visible()
    await expect(page.get_by_text("open", exact=True)).to_have_count(0)
    await expect(page.get_by_text("3 sessions of 3 agents")).to_be_visible()
    await page.goto(running_service.url)
    await expect(page.get_by_role("list", name="Needs you")).to_contain_text(
        "All workers of this incident have ended."
    )

    await page.get_by_role("button", name="Acknowledge all").click()

    await expect(page.get_by_role("status").filter(has_text="Acknowledged")).to_be_visible()
    await expect(page.get_by_text("Nothing needs you.")).to_be_visible()


async def test_every_page_fits_the_screen(
    running_service: RunningService, page: Page, page_monitor: PageMonitor
) -> None:
    await page.emulate_media(reduced_motion="reduce")
    for address in await prepare_pages(running_service):
        await page.goto(address)
        await wait_until_loaded(page)
        for width, theme in SCREENS:
            await page.set_viewport_size({"width": width, "height": 900})
            await page.emulate_media(color_scheme=theme)
            await expect(page.locator(f"html[data-theme={theme}]")).to_have_count(1)
            assert await page.evaluate(MEASURE_OVERFLOW) <= 0, (address, width, theme)
    assert [
        url for url in page_monitor.requests if not url.startswith((running_service.url, "data:", "blob:"))
    ] == []


AXE_OPTIONS: Final = {"rules": {"label-content-name-mismatch": {"enabled": True}}}
"""Options of axe: voice control presses a button by its visible text."""


async def run_axe(page: Page, axe: str, part: str = "html") -> list[str]:
    """Return axe's serious and critical findings in a part of a page."""
    await page.evaluate(axe)
    result: dict[str, Any] = await page.evaluate(
        "([part, options]) => axe.run(part, options)", [part, AXE_OPTIONS]
    )
    return [
        f"{page.url} {page.viewport_size}, {part}: {violation['id']}: {node['html'][:120]}"
        for violation in result["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


OPENS_DIALOG: Final = re.compile("…$|^Preferences$|^Search")


class TestNeeds:
    """Pages of a service with one item of each kind that needs a person."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return demo_settings(tmp_path / "storage", wait_seconds=HOUR)

    @pytest.mark.parametrize("theme", ["light", "dark"])
    @pytest.mark.parametrize("width", [390, 1280, 1920])
    async def test_every_page_and_dialog_is_accessible(
        self,
        running_service: RunningService,
        chromium: Browser,
        packages: Path,
        theme: Literal["light", "dark"],
        width: int,
    ) -> None:
        """axe has no serious or critical finding, and Escape closes each dialog."""
        axe = (packages / "node_modules" / "axe-core" / "axe.min.js").read_text()
        context = await chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=theme,
            reduced_motion="reduce",
            bypass_csp=True,
        )
        page = await context.new_page()
        faults: list[str] = []
        opened_dialogs: set[str] = set()
        async with prepare_all_kinds(running_service) as addresses:
            for address in addresses:
                await page.goto(address)
                await wait_until_loaded(page)
                faults += await run_axe(page, axe)
                buttons = page.get_by_role("button", name=OPENS_DIALOG).and_(page.locator(".button"))
                for number in range(await buttons.count()):
                    button = buttons.nth(number)
                    name = await button.evaluate("button => button.ariaLabel || button.textContent")
                    if name in opened_dialogs:
                        continue
                    opened_dialogs.add(name)
                    await button.focus()
                    await page.keyboard.press("Enter")
                    await expect(page.get_by_role("dialog")).to_be_visible()
                    faults += await run_axe(page, axe, "[role=dialog]")
                    await page.keyboard.press("Escape")
                    await expect(page.get_by_role("dialog")).to_have_count(0)
        assert faults == []
        assert {"Nudge…", "Terminate the worker…", "Load…", "Preferences"} <= opened_dialogs

    @pytest.mark.parametrize("width", [390, 1280])
    async def test_loading_page_has_no_layout_shift(
        self, running_service: RunningService, chromium: Browser, width: int
    ) -> None:
        """The parts of each page appear together."""
        context = await chromium.new_context(viewport={"width": width, "height": 844})
        await context.add_init_script(f"({RECORD_SHIFTS})()")
        page = await context.new_page()
        shifts: dict[str, float] = {}
        async with prepare_all_kinds(running_service) as addresses:
            for address in addresses:
                await page.goto(address)
                await wait_until_loaded(page)
                shifts[address] = await page.evaluate(READ_SHIFT)
        assert {address: shift for address, shift in shifts.items() if shift >= 0.1} == {}


async def test_agent_text_is_not_markup_on_any_page(
    running_service: RunningService, page: Page, page_monitor: PageMonitor
) -> None:
    """B114: no text of an agent is markup."""
    for address in await prepare_pages(running_service, HOSTILE):
        await page.goto(address)
        await wait_until_loaded(page)
        assert await page.locator("img, script:not([src^='/console/'])").count() == 0, address
    assert [
        url for url in page_monitor.requests if not url.startswith((running_service.url, "data:", "blob:"))
    ] == []


async def test_every_page_shows_a_lost_connection_and_catches_up(
    running_service: RunningService, proxy: InterruptibleProxy, page: Page
) -> None:
    """B111: the banner appears on each page."""
    for address in await prepare_pages(running_service):
        await page.goto(address.replace(running_service.url, proxy.url))
        await wait_until_loaded(page)
        await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
        heading = await page.get_by_role("heading", level=1).inner_text()

        proxy.disconnect()
        banner = page.get_by_role("alert").filter(has_text="No connection to the service")
        await expect(banner).to_be_visible()
        assert await page.get_by_role("heading", level=1).inner_text() == heading, address
        proxy.is_connected = True

        await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
        await expect(banner).to_have_count(0)


VIEWER_BUTTONS: Final = re.compile(
    r"failing|stuck|degraded|healthy|ended|Show \d+ ended|Agent|Health.*|Activity|Progress|Tokens|Cost"
    r"|Turns|Tool calls|Waits|Findings|Tickets|Interventions|Notifications|Other|search"
    r"|.*\d\d:\d\d:\d\d.*|[«\u2039\u203a]|fired|Copy.*|Check now|Load new steps|Read again"
)
"""First lines of the buttons that a viewer sees; they change only the display."""


class TestViewer:
    """A service with a user of role viewer."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        settings = demo_settings(tmp_path / "storage")
        settings = settings.model_copy(update={"auth": settings.auth.model_copy(update={"required": True})})
        self.token = create_token(settings, "vera", Role.VIEWER)
        return settings

    async def test_viewer_sees_everything_and_cannot_act(
        self, running_service: RunningService, chromium: Browser, page_monitor: PageMonitor
    ) -> None:
        ticket_id = await wait_for_ticket(running_service)
        ticket = running_service.service.tickets.get(ticket_id)
        assert ticket is not None
        await running_service.service.remediation.queen_actions.request_termination(ticket, "It loops.")
        await report_waiting(running_service, "writer", "Which title?")
        page = await (await chromium.new_context()).new_page()
        await page.goto(running_service.url)
        await page.locator("input[type=password]").fill(self.token)
        await page.keyboard.press("Enter")
        page_monitor.watch(page)

        await expect(page.get_by_role("row").filter(has_text="looper")).to_be_visible()
        await expect(page.get_by_text("Read-only: actions require the role operator.")).to_have_count(1)
        items = page.get_by_role("list", name="Needs you")
        for text in ("It loops.", "Which title?"):
            await expect(items.get_by_text(text)).to_be_visible()
        for role in ("button", "textbox"):
            await expect(items.get_by_role(role)).to_have_count(0)
        await page.goto(f"{running_service.url}/console/tickets/{ticket_id}")
        await wait_until_loaded(page)
        await expect(page.get_by_role("button", name="Resolve…")).to_have_count(0)
        for address in await prepare_pages(running_service, "other"):
            await page.goto(address)
            await wait_until_loaded(page)
            buttons = await page.get_by_role("main").get_by_role("button").all_inner_texts()
            labels = [name.strip().split("\n")[0] for name in buttons]
            assert [label for label in labels if not VIEWER_BUTTONS.fullmatch(label)] == [], address
            await expect(page.get_by_label("Question to the queen")).to_have_count(0)

    async def test_page_after_the_session_ended_asks_for_the_token(
        self, running_service: RunningService, chromium: Browser
    ) -> None:
        page = await (await chromium.new_context()).new_page()
        await page.goto(running_service.url)
        await page.locator("input[type=password]").fill(self.token)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()

        await page.context.clear_cookies()
        await page.evaluate("dispatchEvent(new Event('online'))")

        await expect(page).to_have_url(re.compile(r"/login\?next="))
