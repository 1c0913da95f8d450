"""What trouble of several workers may have in common: their tickets are one message then."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from queenright.health.findings import Finding, FindingKind
from queenright.health.monitor import WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.vitals import VitalSigns

_MCP_TOOL: Final = "mcp__"


def shared_cause(
    health: WorkerHealth,
    finding: Finding,
    workers: Callable[[], Iterable[WorkerHealth]],
    settings: HealthSettings,
    now: float,
) -> str:
    """
    Return what other workers with the same trouble share with this one; empty if that is nothing.

    That is the provider of its model, else the model, if its calls fail: ``provider:anthropic``. Or the MCP
    server whose tools fail: ``mcp:github``. Other tools of one name are often of each worker's own:
    ``tool:search`` it is only if ``tickets.incident_workers`` have the same error of it within
    ``tickets.incident_window_seconds``.

    Args:
        health: The worker.
        finding: The worst that is wrong with it.
        workers: Gives the fleet.
        settings: How many in how long share a tool's failure.
        now: Seconds since the epoch.
    """
    v = health.vitals
    if finding.kind is FindingKind.PROVIDER_FAILURE:
        named = v.provider or v.model
        return f"provider:{named}" if named else ""
    if finding.kind is not FindingKind.ERROR_STREAK or not v.streak_tool:
        return ""
    if v.streak_tool.startswith(_MCP_TOOL):
        server = v.streak_tool.removeprefix(_MCP_TOOL).partition("__")[0]
        return f"mcp:{server}" if server else ""
    since = now - settings.tickets.incident_window_seconds
    sharing = sum(_fails_alike(v, other, since) for other in workers())
    return f"tool:{v.streak_tool}" if sharing >= settings.tickets.incident_workers else ""


def _fails_alike(v: VitalSigns, other: WorkerHealth, since: float) -> bool:
    of = other.vitals
    return (
        (of.streak_tool, of.streak_error) == (v.streak_tool, v.streak_error)
        and of.last_activity >= since
        and any(one.kind is FindingKind.ERROR_STREAK for one in other.findings)
    )
