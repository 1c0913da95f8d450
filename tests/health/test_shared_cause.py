"""Tickets whose cause is shared are one group: of a provider, or an MCP server."""

from __future__ import annotations

import pytest

from queenright.health.findings import FindingKind
from queenright.health.shared_cause import shared_cause
from queenright.runtime.events import EventType
from tests.health import test_ticket_service as service
from tests.health.test_detectors import worker
from tests.health.test_ticket_service import Hive, finding, hive
from tests.health.worker_script import WorkerScript

__all__ = ["hive"]

PROVIDER, STREAK = FindingKind.PROVIDER_FAILURE, FindingKind.ERROR_STREAK


def failing(**data: str) -> WorkerScript:
    script = worker()
    for _ in range(3):
        script.event(EventType.LLM_CALL_COMPLETED, {"error_type": "overloaded", **data})
    return script


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        ({"provider": "anthropic", "model": "claude"}, "provider:anthropic"),
        ({"model": "claude"}, "provider:claude"),
        ({}, ""),
    ],
)
def test_a_provider_that_fails_is_shared_by_those_who_call_it(data: dict[str, str], cause: str) -> None:
    script = failing(**data)
    seen = script.finding(PROVIDER)

    assert seen is not None
    assert shared_cause(script.health.vitals, seen) == cause


@pytest.mark.parametrize(("tool", "cause"), [("mcp__github__get_issue", "mcp:github"), ("bash", "")])
def test_an_mcp_server_is_shared_and_a_tool_of_ones_own_is_not(tool: str, cause: str) -> None:
    script = worker()
    for n in range(5):
        script.call(tool, args=f"{n}", result=f"{n}", outcome="error", error_type="gone")
    seen = script.finding(STREAK)

    assert seen is not None
    assert shared_cause(script.health.vitals, seen) == cause


async def test_forty_workers_of_one_provider_have_tickets_of_one_group(hive: Hive) -> None:
    """B104: from the first on, however slowly they come; and a loop of one's own is outside of it."""
    groups = []
    for n in range(40):
        health = service.worker(finding(PROVIDER), agent=f"bee-{n}")
        health.vitals.provider = "anthropic"
        groups.append((await hive.raise_(health)).ticket.storm_id)
    own = service.worker(finding(FindingKind.DOOM_LOOP), agent="other")
    own.vitals.provider = "anthropic"

    assert set(groups) == {"provider:anthropic"}
    assert (await hive.raise_(own)).ticket.storm_id == ""
