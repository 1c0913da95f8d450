"""Convert workers, tickets, notifications and events to the models that the API and the pages share."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from queenright import api
from queenright.alerting.notification_ledger import DeliveredNotification
from queenright.alerting.notification_records import NotificationRecord
from queenright.alerting.notification_text import current_analysis
from queenright.alerting.peer_silences import ActiveSilence
from queenright.api.event_text import clip_text, describe_event, has_feed_line
from queenright.health.detection.health_state import HealthState
from queenright.health.interventions.ladder import Ladder, LadderInputs, LadderStep, next_step
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.tickets.ticket import EscalationTicket
from queenright.health.vitals.provider_traffic import ProviderHealth
from queenright.judge import wording
from queenright.runtime.events import AgentEvent
from queenright.server.service import Service
from queenright.server.views.fleet_list import WORST_FIRST, get_listed_state, list_unresolved_sessions
from queenright.server.views.interventions import build_interventions_view
from queenright.server.views.worker_rows import make_agent_row

_MAX_LINE_LENGTH: Final = 220
"""Maximum characters of a line of the feed."""
_MAX_NAME_LENGTH: Final = 60
"""Maximum characters of a name in a line of the feed."""
_MAX_TICKETS: Final = 100
MAX_WORKERS_SHOWN: Final = 200
"""Maximum workers in the console, worst first. Each takes time to render."""


def make_ticket_row(
    ticket: EscalationTicket,
    *,
    active_silence: ActiveSilence | None = None,
    delivered_notifications: Iterable[DeliveredNotification] = (),
    trace_url: str = "",
    actions: Sequence[str] = (),
) -> api.Ticket:
    """
    Return a ticket with its silence and its deliveries. Advice is omitted from a closed ticket.

    Args:
        ticket: The ticket.
        active_silence: The silence that matches it now.
        delivered_notifications: The deliveries that Alertmanager reported.
        trace_url: The URL of its trace.
        actions: The actions that a person can take.
    """
    values = ticket.model_dump(mode="json")
    if ticket.is_live:
        values["analysis"] = current_analysis(ticket)
    else:
        values |= {"suggested_action": "", "analysis": _remove_advice(ticket)}
    return api.Ticket.model_validate(
        values
        | {
            "silenced": active_silence and api.TicketSilence.of(active_silence),
            "notified": make_delivery_rows(delivered_notifications),
            "trace_url": trace_url,
            "actions": actions,
        }
    )


def _remove_advice(ticket: EscalationTicket) -> str:
    kinds = (ticket.kind, ticket.finding_kind or ticket.kind, ticket.words_kind or ticket.kind)
    advice_texts = {wording.advice(kind, ticket.agent_id, ticket.session_id) for kind in kinds}
    text = current_analysis(ticket)
    for advice in advice_texts | {ticket.suggested_action}:
        text = text.replace(advice, "") if advice else text
    return " ".join(text.split())


def make_notification_row(record: NotificationRecord, outbox: api.Outbox) -> api.Notification:
    """
    Return a notification and its delivery to each peer.

    Args:
        record: The notification.
        outbox: The state of the outbox, with the errors of unreachable peers.
    """
    peers = [
        _make_peer_delivery(peer.peer, peer.status, peer.delivered_at, peer.attempts, peer.last_error)
        for peer in record.peers
    ]
    answered_peers = {(peer.peer, peer.status) for peer in record.peers}
    if record.active:
        # Attempts are recorded once the peer answers.
        peers += [
            _make_peer_delivery(line.peer, record.status, None, None, line.error or None)
            for line in outbox.peers
            if (line.peer, record.status) not in answered_peers
        ]
    return api.Notification.of(
        record,
        agent_id=record.agent,
        peers=sorted(peers, key=lambda delivery: (delivery.peer, delivery.status)),
        notified=make_delivery_rows(record.notified),
    )


def _make_peer_delivery(
    peer: str, status: str, delivered_at: float | None, attempts: int | None, last_error: str | None
) -> api.NotificationPeer:
    end = "end " if status == "resolved" else ""
    if delivered_at is None:
        outcome = f"{end}refused" if attempts else f"{end}pending"
        outcome = f"{outcome}: {last_error}" if last_error else outcome
    elif attempts == 0:
        outcome = f"{end}not needed"
    else:
        outcome = f"{end}accepted"
    return api.NotificationPeer(
        peer=peer,
        status=status,
        delivered_at=delivered_at,
        attempts=attempts,
        last_error=last_error,
        outcome=outcome,
    )


def make_delivery_rows(deliveries: Iterable[DeliveredNotification]) -> list[api.ReceiverDelivery]:
    """
    Return a row for each receiver and status, latest first.

    A ticket may have several alerts, for example after a rise in severity. They become one row, with the
    first and last time.
    """
    groups: dict[tuple[str, str], list[DeliveredNotification]] = {}
    for delivery in deliveries:
        groups.setdefault((delivery.receiver, delivery.status), []).append(delivery)
    rows = [
        api.ReceiverDelivery(
            receiver=receiver,
            status=status,
            first_at=min(delivery.first_at for delivery in group),
            at=max(delivery.last_at for delivery in group),
        )
        for (receiver, status), group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.at, row.receiver, row.status))


def make_feed_line(event: AgentEvent, *, brief: bool = False) -> api.FeedLine:
    """Return a feed line for an event. ``brief`` truncates texts that the ticket has in full."""
    shorten = _get_first_sentence if brief else str
    kind, text = describe_event(event.type, event.agent_id, event.data, shorten=shorten)
    if brief:
        # A very long name would leave no room for the event itself.
        agent = event.agent_id
        if len(agent) > _MAX_NAME_LENGTH:
            text = text.replace(agent, clip_text(agent, _MAX_NAME_LENGTH))
        text = clip_text(text, _MAX_LINE_LENGTH)
    return api.FeedLine(
        at=event.time,
        kind=kind,
        text=text,
        id=event.id,
        ticket=read_ticket_id(event),
    )


def _get_first_sentence(text: object) -> str:
    line = " ".join(str(text).split())
    return re.split(r"(?<=[.!?])\s", line, maxsplit=1)[0]


def read_ticket_id(event: AgentEvent) -> str:
    """Return the id of the ticket in an event, or ""."""
    ticket_id = event.data.get("ticket_id")
    if not ticket_id and isinstance(ticket := event.data.get("ticket"), Mapping):
        ticket_id = ticket.get("ticket_id")
    return str(ticket_id or "")


def build_status(service: Service) -> api.Status:
    """Return the worst workers, the latest events, and interventions in progress."""
    now = service.clock()
    workers_by_state: dict[HealthState, list[WorkerHealth]] = {state: [] for state in WORST_FIRST}
    unresolved_keys = list_unresolved_sessions(service)
    for health in service.monitor.workers():
        listed_state = get_listed_state(health, unresolved_keys)
        if listed_state is not None:
            workers_by_state[listed_state].append(health)
    shown_workers: list[WorkerHealth] = []
    for workers in workers_by_state.values():
        shown_workers += heapq.nsmallest(MAX_WORKERS_SHOWN - len(shown_workers), workers, key=_get_name_key)
    newest_tickets = sorted(service.tickets.open_tickets(), key=lambda ticket: -ticket.first_seen)
    return api.Status(
        at=now,
        started_at=service.started_at,
        counts={state.value: len(workers) for state, workers in workers_by_state.items()},
        agents=[make_agent_row(service, health) for health in shown_workers],
        agents_left_out=sum(map(len, workers_by_state.values())) - len(shown_workers),
        tickets=[ticket.ticket_id for ticket in newest_tickets[:_MAX_TICKETS]],
        outbox=api.Outbox.of(service.outbox.status()),
        feed=list_feed_lines(service),
        not_ready=service.ready(),
        acting=_describe_interventions(service, now),
        paged=list_stand_in_messages(service),
    )


def list_feed_lines(service: Service) -> list[api.FeedLine]:
    """Return the latest events, newest first."""
    return [
        make_feed_line(event, brief=True)
        for event in reversed(service.recent)
        if has_feed_line(event.type, event.data)
    ]


def make_provider_row(provider: ProviderHealth) -> api.Provider:
    """Return the health of a model provider."""
    errors = [api.ProviderError(error_type=kind, count=count) for kind, count in provider.errors]
    return api.Provider.model_validate(asdict(provider) | {"errors": errors})


def _get_name_key(health: WorkerHealth) -> tuple[str, float]:
    return health.vitals.agent_id, -health.state_since


def _describe_interventions(service: Service, now: float) -> api.Acting:
    ledger = service.interventions.ledger
    return build_interventions_view(
        stop=service.health.emergency_stop_state,
        storm=service.remediation.storm,
        budget=service.interventions.budget,
        dry_run=service.settings.health_monitoring.intervention.is_dry("nudge"),
        ladders=[
            (ladder, step) for ladder in ledger.ladders.values() if (step := _find_next_step(service, ladder))
        ],
        pending=ledger.pending.values(),
        approvals=service.approvals.pending(),
        breakers=service.health.all_circuit_breakers(),
        recoveries=service.recoveries.latest,
        now=now,
        notices=service.judging.replacements(),
    )


def _find_next_step(service: Service, ladder: Ladder) -> LadderStep | None:
    """
    Return the next step of a ladder; None if the ladder should not be shown.

    A ladder of a worker that has recovered, waits or makes progress only stores the time of the last action.
    """
    settings = service.settings.health_monitoring
    worker = service.monitor.get(ladder.agent_id, ladder.session_id)
    if worker is None:
        return None if ladder.is_untouched else LadderStep(ladder=ladder)
    step = next_step(ladder, LadderInputs.of(worker, settings), settings)
    if not settings.intervention.enabled:
        step = LadderStep(ladder=step.ladder)
    if step.ladder is None or (step.ladder.is_untouched and step.action is None):
        return None
    return step


def list_stand_in_messages(service: Service) -> list[api.StandInMessage]:
    """Return the messages to the stand-in for Slack and PagerDuty, newest first; empty without a stand-in."""
    if service.recorder is None:
        return []
    return [
        api.StandInMessage.of(message, at=message.time) for message in reversed(service.recorder.messages)
    ]
