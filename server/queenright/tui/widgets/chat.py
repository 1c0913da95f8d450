"""What was said, message by message; the last one may still grow."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.padding import Padding
from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from queenright.tui.styles import DIM, colour, styled
from queenright.tui.values import Said
from queenright.tui.words import clock_time, plain


class Chat(VerticalScroll):
    """
    A talk.

    Args:
        name: The widget's.
    """

    def __init__(self, *, name: str) -> None:
        super().__init__(id=name)
        self._shown: list[Said] = []
        self._rows: list[Static] = []

    async def show(self, said: Sequence[Said], waiting: str = "") -> None:
        """Show what was said; ``waiting`` says who is thinking, and is the last line."""
        wanted = [*said, Said(by="", text=waiting, at=0, mine=False)] if waiting else list(said)
        if wanted == self._shown:
            return
        at_end = self.is_vertical_scroll_end or not self._shown
        for place, one in enumerate(wanted):
            if place >= len(self._rows):
                self._rows.append(Static(_message(one)))
                await self.mount(self._rows[-1])
            elif place >= len(self._shown) or one != self._shown[place]:
                self._rows[place].update(_message(one))
        for row in self._rows[len(wanted) :]:
            await row.remove()
        del self._rows[len(wanted) :]
        self._shown = wanted
        if at_end:
            self.scroll_end(animate=False)


def _message(one: Said) -> Group | Text:
    text = plain(one.text).strip("\n")
    if not one.by:
        return styled(text, DIM)
    head = Text.assemble(
        (f"{'»' if one.mine else '♛' if one.by == 'queen' else '●'} {plain(one.by)}", _style(one)),
        (f"  {clock_time(one.at)}", DIM),
    )
    return Group(head, Padding(Text(text), (0, 0, 1, 2)))


def _style(one: Said) -> str:
    if one.mine:
        return f"bold {colour('act')}"
    return f"bold {colour('queen' if one.by == 'queen' else 'healthy')}"
