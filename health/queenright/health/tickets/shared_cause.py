"""Causes that workers may share. Tickets with a shared cause share one notification."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from queenright.health.findings import Finding, FindingKind, WorkerKey
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.tickets.incidents import INCIDENT_SECONDS
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.effect import Effect
from queenright.instrumentation.effects import infer_tool_effect, is_shell

INCIDENT_WORKERS: Final = 3
"""The number of workers whose calls must fail in the same way. Two could be a coincidence."""
Failing = Mapping[str, Collection[WorkerKey]]
"""The workers that have each failure; see `failure_of`."""
_MCP_TOOL: Final = "mcp__"
_FAILING_CALL_KINDS: Final = frozenset(
    {FindingKind.ERROR_STREAK, FindingKind.ZERO_PROGRESS, FindingKind.DOOM_LOOP}
)
_CALLER_ERROR: Final = re.compile(
    r"auth|api.?key|permission|forbidden|unauthori[sz]ed|invalid.?request|bad.?request|not.?found|unprocessable"
    r"|\b40[0134]\b|\b422\b",
    re.IGNORECASE,
)
"""Errors that the caller causes: a wrong key, a wrong model, or an invalid request."""


def shared_cause(
    health: WorkerHealth,
    finding: Finding,
    workers: Callable[[], Iterable[WorkerHealth]],
    now: float,
    *,
    elsewhere: Failing | None = None,
) -> str:
    """
    Return the cause that this worker shares with other workers in trouble, or an empty string.

    Three workers that fail with the same class of error within ten minutes share the provider of their model
    (``provider:anthropic``), an MCP server (``mcp:github``) or a tool (``tool:search``). Shells and editors
    are exempt, because the same error in them has different causes. Each running session counts once, and the
    ended sessions of an agent count as one. Fewer workers also share a provider or a server, unless more
    workers get answers from it, or the caller usually causes the error, such as a wrong key. Failed runs
    share the provider of their last failed call.

    Args:
        finding: The worker's worst finding.
        workers: Returns the fleet, in any order.
        elsewhere: Failing workers that other services monitor, if the fleet has several services.
    """
    cause, v = possible_cause(health, finding), health.vitals
    since, most = now - INCIDENT_SECONDS, INCIDENT_WORKERS
    kind, _, name = cause.partition(":")
    failing = set((elsewhere or {}).get(failure_of(health, cause), ())) if cause else set[WorkerKey]()
    match kind:
        case "provider":
            is_shared = _is_provider_shared(v, workers(), since, most, failing)
        case "mcp":
            is_shared = _is_mcp_server_shared(v, name, workers(), since, most, failing)
        case "tool":
            is_shared = _is_tool_shared(v, workers(), since, most, failing)
        case _:
            is_shared = False
    return cause if is_shared else ""


def possible_cause(health: WorkerHealth, finding: Finding) -> str:
    """Return the cause that other workers may share with this one, or an empty string."""
    v = health.vitals
    # A failed run whose last call failed has both findings.
    has_failed = finding.kind is FindingKind.RUNS_FAILED and _has_finding(
        health, FindingKind.PROVIDER_FAILURE
    )
    if finding.kind is FindingKind.PROVIDER_FAILURE or has_failed:
        served_by = v.provider or v.model
        return f"provider:{served_by}" if served_by else ""
    # Repeated failures are also repeated calls and results, so any of these kinds may be the worst finding.
    if finding.kind not in _FAILING_CALL_KINDS or not _is_failing(health):
        return ""
    if finding.kind is FindingKind.DOOM_LOOP and not _repeats_failures(v):
        return ""
    if not v.streak_tool or v.streak_is_missing:
        return ""
    if server := _parse_mcp_server(v.streak_tool):
        return f"mcp:{server}"
    if is_shell(v.streak_tool) or infer_tool_effect(v.streak_tool) is Effect.EDITS:
        return ""
    return f"tool:{v.streak_tool}"


def failure_of(health: WorkerHealth, cause: str) -> str:
    """
    Return a key for the failure of a worker with a possible cause. Workers with the same failure have the
    same key.
    """
    v = health.vitals
    is_of_provider = cause.startswith("provider:")
    return "\n".join((cause, v.model, v.llm_error) if is_of_provider else (cause, v.streak_error))


def list_failing(workers: Iterable[tuple[WorkerHealth, Finding]], now: float) -> dict[str, list[WorkerKey]]:
    """
    Return the workers with each failure, for other services. Only as many are listed as make the failure
    shared.

    Args:
        workers: Workers in trouble, each with the finding that its ticket is about.
    """
    failing: dict[str, list[WorkerKey]] = {}
    for health, finding in workers:
        if health.vitals.last_activity < now - INCIDENT_SECONDS or not (
            cause := possible_cause(health, finding)
        ):
            continue
        failing_keys, key = failing.setdefault(failure_of(health, cause), []), _make_count_key(health.vitals)
        if key not in failing_keys and len(failing_keys) < INCIDENT_WORKERS:
            failing_keys.append(key)
    return failing


def _is_provider_shared(
    v: VitalSigns, workers: Iterable[WorkerHealth], since: float, most: int, failing: set[WorkerKey]
) -> bool:
    answers = 0
    for other in workers:
        vitals = other.vitals
        if (vitals.provider, vitals.model) != (v.provider, v.model) or vitals.last_activity < since:
            continue
        if not vitals.llm_errors:
            answers += vitals.tokens_at is not None and vitals.tokens_at >= since
        elif vitals.llm_error == v.llm_error and _has_finding(other, FindingKind.PROVIDER_FAILURE):
            failing.add(_make_count_key(vitals))
            if len(failing) >= most:
                return True
    return _CALLER_ERROR.search(v.llm_error) is None and answers <= len(failing)


def _is_mcp_server_shared(
    v: VitalSigns,
    server: str,
    workers: Iterable[WorkerHealth],
    since: float,
    most: int,
    failing: set[WorkerKey],
) -> bool:
    answers = 0
    prefix = f"{_MCP_TOOL}{server}__"
    for other in workers:
        vitals = other.vitals
        if vitals.last_activity < since:
            continue
        if _fails_by_tool(v, other, since) and _parse_mcp_server(vitals.streak_tool) == server:
            failing.add(_make_count_key(vitals))
            if len(failing) >= most:
                return True
        elif vitals.tools is not None and not (vitals.streak and vitals.streak_tool.startswith(prefix)):
            answers += vitals.tools.has_called(prefix, since)
    return _CALLER_ERROR.search(v.streak_error) is None and answers <= len(failing)


def _is_tool_shared(
    v: VitalSigns, workers: Iterable[WorkerHealth], since: float, most: int, failing: set[WorkerKey]
) -> bool:
    for other in workers:
        if other.vitals.streak_tool == v.streak_tool and _fails_by_tool(v, other, since):
            failing.add(_make_count_key(other.vitals))
            if len(failing) >= most:
                return True
    return False


def _make_count_key(v: VitalSigns) -> WorkerKey:
    """Return the key under which a session counts: its own, or that of its agent after it has ended."""
    return v.agent_id, "" if v.has_ended else v.session_id


def _parse_mcp_server(tool: str) -> str:
    return tool.removeprefix(_MCP_TOOL).partition("__")[0] if tool.startswith(_MCP_TOOL) else ""


def _fails_by_tool(v: VitalSigns, other: WorkerHealth, since: float) -> bool:
    vitals = other.vitals
    return vitals.streak_error == v.streak_error and vitals.last_activity >= since and _is_failing(other)


def _is_failing(worker: WorkerHealth) -> bool:
    """Return whether a worker's calls of one tool keep failing."""
    if _has_finding(worker, FindingKind.ERROR_STREAK):
        return True
    return _has_finding(worker, FindingKind.DOOM_LOOP) and _repeats_failures(worker.vitals)


def _repeats_failures(v: VitalSigns) -> bool:
    """Return whether all current repeats are failed calls of the failing tool."""
    repeats = v.calls.repeats() if v.calls is not None and v.streak else []
    return bool(repeats) and all(repeat.is_failure and repeat.tool == v.streak_tool for repeat in repeats)


def _has_finding(worker: WorkerHealth, kind: FindingKind) -> bool:
    return any(finding.kind is kind for finding in worker.findings)
