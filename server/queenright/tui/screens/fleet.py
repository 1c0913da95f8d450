"""The first screen, with tabs: fleet, tickets, circuit breakers, timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.console import Group
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import ContentSwitcher, DataTable, Static

from queenright.api.agents import AgentRow
from queenright.api.breakers import Breaker
from queenright.api.tickets import Ticket
from queenright.tui import styles
from queenright.tui.formatting import clip, short_duration, short_number, sparkline, strip_control
from queenright.tui.models import current_activity, health_or_outcome, is_open, worker_key
from queenright.tui.screens import actions
from queenright.tui.screens.base import AppScreen, OpenQueen, OpenWorker
from queenright.tui.widgets.event_log import EventLog
from queenright.tui.widgets.row_table import Column, RowTable

_BARS: Final = 10
_SESSION_WIDTH: Final = 15
"""Characters of a session id, from its end, which tells sessions apart."""
_MIN_REASON_WIDTH: Final = 30
_MANY_BAD_STEPS: Final = 5
"""Consecutive bad steps that are highlighted."""

MAX_WORKERS: Final = 200
"""Maximum number of listed workers, worst first: drawing more would take too long."""

_TITLES: Final = {"feed": "Timeline"}
TABS: Final = ("fleet", "tickets", "breakers", "feed")
_WORKERS: Final = (
    Column("Health", 12),
    Column("For", 6, wide=True),
    Column("Agent", 19),
    Column("Session", _SESSION_WIDTH, wide=True),
    Column("Events", _BARS),
    Column("Activity", 13),
    Column("Steps", 6, wide=True),
    Column("Bad", 3),
    Column("Tokens", 7, wide=True),
    Column("Reason"),
)
_TICKETS: Final = (
    Column("Severity", 10),
    Column("Agent", 19),
    Column("Status", 12),
    Column("Age", 6),
    Column("Count", 5),
    Column("Kind", 16, wide=True),
    Column("Cause"),
)
_BREAKERS: Final = (Column("State", 11), Column("Breaker", 40), Column("Failures", 8), Column("Reason"))


class FleetScreen(AppScreen):
    """The fleet, tickets, circuit breakers and the timeline."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"tab('{name}')", name.title(), show=False)
            for number, name in enumerate(TABS, 1)
        ),
        Binding("tab", "next_tab(1)", "Next", show=False, priority=True),
        Binding("shift+tab", "next_tab(-1)", "Previous", show=False, priority=True),
        ("n", "nudge", "Nudge"),
        ("t", "terminate", "Terminate"),
        ("a", "acknowledge", "Ack"),
        ("r", "reset", "Reset"),
    ]

    def compose_body(self) -> ComposeResult:
        """Compose the tabs."""
        yield Static(id="tabs")
        with ContentSwitcher(initial="fleet"):
            yield RowTable(_WORKERS, name="fleet")
            with Vertical(id="tickets"):
                yield RowTable(_TICKETS, name="ticket-list")
                yield Static(id="ticket-detail")
            yield RowTable(_BREAKERS, name="breakers")
            yield EventLog(name="feed")

    @property
    def tab(self) -> str:
        """Name of the active tab."""
        return self.query_one(ContentSwitcher).current or TABS[0]

    def on_mount(self) -> None:
        """Focus the fleet."""
        self.focus_list()

    def focus_list(self) -> None:
        """Focus the list of the active tab."""
        self.query_one("#ticket-list" if self.tab == "tickets" else f"#{self.tab}").focus()

    def action_tab(self, name: str) -> None:
        """Switch to a tab."""
        self.query_one(ContentSwitcher).current = name
        self.focus_list()
        self.refresh_bindings()
        self.call_after_refresh(self.redraw)

    def action_next_tab(self, by: int) -> None:
        """Switch to the next or the previous tab."""
        self.action_tab(TABS[(TABS.index(self.tab) + by) % len(TABS)])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable only the actions of the active tab."""
        if not self.is_mounted or not self.query(ContentSwitcher):
            return True
        tabs = {"nudge": "fleet", "terminate": "fleet", "acknowledge": "tickets", "reset": "breakers"}
        if action == "back":
            return bool(self.app_state.notices) or not self.query_one("#input").has_class("hidden")
        return tabs.get(action, self.tab) == self.tab

    async def draw(self) -> None:
        """Update all widgets from the state."""
        await super().draw()
        state = self.app_state
        fleet, now = state.fleet, state.clock()
        self.query_one("#tabs", Static).update(self._tabs())
        match self.tab:
            case "fleet":
                table = self.query_one("#fleet", RowTable)
                table.show(
                    {
                        worker_key(one): self._worker(one, now, table.room)
                        for one in fleet.workers[:MAX_WORKERS]
                    }
                )
            case "tickets":
                table = self.query_one("#ticket-list", RowTable)
                table.show({one.ticket_id: _ticket(one, now, table.room) for one in fleet.tickets})
                self.query_one("#ticket-detail", Static).update(_detail(fleet.ticket(table.selected)))
            case "breakers":
                table = self.query_one("#breakers", RowTable)
                table.show({one.name: _breaker(one, now, table.room) for one in fleet.breakers})
            case _:
                self.query_one(EventLog).show(fleet.feed)

    def _tabs(self) -> Text:
        fleet = self.app_state.fleet
        open_breakers = sum(one.state != "closed" for one in fleet.breakers)
        counts = {
            "fleet": sum(fleet.counts.values()),
            "tickets": len(fleet.open_tickets),
            "breakers": open_breakers,
        }
        line = Text(" ")
        for number, name in enumerate(TABS, 1):
            count = f" {counts[name]}" if name in counts else ""
            if name == "fleet" and counts[name] > MAX_WORKERS:
                count += f", worst {MAX_WORKERS}"
            chosen = name == self.tab
            label = f"{number} {_TITLES.get(name, name.title())}{count}"
            title = f"[{label}]" if chosen else f" {label} "
            line.append(title, style="bold" if chosen else styles.DIM).append(" ")
        return line

    def _worker(self, one: AgentRow, now: float, room: int) -> tuple[Text, ...]:
        events = self.app_state.fleet.activity(one.agent_id, now, _BARS)
        state = styles.label(health_or_outcome(one), as_of=self.app_state.fleet.attention(one))
        # A narrow column has no room for a sentence, but for the name of the finding.
        why = one.reason
        if room < _MIN_REASON_WIDTH and one.findings:
            why = ", ".join(finding.kind.replace("_", " ") for finding in one.findings)
        return (
            state,
            Text(short_duration(now - one.state_since)),
            Text(clip(one.agent_id, 19)),
            Text(one.session_id[-_SESSION_WIDTH:], style=styles.DIM),
            Text("" if one.ended else sparkline(events, _BARS), style=styles.colour("low")),
            Text(clip(current_activity(one), 13)),
            Text(f"{one.steps:>5}"),
            Text(
                f"{one.bad_steps:>3}",
                style=styles.colour("stuck") if one.bad_steps >= _MANY_BAD_STEPS else "",
            ),
            Text(f"{short_number(one.tokens):>6}"),
            Text(clip(why, room), style=styles.DIM),
        )

    # -- actions ---------------------------------------------------------------------------

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the selected row."""
        key = str(event.row_key.value or "")
        if self.tab == "fleet":
            self.post_message(OpenWorker(key))
        elif self.tab == "tickets":
            self.post_message(OpenQueen(key))

    async def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the details of the selected ticket."""
        if self.tab == "tickets":
            ticket = self.app_state.fleet.ticket(str(event.row_key.value or ""))
            self.query_one("#ticket-detail", Static).update(_detail(ticket))

    @property
    def worker(self) -> AgentRow | None:
        """The selected worker."""
        return self.app_state.fleet.worker(self.query_one("#fleet", RowTable).selected)

    def ticket(self) -> Ticket | None:
        """Return the selected ticket, or that of the selected worker, or the worst."""
        fleet = self.app_state.fleet
        if self.tab == "tickets":
            return fleet.ticket(self.query_one("#ticket-list", RowTable).selected)
        of_worker = (
            fleet.worst_ticket_of(self.worker.agent_id) if self.tab == "fleet" and self.worker else None
        )
        return of_worker or super().ticket()

    def action_nudge(self) -> None:
        """Nudge the selected worker."""
        if (worker := self.worker) is not None:
            actions.nudge(self, worker)

    def action_terminate(self) -> None:
        """Terminate the selected worker after confirmation."""
        if (worker := self.worker) is not None:
            actions.terminate(self, worker)

    def action_acknowledge(self) -> None:
        """Acknowledge the selected ticket after confirmation."""
        if (ticket := self.ticket()) is not None:
            actions.acknowledge(self, ticket)

    def action_reset(self) -> None:
        """Reset the selected circuit breaker after confirmation."""
        name = self.query_one("#breakers", RowTable).selected
        if name:
            actions.reset(self, name)


def _ticket(one: Ticket, now: float, room: int) -> tuple[Text, ...]:
    style = "" if is_open(one) else styles.DIM
    status = one.status.replace("_", " ")
    severity = styles.label(one.severity) if is_open(one) else Text(f"  {one.severity}", style=style)
    return (
        severity,
        Text(clip(one.agent_id, 19), style=style),
        Text(clip(status, 12), style=style),
        Text(short_duration(now - one.first_seen), style=style),
        Text(f"{one.occurrences:>4}", style=style),
        Text(clip((one.words_kind or one.kind).replace("_", " "), 16), style=style),
        Text(clip(one.cause, room), style=style or styles.DIM),
    )


def _detail(one: Ticket | None) -> Group | Text:
    if one is None:
        return styles.styled("No tickets.", styles.DIM)
    rows: Sequence[tuple[str, str]] = (
        ("Cause", one.cause),
        ("Evidence", one.evidence_snippet),
        ("Action", one.suggested_action),
        ("Acked by", one.acknowledged_by),
    )
    head = Text.assemble(styles.label(one.severity), "  ", (one.agent_id, "bold"), f"  {one.session_id}")
    details = [
        Text.assemble((f"{name:<9}", styles.DIM), " ".join(strip_control(text).split()))
        for name, text in rows
        if text
    ]
    return Group(head, *details)


def _breaker(one: Breaker, now: float, room: int) -> tuple[Text, ...]:
    probe = "" if one.half_open_at is None or one.state != "open" else one.half_open_at - now
    when = f"; half open in {short_duration(probe)}" if isinstance(probe, float) and probe > 0 else ""
    return (
        styles.label(one.state),
        Text(clip(one.name, 40)),
        Text(f"{one.failures}/{one.threshold}"),
        Text(clip((one.reason or "no failures") + when, room), style=styles.DIM),
    )
