"""Events as sentences: for the console, the timeline of a ticket, and the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from queenright.instrumentation.counts import format_count

Data = Mapping[str, Any]

_QUOTE_LIMIT: Final = 160
"""Maximum number of quoted characters of a nudge or a detail."""
_BREAKER_KINDS: Final = {"closed": "healthy", "half_open": "degraded", "open": "failing"}
_CHANGES: Final = {"rose": "severity raised", "renewed": "updated"}
_OUTCOMES: Final = {"dry_run": "dry run", "unreachable": "not carried out", "unconfirmed": "not confirmed"}

OPERATIONS: Final = {
    "load": "loaded",
    "unload": "unloaded",
    "trigger": "run started",
    "chat": "message sent",
    "inject": "message sent",
    "resume": "run resumed",
    "replay": "checkpoint replayed",
    "restore": "checkpoint restored",
    "stop": "stop requested",
    "delete_session": "session deleted",
    "add_graph": "graph added",
    "remove_graph": "graph removed",
    "switch_graph": "active graph changed",
    "change_file": "file change requested",
    "reload": "reload requested",
}
"""What an operator did with a loaded agent, in words."""


def clip_text(text: str, limit: int) -> str:
    """Return a text on one line, cut to ``limit`` characters, at the end of a word if one is near."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    clipped = line[: limit - 2]
    end = clipped.rfind(" ")
    return f"{clipped[:end] if end > limit // 2 else clipped} …"


def has_feed_line(type_: str, data: Data) -> bool:
    """
    Return whether an event has a line in a feed.

    Interventions that were carried out have their own event, next to their record. A nudge that cannot reach
    its worker is shown once per ladder.
    """
    if type_ != "intervention_recorded":
        return True
    outcome, kind = data.get("outcome"), data.get("kind")
    if data.get("by", "ladder") == "ladder" and outcome == "unreachable" and kind == "nudge":
        return bool(data.get("attempt", 1) == 1)
    return outcome not in ("done", "queued")


def describe_event(
    type_: str, agent_id: str, data: Data, *, shorten: Callable[[object], str] = str
) -> tuple[str, str]:
    """
    Return the kind of an event, which decides its colour, and a sentence.

    Args:
        type_: The event's type.
        agent_id: The worker.
        data: The event's data; ``docs/events.md`` lists the keys by type.
        shorten: Shortens texts that the ticket has in full.
    """
    name = type_.replace("_", " ")
    try:
        text = _describe_ticket_event(type_, agent_id, data, shorten) or _describe_action(
            type_, agent_id, data
        )
    except (LookupError, TypeError, AttributeError):
        # An old record may lack what its sentence needs.
        return "info", f"{agent_id}: {name}" if agent_id else name
    return text or ("info", name)


def _describe_ticket_event(
    type_: str, agent: str, data: Data, shorten: Callable[[object], str]
) -> tuple[str, str] | None:
    """Describe health, tickets, notifications and chat."""
    match type_:
        case "health_state_changed":
            end_state = data.get("outcome") if data["to"] == "healthy" else None
            return str(end_state or data["to"]), f"{agent}: {_format_state_change(data)}"
        case "agent_renamed" if "former_agent_id" in data:
            return "info", f"{agent}: was {data['former_agent_id']}, session {data['former_session_id']}"
        case "agent_renamed":
            return "info", f"{agent}: renamed to {data['agent_id']}, session {data['session_id']}"
        case "worker_escalation_ticket":
            ticket = data["ticket"]
            kind = str(ticket["kind"]).replace("_", " ")
            subject = f"{ticket['severity']} ticket on {agent}, {kind}"
            return "ticket", f"judge: {subject} ({_CHANGES.get(data['change'], data['change'])})"
        case "ticket_triaged":
            # The analysis of an intervention has its own line.
            is_dismissed = data["decision"] == "dismiss"
            text = shorten(data["reason"]) if is_dismissed else data["decision"]
            return "queen", f"{data.get('by') or 'queen'}: {text}"
        case "queen_intervention_requested":
            return "queen", f"queen → operator: {shorten(data['analysis'])}"
        case "notification_delivered":
            return "page", f"Alertmanager accepted {_name_alert(agent, data)}"
        case "notification_failed":
            return (
                "failing",
                f"Alertmanager did not accept {_name_alert(agent, data)}: {data.get('error', '')}",
            )
        case "receiver_notified":
            return (
                "page",
                f"Alertmanager notified {data['receiver']} of {format_count(data['alerts'], 'alert')}",
            )
        case "ticket_resolved":
            status = {"worker_gone": "closed"}.get(data["status"], data["status"])
            return "healthy", f"{agent}: ticket {status}: {shorten(data.get('reason') or '')}"
        case "incident_closed":
            return "healthy", f"incident closed: {data['cause']}, {data['workers']} workers"
        case "ticket_reescalated":
            if data.get("is_request"):
                return "page", f"{agent}: an operator must decide or act"
            return "page", f"{agent}: ticket not acknowledged; reminder {data['reminder']}"
        case "ticket_acknowledged":
            return "info", f"{agent}: ticket acknowledged by {data['by']}"
        case "ticket_unacknowledged":
            return "ticket", f"{agent}: acknowledgement by {data['was']} withdrawn by {data['by']}"
        case "operator_asked":
            return "info", f"{data['by']} → queen, about {data['agent_id']}: {shorten(data['text'])}"
        case "queen_answered":
            return "queen", f"queen → operator, about {data['agent_id']}: {shorten(data['text'])}"
    return None


def _describe_action(type_: str, agent: str, data: Data) -> tuple[str, str] | None:
    """Describe interventions, recoveries, circuit breakers and actions of operators."""
    reason = str(data.get("reason") or "")
    match type_:
        case "nudge_sent":
            nudge = f"nudge {data['attempt']}" if data["attempt"] else "nudge"
            outcome = "delivered" if data.get("delivery") == "injected" else "queued"
            message = clip_text(str(data.get("message") or ""), _QUOTE_LIMIT)
            return "act", f"{agent}: {nudge} {outcome}{_format_actor(data['by'], ', by')}. {message}".rstrip()
        case "escalation_triggered":
            return "act", f"{agent}: escalated to the orchestrator. {reason}"
        case "escalation_decided":
            status = data.get("status")
            if status in ("timed_out", "withdrawn"):
                kind = "act" if status == "timed_out" else "info"
                return kind, f"{agent}: escalation {status.replace('_', ' ')}. {reason}".rstrip()
            decision = str(data["decision"]).replace("_", " ")
            return "act", f"{agent}: {decision}{_format_actor(data['by'], ', decided by')}. {reason}".rstrip()
        case "termination_requested":
            return "act", f"{agent}: termination requested by {data['by']}. {reason}"
        case "termination_decided":
            if data["status"] in ("approved", "denied"):
                return "act", f"{agent}: termination {data['status']} by {data['by']}. {reason}".rstrip()
            return "info", f"{agent}: termination request {data['status']}. {reason}".rstrip()
        case "agent_terminated":
            checkpoint = data.get("checkpoint_id")
            checkpoint_text = f", state saved in checkpoint {checkpoint}" if checkpoint else ""
            return "failing", f"{agent}: terminated{_format_actor(data['by'])}{checkpoint_text}. {reason}"
        case "recovery_initiated":
            checkpoint = data.get("from_checkpoint")
            start = f"checkpoint {checkpoint}" if checkpoint else "the start of its task"
            return "act", f"{agent}: recovery attempt {data['attempt']} from {start}"
        case "recovery_completed":
            return "healthy", f"{agent}: recovered as session {data['new_session_id']}"
        case "recovery_failed":
            end = "; a person is needed" if data.get("exhausted") else ""
            return "failing", f"{agent}: recovery failed{end}. {reason}"
        case "circuit_breaker_state_changed":
            change = f"{data['from']} → {data['to']}".replace("_", " ")
            kind = _BREAKER_KINDS.get(data["to"], "info")
            return kind, f"breaker {data['name']}: {change}. {reason}".rstrip()
        case "emergency_stop_changed":
            state = "on: no worker is acted on" if data["on"] else "off"
            kind = "failing" if data["on"] else "healthy"
            return kind, f"emergency stop {state}, by {data['by']}. {reason}"
        case "agent_operated":
            operation, detail = OPERATIONS[data["what"]], data.get("detail")
            if detail and data["what"] in ("chat", "inject"):
                return "info", f"{agent}: {operation} to {detail}, by {data['by']}"
            return "info", f"{agent}: {operation}, by {data['by']}{f' ({detail})' if detail else ''}"
        case "tokens_changed":
            changes = [f"{name['name']} ({name['role']}) added" for name in data["came"]]
            changes += [f"{name['name']} ({name['role']}) {name['why']}" for name in data["went"]]
            return "info", clip_text(f"tokens: {'; '.join(changes)}", _QUOTE_LIMIT)
        case "intervention_recorded":
            outcome = _OUTCOMES.get(data["outcome"], str(data["outcome"]))
            # The line begins with the worker's name.
            name = rf"worker {re.escape(repr(agent))} \(session [^,]+, incarnation [^)]+\)"
            detail = clip_text(re.sub(name, "it", str(data.get("detail") or "")), _QUOTE_LIMIT)
            actor = _format_actor(data.get("by"))
            return "info", f"{agent}: {data['kind']}{actor}: {outcome}{detail and f': {detail}'}"
    return None


def _name_alert(agent: str, data: Data) -> str:
    """Return what was sent: an alert, or its end, which is also sent if a more severe alert replaces it."""
    end = "the end of " if data["status"] == "resolved" else ""
    # The ticket's severity, not the alert's label: the alert of a high ticket has the label critical.
    severity = f" ({data['ticket_severity']})" if data.get("ticket_severity") else ""
    return f"{end}the alert on {agent}{severity}"


def _format_actor(actor: object, word: str = " by") -> str:
    """Return who acted; the service's own steps are automatic."""
    return " (automatic)" if actor in ("ladder", None, "") else f"{word} {actor}"


def _format_state_change(data: Data) -> str:
    reason = str(data.get("reason") or "")
    # Only a running session has a health: its end is not a change to healthy.
    is_end = data["to"] == "terminated" or (data["to"] == "healthy" and data.get("outcome"))
    if is_end and reason:
        return f"{reason}; it was {data['from']}"
    change = f"{data['from']} → {data['to']}"
    return f"{change}: {reason}" if reason else change
