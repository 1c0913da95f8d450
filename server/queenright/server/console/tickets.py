"""Actions of the pages on a ticket: acknowledge, unacknowledge, resolve, silence."""

from __future__ import annotations

from typing import Final

from queenright.health.ticket_lifecycle import can_be_acknowledged
from queenright.health.tickets import AckChannel, EscalationTicket, TicketNotFoundError, TicketStatus
from queenright.instrumentation.redaction import redact
from queenright.server.console.forms import (
    Act,
    Button,
    Done,
    Field,
    Given,
    IncompleteFormError,
    Question,
    checked,
    part,
)
from queenright.server.routes.silences import CreateSilence
from queenright.server.routes.tickets import Resolve
from queenright.server.service import Service
from queenright.server.views.formatting import ago, clock_time

_HOW: Final = Field(
    name="reason", label="Resolution", kind="area", hint="Stored with the ticket.", required=True
)
_HOURS: Final = Field(name="hours", label="Hours", kind="number", required=True, preset="2")
_COMMENT: Final = Field(
    name="comment", label="Why", kind="area", hint="Shown in Alertmanager with the silence.", required=True
)


def can_be_silenced(ticket: EscalationTicket) -> bool:
    """Return whether a ticket has sent notifications that a silence would mute."""
    return ticket.live and ticket.notified_severity is not None


def _way(given: Given) -> AckChannel:
    """Return whether the form came from the ticket's page or from the link in a message."""
    return AckChannel.PAGE if given.get("via") == AckChannel.PAGE else AckChannel.LINK


async def _find(service: Service, given: Given) -> EscalationTicket:
    ticket = await service.tickets.find(given["id"])
    if ticket is None:
        raise TicketNotFoundError(given["id"])
    return ticket


def _facts(service: Service, ticket: EscalationTicket) -> tuple[tuple[str, str], ...]:
    now, kind = service.clock(), ticket.words_kind or ticket.kind
    return (
        ("Worker", ticket.agent_id),
        ("Ticket", f"{ticket.severity.value}, {kind.value.replace('_', ' ')}"),
        ("What", ticket.analysis or ticket.cause),
        ("Since", f"{clock_time(ticket.first_seen)} UTC, {ago(now - ticket.first_seen)} ago"),
    )


async def _ask_acknowledge(service: Service, given: Given) -> Question:
    ticket = await _find(service, given)
    lead = "Says that you are working on it. Reminders stop."
    if ticket.status is TicketStatus.ACKNOWLEDGED:
        lead = f"Already acknowledged by {ticket.acknowledged_by}."
    elif not can_be_acknowledged(ticket):
        lead = f"There is nothing to acknowledge: the ticket is {ticket.status.value.replace('_', ' ')}."
    return Question(
        title="Acknowledge this ticket?",
        lead=lead,
        back=f"/tickets/{ticket.ticket_id}",
        facts=_facts(service, ticket),
        hidden={"via": _way(given).value},
        buttons=(Button(label="Acknowledge"),) if can_be_acknowledged(ticket) else (),
    )


async def _acknowledge(service: Service, form: Given, by: str) -> Done:
    ticket = await service.tickets.acknowledge(form["id"], by=by, via=_way(form))
    return Done(
        place=f"/tickets/{ticket.ticket_id}",
        words="Acknowledged. Reminders stop.",
    )


async def _ask_resolve(service: Service, given: Given) -> Question:
    ticket = await _find(service, given)
    may = service.tickets.can_be_resolved(ticket)
    return Question(
        title="Resolve this ticket?",
        lead="Its worker is gone, or its work could not be recovered. Describe the resolution."
        if may
        else "It resolves automatically when its worker recovers or ends."
        if ticket.live
        else f"It is closed: {ticket.status.value.replace('_', ' ')}.",
        back=f"/tickets/{ticket.ticket_id}",
        facts=_facts(service, ticket),
        fields=(_HOW,),
        buttons=(Button(label="Resolve"),) if may else (),
    )


async def _resolve(service: Service, form: Given, by: str) -> Done:
    request = checked(Resolve, by=by, reason=form.get("reason", ""))
    ticket = await service.tickets.resolve(form["id"], request.reason, by=request.by)
    return Done(place=f"/tickets/{ticket.ticket_id}", words="The ticket is resolved.")


async def _ask_unacknowledge(service: Service, given: Given) -> Question:
    ticket = await _find(service, given)
    has = ticket.live and ticket.status is TicketStatus.ACKNOWLEDGED
    who = ticket.acknowledged_by
    return Question(
        title="Withdraw this acknowledgement?",
        lead=f"Acknowledged by {who}. Reminders start again." if has else "The ticket is not acknowledged.",
        back=f"/tickets/{ticket.ticket_id}",
        facts=_facts(service, ticket),
        buttons=(Button(label="Unacknowledge"),) if has else (),
    )


async def _unacknowledge(service: Service, form: Given, by: str) -> Done:
    ticket = await service.tickets.unacknowledge(form["id"], by=by, via=AckChannel.PAGE)
    return Done(
        place=f"/tickets/{ticket.ticket_id}",
        words="The acknowledgement was withdrawn. Reminders start again.",
    )


# -- silences -------------------------------------------------------------------------------------


async def _ask_silence(service: Service, given: Given) -> Question:
    ticket = await _find(service, given)
    may = can_be_silenced(ticket)
    return Question(
        title="Silence this ticket?",
        lead="No notifications are sent for a while, whatever its severity, nor for other tickets of its "
        "worker with this cause. If you are working on it, acknowledge it instead."
        if may
        else "There is nothing to silence: it sends no notifications.",
        back=f"/tickets/{ticket.ticket_id}",
        facts=_facts(service, ticket),
        fields=(_HOURS, _COMMENT),
        buttons=(Button(label="Silence"),) if may else (),
    )


async def _silence(service: Service, form: Given, by: str) -> Done:
    try:
        seconds = float(form.get("hours", "")) * 3600
    except ValueError:
        raise IncompleteFormError("Hours: enter a number, such as 2.") from None
    request = checked(
        CreateSilence, ticket_id=form["id"], seconds=seconds, comment=form.get("comment", ""), by=by
    )
    _, peer = await service.silences.add(
        request.ticket_id,
        by=redact(request.by, 100),
        comment=f"{redact(request.comment, 1000)} (ticket {request.ticket_id})",
        seconds=request.seconds,
    )
    return Done(
        place=f"/tickets/{part(request.ticket_id)}",
        words=f"Silenced at {peer} for {ago(request.seconds)}.",
    )


async def _ask_unsilence(service: Service, given: Given) -> Question:
    ticket = await _find(service, given)
    found = service.silences.of_ticket(ticket.ticket_id)
    return Question(
        title="End the silence?",
        lead=f"Created by {found.by or 'an unknown user'}: {found.comment}"
        if found
        else "The ticket is not silenced.",
        back=f"/tickets/{ticket.ticket_id}",
        facts=_facts(service, ticket),
        hidden={"silence": found.silence_id} if found else {},
        buttons=(Button(label="End silence"),) if found else (),
    )


async def _unsilence(service: Service, form: Given, by: str) -> Done:
    peer = await service.silences.expire(form.get("silence", ""))
    return Done(place=f"/tickets/{part(form['id'])}", words=f"The silence has ended at {peer}.")


TICKET_ACTS: Final = (
    Act(path="/tickets/{id}/acknowledge", ask=_ask_acknowledge, do=_acknowledge),
    Act(path="/tickets/{id}/unacknowledge", ask=_ask_unacknowledge, do=_unacknowledge),
    Act(path="/tickets/{id}/resolve", ask=_ask_resolve, do=_resolve),
    Act(path="/tickets/{id}/silence", ask=_ask_silence, do=_silence),
    Act(path="/tickets/{id}/unsilence", ask=_ask_unsilence, do=_unsilence),
)
