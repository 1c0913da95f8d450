"""The lines above and below: whose service it is and how the fleet does, and what was just said."""

from __future__ import annotations

from typing import Final

from rich.text import Text
from textual.widgets import Static

from queenright.tui.fleet import Fleet
from queenright.tui.styles import DIM, colour, sign, styled
from queenright.tui.words import clipped

_WIDE: Final = 100


class TopLine(Static):
    """Where the service is, how many are in which state, and whether it answers."""

    def __init__(self) -> None:
        super().__init__(id="top")

    def show(self, url: str, fleet: Fleet, away: str, *, has_answered: bool = True) -> None:
        """Show it as it is now; ``away`` says that the service does not answer, empty if it does."""
        words = Text(no_wrap=True, overflow="ellipsis")
        words.append(" Queenright ", style="bold reverse")
        if away:
            words.append(f" ✖ {away}", style=f"bold {colour('failing')}")
        elif not has_answered:
            words.append("  connecting …", style=DIM)
        else:
            for state, count in fleet.counts.items():
                name = f" {state}" if self.size.width >= _WIDE else ""
                words.append(f"  {sign(state)} {count}{name}", style=colour(state) if count else DIM)
        live = len(fleet.live_tickets)
        tail = Text(f"{live} ticket{'' if live == 1 else 's'}  {_host(url)} ", style=DIM)
        gap = self.size.width - words.cell_len - tail.cell_len
        if gap > 1:
            words.append(" " * gap)
            words.append_text(tail)
        self.update(words)


class Brief(Static):
    """One line that says what was just done, or went wrong."""

    def __init__(self) -> None:
        super().__init__(id="brief")

    def show(self, kind: str, text: str) -> None:
        """Show a sentence of a kind of ``looks``."""
        said = f"{sign(kind)} {clipped(text, max(self.size.width - 4, 20))}" if text else ""
        self.update(styled(said, colour(kind)))


def _host(url: str) -> str:
    return url.partition("://")[2] or url
