"""Actions on workers, tickets and breakers that several screens offer: prompt, confirm, execute."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from queenright.api.agents import AgentRow
from queenright.api.attention import AttentionItem
from queenright.api.tickets import Ticket
from queenright.tui.attention import ANSWERS
from queenright.tui.screens.base import AppScreen
from queenright.tui.screens.dialogs import ConfirmDialog, PromptDialog


def nudge(screen: AppScreen, worker: AgentRow) -> None:
    """Ask for a message, and nudge a worker with it."""

    def on_answer(message: str | None) -> None:
        if message is not None:
            screen.run_in_background(lambda: _nudge(screen, worker, message))

    screen.app.push_screen(
        PromptDialog(
            f"Nudge {worker.agent_id}",
            "The message is added to the worker's context.",
            "message; empty sends the usual reminder",
            is_required=False,
        ),
        on_answer,
    )


def terminate(screen: AppScreen, worker: AgentRow) -> None:
    """Ask for a reason and a confirmation, and terminate a worker."""
    _ask_reason(screen, worker, lambda reason: _terminate(screen, worker, reason))


def answer(screen: AppScreen, item: AttentionItem, name: str) -> None:
    """Ask for a confirmation, and give an answer to something that waits for a person."""
    choice = ANSWERS[name]
    title = choice.question.format(agent=item.agents, tool=item.tool or "it")

    def on_confirm(yes: bool | None) -> None:
        if yes:
            screen.run_in_background(lambda: _answer(screen, item, name))

    def on_reply(text: str | None) -> None:
        if text is not None:
            screen.run_in_background(lambda: _answer(screen, item, name, text))

    if name == "reply":
        screen.app.push_screen(PromptDialog(title, item.title, "reply", is_required=True), on_reply)
    elif name == "terminate":
        _ask_reason(screen, item, lambda reason: _answer(screen, item, name, reason))
    else:
        text = f"{item.title}\n{choice.effect}"
        screen.app.push_screen(ConfirmDialog(title, text), on_confirm)


def _ask_reason(
    screen: AppScreen, worker: AgentRow | AttentionItem, act: Callable[[str], Awaitable[None]]
) -> None:
    """Ask for a reason and a confirmation of a termination, and act."""

    def on_confirm(yes: bool | None, reason: str) -> None:
        if yes:
            screen.run_in_background(lambda: act(reason))

    def on_answer(reason: str | None) -> None:
        if reason is not None:
            screen.app.push_screen(
                ConfirmDialog(
                    f"Terminate {worker.agent_id}?", f"Session {worker.session_id}. Reason: {reason}"
                ),
                lambda yes: on_confirm(yes, reason),
            )

    screen.app.push_screen(
        PromptDialog(
            f"Terminate {worker.agent_id}",
            "The worker saves its state and stops. You will be asked to confirm.",
            "reason, for the audit trail",
            is_required=True,
        ),
        on_answer,
    )


def acknowledge(screen: AppScreen, ticket: Ticket) -> None:
    """Ask for confirmation, and acknowledge a ticket."""

    def on_confirm(yes: bool | None) -> None:
        if yes:
            screen.run_in_background(lambda: _acknowledge(screen, ticket))

    screen.app.push_screen(
        ConfirmDialog(f"Acknowledge the ticket on {ticket.agent_id}?", f"{ticket.cause} Reminders stop."),
        on_confirm,
    )


def reset(screen: AppScreen, breaker: str) -> None:
    """Ask for confirmation, and close a circuit breaker."""

    def on_confirm(yes: bool | None) -> None:
        if yes:
            screen.run_in_background(lambda: _reset(screen, breaker))

    screen.app.push_screen(
        ConfirmDialog(
            f"Reset {breaker}?",
            "The breaker closes: calls go through again, and failures are counted from zero.",
        ),
        on_confirm,
    )


async def _reset(screen: AppScreen, breaker: str) -> None:
    await screen.app_state.gateway.reset_breaker(breaker)
    screen.app_state.fleet.stale.add("breakers")
    screen.app_state.set_status("healthy", f"breaker {breaker} is closed")


async def _answer(screen: AppScreen, item: AttentionItem, name: str, text: str = "") -> None:
    state = screen.app_state
    label = f"{ANSWERS[name].label.lower()} {item.agents}"
    state.set_status("act", f"{label} …")
    try:
        state.set_status("act", f"{label}: {await state.gateway.answer(item, name, text)}")
    finally:
        # Also if it was refused: somebody else has answered, or the worker was restarted.
        state.fleet.stale |= {"attention", "tickets"}


async def _nudge(screen: AppScreen, worker: AgentRow, message: str) -> None:
    state = screen.app_state
    state.set_status("act", f"nudging {worker.agent_id} …")
    state.set_status("act", f"nudge {worker.agent_id}: {await state.gateway.nudge(worker, message)}")


async def _terminate(screen: AppScreen, worker: AgentRow, reason: str) -> None:
    state = screen.app_state
    state.set_status("act", f"terminating {worker.agent_id} …")
    state.set_status("act", f"terminate {worker.agent_id}: {await state.gateway.terminate(worker, reason)}")


async def _acknowledge(screen: AppScreen, ticket: Ticket) -> None:
    await screen.app_state.gateway.acknowledge(ticket.ticket_id)
    screen.app_state.fleet.stale.add("tickets")
    screen.app_state.set_status("act", f"acknowledged the ticket on {ticket.agent_id}")
