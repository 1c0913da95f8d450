"""Events as lines: of the feed, and of one worker's stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queenright.tui.values import Moment
from queenright.tui.words import amount, clipped, clock_time, plain

_LONG: Final = 300
"""Characters of a line."""


@dataclass(frozen=True, slots=True)
class Line:
    """When in words, of what kind (a state, a severity, or a word of ``looks``), and a sentence."""

    time: str
    kind: str
    text: str


FEED: Final = (
    "health_state_changed",
    "worker_escalation_ticket",
    "queen_intervention_requested",
    "ticket_triaged",
    "ticket_acknowledged",
    "ticket_unacknowledged",
    "ticket_reescalated",
    "ticket_resolved",
    "operator_asked",
    "queen_answered",
    "nudge_sent",
    "escalation_triggered",
    "escalation_decided",
    "termination_requested",
    "termination_decided",
    "agent_terminated",
    "recovery_initiated",
    "recovery_completed",
    "recovery_failed",
    "circuit_breaker_state_changed",
    "intervention_recorded",
    "emergency_stop_changed",
    "agent_operated",
    "tokens_changed",
    "notification_failed",
)
"""Types that have a line in the feed of the whole fleet."""

WORK: Final = (
    "agent_renamed",
    "execution_started",
    "execution_completed",
    "execution_failed",
    "execution_paused",
    "client_input_requested",
    "step_completed",
    "tool_call_completed",
    "llm_call_completed",
)
"""Types that say that a worker does something, or has begun or stopped to."""


def feed_line(event: Moment) -> Line | None:
    """Return an event as a line of the feed; None for one that has none."""
    found = _feed(event)
    if found is None:
        return None
    kind, text = found
    return Line(clock_time(event.time), kind, clipped(text, _LONG))


def _feed(event: Moment) -> tuple[str, str] | None:
    data, agent = event.data, event.agent_id
    match event.type:
        case "health_state_changed":
            return str(data["to"]), f"{agent}: {data['from']} → {data['to']}. {data.get('reason') or ''}"
        case "worker_escalation_ticket":
            ticket = data["ticket"]
            kind = str(ticket["kind"]).replace("_", " ")
            what = f"{ticket['severity']} ticket on {ticket['worker_agent_id']}, {kind}"
            return str(ticket["severity"]), f"judge: {what} ({data['change']})"
        case "queen_intervention_requested":
            return str(data["severity"]), f"queen → operator: {data['analysis']}"
        case "ticket_triaged":
            dismissed = data["decision"] == "dismiss"
            return "queen", f"queen: {data['reason'] if dismissed else data['decision']}"
        case "ticket_acknowledged":
            return "act", f"{agent}: ticket acknowledged by {data['by']}"
        case "ticket_unacknowledged":
            return "act", f"{agent}: ticket is nobody's again, by {data['by']}"
        case "ticket_reescalated":
            why = f"nobody has the ticket; reminder {data['reminder']}"
            if data.get("is_request"):
                why = "a person is to decide or do something"
            return str(data["severity"]), f"{agent}: {why}"
        case "ticket_resolved":
            became = str(data["status"]).replace("_", " ")
            return "healthy", f"{agent}: ticket {became}. {data.get('reason') or ''}"
        case "operator_asked":
            return "act", f"{data['by']} → queen, about {data['agent_id']}: {data['text']}"
        case "queen_answered":
            return "queen", f"queen, about {data['agent_id']}: {data['text']}"
        case "notification_failed":
            return "failing", f"Alertmanager did not take an alert on {agent}: {data.get('error') or ''}"
    return _acted(event)


def _acted(event: Moment) -> tuple[str, str] | None:
    data, agent = event.data, event.agent_id
    match event.type:
        case "nudge_sent":
            nudge = f"nudge {data['attempt']}" if data["attempt"] else "nudge"
            return "act", f"{agent}: {nudge} by {data['by']}. {data.get('message') or ''}"
        case "escalation_triggered":
            return "act", f"{agent}: the orchestrator is asked. {data['reason']}"
        case "escalation_decided":
            what = str(data.get("decision") or data["status"]).replace("_", " ")
            return "act", f"{agent}: {what}, by {data['by']}. {data.get('reason') or ''}"
        case "termination_requested":
            return "high", f"{agent}: may it be stopped? {data['by']} asks. {data['reason']}"
        case "termination_decided":
            return "act", f"{agent}: to stop it: {data['status']}. {data.get('reason') or ''}"
        case "agent_terminated":
            return "terminated", f"{agent}: terminated by {data['by']}. {data['reason']}"
        case "recovery_initiated":
            return "act", f"{agent}: task {data['task_id']} is brought back, try {data['attempt']}"
        case "recovery_completed":
            return "healthy", f"{agent}: task {data['task_id']} runs again"
        case "recovery_failed":
            return "failing", f"{agent}: task {data['task_id']} is not back. {data['reason']}"
        case "circuit_breaker_state_changed":
            to = str(data["to"])
            return to, f"breaker {data['name']}: {data['from']} → {to}. {data.get('reason') or ''}"
        case "intervention_recorded" if data["outcome"] not in ("done", "queued", "started"):
            outcome = str(data["outcome"]).replace("_", " ")
            return "act", f"{data['agent_id']}: {data['kind']} {outcome}. {data.get('detail') or ''}"
        case "emergency_stop_changed":
            word = "on: nobody acts on workers" if data["on"] else "off"
            return "high", f"emergency stop {word}, by {data['by']}. {data['reason']}"
        case "agent_operated":
            return "act", f"{agent}: {str(data['what']).replace('_', ' ')}, by {data['by']}"
        case "tokens_changed":
            came = [f"{one['name']} is new" for one in data["came"]]
            went = [f"{one['name']}: {one['why']}" for one in data["went"]]
            return "act", f"tokens: {'; '.join(came + went)}"
    return None


def work_line(event: Moment, at: str = "") -> Line | None:
    """
    Return an event as a line of one worker's stream; None for one that has none.

    Args:
        event: What happened.
        at: The node of the line before: it need not be said again.
    """
    found = _work(event)
    if found is None:
        return feed_line(event)
    kind, text = found
    node = f"{event.node_id}: " if event.node_id not in ("", at) else ""
    return Line(clock_time(event.time), kind, clipped(node + text, _LONG))


def _work(event: Moment) -> tuple[str, str] | None:
    data = event.data
    error = data.get("error") or data.get("error_type") or ""
    match event.type:
        case "step_completed":
            verdict = str(data.get("verdict") or ("error" if error else "done"))
            kind = {"ACCEPT": "healthy", "CONTINUE": "info"}.get(verdict, "degraded")
            index = "" if data.get("index") is None else f" {data['index']}"
            return kind, f"step{index} {verdict}. {error or data.get('text') or ''}"
        case "tool_call_started":
            return "info", f"{data.get('tool')} …"
        case "tool_call_completed":
            outcome = str(data.get("outcome") or "ok")
            took = "" if data.get("duration") is None else f" in {data['duration']:.1f} s"
            return ("info" if outcome == "ok" else "failing"), f"{data.get('tool')} {outcome}{took} {error}"
        case "llm_call_completed":
            spent = amount((data.get("input_tokens") or 0) + (data.get("output_tokens") or 0))
            if error:
                return "failing", f"{data.get('model') or 'model'} did not answer: {error}"
            return "info", f"{data.get('model') or 'model'} answered, {spent} tokens"
        case "agent_renamed":
            return "info", f"its name is {plain(data['agent_id'])} now, session {plain(data['session_id'])}"
        case "execution_started":
            return "act", f"session {event.session_id} began"
        case "execution_completed":
            return "healthy", f"session {event.session_id} is done"
        case "execution_failed":
            return "failing", f"session {event.session_id} failed. {error}"
        case "execution_paused":
            return "act", f"session {event.session_id} is paused"
        case "client_input_requested":
            return "act", f"asks: {plain(data.get('question') or 'for input')}"
        case "worker_waiting" if data.get("reason"):
            asked = f": {plain(data['question'])}" if data.get("question") else ""
            return "info", f"waiting: {str(data['reason']).replace('_', ' ')}{asked}"
        case "checkpoint_saved":
            return "info", "checkpoint saved"
    return None
