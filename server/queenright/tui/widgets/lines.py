"""A feed or a stream: lines that come in at the bottom."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.widgets import RichLog

from queenright.tui.event_lines import Line
from queenright.tui.styles import line


class Lines(RichLog):
    """
    Lines, the newest at the bottom. It stays there, unless somebody has scrolled up to read.

    Args:
        name: The widget's.
    """

    def __init__(self, *, name: str) -> None:
        super().__init__(id=name, wrap=True, markup=False, highlight=False, min_width=20, max_lines=1_000)
        self._last: Line | None = None
        self._told: Sequence[Line] = ()
        self._wide = 0
        self._tall = 0

    def show(self, lines: Sequence[Line]) -> None:
        """Show these lines; those that are there already are not drawn again."""
        if not self.size.width or (lines and lines[-1] is self._last and self._wide == self.size.width):
            return
        new = _after(lines, self._last) if self._wide == self.size.width else None
        if new is None:
            self.clear()
            new = list(lines)
        at_end = self._at_end() or not self._told
        for one in new:
            self.write(line(one), scroll_end=at_end)
        self._last, self._told, self._wide = (lines[-1] if lines else None), lines, self.size.width

    def on_resize(self, event: events.Resize) -> None:
        """Break the lines anew; whoever saw the newest goes on to."""
        saw_newest = self._at_end(self._tall - self.size.height)
        self._tall = self.size.height
        self.show(self._told)
        if saw_newest:
            self.scroll_end(animate=False)

    def _at_end(self, lost: int = 0) -> bool:
        """Return whether the newest line is in sight, or was before ``lost`` lines of room went."""
        return self.max_scroll_y - self.scroll_y <= 1 + max(lost, 0)


def _after(lines: Sequence[Line], last: Line | None) -> list[Line] | None:
    """Return the lines after ``last``; None if it is not among them."""
    found: list[Line] = []
    for one in reversed(lines):
        if one is last:
            return found[::-1]
        found.append(one)
    return None
