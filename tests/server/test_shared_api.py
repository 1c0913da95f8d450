"""
Data about several agents: incidents and the health of model providers, in the API, the metrics and the
commands.
"""

from __future__ import annotations

from typing import Any

import httpx

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings
from tests.server.test_cli_acting import queenright
from tests.waiting import until

OVERLOADED_ERROR: Any = {"error_type": "overloaded_error", "error": "Overloaded"}


def make_model_calls(end_time: float, agent: str, times: int = 6, **data: Any) -> list[AgentEvent]:
    """Return calls of one model by one agent. The last call ends at ``end_time``."""
    worker_fields = {"agent_id": agent, "session_id": f"{agent}-1", "incarnation_id": f"{agent}-a"}
    model = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    start_time = AgentEvent(type=EventType.EXECUTION_STARTED, time=end_time - 300, data={}, **worker_fields)
    return [start_time] + [
        AgentEvent(
            type=EventType.LLM_CALL_COMPLETED,
            time=end_time - times + 1 + number,
            data={**model, **data},
            **worker_fields,
        )
        for number in range(times)
    ]


async def fail_agents(running: RunningService, *agents: str) -> None:
    service = running.service
    for agent in agents:
        await service.ingest(make_model_calls(service.clock(), agent, **OVERLOADED_ERROR))
    await until(
        lambda: all(service.tickets.open_for(agent, f"{agent}-1") for agent in agents),
        "each agent has a ticket",
    )


async def end_sessions(running: RunningService, *agents: str) -> None:
    """End the sessions of the failing agents, and wait until their tickets close."""
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


async def test_three_agents_that_lose_their_provider_are_one_incident(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B104: their tickets share a cause."""
    await fail_agents(running, "a", "b", "c")

    [incident] = (await http.get("/api/incidents")).json()["incidents"]
    result = await queenright(running, "incidents")

    assert (incident["cause"], incident["workers"], incident["open_tickets"]) == ("provider:anthropic", 3, 3)
    assert incident["closed_at"] is None
    assert "provider:anthropic" in result.out
    assert "3 sessions, 3 of 3 tickets open" in result.out


async def test_open_incident_of_ended_sessions_is_still_listed_after_a_restart(settings: Settings) -> None:
    """B104: neither the end of a run nor the end of the service ends the cause."""
    items_by_start = []
    for start_number in range(2):
        async with (
            serving(settings) as running,
            httpx.AsyncClient(base_url=running.url, trust_env=False) as http,
        ):
            if start_number == 0:
                await fail_agents(running, "a", "b", "c")
                await end_sessions(running, "a", "b", "c")
            [incident] = (await http.get("/api/incidents")).json()["incidents"]
            items = (await http.get("/api/attention")).json()["items"]
            assert (incident["closed_at"], incident["open_tickets"]) == (None, 0)
            items_by_start.append([(item["kind"], item["item_id"], item["workers"]) for item in items])
            assert items_by_start[-1] == [("incident", incident["incident_id"], 3)]

    assert items_by_start[0] == items_by_start[1]


async def test_fleet_alert_excludes_workers_that_tickets_already_page_about(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B104: QueenrightFleetDegraded counts only agents without a page."""
    agents = [f"bee-{index:02}" for index in range(40)]
    await fail_agents(running, *agents)

    def count_unpaged() -> float | None:
        return running.service.registry.get_sample_value("queenright_unpaged_agents")

    await until(lambda: count_unpaged() == 0, "a page is sent about each agent")
    [incident] = (await http.get("/api/incidents")).json()["incidents"]
    states = [row["state"] for row in (await http.get("/api/agents")).json()["agents"]]
    assert (incident["cause"], incident["workers"]) == ("provider:anthropic", 40)
    assert set(states) == {"failing"}


async def test_incident_ends_when_calls_succeed_and_its_tickets_have_closed(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B104: both conditions are required."""
    service = running.service
    await fail_agents(running, "a", "b")
    for agent in ("a", "b"):
        await service.ingest(make_model_calls(service.clock(), agent, times=1)[1:])
    await until(lambda: not service.tickets.open_tickets(), "the tickets close")

    [incident] = (await http.get("/api/incidents")).json()["incidents"]
    assert incident["closed_at"] is not None
    assert (await queenright(running, "incidents")).out == "No open incidents.\n"
    assert "closed after" in (await queenright(running, "incidents", "--all")).out


async def test_provider_health_is_in_the_api_the_metrics_and_the_command(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    service = running.service
    await service.ingest(make_model_calls(service.clock(), "a", times=4, duration=2.0))
    await service.ingest(make_model_calls(service.clock(), "b", times=5, **OVERLOADED_ERROR))

    [provider] = (await http.get("/api/providers")).json()["providers"]
    result = await queenright(running, "providers")
    metrics = (await http.get("/metrics")).text

    assert (provider["status"], provider["failed"], provider["calls"], provider["agents_failing"]) == (
        "failing",
        5,
        9,
        1,
    )
    assert provider["errors"] == [{"error_type": "overloaded_error", "count": 5}]
    output = " ".join(result.out.split())
    assert (
        output
        == "failing anthropic/claude-sonnet-4-5 5 of 9 calls failed p50 2.0 s, p95 2.0 s overloaded_error 5x"
    )
    labels = 'model="claude-sonnet-4-5",outcome="{}",provider="anthropic"'
    assert f"queenright_provider_calls_total{{{labels.format('error')}}} 5.0" in metrics
    assert f"queenright_provider_calls_total{{{labels.format('ok')}}} 4.0" in metrics
    assert 'queenright_provider_call_duration_seconds_sum{model="claude-sonnet-4-5"' in metrics


async def test_rate_limit_with_an_end_is_shown_until_its_end(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B105: the provider reports the end of the limit."""
    clock_time = running.service.clock()
    await running.service.ingest(
        make_model_calls(clock_time, "a", times=1, error_type="rate_limit_error", retry_after=600)
    )

    [provider] = (await http.get("/api/providers")).json()["providers"]
    assert provider["status"] == "limited"
    assert abs(provider["limited_until"] - clock_time - 600) < 1
    assert "queenright_provider_limited_until_timestamp_seconds{" in (await http.get("/metrics")).text
    assert "limited   anthropic/claude-sonnet-4-5" in (await queenright(running, "providers")).out


async def test_provider_health_is_known_after_a_restart(settings: Settings) -> None:
    async with serving(settings) as first_service:
        await first_service.service.ingest(
            make_model_calls(first_service.service.clock(), "a", **OVERLOADED_ERROR)
        )
        known_providers = first_service.service.providers.providers(first_service.service.clock())
    async with serving(settings) as second_service:
        [provider] = second_service.service.providers.providers(second_service.service.clock())

    assert [(provider.failed, provider.errors, provider.last_failure)] == [
        (old_provider.failed, old_provider.errors, old_provider.last_failure)
        for old_provider in known_providers
    ]


async def test_lists_are_empty_without_data(running: RunningService, http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/incidents")).json() == {"incidents": []}
    assert (await http.get("/api/providers")).json() == {"providers": []}
    assert (await queenright(running, "providers")).out.count("\n") == 1
    assert (await queenright(running, "incidents", "--all")).out.count("\n") == 1


async def test_closed_ticket_gives_no_advice(running: RunningService, http: httpx.AsyncClient) -> None:
    """B102: neither a field nor the end of the queen's text contains advice."""
    service = running.service
    await fail_agents(running, "a", "b")
    await until(
        lambda: all(ticket.analysis for ticket in service.tickets.open_tickets()), "the tickets are triaged"
    )
    open_tickets = (await http.get("/api/tickets")).json()["tickets"]
    for agent in ("a", "b"):
        await service.ingest(make_model_calls(service.clock(), agent, times=1)[1:])
    await until(lambda: not service.tickets.open_tickets(), "the tickets close")

    for ticket in open_tickets:
        assert ticket["suggested_action"] in ticket["analysis"]
        closed_ticket = (await http.get(f"/api/tickets/{ticket['ticket_id']}")).json()
        result = await queenright(running, "tickets", "show", ticket["ticket_id"])
        assert closed_ticket["suggested_action"] == ""
        assert closed_ticket["analysis"]
        for output in (closed_ticket["analysis"], result.out):
            assert "Check the provider" not in output
