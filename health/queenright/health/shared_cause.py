"""What trouble of several workers may have in common: their tickets are one message then."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from queenright.health.findings import Finding, FindingKind
from queenright.health.monitor import WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.vitals import VitalSigns
from queenright.instrumentation.effect import Effect
from queenright.instrumentation.effects import effect_of_tool, is_shell

_MCP_TOOL: Final = "mcp__"
_MANY_ANSWERED: Final = 10
_OWN_ERROR: Final = re.compile(
    r"auth|api.?key|permission|forbidden|unauthori[sz]ed|invalid.?request|bad.?request|not.?found|unprocessable"
    r"|\b40[0134]\b|\b422\b",
    re.IGNORECASE,
)
"""Errors of the caller: a wrong key, a wrong model, a request that no provider takes."""


def shared_cause(
    health: WorkerHealth,
    finding: Finding,
    workers: Callable[[], Iterable[WorkerHealth]],
    settings: HealthSettings,
    now: float,
) -> str:
    """
    Return what other workers with the same trouble share with this one; empty if that is nothing.

    That is the provider of its model, else the model, if its calls fail: ``provider:anthropic``; unless calls
    of many other workers are answered and fewer than ``tickets.incident_workers`` fail. An error that is
    mostly the caller's own, such as a wrong key, is shared only by so many who have it within
    ``tickets.incident_window_seconds``. Or it is the MCP server whose tools fail: ``mcp:github``. Or a tool
    that as many workers have the same error of: ``tool:search``; but not a shell or an editor, in which
    equal errors have causes of their own.

    Args:
        health: The worker.
        finding: The worst that is wrong with it.
        workers: Gives the fleet.
        settings: How many in how long share a tool's failure.
        now: Seconds since the epoch.
    """
    v = health.vitals
    if finding.kind is FindingKind.PROVIDER_FAILURE:
        named = _provider_of(v)
        return f"provider:{named}" if named and _is_shared_by_callers(v, workers, settings, now) else ""
    if finding.kind is not FindingKind.ERROR_STREAK or not v.streak_tool:
        return ""
    if v.streak_tool.startswith(_MCP_TOOL):
        server = v.streak_tool.removeprefix(_MCP_TOOL).partition("__")[0]
        return f"mcp:{server}" if server else ""
    if is_shell(v.streak_tool) or effect_of_tool(v.streak_tool) is Effect.EDITS:
        return ""
    since = now - settings.tickets.incident_window_seconds
    sharing = sum(_fails_alike(v, other, since) for other in workers())
    return f"tool:{v.streak_tool}" if sharing >= settings.tickets.incident_workers else ""


def _is_shared_by_callers(
    v: VitalSigns, workers: Callable[[], Iterable[WorkerHealth]], settings: HealthSettings, now: float
) -> bool:
    tickets = settings.tickets
    provider, since = _provider_of(v), now - tickets.incident_window_seconds
    is_own, failing, answered = _OWN_ERROR.search(v.llm_error) is not None, 0, 0
    for other in workers():
        of = other.vitals
        if _provider_of(of) != provider or of.last_activity < since:
            continue
        if not of.llm_errors:
            answered += of.tokens_at is not None and of.tokens_at >= since
        elif of.llm_error == v.llm_error or not is_own:
            failing += any(one.kind is FindingKind.PROVIDER_FAILURE for one in other.findings)
        # Of a large fleet a part tells enough.
        if failing >= tickets.incident_workers:
            return True
        if answered >= _MANY_ANSWERED * tickets.incident_workers:
            break
    return not is_own and answered <= failing


def _provider_of(v: VitalSigns) -> str:
    return v.provider or v.model


def _fails_alike(v: VitalSigns, other: WorkerHealth, since: float) -> bool:
    of = other.vitals
    return (
        (of.streak_tool, of.streak_error) == (v.streak_tool, v.streak_error)
        and of.last_activity >= since
        and any(one.kind is FindingKind.ERROR_STREAK for one in other.findings)
    )
