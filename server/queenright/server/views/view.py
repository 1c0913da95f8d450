"""What the status page shows, as plain values: gathered once, rendered as HTML or JSON."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from queenright.alerting.notification import HandedOver
from queenright.alerting.notification_ledger import DeliveredNotification
from queenright.alerting.silences import Silenced
from queenright.health.findings import Finding, HealthState, worst
from queenright.health.incidents import Incident, incidents_of
from queenright.health.interventions.ladder import Ladder, Standing, Step, next_step
from queenright.health.monitor import END_REASONS, WorkerHealth
from queenright.health.provider_traffic import ProviderHealth
from queenright.health.tickets import EscalationTicket
from queenright.health.vitals import VitalSigns
from queenright.instrumentation.names import Phase, WaitingReason
from queenright.judge import wording
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.service import Service
from queenright.server.views.acting import ACTED, acted, acting, worth_a_line
from queenright.server.views.recent_notifications import told_rows
from queenright.server.views.words import ago, clipped, clock_time

_BRIEF: Final = 220
"""Characters of a line of the feed."""
_NAME: Final = 60
"""Characters of a name in such a line."""
AGES: Final = ("state_for", "active_ago", "progress_ago")
"""What of a worker's line changes with the clock alone."""
WORKERS_SHOWN: Final = 200
"""Of so many workers, the worst, the status page has a line: nobody reads more, and each costs time."""
_ENDED_SHOWN: Final = 10
_WORST_FIRST = [
    HealthState.FAILING,
    HealthState.STUCK,
    HealthState.DEGRADED,
    HealthState.HEALTHY,
    HealthState.TERMINATED,
]
_RANKS: Final = {state: rank for rank, state in enumerate(_WORST_FIRST)}


_WAITS: Final = {
    WaitingReason.USER_INPUT: "waiting for its user",
    WaitingReason.CHILDREN: "waiting for its sub-agents",
    WaitingReason.BACKOFF: "waiting to try again",
    WaitingReason.PAUSED: "paused",
    WaitingReason.DONE: "idle",
}


def activity_of(vitals: VitalSigns) -> str:
    """Return what a worker does now: working, waiting for something, paused or idle; "" if it has ended."""
    if vitals.ended:
        return ""
    if vitals.limited_until is not None:
        again = datetime.fromtimestamp(vitals.limited_until, UTC)
        return f"waiting to try again at {again:%H:%M:%S} UTC"
    if vitals.waiting is not None:
        return _WAITS[vitals.waiting]
    if vitals.tool:
        return f"working: {vitals.tool}"
    return {Phase.LLM: "working: model", Phase.IDLE: "idle"}.get(vitals.phase, "working")


def agent_row(health: WorkerHealth, now: float) -> dict[str, Any]:
    """Return one worker's line: identity, state, why, and how it is getting on. Times in seconds."""
    vitals = health.vitals
    lead = worst(health.findings) if health.findings else None
    activity, progress = vitals.last_activity, vitals.last_progress
    return {
        "agent_id": vitals.agent_id,
        "session_id": vitals.session_id,
        "task_id": vitals.task_id or vitals.session_id,
        "incarnation_id": vitals.incarnation_id,
        "framework": vitals.framework,
        "node_id": vitals.node_id,
        "state": (health.standing or health.state).value,
        "state_since": health.state_since,
        "state_for": ago(now - health.state_since),
        # As it is now, beside the numbers of now; the monitor's own is of when the state began.
        "reason": health.reason if lead is None else lead.evidence,
        "ended": bool(vitals.ended),
        "outcome": vitals.status.value if vitals.ended else "",
        "activity": activity_of(vitals),
        "phase": vitals.phase.value,
        "tool": vitals.tool or "",
        "waiting": vitals.waiting.value if vitals.waiting else "",
        "question": vitals.question,
        "steps": vitals.steps_total,
        "bad_steps": vitals.steps_since_last_accept,
        "tool_calls": vitals.tool_calls_total,
        "errors": vitals.error_count,
        "tokens": vitals.tokens,
        "cost_usd": vitals.cost_usd,
        "unpriced_tokens": vitals.unpriced_tokens,
        "verdicts": vitals.recent_verdicts[-12:],
        "last_activity": activity,
        "last_progress": progress,
        "active_ago": ago(now - activity if activity else None),
        "progress_ago": ago(now - progress if progress else None),
        "findings": [_finding_row(finding) for finding in health.findings],
        "shadow_findings": [_finding_row(finding) for finding in health.shadow],
    }


def _finding_row(finding: Finding) -> dict[str, Any]:
    return finding.to_dict() | {"shadow": finding.shadow}


def ticket_row(
    ticket: EscalationTicket,
    now: float,
    *,
    silenced: Silenced | None = None,
    told: Iterable[DeliveredNotification] = (),
) -> dict[str, Any]:
    """
    Return one ticket with all its fields, its age in words, and what came of telling people.

    Of a closed one nothing is to be done any more: it gives no advice.

    Args:
        ticket: The ticket.
        now: Seconds since the epoch.
        silenced: Because of which silence nobody hears of it.
        told: Who was told of it, by Alertmanager's word.
    """
    row = ticket.model_dump(mode="json")
    if not ticket.live:
        row |= {"suggested_action": "", "analysis": _without_advice(ticket)}
    return row | {
        "age": ago(now - ticket.first_seen),
        "silenced": None if silenced is None else asdict(silenced),
        "told": told_rows(told),
    }


def _without_advice(ticket: EscalationTicket) -> str:
    about = (ticket.kind, ticket.finding_kind or ticket.kind, ticket.words_kind or ticket.kind)
    known = {wording.advice(kind, ticket.worker_agent_id, ticket.worker_session_id) for kind in about}
    text = ticket.analysis
    for advice in known | {ticket.suggested_action}:
        text = text.replace(advice, "") if advice else text
    return " ".join(text.split())


def notification_row(handed: HandedOver, outbox: Mapping[str, Any], now: float) -> dict[str, Any]:
    """
    Return one notification, and what each peer has been told of it; times in seconds since the epoch.

    Args:
        handed: The notification.
        outbox: What ``Outbox.status`` says of the peers now: why one has not answered is only known there.
        now: Seconds since the epoch.
    """
    peers = [asdict(answer) for answer in handed.peers]
    answered = {(answer.peer, answer.status) for answer in handed.peers}
    if handed.active:
        # Its attempts are not written down before it answers.
        waiting = {"status": handed.status, "delivered_at": None, "attempts": None}
        peers += [
            {"peer": line["peer"], **waiting, "last_error": line["error"] or None}
            for line in outbox["peers"]
            if (line["peer"], handed.status) not in answered
        ]
    peers.sort(key=lambda answer: (answer["peer"], answer["status"]))
    return asdict(handed) | {
        "peers": [answer | {"outcome": _outcome(answer)} for answer in peers],
        "told": told_rows(handed.told),
        "time": clock_time(handed.written_at),
        "age": ago(now - handed.written_at),
    }


def _outcome(answer: Mapping[str, Any]) -> str:
    """Return what became of an alert or of its end at one peer, in words."""
    end = "end " if answer["status"] == "resolved" else ""
    if answer["delivered_at"] is not None:
        if answer["attempts"] == 0:
            return f"{end}need not be told"
        return f"{end}taken {clock_time(answer['delivered_at'])}"
    outcome = f"{end}refused" if answer["attempts"] else f"{end}not taken yet"
    return f"{outcome}: {answer['last_error']}" if answer["last_error"] else outcome


def _state_change(data: Mapping[str, Any]) -> str:
    """Return what became of a worker's health; of an ended session, how it ended and what it was."""
    reason = str(data.get("reason") or "")
    if reason in END_REASONS.values():
        return f"{reason}; it was {data['from']}"
    change = f"{data['from']} → {data['to']}"
    return f"{change}: {reason}" if reason else change


def event_line(event: AgentEvent, *, brief: bool = False) -> dict[str, str]:
    """
    Return one event of the feed: when, a class for its colour, a sentence, and the page of its ticket.

    With ``brief`` what the ticket has at length is one sentence.
    """
    data = event.data
    say = _first_sentence if brief else str
    kind, text = "info", event.type.value.replace("_", " ")
    match event.type:
        case EventType.HEALTH_STATE_CHANGED:
            kind = str(data["to"])
            text = f"{event.agent_id}: {_state_change(data)}"
        case EventType.AGENT_RENAMED:
            text = f"{event.agent_id}: its name is {data['agent_id']} now, session {data['session_id']}"
        case EventType.WORKER_ESCALATION_TICKET:
            ticket = data["ticket"]
            kind = "ticket"
            what = f"{ticket['severity']} ticket on {ticket['worker_agent_id']}, {ticket['kind']}"
            text = f"judge: {what} ({data['change']})"
        case EventType.TICKET_TRIAGED:
            kind = "queen"
            # What she tells the operator has a line of its own.
            dismissed = data["decision"] == "dismiss"
            text = f"{data.get('by') or 'queen'}: {say(data['reason']) if dismissed else data['decision']}"
        case EventType.QUEEN_INTERVENTION_REQUESTED:
            kind = "queen"
            text = f"queen → operator: {say(data['analysis'])}"
        case EventType.NOTIFICATION_DELIVERED:
            kind = "page"
            text = f"Alertmanager took the {data['status']} alert on {event.agent_id}"
        case EventType.NOTIFICATION_FAILED:
            kind = "failing"
            what = f"the {data['status']} alert on {event.agent_id}"
            text = f"Alertmanager did not take {what}: {data.get('error', '')}"
        case EventType.TICKET_RESOLVED:
            kind = "healthy"
            became = str(data["status"]).replace("_", " ")
            text = f"{event.agent_id}: ticket {became}. {say(data.get('reason') or '')}"
        case EventType.TICKET_REESCALATED:
            kind = "page"
            text = f"{event.agent_id}: nobody has acknowledged the ticket; reminder {data['reminder']}"
            if data.get("is_request"):
                text = f"{event.agent_id}: brought up again, as a person is to decide or do something"
        case EventType.TICKET_ACKNOWLEDGED:
            text = f"{event.agent_id}: ticket acknowledged by {data['by']}"
        case EventType.TICKET_UNACKNOWLEDGED:
            kind = "ticket"
            text = f"{event.agent_id}: ticket unacknowledged by {data['by']}; {data['was']} had it"
        case EventType.OPERATOR_ASKED:
            text = f"{data['by']} → queen, about {data['agent_id']}: {say(data['text'])}"
        case EventType.QUEEN_ANSWERED:
            kind = "queen"
            text = f"queen → operator, about {data['agent_id']}: {say(data['text'])}"
        case _ if event.type in ACTED:
            kind, text = acted(event)
    if brief:
        # Of a very long name its beginning will do: there would be no room for what happened.
        agent = event.agent_id
        text = clipped(text.replace(agent, clipped(agent, _NAME)) if len(agent) > _NAME else text, _BRIEF)
    return {
        "time": clock_time(event.time),
        "kind": kind,
        "text": text,
        "id": event.id,
        "ticket": _ticket_of(event),
    }


def _first_sentence(text: object) -> str:
    line = " ".join(str(text).split())
    return re.split(r"(?<=[.!?])\s", line, maxsplit=1)[0]


def _ticket_of(event: AgentEvent) -> str:
    """Return the id of the ticket that an event is about, or an empty string."""
    found = event.data.get("ticket_id")
    if not found and isinstance(ticket := event.data.get("ticket"), Mapping):
        found = ticket.get("ticket_id")
    return str(found or "")


def status(service: Service) -> dict[str, Any]:
    """Return everything the status page shows: of workers and tickets the worst."""
    now = service.clock()
    by_state: dict[HealthState, list[WorkerHealth]] = {state: [] for state in _WORST_FIRST}
    over: list[WorkerHealth] = []
    in_trouble = _in_trouble(service)
    for health in service.monitor.workers():
        if (standing := health.standing) is not None:
            by_state[standing].append(health)
        elif health.key in in_trouble:
            # It has not ended well, and somebody has yet to see to it.
            by_state[HealthState.FAILING].append(health)
        else:
            over.append(health)
    shown: list[WorkerHealth] = []
    for some in by_state.values():
        shown += heapq.nsmallest(WORKERS_SHOWN - len(shown), some, key=_by_name)
    ended = heapq.nsmallest(_ENDED_SHOWN, over, key=lambda one: (_RANKS[one.state], *_by_name(one)))
    live = sum(map(len, by_state.values()))
    tickets = service.shown_tickets()
    outbox = service.outbox.status()
    return {
        "now": clock_time(now),
        "up_for": ago(now - service.started_at),
        "counts": {state.value: len(some) for state, some in by_state.items()},
        "agents": [agent_row(health, now) for health in shown],
        "agents_left_out": live - len(shown),
        "ended": [agent_row(health, now) for health in ended],
        "tickets": [
            ticket_row(
                ticket,
                now,
                silenced=service.silences.of_ticket(ticket.ticket_id),
                told=service.recent_notifications.of(ticket.ticket_id),
            )
            for ticket in tickets
        ],
        "tickets_left_out": sum(service.tickets.open_counts().values()) - len(tickets),
        "silences_unknown": service.silences.unknown,
        "outbox": outbox,
        "handed_over": [notification_row(handed, outbox, now) for handed in service.notifications.latest],
        "feed": [event_line(event, brief=True) for event in reversed(service.recent) if worth_a_line(event)],
        "not_ready": service.ready(),
        "incidents": [
            incident_row(one) for one in incidents_of(service.tickets.lately()) if one.closed_at is None
        ],
        "providers": [provider_row(one) for one in service.providers.providers(now)],
        "acting": _acting(service, now),
        "stand_in": service.recorder is not None,
        "paged": paged(service),
    }


def incident_row(incident: Incident) -> dict[str, Any]:
    """Return an incident as it is shown."""
    return asdict(incident)


def provider_row(one: ProviderHealth) -> dict[str, Any]:
    """Return how a provider does as it is shown."""
    errors = [{"error_type": kind, "count": count} for kind, count in one.errors]
    return asdict(one) | {"errors": errors}


def _in_trouble(service: Service) -> set[tuple[str, str]]:
    """Return the names and sessions that have an open ticket, or are being brought back."""
    recoveries = (one for one in service.recoveries.latest if one.ended_at is None)
    return {(one.worker_agent_id, one.worker_session_id) for one in service.tickets.open_tickets()} | {
        (one.agent_id, one.session_id) for one in recoveries
    }


def _by_name(health: WorkerHealth) -> tuple[str, float]:
    return health.vitals.agent_id, -health.state_since


def _acting(service: Service, now: float) -> dict[str, Any]:
    ledger = service.interventions.ledger
    shown = acting(
        stop=service.health.emergency_stopped,
        storm=service.remediation.storm,
        budget=service.interventions.budget,
        dry_run=service.settings.health_monitoring.intervention.is_dry("nudge"),
        ladders=[(one, step) for one in ledger.ladders.values() if (step := _next(service, one))],
        pending=ledger.pending.values(),
        approvals=service.approvals.pending(),
        breakers=service.breakers.all(),
        recoveries=service.recoveries.latest,
        now=now,
    )
    return {**shown, "brakes": [*shown["brakes"], *service.judging.replacements()]}


def _next(service: Service, ladder: Ladder) -> Step | None:
    """
    Return what is next on a ladder; None for one that is of no interest.

    Of who is well, waits, or got further, a ladder only keeps when something was last done.
    """
    settings = service.settings.health_monitoring
    worker = service.monitor.get(ladder.agent_id, ladder.session_id)
    if worker is None:
        return None if ladder.grounded else Step(ladder=ladder)
    step = next_step(ladder, Standing.of(worker, settings), settings)
    if not settings.intervention.enabled:
        step = Step(ladder=step.ladder)
    if step.ladder is None or (step.ladder.grounded and step.action is None):
        return None
    return step


def paged(service: Service) -> list[dict[str, Any]]:
    """Return what the stand-in for Slack and PagerDuty received, newest first; empty with real ones."""
    recorder = service.recorder
    if recorder is None:
        return []
    return [
        {
            "time": clock_time(message.time),
            "channel": message.channel,
            "status": message.status,
            "title": message.title,
            "text": message.text,
        }
        for message in reversed(recorder.received)
    ]
