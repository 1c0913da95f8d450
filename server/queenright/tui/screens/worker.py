"""One session of a worker: health, states over time, open work, timeline."""

from __future__ import annotations

from typing import ClassVar, Final

from rich.console import Group
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from queenright.api.agents import AgentRow, Finding
from queenright.api.steps import Step
from queenright.api.tickets import Ticket
from queenright.instrumentation.durations import format_duration
from queenright.instrumentation.money import format_dollars
from queenright.tui import styles
from queenright.tui.formatting import clip, format_clock_time, format_short_number, sparkline
from queenright.tui.models import describe_activity, get_health_or_outcome, is_open
from queenright.tui.screens.base import OpenTalk
from queenright.tui.screens.worker_stream import WorkerStreamScreen
from queenright.tui.session_timeline import describe_open, describe_shadow
from queenright.tui.widgets.event_log import EventLog

_HOUR: Final = 3_600.0
_MAX_VERDICTS: Final = 24
_MAX_OPEN_LINES: Final = 3
"""Maximum number of lines of open work."""
_MAX_SHADOW_LINES: Final = 2
"""Maximum number of lines of findings in shadow mode."""


class WorkerScreen(WorkerStreamScreen):
    """Health and timeline of one session."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("n", "nudge", "Nudge"),
        ("t", "terminate", "Terminate"),
        ("a", "acknowledge", "Acknowledge"),
        ("c", "talk", "Talk"),
        # Listed by "? Keys" only, because the footer would otherwise be longer than 80 columns.
        Binding("slash", "command", "Command", show=False),
    ]

    def compose_body(self) -> ComposeResult:
        """Compose the health summary, the open work and the timeline."""
        yield Static(id="vitals")
        yield Static(id="open-work")
        yield EventLog(name="stream")

    def on_mount(self) -> None:
        """Follow the worker."""
        self.follow()
        self.focus_list()

    def focus_list(self) -> None:
        """Focus the timeline."""
        self.query_one("#stream").focus()

    def ticket(self) -> Ticket | None:
        """Return the worker's ticket."""
        return self.app_state.fleet.worst_ticket_of(self.agent_id)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable only actions that apply."""
        if not super().check_action(action, parameters):
            return False
        if action == "acknowledge":
            ticket = self.ticket()
            return ticket is not None and is_open(ticket)
        return True

    async def draw(self) -> None:
        """Update all widgets from the state."""
        await super().draw()
        worker = self.worker
        vitals = self.query_one("#vitals", Static)
        if worker is None:
            vitals.update(styles.style_text(f"Unknown worker {self.agent_id!r}.", styles.DIM))
        else:
            vitals.update(self._render_vitals(worker, vitals.content_size.width or 78))
        now = self.app_state.clock()
        shadows = [] if worker is None else worker.shadow_findings
        self.query_one("#open-work", Static).update(
            Group(
                *(_render_open_step(step, now) for step in self.timeline.open[:_MAX_OPEN_LINES]),
                *(_render_shadow_finding(finding, now) for finding in shadows[:_MAX_SHADOW_LINES]),
            )
        )
        self.query_one(EventLog).show(self.timeline.lines)

    def _render_vitals(self, worker: AgentRow, width: int) -> Group:
        now = self.app_state.clock()
        state = styles.make_label(get_health_or_outcome(worker), as_of=self.app_state.fleet.attention(worker))
        head = Text.assemble(
            (f"{clip(worker.agent_id, 30)}  ", "bold"),
            state,
            f" for {format_duration(now - worker.state_since)}",
            (f"  {clip(worker.session_id, 30)}", styles.DIM),
            no_wrap=True,
            overflow="ellipsis",
        )
        rows = [
            head,
            self._render_row(("Reason", clip(worker.reason or "no findings", width - 11))),
            self._render_row(
                ("Activity", f"{clip(describe_activity(worker), 12):<12}"),
                ("Node", f"{clip(worker.node_id or '-', 12):<12}"),
                ("Active", _format_age(now, worker.last_activity)),
                ("Progress", _format_age(now, worker.last_progress)),
            ),
            self._render_row(
                ("Steps", f"{worker.steps:<6}"),
                ("Bad", f"{worker.bad_steps:<5}"),
                ("Errors", f"{worker.errors:<5}"),
                ("Tokens", f"{_format_usage(worker):<7}"),
                ("Verdicts", _format_verdicts(worker)),
            ),
            self._render_sparklines(width),
            self._render_states(now, width),
        ]
        ticket = self.ticket()
        if ticket is not None and is_open(ticket):
            text = f" ticket, {ticket.status.replace('_', ' ')}: {ticket.cause}"
            rows.append(
                Text.assemble(styles.make_label(ticket.severity), text, no_wrap=True, overflow="ellipsis")
            )
        return Group(*rows)

    def _render_sparklines(self, width: int) -> Text:
        room = max((width - 32) // 2, 8)
        history = self.history
        return self._render_row(
            ("Bad steps", sparkline(history.bad_steps, room)),
            ("Tokens per call", sparkline(history.tokens, room)),
        )

    def _render_states(self, now: float, width: int) -> Text:
        """Return the states of the last hour, or since the first known one."""
        states = self.history.states
        since = max(now - _HOUR, states[0][0] if states else now - _HOUR)
        line = self._render_row(("States", ""))
        line.append_text(styles.render_states(states, since, now, max(width - 26, 10)))
        line.append(f" since {format_clock_time(since)}", style=styles.DIM)
        return line

    @staticmethod
    def _render_row(*pairs: tuple[str, str]) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        for name, value in pairs:
            line.append(f"{name} ", style=styles.DIM).append(f"{value}  ")
        line.right_crop(1)
        return line

    # -- actions ---------------------------------------------------------------------------

    def action_talk(self) -> None:
        """Open a conversation with the agent."""
        self.post_message(OpenTalk(self.agent_id))


def _render_open_step(step: Step, now: float) -> Text:
    is_stalled = step.fires_at is not None and step.fires_at <= now
    style = styles.get_colour("stuck" if is_stalled else "act")
    line = styles.style_text(f"▶ {clip(describe_open(step, now), 100)}", style)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _render_shadow_finding(finding: Finding, now: float) -> Text:
    text = f"◌ {clip(describe_shadow(finding, now), 200)}"
    return Text(text, style=styles.DIM, no_wrap=True, overflow="ellipsis")


def _format_age(now: float, at: float | None) -> str:
    return "never" if at is None else f"{format_duration(now - at)} ago"


def _format_usage(worker: AgentRow) -> str:
    """Return the tokens of a worker, with their cost if it is known."""
    cost = "" if worker.cost_usd is None else f", {format_dollars(worker.cost_usd)}"
    return f"{format_short_number(worker.tokens)}{cost}"


def _format_verdicts(worker: AgentRow) -> str:
    """Return the first letter of each verdict, newest last."""
    return "".join(verdict[:1] for verdict in worker.verdicts[-_MAX_VERDICTS:]) or "-"
