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
from tests.server.test_app import wait_for_ticket
from tests.waiting import until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with which only a person decides."""
    return demo_settings(tmp_path / "storage", orchestrator="none")


async def get_firing_notification(service: Service) -> Notification:
    """Return the only firing notification."""
    [notifications] = [
        notification for notification in await service.store.read(read_active) if notification.ends_at is None
    ]
    return notifications


def count_renotifications(service: Service) -> int:
    return sum(ticket.requests for ticket in service.tickets.open_tickets())


def list_requests(service: Service) -> OperatorRequests:
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
    await wait_for_ticket(running)
    first_notification = await get_firing_notification(service)

    await service.interventions.escalate("looper", "it gets nowhere", by="ann")
    await until(lambda: count_renotifications(service) == 1, "the ticket is notified again")
    [question] = service.interventions.ledger.pending.values()
    alerts = await get_firing_notification(service)
    assert alerts.labels != first_notification.labels, (
        "Alertmanager would send no notification for equal labels"
    )
    assert alerts.labels["severity"] == "critical"
    action = alerts.annotations["suggested_action"]
    assert f"queenright escalations decide {question.escalation_id} more_time" in action
    assert "Decide until" in action
    until_then = wording.clock_time(question.deadline)
    title = alerts.annotations["summary"]
    assert until_then in title
    assert "reminder" not in title
    assert [ticket.reminders for ticket in service.tickets.open_tickets()] == [0]

    await list_requests(service).load()
    assert count_renotifications(service) == 1

    await service.interventions.decide(question.escalation_id, "more_time", by="ann")
    ticket = service.tickets.open_tickets()[0]
    await service.tickets.request_attention(ticket.ticket_id, since=0.0)
    assert (
        "escalations decide" not in (await get_firing_notification(service)).annotations["suggested_action"]
    )
    assert "Decide until" not in (await get_firing_notification(service)).annotations["summary"]
    assert count_renotifications(service) == 1


async def test_pending_decision_is_notified_after_a_restart(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(settings) as running:
        service = running.service
        await wait_for_ticket(running)
        # The state is as if the service was killed before the notification.
        monkeypatch.setattr(service.tickets, "request_attention", _do_nothing)
        await service.interventions.escalate("looper", "it gets nowhere", by="ann")
        assert count_renotifications(service) == 0
    async with serving(settings) as running:
        await until(lambda: count_renotifications(running.service) == 1, "the ticket is notified again")
        assert (
            "Decide until" in (await get_firing_notification(running.service)).annotations["suggested_action"]
        )


async def _do_nothing(*args: Any, **kwargs: Any) -> None:
    return None


async def test_termination_that_cannot_be_delivered_is_notified_once(running: RunningService) -> None:
    service = running.service
    await wait_for_ticket(running)
    await service.interventions.escalate("looper", "it gets nowhere", by="ann")
    await until(lambda: count_renotifications(service) == 1, "the ticket is notified again")
    [question] = service.interventions.ledger.pending.values()

    await service.interventions.decide(question.escalation_id, "terminate", by="ann")
    await until(lambda: count_renotifications(service) == 2, "the ticket is notified once more")
    action = (await get_firing_notification(service)).annotations["suggested_action"]
    assert "could not be reached" in action
    assert "end its process yourself" in action
    title = (await get_firing_notification(service)).annotations["summary"]
    assert title.endswith("It could not be terminated: end its process yourself.")
    await list_requests(service).load()
    assert count_renotifications(service) == 2


async def test_decision_about_a_worker_with_a_low_severity_ticket_pages(
    tmp_path: Path, settings: Settings
) -> None:
    """A deadline within minutes is useless in a channel that people read the next day."""
    async with serving(settings) as running:
        service = running.service
        ticket_id = await wait_for_ticket(running, times=4)
        ticket = service.tickets.get(ticket_id)
        assert ticket is not None
        assert ticket.severity is Severity.MEDIUM

        await service.interventions.escalate("looper", "it gets nowhere", by="ann")

        def is_severity_high() -> bool:
            stored_ticket = service.tickets.get(ticket_id)
            return stored_ticket is not None and stored_ticket.severity is Severity.HIGH

        await until(is_severity_high, "the ticket's severity is high")
        alerts = await get_firing_notification(service)
        assert alerts.labels["severity"] == "critical"
        assert "Decide until" in alerts.annotations["suggested_action"]
        assert EventType.ESCALATION_TRIGGERED in {event.type for event in service.recent}


async def test_notification_of_the_ladder_does_not_mention_the_queen(
    running: RunningService, tmp_path: Path
) -> None:
    service = running.service
    await wait_for_ticket(running)
    await service.interventions.escalate("looper", "it gets nowhere", by="ann")
    published_events: list[AgentEvent] = []
    store = Store.open(f"sqlite:///{tmp_path / 'no_ticket.db'}")
    requests = list_requests(service)
    requests.tickets = TicketService(
        store,
        settings=service.settings.health_monitoring,
        clock=service.clock,
        publish=lambda *events: published_events.extend(events),
    )

    await requests.load()

    [request] = [event for event in published_events if event.type is EventType.QUEEN_INTERVENTION_REQUESTED]
    assert request.data["queen_graph_id"] == request.data["queen_stream_id"] == ""
    await store.close()


async def test_queen_as_orchestrator_asks_no_operator(tmp_path: Path) -> None:
    async with serving(demo_settings(tmp_path / "storage", orchestrator="queen")) as running:
        service = running.service
        await wait_for_ticket(running)
        await service.interventions.escalate("looper", "it gets nowhere", by="ann")
        await until(lambda: not service.interventions.ledger.pending, "the queen decides")
        assert "Decide until" not in (await get_firing_notification(service)).annotations["suggested_action"]
