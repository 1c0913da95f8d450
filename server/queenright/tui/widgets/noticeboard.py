"""Notices on top of any screen. They take no focus."""

from __future__ import annotations

from typing import Final

from rich.console import Group
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from queenright.tui.formatting import clip
from queenright.tui.notices import NoticeList, ScreenNotice
from queenright.tui.styles import DIM, get_colour, get_symbol, style_text

_MAX_TEXT_LENGTH = 220
"""Maximum characters of a notice's text: five lines."""


_LINES_BELOW: Final = 3
"""Lines below the notices."""


class NoticeCard(Static):
    """One notice."""

    def __init__(self, notice: ScreenNotice) -> None:
        hints = "Esc: dismiss"
        if notice.ticket_id:
            hints = "Ctrl+Q: queen · " + hints
        title = f"{get_symbol(notice.kind)} {clip(notice.title, 40)}"
        super().__init__(
            Group(
                Text(title, style=f"bold {get_colour(notice.kind)}".strip()),
                Text(clip(notice.text, _MAX_TEXT_LENGTH)),
                Text(hints, style=DIM),
            ),
            classes=f"notice kind-{notice.kind}",
        )


class Noticeboard(Vertical):
    """The notices that fit, newest at the bottom."""

    can_focus = False

    def __init__(self) -> None:
        super().__init__(id="notices")
        self._visible: list[ScreenNotice] = []
        self._hidden_count = 0

    def on_resize(self, event: events.Resize) -> None:
        """Adapt the position to the new size."""
        self._reposition()

    def _reposition(self) -> None:
        """Move to the bottom, above the status line and the keys."""
        self.styles.offset = (0, self.screen.size.height - self.size.height - _LINES_BELOW)

    def compose(self) -> ComposeResult:
        """Start empty."""
        yield from ()

    async def show(self, notices: NoticeList) -> None:
        """Show the current notices."""
        self._reposition()
        if notices.visible == self._visible and notices.hidden_count == self._hidden_count:
            return
        self._visible, self._hidden_count = notices.visible, notices.hidden_count
        await self.remove_children()
        cards: list[Static] = [NoticeCard(notice) for notice in self._visible]
        if self._hidden_count:
            cards.insert(0, Static(style_text(f"and {self._hidden_count} more", DIM)))
        await self.mount_all(cards)
        self.display = bool(cards)
