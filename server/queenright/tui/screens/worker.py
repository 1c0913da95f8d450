"""One worker: vital signs, its states over time, its stream of steps."""

from __future__ import annotations

from typing import ClassVar, Final

from rich.console import Group
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Static

from queenright.instrumentation.money import format_dollars
from queenright.tui import styles
from queenright.tui.screens import actions
from queenright.tui.screens.base import OpenTalk
from queenright.tui.screens.following import Following
from queenright.tui.values import Ticket, Worker
from queenright.tui.widgets.lines import Lines
from queenright.tui.words import ago, amount, clipped, clock_time, spark

_HOUR: Final = 3_600.0
_LETTERS: Final = 24


class WorkerScreen(Following):
    """One worker, and what it does."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("n", "nudge", "Nudge"),
        ("t", "terminate", "Terminate"),
        ("a", "acknowledge", "Take"),
        ("c", "talk", "Talk"),
    ]

    def body(self) -> ComposeResult:
        """Lay out vital signs above, and the stream below."""
        yield Static(id="vitals")
        yield Lines(name="stream")

    def on_mount(self) -> None:
        """Begin to follow it."""
        self.follow()
        self.focus_list()

    def focus_list(self) -> None:
        """Give the keys to the stream."""
        self.query_one("#stream").focus()

    def ticket(self) -> Ticket | None:
        """Return the worker's ticket."""
        return self.shared.fleet.ticket_of(self.agent_id)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Show only what there is something for."""
        if action == "acknowledge":
            ticket = self.ticket()
            return ticket is not None and ticket.live
        return True

    async def draw(self) -> None:
        """Show everything as it is known now."""
        await super().draw()
        worker = self.worker
        vitals = self.query_one("#vitals", Static)
        if worker is None:
            vitals.update(styles.styled(f"No worker {self.agent_id!r} is known.", styles.DIM))
        else:
            vitals.update(self._vitals(worker, vitals.content_size.width or 78))
        self.query_one(Lines).show(self.story.lines)

    def _vitals(self, one: Worker, width: int) -> Group:
        now = self.shared.clock()
        state = self.shared.fleet.standing(one)
        head = Text.assemble(
            (f"{clipped(one.agent_id, 30)}  ", "bold"),
            styles.word(state),
            f" for {ago(now - one.state_since)}",
            (f"  {clipped(one.session_id, 30)}", styles.DIM),
            no_wrap=True,
            overflow="ellipsis",
        )
        rows = [
            head,
            self._row(("Why", clipped(one.reason or "nothing is wrong", width - 8))),
            self._row(
                ("Doing", f"{clipped(one.doing, 15):<15}"),
                ("Node", f"{clipped(one.node_id or '-', 12):<12}"),
                ("Active", _since(now, one.last_activity)),
                ("Progress", _since(now, one.last_progress)),
            ),
            self._row(
                ("Steps", f"{one.steps:<6}"),
                ("Bad", f"{one.bad_steps:<5}"),
                ("Errors", f"{one.errors:<5}"),
                ("Tokens", f"{_used(one):<7}"),
                ("Verdicts", _verdicts(one)),
            ),
            self._sparks(width),
            self._states(now, width),
        ]
        ticket = self.ticket()
        if ticket is not None and ticket.live:
            text = f" ticket, {ticket.status.replace('_', ' ')}: {ticket.cause}"
            rows.append(Text.assemble(styles.word(ticket.severity), text, no_wrap=True, overflow="ellipsis"))
        return Group(*rows)

    def _sparks(self, width: int) -> Text:
        room = max((width - 30) // 2, 8)
        story = self.story
        return self._row(("Bad steps", spark(story.bad, room)), ("Tokens a call", spark(story.tokens, room)))

    def _states(self, now: float, width: int) -> Text:
        """Return its states, over the last hour or since the first that is known."""
        states = self.story.states
        since = max(now - _HOUR, states[0][0] if states else now - _HOUR)
        line = self._row(("States", ""))
        line.append_text(styles.history(states, since, now, max(width - 26, 10)))
        line.append(f" since {clock_time(since)}", style=styles.DIM)
        return line

    @staticmethod
    def _row(*pairs: tuple[str, str]) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        for name, value in pairs:
            line.append(f"{name} ", style=styles.DIM).append(f"{value}  ")
        line.right_crop(1)
        return line

    # -- what can be done -----------------------------------------------------------------------

    def action_nudge(self) -> None:
        """Nudge it."""
        if self.worker is not None:
            actions.nudge(self, self.worker)

    def action_terminate(self) -> None:
        """Stop it, once that is confirmed."""
        if self.worker is not None:
            actions.terminate(self, self.worker)

    def action_acknowledge(self) -> None:
        """Take its ticket."""
        if (ticket := self.ticket()) is not None:
            actions.acknowledge(self, ticket)

    def action_talk(self) -> None:
        """Talk with it, if it is loaded in the service."""
        self.post_message(OpenTalk(self.agent_id))


def _since(now: float, at: float | None) -> str:
    return "never" if at is None else f"{ago(now - at)} ago"


def _used(one: Worker) -> str:
    """Return what a worker used; without a known price the tokens alone."""
    cost = "" if one.cost_usd is None else f", {format_dollars(one.cost_usd)}"
    return f"{amount(one.tokens)}{cost}"


def _verdicts(one: Worker) -> str:
    """Return the first letter of each verdict, the newest last."""
    return "".join(verdict[:1] for verdict in one.verdicts[-_LETTERS:]) or "-"
