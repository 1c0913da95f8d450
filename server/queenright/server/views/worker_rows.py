"""Build the rows of workers for the API and the pages."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from queenright import api
from queenright.health.detection.assessment import describe_failure
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import find_worst
from queenright.health.monitoring.monitor import WorkerHealth, end_reason
from queenright.health.monitoring_service import AgentHealth
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.names import Phase, WaitingReason
from queenright.server.service import Service
from queenright.server.views.possible_actions import list_worker_actions

_HEALTH_FIELDS: Final = tuple(field.name for field in fields(AgentHealth) if field.name != "reason")
"""Health fields of a worker's row. The row's reason has the current evidence."""
_WAIT_ACTIVITIES: Final = {
    WaitingReason.USER_INPUT: ("waiting", "waiting for its user"),
    WaitingReason.CHILDREN: ("waiting", "waiting for its sub-agents"),
    WaitingReason.BACKOFF: ("waiting", "waiting to try again"),
    WaitingReason.PAUSED: ("paused", "paused"),
    WaitingReason.HELD: ("held", "held by its guard"),
    WaitingReason.DONE: ("idle", "idle"),
}


def describe_activity(vitals: VitalSigns) -> tuple[str, str]:
    """Return a worker's current activity: its kind, one of `terms.ActivityKind`, and a text."""
    if vitals.has_ended:
        return "", ""
    if vitals.limited_until is not None:
        return _WAIT_ACTIVITIES[WaitingReason.BACKOFF]
    if vitals.held_by:
        return "held", f"held by its guard: {vitals.held_by}"
    if vitals.waiting is not None:
        return _WAIT_ACTIVITIES[vitals.waiting]
    if tool := vitals.tool:
        return "working", f"working: {tool}"
    if vitals.phase is Phase.IDLE:
        return "idle", "idle"
    return "working", "working: model" if vitals.phase is Phase.LLM else "working"


def describe_reason(health: WorkerHealth) -> str:
    """Return why a worker is in its state; "" if it is healthy or has completed."""
    if (worst_finding := find_worst(health.findings)) is not None:
        # Use the current evidence, because the monitor's reason dates from the start of the state.
        return worst_finding.evidence
    if (health.fleet_state or health.state) is not HealthState.HEALTHY:
        return health.reason
    if health.vitals.status is WorkerStatus.FAILED:
        return describe_failure(health.vitals)
    return "" if health.vitals.status is WorkerStatus.COMPLETED else end_reason(health.vitals)


def make_agent_row(service: Service, health: WorkerHealth) -> api.AgentRow:
    """Return the row of a worker: identity, state, reason and vital signs."""
    vitals = health.vitals
    state = health.fleet_state or health.state
    activity_kind, activity = describe_activity(vitals)
    return api.AgentRow(
        agent_id=vitals.agent_id,
        session_id=vitals.session_id,
        task_id=vitals.task_id or vitals.session_id,
        incarnation_id=vitals.incarnation_id,
        framework=vitals.framework,
        owner=vitals.owner,
        repository=vitals.repository,
        node_id=vitals.node_id,
        health="" if vitals.has_ended else state,
        state=state,
        state_since=health.state_since,
        started_at=vitals.started_at,
        reason=describe_reason(health),
        ended=vitals.has_ended,
        outcome=vitals.status if vitals.has_ended else "",
        activity=activity,
        activity_kind=activity_kind,
        phase=vitals.phase,
        tool=vitals.tool or "",
        waiting=vitals.waiting or "",
        waiting_since=vitals.waiting_since,
        limited_until=None if vitals.has_ended else vitals.limited_until,
        question=vitals.question,
        steps=vitals.steps_total,
        bad_steps=vitals.steps_since_last_accept,
        tool_calls=vitals.tool_calls_total,
        errors=vitals.error_count,
        tokens=vitals.tokens,
        cost_usd=vitals.cost_usd,
        unpriced_tokens=vitals.unpriced_tokens,
        actions=list_worker_actions(service, health),
        verdicts=list(vitals.recent_verdicts[-12:]),
        last_activity=vitals.last_activity,
        last_progress=vitals.last_progress,
        findings=[api.Finding.of(finding) for finding in health.findings],
        shadow_findings=[api.Finding.of(finding) for finding in health.shadow],
    )


def make_agent_health_row(service: Service, worker: WorkerHealth, health: AgentHealth) -> api.AgentHealth:
    """Return the row of a worker, with the signals and the metrics behind its state."""
    values = vars(make_agent_row(service, worker)) | {name: getattr(health, name) for name in _HEALTH_FIELDS}
    return api.AgentHealth.model_validate(values, from_attributes=True)
