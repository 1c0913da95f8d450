"""The messages of a conversation; the last one may still be streaming."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.padding import Padding
from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from queenright.tui.formatting import format_clock_time, strip_control
from queenright.tui.models import ChatEntry
from queenright.tui.styles import DIM, get_colour, style_text


class Chat(VerticalScroll):
    """
    The messages of a conversation.

    Args:
        name: Id of the widget.
    """

    def __init__(self, *, name: str) -> None:
        super().__init__(id=name)
        self._entries: list[ChatEntry] = []
        self._rows: list[Static] = []

    async def show(self, entries: Sequence[ChatEntry], waiting: str = "") -> None:
        """Show messages; ``waiting`` is a last line for an answer that is pending."""
        rows = [*entries, ChatEntry(by="", text=waiting, at=0, is_own=False)] if waiting else list(entries)
        if rows == self._entries:
            return
        was_at_end = self.is_vertical_scroll_end or not self._entries
        for index, entry in enumerate(rows):
            if index >= len(self._rows):
                self._rows.append(Static(_render_message(entry)))
                await self.mount(self._rows[-1])
            elif index >= len(self._entries) or entry != self._entries[index]:
                self._rows[index].update(_render_message(entry))
        for row in self._rows[len(rows) :]:
            await row.remove()
        del self._rows[len(rows) :]
        self._entries = rows
        if was_at_end:
            self.scroll_end(animate=False)


def _render_message(entry: ChatEntry) -> Group | Text:
    text = strip_control(entry.text).strip("\n")
    if not entry.by:
        return style_text(text, DIM)
    head = Text.assemble(
        (
            f"{'»' if entry.is_own else '♛' if entry.by == 'queen' else '●'} {strip_control(entry.by)}",
            _get_author_style(entry),
        ),
        (f"  {format_clock_time(entry.at)}", DIM),
    )
    return Group(head, Padding(Text(text), (0, 0, 1, 2)))


def _get_author_style(entry: ChatEntry) -> str:
    if entry.is_own:
        return f"bold {get_colour('act')}"
    return f"bold {get_colour('queen' if entry.by == 'queen' else 'healthy')}"
