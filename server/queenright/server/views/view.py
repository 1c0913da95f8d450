"""Models that the API and the pages share: workers, tickets, notifications, events and the status page."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Final

from queenright import api
from queenright.alerting.notification import NotificationRecord
from queenright.alerting.notification_ledger import DeliveredNotification
from queenright.alerting.silences import ActiveSilence
from queenright.api.event_text import clip_text, describe_event, has_feed_line
from queenright.health.findings import HealthState, worst
from queenright.health.incidents import incidents_of
from queenright.health.interventions.ladder import Ladder, LadderInputs, Step, next_step
from queenright.health.monitor import WorkerHealth, end_reason
from queenright.health.provider_traffic import ProviderHealth
from queenright.health.service import AgentHealth
from queenright.health.tickets import EscalationTicket
from queenright.health.vitals import VitalSigns
from queenright.instrumentation.names import Phase, WaitingReason
from queenright.judge import wording
from queenright.runtime.events import AgentEvent
from queenright.server.service import Service
from queenright.server.views.acting import acting_view
from queenright.server.views.formatting import ago, clock_time
from queenright.server.views.recent_notifications import delivery_rows

_LINE_LIMIT: Final = 220
"""Characters of a line of the feed."""
_NAME_LIMIT: Final = 60
"""Characters of a name in such a line."""
_HEALTH_FIELDS: Final = tuple(field.name for field in fields(AgentHealth))
WORKERS_SHOWN: Final = 200
"""Workers on the status page, the worst ones; each costs time to render."""
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


def agent_row(health: WorkerHealth, now: float) -> api.AgentRow:
    """Return the row of a worker: identity, state, reason and vital signs."""
    vitals = health.vitals
    lead = worst(health.findings) if health.findings else None
    activity, progress = vitals.last_activity, vitals.last_progress
    state = health.fleet_state or health.state
    reason = health.reason
    if state is HealthState.HEALTHY:
        reason = end_reason(vitals) if vitals.refused_input else ""
    if lead is not None:
        # The current evidence: the monitor's reason dates from when the state began.
        reason = lead.evidence
    return api.AgentRow(
        agent_id=vitals.agent_id,
        session_id=vitals.session_id,
        task_id=vitals.task_id or vitals.session_id,
        incarnation_id=vitals.incarnation_id,
        framework=vitals.framework,
        node_id=vitals.node_id,
        health="" if vitals.ended else state,
        state=state,
        state_since=health.state_since,
        state_for=ago(now - health.state_since),
        reason=reason,
        ended=bool(vitals.ended),
        outcome=vitals.status if vitals.ended else "",
        activity=activity_of(vitals),
        phase=vitals.phase,
        tool=vitals.tool or "",
        waiting=vitals.waiting or "",
        question=vitals.question,
        steps=vitals.steps_total,
        bad_steps=vitals.steps_since_last_accept,
        tool_calls=vitals.tool_calls_total,
        errors=vitals.error_count,
        tokens=vitals.tokens,
        cost_usd=vitals.cost_usd,
        unpriced_tokens=vitals.unpriced_tokens,
        verdicts=list(vitals.recent_verdicts[-12:]),
        last_activity=activity,
        last_progress=progress,
        active_ago=ago(now - activity if activity else None),
        progress_ago=ago(now - progress if progress else None),
        findings=[api.Finding.of(finding) for finding in health.findings],
        shadow_findings=[api.Finding.of(finding) for finding in health.shadow],
    )


def agent_health_row(worker: WorkerHealth, health: AgentHealth, now: float) -> api.AgentHealth:
    """Return the row of a worker, with the signals and the metrics behind its state."""
    values = vars(agent_row(worker, now)) | {name: getattr(health, name) for name in _HEALTH_FIELDS}
    return api.AgentHealth.model_validate(values, from_attributes=True)


def ticket_row(
    ticket: EscalationTicket,
    now: float,
    *,
    silenced: ActiveSilence | None = None,
    notified: Iterable[DeliveredNotification] = (),
) -> api.Ticket:
    """
    Return a ticket with its silence and its deliveries. A closed ticket gives no advice.

    Args:
        ticket: The ticket.
        now: Seconds since the epoch.
        silenced: The silence that mutes it.
        notified: The deliveries that Alertmanager reported.
    """
    values = ticket.model_dump(mode="json")
    if not ticket.live:
        values |= {"suggested_action": "", "analysis": _without_advice(ticket)}
    return api.Ticket.model_validate(
        values
        | {
            "agent_id": ticket.worker_agent_id,
            "session_id": ticket.worker_session_id,
            "age": ago(now - ticket.first_seen),
            "silenced": silenced and api.TicketSilence.of(silenced),
            "notified": delivery_rows(notified),
        }
    )


def _without_advice(ticket: EscalationTicket) -> str:
    about = (ticket.kind, ticket.finding_kind or ticket.kind, ticket.words_kind or ticket.kind)
    known = {wording.advice(kind, ticket.worker_agent_id, ticket.worker_session_id) for kind in about}
    text = ticket.analysis
    for advice in known | {ticket.suggested_action}:
        text = text.replace(advice, "") if advice else text
    return " ".join(text.split())


def notification_row(handed: NotificationRecord, outbox: api.Outbox, now: float) -> api.Notification:
    """
    Return a notification and its delivery to each peer.

    Args:
        handed: The notification.
        outbox: The state of the outbox, which has the errors of peers that have not answered.
        now: Seconds since the epoch.
    """
    peers = [
        _handover(one.peer, one.status, one.delivered_at, one.attempts, one.last_error)
        for one in handed.peers
    ]
    answered = {(one.peer, one.status) for one in handed.peers}
    if handed.active:
        # Attempts are recorded once the peer answers.
        peers += [
            _handover(line.peer, handed.status, None, None, line.error or None)
            for line in outbox.peers
            if (line.peer, handed.status) not in answered
        ]
    return api.Notification.of(
        handed,
        agent_id=handed.agent,
        peers=sorted(peers, key=lambda one: (one.peer, one.status)),
        notified=delivery_rows(handed.notified),
        time=clock_time(handed.written_at),
        age=ago(now - handed.written_at),
    )


def _handover(
    peer: str, status: str, delivered_at: float | None, attempts: int | None, last_error: str | None
) -> api.NotificationPeer:
    end = "end " if status == "resolved" else ""
    if delivered_at is None:
        outcome = f"{end}refused" if attempts else f"{end}pending"
        outcome = f"{outcome}: {last_error}" if last_error else outcome
    elif attempts == 0:
        outcome = f"{end}not needed"
    else:
        outcome = f"{end}accepted {clock_time(delivered_at)}"
    return api.NotificationPeer(
        peer=peer,
        status=status,
        delivered_at=delivered_at,
        attempts=attempts,
        last_error=last_error,
        outcome=outcome,
    )


def event_line(event: AgentEvent, *, brief: bool = False) -> api.FeedLine:
    """Return an event of the feed; with ``brief``, texts that the ticket has in full are cut."""
    shorten = _first_sentence if brief else str
    kind, text = describe_event(event.type, event.agent_id, event.data, shorten=shorten)
    if brief:
        # A very long name would leave no room for what happened.
        agent = event.agent_id
        if len(agent) > _NAME_LIMIT:
            text = text.replace(agent, clip_text(agent, _NAME_LIMIT))
        text = clip_text(text, _LINE_LIMIT)
    return api.FeedLine(
        at=event.time,
        time=clock_time(event.time),
        kind=kind,
        text=text,
        id=event.id,
        ticket=_ticket_of(event),
    )


def _first_sentence(text: object) -> str:
    line = " ".join(str(text).split())
    return re.split(r"(?<=[.!?])\s", line, maxsplit=1)[0]


def _ticket_of(event: AgentEvent) -> str:
    """Return the id of the ticket that an event is about, or an empty string."""
    found = event.data.get("ticket_id")
    if not found and isinstance(ticket := event.data.get("ticket"), Mapping):
        found = ticket.get("ticket_id")
    return str(found or "")


def status(service: Service) -> api.Status:
    """Return the status page's content: the worst workers and tickets, and the latest events."""
    now = service.clock()
    by_state: dict[HealthState, list[WorkerHealth]] = {state: [] for state in _WORST_FIRST}
    ended: list[WorkerHealth] = []
    unresolved = _unresolved_sessions(service)
    for health in service.monitor.workers():
        if (fleet_state := health.fleet_state) is not None:
            by_state[fleet_state].append(health)
        elif health.key in unresolved:
            # The session ended, and an operator has to act.
            by_state[HealthState.FAILING].append(health)
        else:
            ended.append(health)
    shown: list[WorkerHealth] = []
    for workers in by_state.values():
        shown += heapq.nsmallest(WORKERS_SHOWN - len(shown), workers, key=_by_name)
    ended = heapq.nsmallest(_ENDED_SHOWN, ended, key=lambda one: (_RANKS[one.state], *_by_name(one)))
    tickets = service.shown_tickets()
    outbox = api.Outbox.model_validate(service.outbox.status())
    open_incidents = [one for one in incidents_of(service.tickets.recent_tickets()) if one.closed_at is None]
    return api.Status(
        at=now,
        started_at=service.started_at,
        now=clock_time(now),
        up_for=ago(now - service.started_at),
        counts={state.value: len(workers) for state, workers in by_state.items()},
        agents=[agent_row(health, now) for health in shown],
        agents_left_out=sum(map(len, by_state.values())) - len(shown),
        ended=[agent_row(health, now) for health in ended],
        tickets=[
            ticket_row(
                ticket,
                now,
                silenced=service.silences.of_ticket(ticket.ticket_id),
                notified=service.recent_notifications.of(ticket.ticket_id),
            )
            for ticket in tickets
        ],
        tickets_left_out=sum(service.tickets.open_counts().values()) - len(tickets),
        silences_unknown=service.silences.unknown,
        outbox=outbox,
        handed_over=[notification_row(one, outbox, now) for one in service.notifications.latest],
        feed=[
            event_line(event, brief=True)
            for event in reversed(service.recent)
            if has_feed_line(event.type, event.data)
        ],
        not_ready=service.ready(),
        incidents=[api.Incident.of(one) for one in open_incidents],
        providers=[provider_row(one) for one in service.providers.providers(now)],
        acting=_acting(service, now),
        stand_in=service.recorder is not None,
        paged=paged(service),
    )


def provider_row(one: ProviderHealth) -> api.Provider:
    """Return the health of a model provider."""
    errors = [api.ProviderError(error_type=kind, count=count) for kind, count in one.errors]
    return api.Provider.model_validate(asdict(one) | {"errors": errors})


def _unresolved_sessions(service: Service) -> set[tuple[str, str]]:
    """Return the sessions (with the worker's name) that have an open ticket or an active recovery."""
    recoveries = (one for one in service.recoveries.latest if one.ended_at is None)
    return {(one.worker_agent_id, one.worker_session_id) for one in service.tickets.open_tickets()} | {
        (one.agent_id, one.session_id) for one in recoveries
    }


def _by_name(health: WorkerHealth) -> tuple[str, float]:
    return health.vitals.agent_id, -health.state_since


def _acting(service: Service, now: float) -> api.Acting:
    ledger = service.interventions.ledger
    return acting_view(
        stop=service.health.emergency_stop_state,
        storm=service.remediation.storm,
        budget=service.interventions.budget,
        dry_run=service.settings.health_monitoring.intervention.is_dry("nudge"),
        ladders=[(one, step) for one in ledger.ladders.values() if (step := _next(service, one))],
        pending=ledger.pending.values(),
        approvals=service.approvals.pending(),
        breakers=service.breakers.all(),
        recoveries=service.recoveries.latest,
        now=now,
        notices=service.judging.replacements(),
    )


def _next(service: Service, ladder: Ladder) -> Step | None:
    """
    Return the next step of a ladder; None for a ladder that is not shown.

    The ladder of a worker that recovered, waits or made progress only stores the time of the last action.
    """
    settings = service.settings.health_monitoring
    worker = service.monitor.get(ladder.agent_id, ladder.session_id)
    if worker is None:
        return None if ladder.is_untouched else Step(ladder=ladder)
    step = next_step(ladder, LadderInputs.of(worker, settings), settings)
    if not settings.intervention.enabled:
        step = Step(ladder=step.ladder)
    if step.ladder is None or (step.ladder.is_untouched and step.action is None):
        return None
    return step


def paged(service: Service) -> list[api.StandInMessage]:
    """Return what the stand-in for Slack and PagerDuty received, newest first; empty with real receivers."""
    if service.recorder is None:
        return []
    return [
        api.StandInMessage.of(message, at=message.time, time=clock_time(message.time))
        for message in reversed(service.recorder.received)
    ]
