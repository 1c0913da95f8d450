"""What a person says about a ticket on the console: it is in hand, or not any more, settled, to be silent."""

from __future__ import annotations

from typing import Final

from queenright.health.tickets import EscalationTicket, TicketNotFoundError, TicketStatus, Way
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
from queenright.server.routes.silences import Silenced
from queenright.server.routes.tickets import Resolved
from queenright.server.service import Service
from queenright.server.views.words import ago, clock_time

_HOW: Final = Field(
    name="reason", label="How it was settled", kind="area", hint="Kept with the ticket.", required=True
)
_HOURS: Final = Field(name="hours", label="For how many hours", kind="number", required=True, preset="2")
_COMMENT: Final = Field(
    name="comment", label="Why", kind="area", hint="Alertmanager shows it beside the silence.", required=True
)


def can_be_silenced(ticket: EscalationTicket) -> bool:
    """Return whether there is, or may be, something about a ticket that people hear of."""
    return ticket.live and ticket.notified_severity is not None


def can_be_acknowledged(ticket: EscalationTicket) -> bool:
    """Return whether a ticket still waits for somebody to say that it is in hand."""
    return ticket.live and ticket.status in (TicketStatus.OPEN, TicketStatus.INTERVENING)


def _way(given: Given) -> Way:
    """Return by what way a ticket is acknowledged here: on its page, or by the link in a message."""
    return Way.PAGE if given.get("via") == Way.PAGE else Way.LINK


async def _find(service: Service, given: Given) -> EscalationTicket:
    ticket = await service.tickets.find(given["id"])
    if ticket is None:
        raise TicketNotFoundError(given["id"])
    return ticket


def _facts(service: Service, ticket: EscalationTicket) -> tuple[tuple[str, str], ...]:
    now = service.clock()
    return (
        ("Worker", ticket.worker_agent_id),
        ("Ticket", f"{ticket.severity.value}, {ticket.kind.value.replace('_', ' ')}"),
        ("What", ticket.analysis or ticket.cause),
        ("Since", f"{clock_time(ticket.first_seen)} UTC, {ago(now - ticket.first_seen)} ago"),
    )


async def _ask_acknowledge(service: Service, given: Given) -> Question:
    ticket = await _find(service, given)
    lead = "You say that you have it in hand: nobody is reminded of it any more."
    if ticket.status is TicketStatus.ACKNOWLEDGED:
        lead = f"{ticket.acknowledged_by} has it in hand already."
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
        words="You have it in hand. Nobody is reminded of it any more.",
    )


async def _ask_resolve(service: Service, given: Given) -> Question:
    ticket = await _find(service, given)
    may = service.tickets.can_be_resolved(ticket)
    return Question(
        title="Resolve this ticket?",
        lead="Its worker is gone, or its work could not be brought back. You say how that was settled."
        if may
        else "It closes by itself, when its worker recovers or ends."
        if ticket.live
        else f"It is closed: {ticket.status.value.replace('_', ' ')}.",
        back=f"/tickets/{ticket.ticket_id}",
        facts=_facts(service, ticket),
        fields=(_HOW,),
        buttons=(Button(label="Resolve"),) if may else (),
    )


async def _resolve(service: Service, form: Given, by: str) -> Done:
    said = checked(Resolved, by=by, reason=form.get("reason", ""))
    ticket = await service.tickets.resolve(form["id"], said.reason, by=said.by)
    return Done(place=f"/tickets/{ticket.ticket_id}", words="The ticket is resolved.")


async def _ask_unacknowledge(service: Service, given: Given) -> Question:
    ticket = await _find(service, given)
    has = ticket.live and ticket.status is TicketStatus.ACKNOWLEDGED
    who = ticket.acknowledged_by
    return Question(
        title="Give this ticket back?",
        lead=f"{who} has it in hand. After this nobody has, and reminders count anew."
        if has
        else "Nobody has it in hand.",
        back=f"/tickets/{ticket.ticket_id}",
        facts=_facts(service, ticket),
        buttons=(Button(label="Give it back"),) if has else (),
    )


async def _unacknowledge(service: Service, form: Given, by: str) -> Done:
    ticket = await service.tickets.unacknowledge(form["id"], by=by, via=Way.PAGE)
    return Done(
        place=f"/tickets/{ticket.ticket_id}",
        words="Nobody has it in hand any more. Reminders count anew.",
    )


# -- silences -------------------------------------------------------------------------------------


async def _ask_silence(service: Service, given: Given) -> Question:
    ticket = await _find(service, given)
    may = can_be_silenced(ticket)
    return Question(
        title="Silence this ticket?",
        lead="Nobody hears of it for a while, however bad it gets, nor of its worker for this cause. "
        "To say that you are on it, acknowledge it instead."
        if may
        else "There is nothing to silence: nobody is told of it.",
        back=f"/tickets/{ticket.ticket_id}",
        facts=_facts(service, ticket),
        fields=(_HOURS, _COMMENT),
        buttons=(Button(label="Silence it"),) if may else (),
    )


async def _silence(service: Service, form: Given, by: str) -> Done:
    try:
        seconds = float(form.get("hours", "")) * 3600
    except ValueError:
        raise IncompleteFormError("For how many hours: please give a number, for example 2.") from None
    said = checked(Silenced, ticket_id=form["id"], seconds=seconds, comment=form.get("comment", ""), by=by)
    _, peer = await service.silences.add(
        said.ticket_id,
        by=redact(said.by, 100),
        comment=f"{redact(said.comment, 1000)} (ticket {said.ticket_id})",
        seconds=said.seconds,
    )
    return Done(
        place=f"/tickets/{part(said.ticket_id)}",
        words=f"It is silenced at {peer} for {ago(said.seconds)}.",
    )


async def _ask_unsilence(service: Service, given: Given) -> Question:
    ticket = await _find(service, given)
    found = service.silences.of_ticket(ticket.ticket_id)
    return Question(
        title="End the silence?",
        lead=f"{found.by or 'Somebody'} made it: {found.comment}" if found else "No silence holds for it.",
        back=f"/tickets/{ticket.ticket_id}",
        facts=_facts(service, ticket),
        hidden={"silence": found.silence_id} if found else {},
        buttons=(Button(label="End it"),) if found else (),
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
