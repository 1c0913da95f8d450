"""Requests to operators are notified once, with the deadline and the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queenright.alerting.notification import Notification
from queenright.alerting.notification_table import read_active
from queenright.health.findings import Severity
from queenright.health.store.store import Store
from queenright.health.ticket_service import TicketService
from queenright.judge import wording
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.notifications.operator_requests import OperatorRequests
from queenright.server.service import Service
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings
from tests.server.conftest import demo_settings
from tests.server.test_app import ticket_on
from tests.waiting import until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Only a person decides."""
    return demo_settings(tmp_path / "storage", orchestrator="none")


async def firing(service: Service) -> Notification:
    """Return the one notification that is out."""
    [found] = [one for one in await service.store.read(read_active) if one.ends_at is None]
    return found


def times_brought_up(service: Service) -> int:
    return sum(ticket.requests for ticket in service.tickets.open_tickets())


def requests_of(service: Service) -> OperatorRequests:
    return OperatorRequests(
        store=service.store,
        tickets=service.tickets,
        monitor=service.monitor,
        ledger=service.interventions.ledger,
        settings=service.settings.health_monitoring.intervention,
    )


async def test_pending_decision_is_notified_once_with_deadline_and_command(
    running: RunningService, settings: Settings
) -> None:
    service = running.service
    await ticket_on(running)
    before = await firing(service)

    await service.interventions.escalate("looper", "it gets nowhere", by="ann")
    await until(lambda: times_brought_up(service) == 1, "the ticket is brought up")
    [question] = service.interventions.ledger.pending.values()
    alerts = await firing(service)
    assert alerts.labels != before.labels, "equal labels would be no news for Alertmanager"
    assert alerts.labels["severity"] == "critical"
    action = alerts.annotations["suggested_action"]
    assert f"queenright escalations decide {question.escalation_id} more_time" in action
    assert "Decide until" in action
    until_then = wording.clock_time(question.deadline)
    title = alerts.annotations["summary"]
    assert until_then in title
    assert "reminder" not in title
    assert [ticket.reminders for ticket in service.tickets.open_tickets()] == [0]

    await requests_of(service).load()
    assert times_brought_up(service) == 1

    await service.interventions.decide(question.escalation_id, "more_time", by="ann")
    ticket = service.tickets.open_tickets()[0]
    await service.tickets.request_attention(ticket.ticket_id, since=0.0)
    assert "escalations decide" not in (await firing(service)).annotations["suggested_action"]
    assert "Decide until" not in (await firing(service)).annotations["summary"]
    assert times_brought_up(service) == 1


async def test_pending_decision_is_notified_after_a_restart(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(settings) as running:
        service = running.service
        await ticket_on(running)
        # As if it was killed before anybody could be told.
        monkeypatch.setattr(service.tickets, "request_attention", _nothing)
        await service.interventions.escalate("looper", "it gets nowhere", by="ann")
        assert times_brought_up(service) == 0
    async with serving(settings) as running:
        await until(lambda: times_brought_up(running.service) == 1, "the ticket is brought up")
        assert "Decide until" in (await firing(running.service)).annotations["suggested_action"]


async def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


async def test_unreachable_termination_is_notified_once(running: RunningService) -> None:
    service = running.service
    await ticket_on(running)
    await service.interventions.escalate("looper", "it gets nowhere", by="ann")
    await until(lambda: times_brought_up(service) == 1, "the ticket is brought up")
    [question] = service.interventions.ledger.pending.values()

    await service.interventions.decide(question.escalation_id, "terminate", by="ann")
    await until(lambda: times_brought_up(service) == 2, "the ticket is brought up again")
    action = (await firing(service)).annotations["suggested_action"]
    assert "could not be reached" in action
    assert "end its process yourself" in action
    title = (await firing(service)).annotations["summary"]
    assert title.endswith("It could not be terminated: end its process yourself.")
    await requests_of(service).load()
    assert times_brought_up(service) == 2


async def test_decision_about_a_worker_with_a_lesser_ticket_pages(tmp_path: Path, settings: Settings) -> None:
    """A deadline of minutes is useless in a channel that is read tomorrow."""
    async with serving(settings) as running:
        service = running.service
        ticket_id = await ticket_on(running, times=4)
        ticket = service.tickets.get(ticket_id)
        assert ticket is not None
        assert ticket.severity is Severity.MEDIUM

        await service.interventions.escalate("looper", "it gets nowhere", by="ann")

        def risen() -> bool:
            now = service.tickets.get(ticket_id)
            return now is not None and now.severity is Severity.HIGH

        await until(risen, "the ticket is high")
        alerts = await firing(service)
        assert alerts.labels["severity"] == "critical"
        assert "Decide until" in alerts.annotations["suggested_action"]
        assert EventType.ESCALATION_TRIGGERED in {event.type for event in service.recent}


async def test_notification_by_the_ladder_names_no_queen(running: RunningService, tmp_path: Path) -> None:
    service = running.service
    await ticket_on(running)
    await service.interventions.escalate("looper", "it gets nowhere", by="ann")
    published: list[AgentEvent] = []
    store = Store.open(f"sqlite:///{tmp_path / 'no_ticket.db'}")
    requests = requests_of(service)
    requests.tickets = TicketService(
        store,
        settings=service.settings.health_monitoring,
        clock=service.clock,
        publish=lambda *events: published.extend(events),
    )

    await requests.load()

    [request] = [event for event in published if event.type is EventType.QUEEN_INTERVENTION_REQUESTED]
    assert request.data["queen_graph_id"] == request.data["queen_stream_id"] == ""
    await store.close()


async def test_queen_as_orchestrator_asks_no_one(tmp_path: Path) -> None:
    async with serving(demo_settings(tmp_path / "storage", orchestrator="queen")) as running:
        service = running.service
        await ticket_on(running)
        await service.interventions.escalate("looper", "it gets nowhere", by="ann")
        await until(lambda: not service.interventions.ledger.pending, "the queen decides")
        assert "Decide until" not in (await firing(service)).annotations["suggested_action"]
