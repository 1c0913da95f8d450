"""Notices on top of whatever is shown. They take no focus, so that nothing stops for them."""

from __future__ import annotations

from typing import Final

from rich.console import Group
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from queenright.tui.notices import Notice, Notices
from queenright.tui.styles import DIM, colour, sign, styled
from queenright.tui.words import clipped

_TEXT = 220
"""Characters of a notice's text: five lines."""


_BELOW: Final = 3
"""Lines below the notices."""


class NoticeCard(Static):
    """One notice."""

    def __init__(self, notice: Notice) -> None:
        hints = "Esc dismisses"
        if notice.ticket_id:
            hints = "Ctrl+Q the queen · " + hints
        title = f"{sign(notice.kind)} {clipped(notice.title, 40)}"
        super().__init__(
            Group(
                Text(title, style=f"bold {colour(notice.kind)}".strip()),
                Text(clipped(notice.text, _TEXT)),
                Text(hints, style=DIM),
            ),
            classes=f"notice kind-{notice.kind}",
        )


class Noticeboard(Vertical):
    """All notices that there is room for, the newest at the bottom."""

    can_focus = False

    def __init__(self) -> None:
        super().__init__(id="notices")
        self._shown: list[Notice] = []
        self._hidden = 0

    def on_resize(self, event: events.Resize) -> None:
        """Find the place again."""
        self._stay()

    def _stay(self) -> None:
        """Stay at the bottom, above what was just said and the keys, whatever size the terminal has."""
        self.styles.offset = (0, self.screen.size.height - self.size.height - _BELOW)

    def compose(self) -> ComposeResult:
        """Nothing at first."""
        yield from ()

    async def show(self, notices: Notices) -> None:
        """Show what is there now."""
        self._stay()
        if notices.shown == self._shown and notices.hidden == self._hidden:
            return
        self._shown, self._hidden = notices.shown, notices.hidden
        await self.remove_children()
        cards: list[Static] = [NoticeCard(one) for one in self._shown]
        if self._hidden:
            cards.insert(0, Static(styled(f"and {self._hidden} more", DIM)))
        await self.mount_all(cards)
        self.display = bool(cards)
