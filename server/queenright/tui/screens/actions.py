"""What is done to workers and tickets from several screens: asked for, confirmed, carried out."""

from __future__ import annotations

from queenright.tui.screens.base import Base
from queenright.tui.screens.dialogs import Ask, Confirm
from queenright.tui.values import Ticket, Worker


def nudge(screen: Base, worker: Worker) -> None:
    """Ask what a worker is to be told, and tell it."""

    def answered(message: str | None) -> None:
        if message is not None:
            screen.act(lambda: _nudge(screen, worker, message))

    screen.app.push_screen(
        Ask(
            f"Nudge {worker.agent_id}",
            "It goes into the worker's context.",
            "the usual reminder, if this is left empty",
            needed=False,
        ),
        answered,
    )


def terminate(screen: Base, worker: Worker) -> None:
    """Ask why a worker is to be stopped and whether it really is, and stop it."""

    def confirmed(yes: bool | None, reason: str) -> None:
        if yes:
            screen.act(lambda: _terminate(screen, worker, reason))

    def answered(reason: str | None) -> None:
        if reason is not None:
            screen.app.push_screen(
                Confirm(f"Terminate {worker.agent_id}?", f"Session {worker.session_id}. Because: {reason}"),
                lambda yes: confirmed(yes, reason),
            )

    screen.app.push_screen(
        Ask(
            f"Terminate {worker.agent_id}",
            "Its state is saved, and it stops. You are asked once more.",
            "why; it is kept",
            needed=True,
        ),
        answered,
    )


def acknowledge(screen: Base, ticket: Ticket) -> None:
    """Ask whether a ticket is to be taken, and say that a person has it in hand."""

    def confirmed(yes: bool | None) -> None:
        if yes:
            screen.act(lambda: _acknowledge(screen, ticket))

    screen.app.push_screen(
        Confirm(f"Take the ticket on {ticket.agent_id}?", f"{ticket.cause} Nobody is reminded of it then."),
        confirmed,
    )


def reset(screen: Base, breaker: str) -> None:
    """Ask whether a circuit breaker is to be closed, and close it."""

    def confirmed(yes: bool | None) -> None:
        if yes:
            screen.act(lambda: _reset(screen, breaker))

    screen.app.push_screen(
        Confirm(f"Reset {breaker}?", "It is closed: calls go through again, and failures count anew."),
        confirmed,
    )


async def _reset(screen: Base, breaker: str) -> None:
    await screen.shared.link.reset(breaker)
    screen.shared.fleet.stale.add("breakers")
    screen.shared.say("healthy", f"breaker {breaker} is closed")


async def _nudge(screen: Base, worker: Worker, message: str) -> None:
    shared = screen.shared
    shared.say("act", f"{worker.agent_id} is nudged …")
    shared.say("act", f"nudge of {worker.agent_id}: {await shared.link.nudge(worker, message)}")


async def _terminate(screen: Base, worker: Worker, reason: str) -> None:
    shared = screen.shared
    shared.say("act", f"{worker.agent_id} is asked to save its state and stop …")
    shared.say("act", f"end of {worker.agent_id}: {await shared.link.terminate(worker, reason)}")


async def _acknowledge(screen: Base, ticket: Ticket) -> None:
    await screen.shared.link.acknowledge(ticket.ticket_id)
    screen.shared.fleet.stale.add("tickets")
    screen.shared.say("act", f"the ticket on {ticket.agent_id} is yours")
