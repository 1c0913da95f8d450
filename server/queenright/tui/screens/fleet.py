"""The first screen, with tabs: what needs you, fleet, tickets, circuit breakers, timeline."""

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
from queenright.api.attention import AttentionItem
from queenright.api.breakers import Breaker
from queenright.api.tickets import Ticket
from queenright.instrumentation.durations import format_duration
from queenright.tui import styles
from queenright.tui.app_state import AppState
from queenright.tui.attention import ANSWERS, format_item_agents, format_item_label, list_answers
from queenright.tui.commands import Command
from queenright.tui.formatting import clip, format_short_number, sparkline, strip_control
from queenright.tui.models import describe_activity, get_health_or_outcome, is_open, make_worker_key
from queenright.tui.screens import actions
from queenright.tui.screens.actions import ActionScreen
from queenright.tui.screens.base import OpenQueen, OpenWorker
from queenright.tui.widgets.event_log import EventLog
from queenright.tui.widgets.row_table import Column, RowTable
from queenright.tui.worker_filter import WorkerFilter

_BAR_COUNT: Final = 10
_SESSION_WIDTH: Final = 15
"""Characters of a session id, from its end, which tells sessions apart."""
_MIN_REASON_WIDTH: Final = 30
_WIDE_COLUMNS: Final = 100
_MANY_BAD_STEPS: Final = 5
"""Consecutive bad steps that are highlighted."""

MAX_WORKERS: Final = 200
"""Maximum number of listed workers, worst first: drawing more would take too long."""

_TITLES: Final = {"needs": "Needs you", "feed": "Timeline"}
_LISTS: Final = {"needs": "need-list", "tickets": "ticket-list"}
TABS: Final = ("needs", "fleet", "tickets", "breakers", "feed")
_ATTENTION_COLUMNS: Final = (
    Column("What", 12),
    Column("Agent", 19),
    Column("For", 6),
    Column("Left", 6),
    Column("Question"),
)
_WORKER_COLUMNS: Final = (
    Column("Health", 12),
    Column("For", 6, wide=True),
    Column("Agent", 19),
    Column("Session", _SESSION_WIDTH, wide=True),
    Column("Events", _BAR_COUNT),
    Column("Activity", 13),
    Column("Steps", 6, wide=True),
    Column("Bad", 3),
    Column("Tokens", 7, wide=True),
    Column("Reason"),
)
_TICKET_COLUMNS: Final = (
    Column("Severity", 10),
    Column("Agent", 19),
    Column("Status", 12),
    Column("Age", 6),
    Column("Count", 5),
    Column("Kind", 16, wide=True),
    Column("Cause"),
)
_BREAKER_COLUMNS: Final = (
    Column("State", 11),
    Column("Breaker", 40),
    Column("Failures", 8),
    Column("Reason"),
)


class FleetScreen(ActionScreen):
    """What needs a person, the fleet, tickets, circuit breakers and the timeline."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"tab('{name}')", name.title(), show=False)
            for number, name in enumerate(TABS, 1)
        ),
        Binding("tab", "next_tab(1)", "Next", show=False, priority=True),
        Binding("shift+tab", "next_tab(-1)", "Previous", show=False, priority=True),
        *(Binding(answer.key, f"answer('{name}')", answer.label) for name, answer in ANSWERS.items()),
        ("n", "nudge", "Nudge"),
        ("f", "filter", "Filter"),
        ("t", "terminate", "Terminate"),
        ("a", "acknowledge", "Acknowledge"),
        ("r", "reset", "Reset"),
    ]

    def __init__(self, app_state: AppState) -> None:
        super().__init__(app_state)
        self._answers: tuple[str, ...] = ()
        """Answers that the footer offers."""

    def compose_body(self) -> ComposeResult:
        """Compose the tabs."""
        yield Static(id="tabs")
        with ContentSwitcher(initial=TABS[0]):
            with Vertical(id="needs"):
                yield RowTable(_ATTENTION_COLUMNS, name="need-list", holds_top=True)
                yield Static(id="need-detail")
            yield RowTable(_WORKER_COLUMNS, name="fleet")
            with Vertical(id="tickets"):
                yield RowTable(_TICKET_COLUMNS, name="ticket-list")
                yield Static(id="ticket-detail")
            yield RowTable(_BREAKER_COLUMNS, name="breakers")
            yield EventLog(name="feed")

    @property
    def tab(self) -> str:
        """Name of the active tab."""
        return self.query_one(ContentSwitcher).current or TABS[0]

    def on_mount(self) -> None:
        """Focus the first list."""
        self.focus_list()

    def focus_list(self) -> None:
        """Focus the list of the active tab."""
        self.query_one(f"#{_LISTS.get(self.tab, self.tab)}").focus()

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
        if not super().check_action(action, parameters):
            return False
        if not self.is_mounted or not self.query(ContentSwitcher):
            return True
        if action == "answer":
            item = self.attention_item
            return item is not None and parameters[0] in list_answers(item)
        tabs = {
            "nudge": "fleet",
            "terminate": "fleet",
            "filter": "fleet",
            "acknowledge": "tickets",
            "reset": "breakers",
        }
        if action == "back":
            is_typing = not self.query_one("#input").has_class("hidden")
            return bool(self.app_state.notices) or is_typing or self._is_filtered
        return tabs.get(action, self.tab) == self.tab

    async def draw(self) -> None:
        """Update all widgets from the state."""
        await super().draw()
        state = self.app_state
        fleet, now = state.fleet, state.clock()
        self.query_one("#tabs", Static).update(self._render_tabs())
        match self.tab:
            case "needs":
                table = self.query_one("#need-list", RowTable)
                table.show(
                    {
                        item.item_id: _render_attention_row(item, now, table.room)
                        for item in fleet.attention_items
                    }
                )
                self._show_attention_item()
            case "fleet":
                table = self.query_one("#fleet", RowTable)
                table.show(
                    {
                        make_worker_key(worker): self._render_worker(worker, now, table.room)
                        for worker in fleet.filtered_workers[:MAX_WORKERS]
                    }
                )
            case "tickets":
                table = self.query_one("#ticket-list", RowTable)
                table.show(
                    {ticket.ticket_id: _render_ticket(ticket, now, table.room) for ticket in fleet.tickets}
                )
                self._show_ticket(fleet.ticket(table.selected))
            case "breakers":
                table = self.query_one("#breakers", RowTable)
                table.show(
                    {breaker.name: _render_breaker(breaker, now, table.room) for breaker in fleet.breakers}
                )
            case _:
                self.query_one(EventLog).show(fleet.feed)

    def _render_tabs(self) -> Text:
        fleet = self.app_state.fleet
        open_breakers = sum(breaker.state != "closed" for breaker in fleet.breakers)
        counts = {
            "needs": fleet.attention_total,
            "fleet": sum(fleet.counts.values()),
            "tickets": len(fleet.open_tickets),
            "breakers": open_breakers,
        }
        line = Text(" ")
        for number, name in enumerate(TABS, 1):
            count = f" {counts[name]}" if name in counts else ""
            if name == "fleet" and counts[name] > MAX_WORKERS:
                count += f", worst {MAX_WORKERS}"
            if name == "fleet" and fleet.filter != WorkerFilter():
                filter_text = clip(fleet.filter, 30 if self.size.width >= _WIDE_COLUMNS else 12)
                count = f" {len(fleet.filtered_workers)}/{len(fleet.workers)}: {filter_text}"
            is_current = name == self.tab
            label = f"{number} {_TITLES.get(name, name.title())}{count}"
            title = f"[{label}]" if is_current else f" {label} "
            line.append(title, style="bold" if is_current else styles.DIM).append(" ")
        return line

    def _render_worker(self, worker: AgentRow, now: float, room: int) -> tuple[Text, ...]:
        events = self.app_state.fleet.activity(worker.agent_id, now, _BAR_COUNT)
        state = styles.make_label(get_health_or_outcome(worker), as_of=self.app_state.fleet.attention(worker))
        # A narrow column has room only for the names of the findings.
        reason = worker.reason
        if room < _MIN_REASON_WIDTH and worker.findings:
            reason = ", ".join(finding.kind.replace("_", " ") for finding in worker.findings)
        return (
            state,
            Text(format_duration(now - worker.state_since)),
            Text(clip(worker.agent_id, 19)),
            Text(worker.session_id[-_SESSION_WIDTH:], style=styles.DIM),
            Text("" if worker.ended else sparkline(events, _BAR_COUNT), style=styles.get_colour("low")),
            Text(clip(describe_activity(worker), 13)),
            Text(f"{worker.steps:>5}"),
            Text(
                f"{worker.bad_steps:>3}",
                style=styles.get_colour("stuck") if worker.bad_steps >= _MANY_BAD_STEPS else "",
            ),
            Text(f"{format_short_number(worker.tokens):>6}"),
            Text(clip(reason, room), style=styles.DIM),
        )

    # -- actions ---------------------------------------------------------------------------

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the selected row."""
        key = str(event.row_key.value or "")
        if self.tab == "needs":
            self._open_item()
        elif self.tab == "fleet":
            self.post_message(OpenWorker(key))
        elif self.tab == "tickets":
            self.post_message(OpenQueen(key))

    async def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the details of the selected item or ticket."""
        if self.tab == "needs":
            self._show_attention_item()
        elif self.tab == "tickets":
            self._show_ticket(self.app_state.fleet.ticket(str(event.row_key.value or "")))

    @property
    def attention_item(self) -> AttentionItem | None:
        """The selected item that needs a person."""
        if self.tab != "needs":
            return None
        return self.app_state.fleet.attention_item(self.query_one("#need-list", RowTable).selected)

    @property
    def _is_filtered(self) -> bool:
        return self.tab == "fleet" and self.app_state.fleet.filter != WorkerFilter()

    def _show_ticket(self, ticket: Ticket | None) -> None:
        """Show the details of a ticket; None if there are no tickets, or they are not loaded yet."""
        placeholder = styles.style_text("No tickets." if self.app_state.has_connected else "", styles.DIM)
        self.query_one("#ticket-detail", Static).update(
            placeholder if ticket is None else _render_ticket_details(ticket)
        )

    def _show_attention_item(self) -> None:
        state, item = self.app_state, self.attention_item
        if item is not None:
            more_count = state.fleet.attention_total - len(state.fleet.attention_items)
            detail: Group | Text = _render_attention_details(item, more_count, may_act=state.may_act)
        else:
            detail = styles.style_text(
                "● Nothing needs you." if state.has_connected else "", styles.get_colour("healthy")
            )
        self.query_one("#need-detail", Static).update(detail)
        answers = list_answers(item) if item is not None else ()
        if answers != self._answers:
            self._answers = answers
            self.refresh_bindings()

    def _open_item(self) -> None:
        """Open the worker of the selected item, or the chat about the first ticket of an incident."""
        if (item := self.attention_item) is None:
            return
        if item.agent_id:
            self.post_message(OpenWorker(f"{item.agent_id}\n{item.session_id}"))
        else:
            self.post_message(OpenQueen(item.ticket_id))

    @property
    def worker(self) -> AgentRow | None:
        """The selected worker."""
        return self.app_state.fleet.worker(self.query_one("#fleet", RowTable).selected)

    def ticket(self) -> Ticket | None:
        """Return the selected ticket, or that of the selected worker, or the worst."""
        fleet = self.app_state.fleet
        if self.tab == "tickets":
            return fleet.ticket(self.query_one("#ticket-list", RowTable).selected)
        if (item := self.attention_item) is not None:
            return fleet.ticket(item.ticket_id)
        worker_ticket = (
            fleet.worst_ticket_of(self.worker.agent_id) if self.tab == "fleet" and self.worker else None
        )
        return worker_ticket or super().ticket()

    def action_answer(self, name: str) -> None:
        """Answer the selected item after confirmation."""
        if (item := self.attention_item) is not None:
            actions.answer(self, item, name)

    def action_filter(self) -> None:
        """Open the command line with the filter of the fleet."""
        self.action_command(f"/filter {self.app_state.fleet.filter}".rstrip() + " ")

    def handle_command(self, command: Command) -> None:
        """Execute a command."""
        if command.name == "filter":
            self.app_state.fleet.filter = WorkerFilter.parse(command.argument)
            self.action_tab("fleet")
        else:
            super().handle_command(command)

    def action_back(self) -> None:
        """Show all workers again, or go back."""
        line = self.query_one("#input")
        if self._is_filtered and line.has_class("hidden") and not self.app_state.notices:
            self.app_state.fleet.filter = WorkerFilter()
            self.action_tab("fleet")
        else:
            super().action_back()

    def action_reset(self) -> None:
        """Reset the selected circuit breaker after confirmation."""
        name = self.query_one("#breakers", RowTable).selected
        if name:
            actions.reset(self, name)


def _render_attention_row(item: AttentionItem, now: float, room: int) -> tuple[Text, ...]:
    return (
        styles.make_label(format_item_label(item), as_of=item.severity or "queen"),
        Text(clip(format_item_agents(item), 19)),
        Text(format_duration(now - item.since)),
        Text("" if item.deadline is None else format_duration(item.deadline - now)),
        Text(clip(item.title, room)),
    )


def _render_attention_details(item: AttentionItem, more_count: int, *, may_act: bool) -> Group:
    head = Text.assemble(
        styles.make_label(format_item_label(item), as_of=item.severity or "queen"),
        "  ",
        (format_item_agents(item), "bold"),
        *(f"  {part}" for part in (item.severity, item.tool, item.session_id) if part),
    )
    rows = [head, Text(" ".join(strip_control(item.title).split()))]
    if item.text:
        rows.append(styles.style_text(" ".join(strip_control(item.text).split()), styles.DIM))
    labels = [(ANSWERS[name].key, ANSWERS[name].label) for name in list_answers(item) if may_act]
    keys = Text()
    for key, label in (*labels, ("Enter", "Open")):
        keys.append(f"{key} ", style=f"bold {styles.get_colour('act')}").append(f"{label}   ")
    if not may_act:
        keys.append("read-only: acting needs the role operator   ", style=styles.DIM)
    elif item.kind == "question" and not item.can_answer:
        keys.append("answer it where it runs   ", style=styles.DIM)
    if more_count > 0:
        keys.append(f"{more_count} more items", style=styles.DIM)
    return Group(*rows, keys)


def _render_ticket(ticket: Ticket, now: float, room: int) -> tuple[Text, ...]:
    style = "" if is_open(ticket) else styles.DIM
    status = ticket.status.replace("_", " ")
    severity = (
        styles.make_label(ticket.severity) if is_open(ticket) else Text(f"  {ticket.severity}", style=style)
    )
    return (
        severity,
        Text(clip(ticket.agent_id, 19), style=style),
        Text(clip(status, 12), style=style),
        Text(format_duration(now - ticket.first_seen), style=style),
        Text(f"{ticket.occurrences:>4}", style=style),
        Text(clip((ticket.words_kind or ticket.kind).replace("_", " "), 16), style=style),
        Text(clip(ticket.cause, room), style=style or styles.DIM),
    )


def _render_ticket_details(ticket: Ticket) -> Group:
    rows: Sequence[tuple[str, str]] = (
        ("Cause", ticket.cause),
        ("Evidence", ticket.evidence_snippet),
        ("Action", ticket.suggested_action),
        ("Acknowledged", ticket.acknowledged_by),
    )
    head = Text.assemble(
        styles.make_label(ticket.severity), "  ", (ticket.agent_id, "bold"), f"  {ticket.session_id}"
    )
    details = [
        Text.assemble((f"{name:<13}", styles.DIM), " ".join(strip_control(text).split()))
        for name, text in rows
        if text
    ]
    return Group(head, *details)


def _render_breaker(breaker: Breaker, now: float, room: int) -> tuple[Text, ...]:
    probe = "" if breaker.half_open_at is None or breaker.state != "open" else breaker.half_open_at - now
    when = f"; half open in {format_duration(probe)}" if isinstance(probe, float) and probe > 0 else ""
    return (
        styles.make_label(breaker.state),
        Text(clip(breaker.name, 40)),
        Text(f"{breaker.failures}/{breaker.threshold}"),
        Text(clip((breaker.reason or "no failures") + when, room), style=styles.DIM),
    )
