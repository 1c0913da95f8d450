"""A log of event lines, newest at the bottom."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.widgets import RichLog

from queenright.tui.event_lines import EventLine
from queenright.tui.styles import render_line


class EventLog(RichLog):
    """
    Event lines, newest at the bottom. Scrolls with new lines unless the user has scrolled up.

    Args:
        name: Id of the widget.
    """

    def __init__(self, *, name: str) -> None:
        super().__init__(id=name, wrap=True, markup=False, highlight=False, min_width=20, max_lines=1_000)
        self._last: EventLine | None = None
        self._lines: Sequence[EventLine] = ()
        self._drawn_width = 0
        self._height = 0

    def show(self, lines: Sequence[EventLine]) -> None:
        """Show lines; only new ones are drawn."""
        if not self.size.width or (
            lines and lines[-1] is self._last and self._drawn_width == self.size.width
        ):
            return
        new_lines = _lines_after(lines, self._last) if self._drawn_width == self.size.width else None
        if new_lines is None:
            self.clear()
            new_lines = list(lines)
        was_at_end = self._is_at_end() or not self._lines
        for line in new_lines:
            self.write(render_line(line), self.scrollable_content_region.width, scroll_end=was_at_end)
        self._last, self._lines, self._drawn_width = (lines[-1] if lines else None), lines, self.size.width

    def on_resize(self, event: events.Resize) -> None:
        """Wrap the lines again. A log that was scrolled to the end stays at the end."""
        was_at_end = self._is_at_end(self._height - self.size.height)
        self._height = self.size.height
        self.show(self._lines)
        if was_at_end:
            self.scroll_end(animate=False)

    def _is_at_end(self, lost_lines: int = 0) -> bool:
        """Return whether the newest line is visible, or was before the height shrank by ``lost_lines``."""
        return self.max_scroll_y - self.scroll_y <= 1 + max(lost_lines, 0)


def _lines_after(lines: Sequence[EventLine], last: EventLine | None) -> list[EventLine] | None:
    """Return the lines after ``last``; None if it is not among them."""
    new_lines: list[EventLine] = []
    for line in reversed(lines):
        if line is last:
            return new_lines[::-1]
        new_lines.append(line)
    return None
