"""Actions on workers, tickets and breakers that several screens offer: prompt, confirm, execute."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from queenright.api.agents import AgentRow
from queenright.api.attention import AttentionItem
from queenright.tui.attention import ANSWERS, format_item_agents
from queenright.tui.screens.base import AppScreen
from queenright.tui.screens.dialogs import ConfirmDialog, PromptDialog


class ActionScreen(AppScreen):
    """A screen with actions on its worker and its ticket."""

    @property
    def worker(self) -> AgentRow | None:
        """The worker that is selected on this screen."""
        return None

    def action_nudge(self) -> None:
        """Ask for a message, and nudge the worker with it."""
        if (worker := self.worker) is None:
            return
        gateway = self.app_state.gateway
        dialog = PromptDialog(
            f"Nudge {worker.agent_id}",
            "The message is added to the worker's context.",
            "message; empty sends the usual reminder",
            is_required=False,
        )
        label = f"nudge {worker.agent_id}"
        _prompt(self, dialog, lambda message: _act(self, label, lambda: gateway.nudge(worker, message)))

    def action_terminate(self) -> None:
        """Ask for a reason and a confirmation, and terminate the worker."""
        if (worker := self.worker) is None:
            return
        gateway = self.app_state.gateway
        label = f"terminate {worker.agent_id}"
        _prompt_reason(
            self, worker, lambda reason: _act(self, label, lambda: gateway.terminate(worker, reason))
        )

    def action_acknowledge(self) -> None:
        """Ask for confirmation, and acknowledge the ticket."""
        if (ticket := self.ticket()) is None:
            return
        gateway = self.app_state.gateway
        label = f"acknowledge the ticket on {ticket.agent_id}"

        async def send() -> str:
            await gateway.client.tickets.acknowledge(ticket.ticket_id, by=gateway.by)
            return "done"

        _confirm(
            self,
            f"Acknowledge the ticket on {ticket.agent_id}?",
            f"{ticket.cause} Reminders stop.",
            lambda: _act(self, label, send, "tickets"),
        )


def answer(screen: AppScreen, item: AttentionItem, name: str) -> None:
    """Ask for a confirmation, and answer an item that needs a person."""
    choice = ANSWERS[name]
    title = choice.question.format(agent=format_item_agents(item), tool=item.tool or "it")

    def send_answer(text: str) -> None:
        gateway = screen.app_state.gateway
        label = f"{choice.label.lower()} {format_item_agents(item)}"
        _act(screen, label, lambda: gateway.answer(item, name, text), "attention", "tickets")

    if name == "reply":
        _prompt(screen, PromptDialog(title, item.title, "reply", is_required=True), send_answer)
    elif name == "terminate":
        _prompt_reason(screen, item, send_answer)
    else:
        _confirm(screen, title, f"{item.title}\n{choice.effect}", lambda: send_answer(""))


def reset(screen: AppScreen, breaker: str) -> None:
    """Ask for confirmation, and close a circuit breaker."""
    gateway = screen.app_state.gateway

    async def send() -> str:
        return (await gateway.client.breakers.reset(breaker, by=gateway.by)).state

    _confirm(
        screen,
        f"Reset {breaker}?",
        "The breaker closes: calls go through again, and failures are counted from zero.",
        lambda: _act(screen, f"reset {breaker}", send, "breakers"),
    )


def _prompt_reason(screen: AppScreen, worker: AgentRow | AttentionItem, act: Callable[[str], None]) -> None:
    """Ask for a reason and a confirmation of a termination, and act."""
    dialog = PromptDialog(
        f"Terminate {worker.agent_id}",
        "The worker saves its state and stops. You will be asked to confirm.",
        "reason, for the audit trail",
        is_required=True,
    )

    def confirm(reason: str) -> None:
        text = f"Session {worker.session_id}. Reason: {reason}"
        _confirm(screen, f"Terminate {worker.agent_id}?", text, lambda: act(reason))

    _prompt(screen, dialog, confirm)


def _prompt(screen: AppScreen, dialog: PromptDialog, act: Callable[[str], None]) -> None:
    """Ask for a line of text, and act on it unless the dialog is cancelled."""

    def on_answer(text: str | None) -> None:
        if text is not None:
            act(text)

    screen.app.push_screen(dialog, on_answer)


def _confirm(screen: AppScreen, title: str, text: str, act: Callable[[], None]) -> None:
    """Ask a yes-or-no question, and act on a yes."""

    def on_answer(yes: bool | None) -> None:
        if yes:
            act()

    screen.app.push_screen(ConfirmDialog(title, text), on_answer)


def _act(screen: AppScreen, label: str, operation: Callable[[], Awaitable[str]], *lists: str) -> None:
    """Run an action in the background, show its outcome, and mark the lists that it changes as stale."""
    state = screen.app_state

    async def act() -> None:
        state.set_status("act", f"{label} …")
        try:
            state.set_status("act", f"{label}: {await operation()}")
        finally:
            # Also after a refusal: another operator has answered, or the worker was restarted.
            state.fleet.stale.update(lists)

    screen.run_in_background(act)
