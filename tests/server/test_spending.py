"""Spending of sessions: its cost on their tickets, and the actions at a limit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx

from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import SpendingSettings
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.server.conftest import demo_settings, looping
from tests.server.test_cli_acting import queenright
from tests.waiting import until

DOCS = Path(__file__).parents[2] / "docs"


async def test_ticket_has_the_cost_since_its_condition_began(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B106: the cost of a call without a price is unknown, not zero."""
    service = running.service
    events = list(looping(service.clock(), times=5))
    worker_fields = {"agent_id": "looper", "session_id": events[0].session_id}
    calls = [
        AgentEvent(
            type=EventType.LLM_CALL_COMPLETED,
            time=event_time,
            data={"input_tokens": 1_000, **cost_fields},
            **worker_fields,
        )
        for event_time, cost_fields in (
            (events[0].time, {"cost_usd": 7.0}),
            (events[-1].time, {"cost_usd": 0.25}),
        )
    ]
    unpriced_event = AgentEvent(
        type=EventType.LLM_CALL_COMPLETED, time=events[-1].time, data={"output_tokens": 500}, **worker_fields
    )

    await service.ingest([events[0], calls[0], *events[1:], calls[1], unpriced_event])
    await until(lambda: service.tickets.open_tickets(), "a ticket is open")
    [ticket] = (await http.get("/api/tickets")).json()["tickets"]
    result = await queenright(running, "tickets", "show", ticket["ticket_id"])

    spending_text = "$0.25 (1,500 tokens, 500 not priced) since the problem began"
    assert ticket["trouble_since"] > events[0].time
    assert (ticket["spent_usd"], ticket["spent_tokens"], ticket["spent_unpriced_tokens"]) == (0.25, 1500, 500)
    assert spending_text in " ".join(result.out.split())


async def spend_dollars(running: RunningService, dollars: float, agent: str = "bee") -> None:
    clock_time = running.service.clock()
    worker_fields: Any = {"agent_id": agent, "session_id": f"{agent}-1", "incarnation_id": f"{agent}-a"}
    await running.service.ingest(
        [
            AgentEvent(type=EventType.EXECUTION_STARTED, time=clock_time, **worker_fields),
            AgentEvent(
                type=EventType.LLM_CALL_COMPLETED,
                time=clock_time,
                data={"cost_usd": dollars},
                **worker_fields,
            ),
        ]
    )


def make_limited_settings(tmp_path: Path, **spending: Any) -> Settings:
    settings = demo_settings(tmp_path / "storage", orchestrator="none")
    health = settings.health_monitoring
    spending_settings = SpendingSettings.model_validate({"run_usd": 1, **spending})
    return settings.model_copy(
        update={"health_monitoring": health.model_copy(update={"spending": spending_settings})}
    )


async def list_brake_actions(running: RunningService) -> list[dict[str, Any]]:
    await running.service.pipeline.brake.wait_until_idle()
    async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
        interventions = (await http.get("/api/interventions")).json()["interventions"]
    return [action for action in interventions if action["by"] == "spending limit"]


async def test_limit_without_a_brake_only_opens_a_ticket(tmp_path: Path) -> None:
    async with serving(make_limited_settings(tmp_path)) as running:
        await spend_dollars(running, 1.2)
        await until(lambda: running.service.tickets.open_tickets(), "a ticket is open")
        await spend_dollars(running, 0.3)
        actions = await list_brake_actions(running)
        [ticket] = running.service.tickets.open_tickets()

    assert actions == []
    assert (ticket.kind, ticket.severity) == (FindingKind.SPENDING, Severity.HIGH)


async def test_brake_stops_a_worker_above_its_limit_only_once(tmp_path: Path) -> None:
    settings = make_limited_settings(tmp_path, brake="stop")
    health = settings.health_monitoring
    dry_run_settings = health.intervention.model_copy(update={"dry_run": True})
    settings = settings.model_copy(
        update={"health_monitoring": health.model_copy(update={"intervention": dry_run_settings})}
    )
    async with serving(settings) as running:
        await spend_dollars(running, 0.9)
        earlier_actions = await list_brake_actions(running)
        await spend_dollars(running, 0.3)
        await until(lambda: running.service.pipeline.brake._brakes, "the brake has acted")
        await spend_dollars(running, 0.3)
        [action] = await list_brake_actions(running)

    assert earlier_actions == []
    assert (action["kind"], action["outcome"]) == ("terminate", "dry_run")
    assert "$1.20 of $1.00 spent by this run" in action["reason"]


async def test_brake_with_approval_requests_it_once(tmp_path: Path) -> None:
    async with serving(make_limited_settings(tmp_path, brake="approval")) as running:
        await spend_dollars(running, 1.2)
        await until(lambda: running.service.approvals.pending(), "an approval is pending")
        await spend_dollars(running, 0.2)
        await running.service.pipeline.brake.wait_until_idle()
        [request] = running.service.approvals.pending()
        [ticket] = running.service.tickets.open_tickets()

    assert (request.ticket_id, request.asked_by) == (ticket.ticket_id, "spending limit")
    assert request.reason.startswith("$1.20 of $1.00")


async def test_worker_that_fetches_instructions_gets_one_nudge_about_its_limit(tmp_path: Path) -> None:
    async with serving(make_limited_settings(tmp_path, brake="nudge")) as running:
        brake = running.service.pipeline.brake
        await spend_dollars(running, 1.2)
        unreached_actions = await list_brake_actions(running)
        worker_fields = {"session_id": "bee-1", "incarnation_id": "bee-a"}
        async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
            await http.get("/api/agents/bee/instructions", params=worker_fields)
            await spend_dollars(running, 0.1)
            early_actions = await list_brake_actions(running)
            brake._not_before.clear()
            await spend_dollars(running, 0.1)
            await brake.wait_until_idle()
            instructions = (await http.get("/api/agents/bee/instructions", params=worker_fields)).json()[
                "instructions"
            ]
            await spend_dollars(running, 0.1)
            brake._not_before.clear()
            await spend_dollars(running, 0.1)
        first_actions = await list_brake_actions(running)

    assert [action["outcome"] for action in unreached_actions] == ["unreachable"]
    assert early_actions == unreached_actions
    assert [instruction["kind"] for instruction in instructions] == ["nudge"]
    assert "$1.40 of $1.00" in instructions[0]["message"]
    assert [action["outcome"] for action in first_actions] == ["queued", "unreachable"]


async def test_documented_limit_requests_approval_for_a_framework_run(tmp_path: Path) -> None:
    """
    This test uses the settings from docs/interventions.md, spans with only token counts, and the command.
    """
    section = (DOCS / "interventions.md").read_text().partition("## Limit spending")[2]
    [settings] = re.findall(r"```yaml\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    file = tmp_path / "queenright.yaml"
    file.write_text(settings)
    loaded_settings = load_settings(
        file, defaults=DEMO_DEFAULTS, storage=tmp_path / "storage", http={"port": 0}, otlp={"port": 0}
    )
    approval = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "bee",
        "gen_ai.conversation.id": "bee-1",
    }
    async with serving(loaded_settings) as running, httpx.AsyncClient(trust_env=False) as http:
        # A million tokens of this model cost 2.50 dollars at the time of writing.
        for number, tokens in enumerate((1_700_000, 1_700_000, 100_000), 1):
            end_ns = int(running.service.clock() * 1e9)
            attributes = [{"key": key, "value": {"stringValue": value}} for key, value in approval.items()]
            attributes.append({"key": "gen_ai.usage.input_tokens", "value": {"intValue": str(tokens)}})
            span = {
                "traceId": "a" * 32,
                "spanId": f"{number:016x}",
                "name": "chat gpt-4o",
                "startTimeUnixNano": str(end_ns - 10**9),
                "endTimeUnixNano": str(end_ns),
                "attributes": attributes,
            }
            body = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
            assert (await http.post(f"{running.otlp_url}/v1/traces", json=body)).json() == {}
            if number == 1:
                list_before = await queenright(running, "approvals", "list")
        await until(lambda: running.service.approvals.pending(), "an approval is pending")
        pending_requests = await queenright(running, "approvals", "list")

    assert "bee" not in list_before.out
    assert "of $5.00" in " ".join(pending_requests.out.split())
