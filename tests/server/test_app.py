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
    await until(lambda: any(t.analysis for t in service.tickets.open_tickets()), "a triaged ticket")
    return service.tickets.open_tickets()[0].ticket_id


async def test_incoming_loop_becomes_a_triaged_ticket(running: RunningService) -> None:
    ticket_id = await wait_for_ticket(running)

    ticket = running.service.tickets.get(ticket_id)
    assert ticket is not None
    assert ticket.kind.value == "doom_loop"
    assert ticket.status.value == "intervening"
    assert "search" in (ticket.analysis or "")


@pytest.mark.parametrize("ended", [EventType.AGENT_TERMINATED, EventType.EXECUTION_FAILED])
async def test_worker_with_an_abandoned_recovery_is_failing_everywhere(
    running: RunningService, http: httpx.AsyncClient, ended: EventType
) -> None:
    """B102: list, status, health and Prometheus agree, until a person settles it."""
    service = running.service
    first = next(iter(looping(service.clock())))
    await service.ingest([first])
    for kind, data in (
        (ended, {"error_type": "OSError"}),
        (EventType.RECOVERY_FAILED, {"exhausted": True, "reason": "the limit"}),
    ):
        event = replace(first, id=kind.value, type=kind, time=service.clock(), data=data)
        service.monitor.apply(event, service.clock())

    async def states() -> set[str]:
        [row] = (await http.get("/api/agents")).json()["agents"]
        counts = (await http.get("/api/status")).json()["counts"]
        metrics = (await http.get("/metrics")).text
        [counted] = [
            state.value
            for state in HealthState
            if f'queenright_agents{{state="{state.value}"}} 1.0' in metrics
        ] or ["none"]
        return {
            row["state"],
            (await http.get("/api/agents/looper/health")).json()["state"],
            *(state for state, count in counts.items() if count),
            counted,
            *(worker.fleet_state or "none" for worker in service.monitor.workers()),
        }

    assert await states() == {"failing"}
    settled = replace(first, id="r", type=EventType.TICKET_RESOLVED, data={"status": "resolved", "by": "ann"})
    service.monitor.apply(settled, service.clock())
    assert [worker.fleet_state for worker in service.monitor.workers()] == [None]
    assert (await http.get("/api/status")).json()["counts"]["failing"] == 0


async def test_api_lists_agents_and_tickets(running: RunningService, http: httpx.AsyncClient) -> None:
    ticket_id = await wait_for_ticket(running)

    agents = (await http.get("/api/agents")).json()["agents"]
    tickets = (await http.get("/api/tickets")).json()["tickets"]
    health = (await http.get("/api/agents/looper/health")).json()

    assert [a["agent_id"] for a in agents] == ["looper"]
    assert [t["ticket_id"] for t in tickets] == [ticket_id]
    assert health["state"] == "stuck"


async def test_reading_does_not_change_vital_signs(running: RunningService, http: httpx.AsyncClient) -> None:
    """B24: API requests and scrapes leave every vital sign unchanged."""
    service = running.service
    await service.ingest(list(looping(service.clock(), times=3)))
    health = service.monitor.get("looper")
    assert health is not None
    before = (health.vitals.last_activity, health.vitals.last_progress, health.vitals.last_heartbeat)

    for path in (
        "/console/",
        "/metrics",
        "/api/agents",
        "/api/agents/looper/health",
        "/api/status",
    ):
        assert (await http.get(path)).status_code == 200

    assert (health.vitals.last_activity, health.vitals.last_progress, health.vitals.last_heartbeat) == before


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
    unset = (await http.get(f"/api/tickets/{ticket_id}")).json()
    settings = running.service.settings
    alerting = settings.alerting.model_copy(update={"trace_url": "https://traces.example/{session_id}"})
    running.service.settings = settings.model_copy(update={"alerting": alerting})

    linked = (await http.get(f"/api/tickets/{ticket_id}")).json()
    [listed] = (await http.get("/api/tickets")).json()["tickets"]

    assert unset["trace_url"] == ""
    assert linked["trace_url"] == f"https://traces.example/{linked['session_id']}"
    assert listed["trace_url"] == linked["trace_url"]


async def test_acknowledged_ticket_shows_it_and_closed_ticket_refuses(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)

    acknowledged = await http.post(f"/api/tickets/{ticket_id}/acknowledge")
    await running.service.ingest(list(looping(running.service.clock(), times=0, ended=True)))
    await until(lambda: not running.service.tickets.open_tickets(), "the ticket of an ended run closes")
    refused = await http.post(f"/api/tickets/{ticket_id}/acknowledge")

    assert acknowledged.json()["status"] == "acknowledged"
    assert acknowledged.json()["acknowledged_by"] == "operator"
    assert refused.status_code == 409


async def test_acknowledgement_may_name_its_sender(running: RunningService, http: httpx.AsyncClient) -> None:
    ticket_id = await wait_for_ticket(running)

    anonymous = await http.post(f"/api/tickets/{ticket_id}/acknowledge", json={"by": " "})
    ada = await http.post(f"/api/tickets/{ticket_id}/acknowledge", json={"by": "ada"})

    assert (anonymous.status_code, ada.status_code) == (422, 200)
    assert ada.json()["acknowledged_by"] == "ada"


async def wait_for_lost_ticket(running: RunningService) -> str:
    """Return the ticket about a worker that crashed and could not be recovered."""
    service = running.service
    events = list(looping(service.clock(), times=1))
    about = {"agent_id": "looper", "session_id": "looper-session", "incarnation_id": "one"}
    for kind, data in (
        (EventType.EXECUTION_FAILED, {"error": "it crashed", "error_type": "Crash"}),
        (EventType.RECOVERY_FAILED, {"attempts": 3, "exhausted": True, "reason": "3 attempts were made"}),
    ):
        events.append(AgentEvent(type=kind, time=service.clock(), data=data, **about))
    await service.ingest(events)
    await until(lambda: any(t.analysis for t in service.tickets.open_tickets()), "a triaged ticket")
    [ticket] = service.tickets.open_tickets()
    assert ticket.kind.value == "recovery_failed"
    return ticket.ticket_id


async def test_failed_worker_is_among_the_worst_while_its_ticket_is_open(
    running: RunningService, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    ticket = await wait_for_lost_ticket(running)
    await running.service.ingest(list(looping(running.service.clock(), agent="done", times=1, ended=True)))

    now = (await http.get("/api/status")).json()
    await asyncio.to_thread(list_, url=running.url)
    listed = capsys.readouterr().out
    await http.post(f"/api/tickets/{ticket}/resolve", json={"by": "ada", "reason": "mended by hand"})
    later = (await http.get("/api/status")).json()

    assert (now["counts"]["failing"], [agent["agent_id"] for agent in now["agents"]]) == (1, ["looper"])
    assert "looper" in listed
    assert "done" not in listed
    assert (later["counts"]["failing"], later["agents"]) == (0, [])


async def test_ticket_settled_by_a_person_is_resolved(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    path = f"/api/tickets/{await wait_for_lost_ticket(running)}/resolve"

    without_reason = await http.post(path, json={"by": "ada"})
    blank = await http.post(path, json={"reason": " ", "by": "ada"})
    resolved = await http.post(path, json={"reason": "report written by hand", "by": "ada"})
    repeated = await http.post(path, json={"reason": "report written by hand", "by": "bob"})

    assert [without_reason.status_code, blank.status_code] == [422, 422]
    assert (resolved.status_code, resolved.json()["status"]) == (200, "resolved")
    assert resolved.json()["closed_reason"] == "ada: report written by hand"
    assert repeated.status_code == 409
    assert running.service.tickets.open_tickets() == []
    health = running.service.monitor.get("looper")
    assert health is not None
    assert health.findings == ()


async def test_ticket_that_closes_by_itself_cannot_be_resolved_by_a_person(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)

    refused = await http.post(f"/api/tickets/{ticket_id}/resolve", json={"reason": "tired of it"})
    unknown = await http.post("/api/tickets/none/resolve", json={"reason": "x"})

    assert (refused.status_code, unknown.status_code) == (409, 404)
    assert "it closes by itself" in refused.json()["title"]


async def test_webhook_wakes_the_judge(running: RunningService, http: httpx.AsyncClient) -> None:
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
async def test_malformed_webhook_is_a_400_with_the_reason(idle_http: httpx.AsyncClient, body: bytes) -> None:
    response = await idle_http.post("/api/alertmanager/webhook", content=body)

    assert response.status_code == 400
    assert response.json()["title"]


async def test_runbook_of_every_alert_is_served(http: httpx.AsyncClient) -> None:
    response = await http.get("/runbooks/QueenrightIntervention")

    assert response.status_code == 200
    assert "<h1>" in response.text


async def test_ready_until_a_part_stops(running: RunningService, http: httpx.AsyncClient) -> None:
    ready = await http.get("/readyz")
    running.service.tasks["deadlines"].cancel()
    await until(running.service.tasks["deadlines"].done, "the task ends")
    not_ready = await http.get("/readyz")

    assert (ready.status_code, not_ready.status_code) == (200, 503)
    assert not_ready.json()["missing"] == ["deadlines has stopped"]
    assert (await http.get("/healthz")).text == "ok\n"


async def test_not_ready_while_the_store_cannot_write(tmp_path: Path, database_url: str) -> None:
    settings = demo_settings(tmp_path / "storage").model_copy(update={"database": database_url})
    soon = "SET lock_timeout = 10" if is_postgres(database_url) else "PRAGMA busy_timeout = 10"
    async with (
        serving(settings) as running,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        store = running.service.store
        await store.transact(lambda conn: conn.exec_driver_sql(soon).close())
        with locked(database_url):
            refused = await http.post("/api/heartbeats", json={"agent_id": "bee"})
            not_ready = await http.get("/readyz")
        await until(lambda: store.is_writable, "the service tries again by itself")
        ready = await http.get("/readyz")

    assert (refused.status_code, not_ready.status_code, ready.status_code) == (503, 503, 200)
    [missing] = not_ready.json()["missing"]
    assert missing.startswith("the store cannot write: ")
    assert "lock" in missing


async def test_metrics_page_has_exactly_the_metrics_of_the_service(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """The names in the table and on the metrics page are the same."""
    await wait_for_ticket(running)
    page = (await http.get("/metrics")).text
    families = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE queenright_")}

    known = set(names.METRICS)
    assert families <= known
    other_metrics = ("queenright_worker_", "queenright_cluster_")
    assert {name for name in known - families if not name.startswith(other_metrics)} == set()


async def test_every_kind_of_alert_event_has_a_line_in_the_feed(running: RunningService) -> None:
    expected = {
        EventType.HEALTH_STATE_CHANGED,
        EventType.WORKER_ESCALATION_TICKET,
        EventType.TICKET_TRIAGED,
        EventType.QUEEN_INTERVENTION_REQUESTED,
    }
    await wait_for_ticket(running)

    await until(lambda: expected <= {event.type for event in running.service.recent}, "a line for each kind")
