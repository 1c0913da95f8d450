"""The first screen: the fleet, tickets, circuit breakers and the feed, a tab each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.console import Group
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import ContentSwitcher, DataTable, Static

from queenright.tui import styles
from queenright.tui.screens import actions
from queenright.tui.screens.base import Base, OpenQueen, OpenWorker
from queenright.tui.values import Breaker, Ticket, Worker
from queenright.tui.widgets.lines import Lines
from queenright.tui.widgets.listing import Column, Listing
from queenright.tui.words import ago, amount, clipped, plain, spark

_ACTIVITY: Final = 10
_SESSION: Final = 15
"""Of a session's id the end tells it from others."""
_SENTENCE: Final = 30
_BAD: Final = 5
"""Bad steps from which a worker is worth a look."""

SHOWN: Final = 200
"""Workers that are listed, the worst first: more nobody reads, and drawing them would take too long."""

TABS: Final = ("fleet", "tickets", "breakers", "feed")
_WORKERS: Final = (
    Column("State", 12),
    Column("For", 6, wide=True),
    Column("Agent", 19),
    Column("Session", _SESSION, wide=True),
    Column("Activity", _ACTIVITY),
    Column("Doing", 13),
    Column("Steps", 6, wide=True),
    Column("Bad", 3),
    Column("Tokens", 7, wide=True),
    Column("Why"),
)
_TICKETS: Final = (
    Column("Severity", 10),
    Column("Agent", 19),
    Column("Status", 12),
    Column("Age", 6),
    Column("Times", 5),
    Column("Kind", 16, wide=True),
    Column("Cause"),
)
_BREAKERS: Final = (Column("State", 11), Column("Breaker", 40), Column("Fails", 6), Column("Why"))


class FleetScreen(Base):
    """All that is watched."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"tab('{name}')", name.title(), show=False)
            for number, name in enumerate(TABS, 1)
        ),
        Binding("tab", "next_tab(1)", "Next", show=False, priority=True),
        Binding("shift+tab", "next_tab(-1)", "Before", show=False, priority=True),
        ("n", "nudge", "Nudge"),
        ("t", "terminate", "Terminate"),
        ("a", "acknowledge", "Take"),
        ("r", "reset", "Reset"),
    ]

    def body(self) -> ComposeResult:
        """Lay out the tabs."""
        yield Static(id="tabs")
        with ContentSwitcher(initial="fleet"):
            yield Listing(_WORKERS, name="fleet")
            with Vertical(id="tickets"):
                yield Listing(_TICKETS, name="ticket-list")
                yield Static(id="ticket-detail")
            yield Listing(_BREAKERS, name="breakers")
            yield Lines(name="feed")

    @property
    def tab(self) -> str:
        """Which tab is shown."""
        return self.query_one(ContentSwitcher).current or TABS[0]

    def on_mount(self) -> None:
        """Begin with the fleet."""
        self.focus_list()

    def focus_list(self) -> None:
        """Give the keys to the list that is shown."""
        self.query_one("#ticket-list" if self.tab == "tickets" else f"#{self.tab}").focus()

    def action_tab(self, name: str) -> None:
        """Show a tab."""
        self.query_one(ContentSwitcher).current = name
        self.focus_list()
        self.refresh_bindings()
        self.call_after_refresh(self.paint)

    def action_next_tab(self, by: int) -> None:
        """Show the next tab, or the one before."""
        self.action_tab(TABS[(TABS.index(self.tab) + by) % len(TABS)])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Show only what can be done on this tab."""
        if not self.is_mounted or not self.query(ContentSwitcher):
            return True
        where = {"nudge": "fleet", "terminate": "fleet", "acknowledge": "tickets", "reset": "breakers"}
        if action == "back":
            return bool(self.shared.notices) or not self.query_one("#typed").has_class("away")
        return where.get(action, self.tab) == self.tab

    async def draw(self) -> None:
        """Show everything as it is known now."""
        await super().draw()
        shared = self.shared
        fleet, now = shared.fleet, shared.clock()
        self.query_one("#tabs", Static).update(self._tabs())
        match self.tab:
            case "fleet":
                table = self.query_one("#fleet", Listing)
                table.show({one.key: self._worker(one, now, table.room) for one in fleet.workers[:SHOWN]})
            case "tickets":
                table = self.query_one("#ticket-list", Listing)
                table.show({one.ticket_id: _ticket(one, now, table.room) for one in fleet.tickets})
                self.query_one("#ticket-detail", Static).update(_detail(fleet.ticket(table.chosen)))
            case "breakers":
                table = self.query_one("#breakers", Listing)
                table.show({one.name: _breaker(one, now, table.room) for one in fleet.breakers})
            case _:
                self.query_one(Lines).show(fleet.feed)

    def _tabs(self) -> Text:
        fleet = self.shared.fleet
        open_breakers = sum(one.state != "closed" for one in fleet.breakers)
        counts = {
            "fleet": sum(fleet.counts.values()),
            "tickets": len(fleet.live_tickets),
            "breakers": open_breakers,
        }
        words = Text(" ")
        for number, name in enumerate(TABS, 1):
            count = f" {counts[name]}" if name in counts else ""
            if name == "fleet" and counts[name] > SHOWN:
                count += f", the worst {SHOWN}"
            chosen = name == self.tab
            said = f"[{number} {name.title()}{count}]" if chosen else f" {number} {name.title()}{count} "
            words.append(said, style="bold" if chosen else styles.DIM).append(" ")
        return words

    def _worker(self, one: Worker, now: float, room: int) -> tuple[Text, ...]:
        pulse = self.shared.fleet.pulse(one.agent_id, now, _ACTIVITY)
        state = styles.word(self.shared.fleet.standing(one))
        # Where there is no room for a sentence, the name of the finding says more.
        why = ", ".join(one.findings) if room < _SENTENCE and one.findings else one.reason
        return (
            state,
            Text(ago(now - one.state_since)),
            Text(clipped(one.agent_id, 19)),
            Text(one.session_id[-_SESSION:], style=styles.DIM),
            Text("" if one.ended else spark(pulse, _ACTIVITY), style=styles.colour("low")),
            Text(clipped(one.doing, 13)),
            Text(f"{one.steps:>5}"),
            Text(f"{one.bad_steps:>3}", style=styles.colour("stuck") if one.bad_steps >= _BAD else ""),
            Text(f"{amount(one.tokens):>6}"),
            Text(clipped(why, room), style=styles.DIM),
        )

    # -- what can be done -----------------------------------------------------------------------

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open what the cursor is on."""
        key = str(event.row_key.value or "")
        if self.tab == "fleet":
            self.post_message(OpenWorker(key))
        elif self.tab == "tickets":
            self.post_message(OpenQueen(key))

    async def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the ticket that the cursor is on."""
        if self.tab == "tickets":
            found = self.shared.fleet.ticket(str(event.row_key.value or ""))
            self.query_one("#ticket-detail", Static).update(_detail(found))

    @property
    def worker(self) -> Worker | None:
        """The worker that the cursor is on."""
        return self.shared.fleet.worker(self.query_one("#fleet", Listing).chosen)

    def ticket(self) -> Ticket | None:
        """Return the ticket that the cursor is on, or that of the worker there; else the worst."""
        fleet = self.shared.fleet
        if self.tab == "tickets":
            return fleet.ticket(self.query_one("#ticket-list", Listing).chosen)
        of_worker = fleet.ticket_of(self.worker.agent_id) if self.tab == "fleet" and self.worker else None
        return of_worker or super().ticket()

    def action_nudge(self) -> None:
        """Nudge the worker that the cursor is on."""
        if (worker := self.worker) is not None:
            actions.nudge(self, worker)

    def action_terminate(self) -> None:
        """Stop the worker that the cursor is on, once that is confirmed."""
        if (worker := self.worker) is not None:
            actions.terminate(self, worker)

    def action_acknowledge(self) -> None:
        """Take the ticket that the cursor is on, once that is confirmed."""
        if (ticket := self.ticket()) is not None:
            actions.acknowledge(self, ticket)

    def action_reset(self) -> None:
        """Close the circuit breaker that the cursor is on, once that is confirmed."""
        name = self.query_one("#breakers", Listing).chosen
        if name:
            actions.reset(self, name)


def _ticket(one: Ticket, now: float, room: int) -> tuple[Text, ...]:
    over = "" if one.live else styles.DIM
    status = one.status.replace("_", " ")
    severity = styles.word(one.severity) if one.live else Text(f"  {one.severity}", style=over)
    return (
        severity,
        Text(clipped(one.agent_id, 19), style=over),
        Text(clipped(status, 12), style=over),
        Text(ago(now - one.first_seen), style=over),
        Text(f"{one.occurrences:>4}", style=over),
        Text(clipped(one.kind.replace("_", " "), 16), style=over),
        Text(clipped(one.cause, room), style=over or styles.DIM),
    )


def _detail(one: Ticket | None) -> Group | Text:
    if one is None:
        return styles.styled("No ticket has been written.", styles.DIM)
    rows: Sequence[tuple[str, str]] = (
        ("Cause", one.cause),
        ("Seen", one.evidence),
        ("To do", one.suggested),
        ("Taken", f"by {one.acknowledged_by}" if one.acknowledged_by else ""),
    )
    head = Text.assemble(styles.word(one.severity), "  ", (one.agent_id, "bold"), f"  {one.session_id}")
    said = [
        Text.assemble((f"{name:<7}", styles.DIM), " ".join(plain(text).split()))
        for name, text in rows
        if text
    ]
    return Group(head, *said)


def _breaker(one: Breaker, now: float, room: int) -> tuple[Text, ...]:
    probe = "" if one.half_open_at is None or one.state != "open" else one.half_open_at - now
    when = f"; probed in {ago(probe)}" if isinstance(probe, float) and probe > 0 else ""
    return (
        styles.word(one.state),
        Text(clipped(one.name, 40)),
        Text(f"{one.failures}/{one.threshold}"),
        Text(clipped((one.reason or "as new") + when, room), style=styles.DIM),
    )
