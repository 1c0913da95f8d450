"""Data about several agents: incidents and the health of model providers, in API, metrics and commands."""

from __future__ import annotations

from typing import Any

import httpx

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings
from tests.server.test_cli_acting import queenright
from tests.waiting import until

OVERLOADED: Any = {"error_type": "overloaded_error", "error": "Overloaded"}


def model_calls(now: float, agent: str, times: int = 6, **data: Any) -> list[AgentEvent]:
    """Return calls of one model by one agent, the last of them at ``now``."""
    worker_fields = {"agent_id": agent, "session_id": f"{agent}-1", "incarnation_id": f"{agent}-a"}
    model = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    begin = AgentEvent(type=EventType.EXECUTION_STARTED, time=now - 300, data={}, **worker_fields)
    return [begin] + [
        AgentEvent(
            type=EventType.LLM_CALL_COMPLETED,
            time=now - times + 1 + n,
            data={**model, **data},
            **worker_fields,
        )
        for n in range(times)
    ]


async def fail_agents(running: RunningService, *agents: str) -> None:
    service = running.service
    for agent in agents:
        await service.ingest(model_calls(service.clock(), agent, **OVERLOADED))
    await until(
        lambda: all(service.tickets.open_for(agent, f"{agent}-1") for agent in agents), "each has a ticket"
    )


async def end_sessions(running: RunningService, *agents: str) -> None:
    """End the sessions of the failing agents."""
    service = running.service
    await service.ingest(
        [
            AgentEvent(
                type=EventType.EXECUTION_FAILED,
                time=service.clock(),
                agent_id=agent,
                session_id=f"{agent}-1",
                incarnation_id=f"{agent}-a",
                data={},
            )
            for agent in agents
        ]
    )
    await until(lambda: not service.tickets.open_tickets(), "their tickets close")


async def test_three_agents_without_their_provider_are_one_incident(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B104: the tickets share a cause."""
    await fail_agents(running, "a", "b", "c")

    [incident] = (await http.get("/api/incidents")).json()["incidents"]
    result = await queenright(running, "incidents")

    assert (incident["cause"], incident["workers"], incident["open_tickets"]) == ("provider:anthropic", 3, 3)
    assert incident["closed_at"] is None
    assert "provider:anthropic" in result.out
    assert "3 sessions, 3 of 3 tickets open" in result.out


async def test_open_incident_of_ended_sessions_is_listed_after_a_restart(settings: Settings) -> None:
    """B104: the end of a run, or of the service, does not end the cause."""
    seen = []
    for start in range(2):
        async with (
            serving(settings) as running,
            httpx.AsyncClient(base_url=running.url, trust_env=False) as http,
        ):
            if start == 0:
                await fail_agents(running, "a", "b", "c")
                await end_sessions(running, "a", "b", "c")
            [incident] = (await http.get("/api/incidents")).json()["incidents"]
            items = (await http.get("/api/attention")).json()["items"]
            assert (incident["closed_at"], incident["open_tickets"]) == (None, 0)
            seen.append([(item["kind"], item["item_id"], item["workers"]) for item in items])
            assert seen[-1] == [("incident", incident["incident_id"], 3)]

    assert seen[0] == seen[1]


async def test_fleet_alert_excludes_workers_already_paged_by_tickets(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B104: QueenrightFleetDegraded counts only agents without a page."""
    agents = [f"bee-{n:02}" for n in range(40)]
    await fail_agents(running, *agents)

    def unpaged() -> float | None:
        return running.service.registry.get_sample_value("queenright_unpaged_agents")

    await until(lambda: unpaged() == 0, "a page was sent about each")
    [incident] = (await http.get("/api/incidents")).json()["incidents"]
    states = [row["state"] for row in (await http.get("/api/agents")).json()["agents"]]
    assert (incident["cause"], incident["workers"]) == ("provider:anthropic", 40)
    assert set(states) == {"failing"}


async def test_incident_is_over_when_calls_succeed_and_its_tickets_have_closed(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B104: both conditions are required."""
    service = running.service
    await fail_agents(running, "a", "b")
    for agent in ("a", "b"):
        await service.ingest(model_calls(service.clock(), agent, times=1)[1:])
    await until(lambda: not service.tickets.open_tickets(), "the tickets close")

    [incident] = (await http.get("/api/incidents")).json()["incidents"]
    assert incident["closed_at"] is not None
    assert (await queenright(running, "incidents")).out == "No open incidents.\n"
    assert "closed after" in (await queenright(running, "incidents", "--all")).out


async def test_provider_health_is_in_api_metrics_and_command(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    service = running.service
    await service.ingest(model_calls(service.clock(), "a", times=4, duration=2.0))
    await service.ingest(model_calls(service.clock(), "b", times=5, **OVERLOADED))

    [one] = (await http.get("/api/providers")).json()["providers"]
    result = await queenright(running, "providers")
    metrics = (await http.get("/metrics")).text

    assert (one["status"], one["failed"], one["calls"], one["agents_failing"]) == ("failing", 5, 9, 1)
    assert one["errors"] == [{"error_type": "overloaded_error", "count": 5}]
    output = " ".join(result.out.split())
    assert (
        output
        == "failing anthropic/claude-sonnet-4-5 5 of 9 calls failed p50 2.0 s, p95 2.0 s overloaded_error 5x"
    )
    labels = 'model="claude-sonnet-4-5",outcome="{}",provider="anthropic"'
    assert f"queenright_provider_calls_total{{{labels.format('error')}}} 5.0" in metrics
    assert f"queenright_provider_calls_total{{{labels.format('ok')}}} 4.0" in metrics
    assert 'queenright_provider_call_duration_seconds_sum{model="claude-sonnet-4-5"' in metrics


async def test_rate_limit_with_an_end_is_shown_until_then(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B105: the end of the limit comes from the provider."""
    now = running.service.clock()
    await running.service.ingest(
        model_calls(now, "a", times=1, error_type="rate_limit_error", retry_after=600)
    )

    [one] = (await http.get("/api/providers")).json()["providers"]
    assert one["status"] == "limited"
    assert abs(one["limited_until"] - now - 600) < 1
    assert "queenright_provider_limited_until_timestamp_seconds{" in (await http.get("/metrics")).text
    assert "limited   anthropic/claude-sonnet-4-5" in (await queenright(running, "providers")).out


async def test_provider_health_is_known_after_a_restart(settings: Settings) -> None:
    async with serving(settings) as before:
        await before.service.ingest(model_calls(before.service.clock(), "a", **OVERLOADED))
        known = before.service.providers.providers(before.service.clock())
    async with serving(settings) as after:
        [provider] = after.service.providers.providers(after.service.clock())

    assert [(provider.failed, provider.errors, provider.last_failure)] == [
        (old.failed, old.errors, old.last_failure) for old in known
    ]


async def test_lists_are_empty_without_data(running: RunningService, http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/incidents")).json() == {"incidents": []}
    assert (await http.get("/api/providers")).json() == {"providers": []}
    assert (await queenright(running, "providers")).out.count("\n") == 1
    assert (await queenright(running, "incidents", "--all")).out.count("\n") == 1


async def test_closed_ticket_gives_no_advice(running: RunningService, http: httpx.AsyncClient) -> None:
    """B102: neither as a separate field nor at the end of the queen's text."""
    service = running.service
    await fail_agents(running, "a", "b")
    await until(
        lambda: all(ticket.analysis for ticket in service.tickets.open_tickets()), "the tickets are triaged"
    )
    opened = (await http.get("/api/tickets")).json()["tickets"]
    for agent in ("a", "b"):
        await service.ingest(model_calls(service.clock(), agent, times=1)[1:])
    await until(lambda: not service.tickets.open_tickets(), "the tickets close")

    for ticket in opened:
        assert ticket["suggested_action"] in ticket["analysis"]
        closed = (await http.get(f"/api/tickets/{ticket['ticket_id']}")).json()
        result = await queenright(running, "tickets", "show", ticket["ticket_id"])
        assert closed["suggested_action"] == ""
        assert closed["analysis"]
        for output in (closed["analysis"], result.out):
            assert "Check the provider" not in output
