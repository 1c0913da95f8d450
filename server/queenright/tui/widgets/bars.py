"""The top bar, with service and fleet state, and the status line."""

from __future__ import annotations

from typing import Final

from rich.text import Text
from textual.widgets import Static

from queenright.instrumentation.counts import format_count
from queenright.tui.fleet_state import FleetState
from queenright.tui.formatting import clip
from queenright.tui.styles import DIM, colour, styled, symbol

_WIDE_COLUMNS: Final = 100


class TopBar(Static):
    """Workers per state, open tickets, and the address of the service or its outage."""

    def __init__(self) -> None:
        super().__init__(id="top")

    def show(self, url: str, fleet: FleetState, outage: str, *, has_connected: bool = True) -> None:
        """Update the bar; ``outage`` is empty if the service answers."""
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(" Queenright ", style="bold reverse")
        if outage:
            line.append(f" ✖ {outage}", style=f"bold {colour('failing')}")
        elif not has_connected:
            line.append("  connecting …", style=DIM)
        else:
            for state, count in fleet.counts.items():
                name = f" {state}" if self.size.width >= _WIDE_COLUMNS else ""
                line.append(f"  {symbol(state)} {count}{name}", style=colour(state) if count else DIM)
        live = len(fleet.open_tickets)
        tail = Text(f"{format_count(live, 'ticket')}  {_host(url)} ", style=DIM)
        gap = self.size.width - line.cell_len - tail.cell_len
        if gap > 1:
            line.append(" " * gap)
            line.append_text(tail)
        self.update(line)


class StatusLine(Static):
    """One line with the result of the last action, or an error."""

    def __init__(self) -> None:
        super().__init__(id="status")

    def show(self, kind: str, text: str) -> None:
        """Show a message; ``kind`` is a key of ``styles``."""
        message = f"{symbol(kind)} {clip(text, max(self.size.width - 4, 20))}" if text else ""
        self.update(styled(message, colour(kind)))


def _host(url: str) -> str:
    return url.partition("://")[2] or url
