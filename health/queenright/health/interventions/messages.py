"""Messages to workers, and events about interventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queenright.health.findings import FindingKind, find_worst
from queenright.health.interventions.approval import Approval
from queenright.health.interventions.escalation import Escalation
from queenright.health.interventions.intervention import Intervention
from queenright.health.monitoring.monitor import WorkerHealth, links_of
from queenright.runtime.events import AgentEvent, EventType

_OBSERVATIONS: Mapping[FindingKind, str] = {
    FindingKind.DOOM_LOOP: "the same calls with the same results, again and again",
    FindingKind.ERROR_STREAK: "tool calls that fail, one after another",
    FindingKind.RETRY_STORM: "many steps in a row that were not accepted",
    FindingKind.STALL: "silence",
    FindingKind.ZERO_PROGRESS: "calls that bring nothing new",
    FindingKind.NO_TOOL_CALLS: "no tool call",
    FindingKind.CHECKPOINT_STALE: "no checkpoint",
}


def nudge_text(worker: WorkerHealth, now: float) -> str:
    """
    Return the text of a nudge for a stuck worker (wording: IMPL-REQ-003 FR-003).

    It does not quote the worker's own text, because that text may be what keeps the worker in its loop.
    """
    v = worker.vitals
    since = max(v.last_checkpoint or v.started_at, v.last_progress or v.started_at)
    worst_finding = find_worst(worker.findings)
    observation = _OBSERVATIONS.get(worst_finding.kind) if worst_finding is not None else None
    return (
        f"REMINDER: You have been working for {duration(now - since)} without checkpoint update. "
        "Please either:\n"
        "- Update your progress\n"
        "- Request handoff if stuck\n"
        "- Report blockers" + (f"\n(What the monitor sees: {observation}.)" if observation else "")
    )


def hand_off_text() -> str:
    """Return the message that asks a worker to hand off its task."""
    return (
        "HAND OFF NOW: another agent will continue your task. Save your state, write down what is done, "
        "what is left and what blocks you, and end your run."
    )


def duration(seconds: float) -> str:
    """Return a duration in seconds as text, to the minute."""
    minutes = round(max(0.0, seconds) / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 120:
        return "1 minute" if minutes == 1 else f"{minutes} minutes"
    return f"{minutes // 60} hours {minutes % 60} minutes" if minutes % 60 else f"{minutes // 60} hours"


def event_about(
    type_: EventType,
    action: Intervention | Escalation | Approval,
    worker: WorkerHealth | None,
    at: float,
    data: dict[str, Any],
) -> AgentEvent:
    """Return an event about the worker of an action, linked to the worker's last step."""
    links = {} if worker is None else links_of(worker.vitals)
    return AgentEvent(type=type_, time=at, **action.target._asdict(), **links, data=data)
