"""The console with a service that uses the real Prometheus and Alertmanager."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from queenright.instrumentation.names import ALERT_LABEL_TICKET_ID
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests.console.walk import User, all_variants
from tests.end_to_end.conftest import settings, up_without_demo
from tests.server.conftest import looping

__all__ = ["settings"]

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def running_service(settings: Settings) -> AsyncIterator[RunningService]:
    async with up_without_demo(settings) as service:
        yield service


class TicketAlerts:
    """Alertmanager's alerts and silences about one ticket."""

    def __init__(self, url: str, ticket_id: str) -> None:
        self._url, self._ticket_id = url, ticket_id

    async def states(self) -> list[str]:
        """Return the states of the ticket's alerts."""
        alerts = await self._get("alerts")
        return [
            alert["status"]["state"]
            for alert in alerts
            if alert["labels"].get(ALERT_LABEL_TICKET_ID) == self._ticket_id
        ]

    async def silences(self) -> list[tuple[str, str]]:
        """Return the state and comment of each silence."""
        return [(silence["status"]["state"], silence["comment"]) for silence in await self._get("silences")]

    async def wait_for_states(self, states: list[str]) -> None:
        """Wait until the ticket's alerts have these states."""
        for _ in range(300):
            if await self.states() == states:
                return
            await asyncio.sleep(0.2)
        pytest.fail(f"the alerts are {await self.states()}, not {states}")

    async def _get(self, path: str) -> list[dict[str, Any]]:
        async with httpx.AsyncClient(base_url=self._url, trust_env=False) as http:
            rows: list[dict[str, Any]] = (await http.get(f"/api/v2/{path}")).json()
        return rows


def recovery_events(now: float) -> Iterator[AgentEvent]:
    """Return events in which the looping agent makes a new call and its step is accepted."""
    loop_event, *_ = looping(now)
    for kind, data in (
        (EventType.TOOL_CALL_COMPLETED, {"tool": "write", "args_hash": "c" * 16, "result_hash": "d" * 16}),
        (EventType.STEP_COMPLETED, {"index": 20, "verdict": "ACCEPT"}),
    ):
        yield AgentEvent(
            type=kind,
            time=now,
            agent_id=loop_event.agent_id,
            session_id=loop_event.session_id,
            incarnation_id=loop_event.incarnation_id,
            node_id=loop_event.node_id,
            data=data,
        )


@all_variants
async def test_ticket_is_notified_silenced_acknowledged_and_resolved(
    running_service: RunningService, page: Page, user: User
) -> None:
    """The console shows the state of Alertmanager and its receivers, and changes it."""
    await page.goto(running_service.url)
    await running_service.service.ingest(list(looping(running_service.service.clock())))
    await user.press(page.get_by_role("main").locator("a[href^='/console/tickets/']").first)
    await expect(page.get_by_role("heading", level=1)).to_contain_text("looper")
    assert running_service.alertmanager_url
    ticket_id = page.url.rsplit("/", 1)[-1]
    alertmanager = TicketAlerts(running_service.alertmanager_url, ticket_id)

    deliveries = page.get_by_role("listitem").filter(has_text="pagerduty")
    await expect(deliveries.filter(has_text="firing").first).to_be_visible()
    await alertmanager.wait_for_states(["active"])

    dialog = page.get_by_role("dialog")
    await user.press(page.get_by_role("button", name="Silence…"))
    await user.write(dialog.get_by_label("Why"), "The search index is rebuilt.")
    await user.press(dialog.get_by_role("button", name="Silence", exact=True))
    await expect(dialog).to_have_count(0)
    await expect(page.get_by_text("no notification is sent").first).to_be_visible()
    await alertmanager.wait_for_states(["suppressed"])
    assert await alertmanager.silences() == [("active", f"The search index is rebuilt. (ticket {ticket_id})")]
    await user.press(page.get_by_role("button", name="End silence"))
    await expect(page.get_by_role("button", name="Silence…")).to_be_visible()
    await alertmanager.wait_for_states(["active"])

    await user.press(page.get_by_role("button", name="Acknowledge"))
    await expect(page.get_by_text("Acknowledged by").first).to_be_visible()
    await running_service.service.ingest(list(recovery_events(running_service.service.clock())))
    await expect(page.get_by_text("Closed").first).to_be_visible()
    await expect(deliveries.filter(has_text="resolved").first).to_be_visible()
    await alertmanager.wait_for_states([])
