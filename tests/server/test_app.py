from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.cli.commands.fleet import list_
from queenright.health.detection.health_state import HealthState
from queenright.instrumentation import names
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService, serving
from tests.databases import is_postgres, locked
from tests.server.conftest import demo_settings, looping
from tests.waiting import until


async def wait_for_ticket(running: RunningService, **looper: Any) -> str:
    service = running.service
    await service.ingest(list(looping(service.clock(), **looper)))
    await until(
        lambda: any(ticket.analysis for ticket in service.tickets.open_tickets()), "the ticket is triaged"
    )
    return service.tickets.open_tickets()[0].ticket_id


async def test_incoming_loop_opens_a_triaged_ticket(running: RunningService) -> None:
    ticket_id = await wait_for_ticket(running)

    ticket = running.service.tickets.get(ticket_id)
    assert ticket is not None
    assert ticket.kind.value == "doom_loop"
    assert ticket.status.value == "intervening"
    assert "search" in (ticket.analysis or "")


@pytest.mark.parametrize("end_type", [EventType.AGENT_TERMINATED, EventType.EXECUTION_FAILED])
async def test_worker_with_an_abandoned_recovery_is_failing_everywhere(
    running: RunningService, http: httpx.AsyncClient, end_type: EventType
) -> None:
    """B102: list, status, health and Prometheus agree, until a person resolves the ticket."""
    service = running.service
    start_event = next(iter(looping(service.clock())))
    await service.ingest([start_event])
    for kind, data in (
        (end_type, {"error_type": "OSError"}),
        (EventType.RECOVERY_FAILED, {"exhausted": True, "reason": "the limit"}),
    ):
        event = replace(start_event, id=kind.value, type=kind, time=service.clock(), data=data)
        service.monitor.apply(event, service.clock())

    async def list_states() -> set[str]:
        [row] = (await http.get("/api/agents")).json()["agents"]
        counts = (await http.get("/api/status")).json()["counts"]
        metrics = (await http.get("/metrics")).text
        [metric_state] = [
            state.value
            for state in HealthState
            if f'queenright_agents{{state="{state.value}"}} 1.0' in metrics
        ] or ["none"]
        return {
            row["state"],
            (await http.get("/api/agents/looper/health")).json()["state"],
            *(state for state, count in counts.items() if count),
            metric_state,
            *(worker.fleet_state or "none" for worker in service.monitor.workers()),
        }

    assert await list_states() == {"failing"}
    resolution = replace(
        start_event, id="r", type=EventType.TICKET_RESOLVED, data={"status": "resolved", "by": "ann"}
    )
    service.monitor.apply(resolution, service.clock())
    assert [worker.fleet_state for worker in service.monitor.workers()] == [None]
    assert (await http.get("/api/status")).json()["counts"]["failing"] == 0


async def test_api_lists_agents_and_tickets(running: RunningService, http: httpx.AsyncClient) -> None:
    ticket_id = await wait_for_ticket(running)

    agents = (await http.get("/api/agents")).json()["agents"]
    tickets = (await http.get("/api/tickets")).json()["tickets"]
    health = (await http.get("/api/agents/looper/health")).json()

    assert [agent_row["agent_id"] for agent_row in agents] == ["looper"]
    assert [ticket_row["ticket_id"] for ticket_row in tickets] == [ticket_id]
    assert health["state"] == "stuck"


async def test_reading_does_not_change_vital_signs(running: RunningService, http: httpx.AsyncClient) -> None:
    """B24: API requests and scrapes change no vital sign."""
    service = running.service
    await service.ingest(list(looping(service.clock(), times=3)))
    health = service.monitor.get("looper")
    assert health is not None
    vitals_before = (health.vitals.last_activity, health.vitals.last_progress, health.vitals.last_heartbeat)

    for path in (
        "/console/",
        "/metrics",
        "/api/agents",
        "/api/agents/looper/health",
        "/api/status",
    ):
        assert (await http.get(path)).status_code == 200

    assert (
        health.vitals.last_activity,
        health.vitals.last_progress,
        health.vitals.last_heartbeat,
    ) == vitals_before


@pytest.mark.parametrize("path", ["/api/agents/nobody/health", "/api/tickets/none", "/runbooks/None"])
async def test_missing_resource_is_404_with_a_message(idle_http: httpx.AsyncClient, path: str) -> None:
    response = await idle_http.get(path)

    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert "no" in response.json()["title"]


async def test_ticket_links_to_its_trace_if_a_trace_url_is_set(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    unlinked_ticket = (await http.get(f"/api/tickets/{ticket_id}")).json()
    settings = running.service.settings
    alerting_settings = settings.alerting.model_copy(
        update={"trace_url": "https://traces.example/{session_id}"}
    )
    running.service.settings = settings.model_copy(update={"alerting": alerting_settings})

    linked_ticket = (await http.get(f"/api/tickets/{ticket_id}")).json()
    [listed_ticket] = (await http.get("/api/tickets")).json()["tickets"]

    assert unlinked_ticket["trace_url"] == ""
    assert linked_ticket["trace_url"] == f"https://traces.example/{linked_ticket['session_id']}"
    assert listed_ticket["trace_url"] == linked_ticket["trace_url"]


async def test_acknowledged_ticket_names_its_owner_and_closed_ticket_cannot_be_acknowledged(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)

    response = await http.post(f"/api/tickets/{ticket_id}/acknowledge")
    await running.service.ingest(list(looping(running.service.clock(), times=0, ended=True)))
    await until(lambda: not running.service.tickets.open_tickets(), "the ticket of an ended run closes")
    error = await http.post(f"/api/tickets/{ticket_id}/acknowledge")

    assert response.json()["status"] == "acknowledged"
    assert response.json()["acknowledged_by"] == "operator"
    assert error.status_code == 409


async def test_acknowledgement_may_name_the_sender(running: RunningService, http: httpx.AsyncClient) -> None:
    ticket_id = await wait_for_ticket(running)

    anonymous_response = await http.post(f"/api/tickets/{ticket_id}/acknowledge", json={"by": " "})
    named_response = await http.post(f"/api/tickets/{ticket_id}/acknowledge", json={"by": "ada"})

    assert (anonymous_response.status_code, named_response.status_code) == (422, 200)
    assert named_response.json()["acknowledged_by"] == "ada"


async def wait_for_lost_ticket(running: RunningService) -> str:
    """Return the id of a ticket about a worker that crashed and could not be recovered."""
    service = running.service
    events = list(looping(service.clock(), times=1))
    about = {"agent_id": "looper", "session_id": "looper-session", "incarnation_id": "one"}
    for kind, data in (
        (EventType.EXECUTION_FAILED, {"error": "it crashed", "error_type": "Crash"}),
        (EventType.RECOVERY_FAILED, {"attempts": 3, "exhausted": True, "reason": "3 attempts were made"}),
    ):
        events.append(AgentEvent(type=kind, time=service.clock(), data=data, **about))
    await service.ingest(events)
    await until(
        lambda: any(candidate.analysis for candidate in service.tickets.open_tickets()),
        "the ticket is triaged",
    )
    [ticket] = service.tickets.open_tickets()
    assert ticket.kind.value == "recovery_failed"
    return ticket.ticket_id


async def test_failed_worker_is_listed_as_worst_while_its_ticket_is_open(
    running: RunningService, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    ticket = await wait_for_lost_ticket(running)
    await running.service.ingest(list(looping(running.service.clock(), agent="done", times=1, ended=True)))

    status_before = (await http.get("/api/status")).json()
    await asyncio.to_thread(list_, url=running.url)
    listed_output = capsys.readouterr().out
    await http.post(f"/api/tickets/{ticket}/resolve", json={"by": "ada", "reason": "mended by hand"})
    status_after = (await http.get("/api/status")).json()

    assert (status_before["counts"]["failing"], [agent["agent_id"] for agent in status_before["agents"]]) == (
        1,
        ["looper"],
    )
    assert "looper" in listed_output
    assert "done" not in listed_output
    assert (status_after["counts"]["failing"], status_after["agents"]) == (0, [])


async def test_ticket_resolved_by_a_person_is_closed(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    path = f"/api/tickets/{await wait_for_lost_ticket(running)}/resolve"

    without_reason = await http.post(path, json={"by": "ada"})
    blank_reason = await http.post(path, json={"reason": " ", "by": "ada"})
    response = await http.post(path, json={"reason": "report written by hand", "by": "ada"})
    repeated_response = await http.post(path, json={"reason": "report written by hand", "by": "bob"})

    assert [without_reason.status_code, blank_reason.status_code] == [422, 422]
    assert (response.status_code, response.json()["status"]) == (200, "resolved")
    assert response.json()["closed_reason"] == "ada: report written by hand"
    assert repeated_response.status_code == 409
    assert running.service.tickets.open_tickets() == []
    health = running.service.monitor.get("looper")
    assert health is not None
    assert health.findings == ()


async def test_ticket_that_closes_by_itself_cannot_be_resolved_by_a_person(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)

    error = await http.post(f"/api/tickets/{ticket_id}/resolve", json={"reason": "tired of it"})
    unknown_error = await http.post("/api/tickets/none/resolve", json={"reason": "x"})

    assert (error.status_code, unknown_error.status_code) == (409, 404)
    assert "it closes by itself" in error.json()["title"]


async def test_alertmanager_webhook_wakes_the_judge(running: RunningService, http: httpx.AsyncClient) -> None:
    body = {
        "version": "4",
        "groupKey": "{}",
        "status": "firing",
        "receiver": "judge",
        "alerts": [
            {"status": "firing", "labels": {"alertname": "QueenrightWorkerStalled", "agent": "looper"}}
        ],
    }

    response = await http.post("/api/alertmanager/webhook", json=body)

    assert response.status_code == 202
    assert response.json() == {"symptoms": 1}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"alerts": 3}'])
async def test_malformed_webhook_is_rejected_with_the_reason(
    idle_http: httpx.AsyncClient, body: bytes
) -> None:
    response = await idle_http.post("/api/alertmanager/webhook", content=body)

    assert response.status_code == 400
    assert response.json()["title"]


async def test_runbook_of_every_alert_is_served(http: httpx.AsyncClient) -> None:
    response = await http.get("/runbooks/QueenrightIntervention")

    assert response.status_code == 200
    assert "<h1>" in response.text


async def test_service_is_ready_until_a_background_task_stops(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ready = await http.get("/readyz")
    running.service.tasks["deadlines"].cancel()
    await until(running.service.tasks["deadlines"].done, "the task ends")
    not_ready = await http.get("/readyz")

    assert (ready.status_code, not_ready.status_code) == (200, 503)
    assert not_ready.json()["missing"] == ["deadlines has stopped"]
    assert (await http.get("/healthz")).text == "ok\n"


async def test_service_is_not_ready_while_the_store_cannot_write(tmp_path: Path, database_url: str) -> None:
    settings = demo_settings(tmp_path / "storage").model_copy(update={"database": database_url})
    retry_response = "SET lock_timeout = 10" if is_postgres(database_url) else "PRAGMA busy_timeout = 10"
    async with (
        serving(settings) as running,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        store = running.service.store
        await store.transact(lambda conn: conn.exec_driver_sql(retry_response).close())
        with locked(database_url):
            heartbeat_response = await http.post("/api/heartbeats", json={"agent_id": "bee"})
            not_ready = await http.get("/readyz")
        await until(lambda: store.is_writable, "the service tries again by itself")
        ready = await http.get("/readyz")

    assert (heartbeat_response.status_code, not_ready.status_code, ready.status_code) == (503, 503, 200)
    [missing_text] = not_ready.json()["missing"]
    assert missing_text.startswith("the store cannot write: ")
    assert "lock" in missing_text


async def test_metrics_page_has_exactly_the_metrics_of_the_service(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """The names in the table and on the metrics page must be the same."""
    await wait_for_ticket(running)
    page = (await http.get("/metrics")).text
    families = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE queenright_")}

    expected_names = set(names.METRICS)
    assert families <= expected_names
    other_metrics = ("queenright_worker_", "queenright_cluster_")
    assert {name for name in expected_names - families if not name.startswith(other_metrics)} == set()


async def test_each_kind_of_alert_event_has_a_line_in_the_feed(running: RunningService) -> None:
    expected_kinds = {
        EventType.HEALTH_STATE_CHANGED,
        EventType.WORKER_ESCALATION_TICKET,
        EventType.TICKET_TRIAGED,
        EventType.QUEEN_INTERVENTION_REQUESTED,
    }
    await wait_for_ticket(running)

    await until(
        lambda: expected_kinds <= {event.type for event in running.service.recent}, "each kind has a line"
    )
