"""Causes that workers may share. Tickets with a shared cause are one message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from queenright.health.findings import Finding, FindingKind, WorkerKey
from queenright.health.incidents import INCIDENT_SECONDS
from queenright.health.monitor import WorkerHealth
from queenright.health.vital_signs import VitalSigns
from queenright.instrumentation.effect import Effect
from queenright.instrumentation.effects import effect_of_tool, is_shell

INCIDENT_WORKERS: Final = 3
"""Workers whose calls fail alike: two may be a coincidence."""
_MCP_TOOL: Final = "mcp__"
_FAILING_CALL_KINDS: Final = frozenset(
    {FindingKind.ERROR_STREAK, FindingKind.ZERO_PROGRESS, FindingKind.DOOM_LOOP}
)
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
    now: float,
) -> str:
    """
    Return the cause that this worker shares with other workers in trouble; empty if there is none.

    Three workers that fail with the same class of error within ten minutes share the provider of their model
    (``provider:anthropic``), an MCP server (``mcp:github``) or a tool (``tool:search``); but no shell or
    editor, in which equal errors have causes of their own. Each running session counts once; the ended
    sessions of an agent count as one. Fewer share a provider or a server too, unless more workers get answers
    from it, or the error is mostly the caller's own, such as a wrong key. Failed runs share the provider of
    the last failed call.

    Args:
        finding: The worst that is wrong with it.
        workers: Gives the fleet, in any order.
    """
    cause, v = possible_cause(health, finding), health.vitals
    since, most = now - INCIDENT_SECONDS, INCIDENT_WORKERS
    kind, _, name = cause.partition(":")
    match kind:
        case "provider":
            is_shared = _is_provider_shared(v, workers(), since, most)
        case "mcp":
            is_shared = _is_mcp_server_shared(v, name, workers(), since, most)
        case "tool":
            is_shared = _is_tool_shared(v, workers(), since, most)
        case _:
            is_shared = False
    return cause if is_shared else ""


def possible_cause(health: WorkerHealth, finding: Finding) -> str:
    """Return what other workers could share with this one, whether they do or not; empty if nothing."""
    v = health.vitals
    # A failed run whose last call failed has both findings.
    has_failed = finding.kind is FindingKind.RUNS_FAILED and _has(health, FindingKind.PROVIDER_FAILURE)
    if finding.kind is FindingKind.PROVIDER_FAILURE or has_failed:
        served_by = v.provider or v.model
        return f"provider:{served_by}" if served_by else ""
    # Failures that repeat are repeated calls and results too: any of these findings may be the worst one.
    if finding.kind not in _FAILING_CALL_KINDS or not _is_failing(health):
        return ""
    if finding.kind is FindingKind.DOOM_LOOP and not _repeats_failures(v):
        return ""
    if not v.streak_tool or v.streak_is_missing:
        return ""
    if server := _mcp_server(v.streak_tool):
        return f"mcp:{server}"
    if is_shell(v.streak_tool) or effect_of_tool(v.streak_tool) is Effect.EDITS:
        return ""
    return f"tool:{v.streak_tool}"


def _is_provider_shared(v: VitalSigns, workers: Iterable[WorkerHealth], since: float, most: int) -> bool:
    failing: set[WorkerKey] = set()
    answered = 0
    for other in workers:
        of = other.vitals
        if (of.provider, of.model) != (v.provider, v.model) or of.last_activity < since:
            continue
        if not of.llm_errors:
            answered += of.tokens_at is not None and of.tokens_at >= since
        elif of.llm_error == v.llm_error and _has(other, FindingKind.PROVIDER_FAILURE):
            failing.add(_counted_as(of))
            if len(failing) >= most:
                return True
    return _OWN_ERROR.search(v.llm_error) is None and answered <= len(failing)


def _is_mcp_server_shared(
    v: VitalSigns, server: str, workers: Iterable[WorkerHealth], since: float, most: int
) -> bool:
    failing: set[WorkerKey] = set()
    answered = 0
    prefix = f"{_MCP_TOOL}{server}__"
    for other in workers:
        of = other.vitals
        if of.last_activity < since:
            continue
        if _fails_by_tool(v, other, since) and _mcp_server(of.streak_tool) == server:
            failing.add(_counted_as(of))
            if len(failing) >= most:
                return True
        elif of.tools is not None and not (of.streak and of.streak_tool.startswith(prefix)):
            answered += of.tools.has_called(prefix, since)
    return _OWN_ERROR.search(v.streak_error) is None and answered <= len(failing)


def _is_tool_shared(v: VitalSigns, workers: Iterable[WorkerHealth], since: float, most: int) -> bool:
    failing: set[WorkerKey] = set()
    for other in workers:
        if other.vitals.streak_tool == v.streak_tool and _fails_by_tool(v, other, since):
            failing.add(_counted_as(other.vitals))
            if len(failing) >= most:
                return True
    return False


def _counted_as(v: VitalSigns) -> WorkerKey:
    """Return what a session counts as: itself, or once ended its agent, which may have failed many times."""
    return v.agent_id, "" if v.ended else v.session_id


def _mcp_server(tool: str) -> str:
    return tool.removeprefix(_MCP_TOOL).partition("__")[0] if tool.startswith(_MCP_TOOL) else ""


def _fails_by_tool(v: VitalSigns, other: WorkerHealth, since: float) -> bool:
    of = other.vitals
    return of.streak_error == v.streak_error and of.last_activity >= since and _is_failing(other)


def _is_failing(worker: WorkerHealth) -> bool:
    """Return whether calls of one tool fail, one after the other or the same one again."""
    if _has(worker, FindingKind.ERROR_STREAK):
        return True
    return _has(worker, FindingKind.DOOM_LOOP) and _repeats_failures(worker.vitals)


def _repeats_failures(v: VitalSigns) -> bool:
    """Return whether all current repeats are of the tool that fails."""
    repeats = v.calls.repeats() if v.calls is not None and v.streak else []
    return bool(repeats) and all(repeat.failed and repeat.tool == v.streak_tool for repeat in repeats)


def _has(worker: WorkerHealth, kind: FindingKind) -> bool:
    return any(finding.kind is kind for finding in worker.findings)
