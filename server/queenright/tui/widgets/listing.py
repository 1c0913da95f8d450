"""A table of the terminal: one line each, the last column takes what room there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

_BAR: Final = 2
"""Characters that a scroll bar may need."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, and its characters; 0 is all that is left."""

    head: str
    width: int = 0


class Listing(DataTable[Text]):
    """
    Lines that keep their place and their cursor when their content changes.

    Args:
        columns: The columns; one of them may have the width 0.
        name: The widget's.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down", show=False),
        Binding("k", "cursor_up", "Up", show=False),
    ]

    def __init__(self, columns: Sequence[Column], *, name: str) -> None:
        super().__init__(id=name, cursor_type="row", cell_padding=0, zebra_stripes=False)
        self._columns = columns
        self._lines: dict[str, tuple[Text, ...]] = {}
        self._laid_out_for = 0

    @property
    def chosen(self) -> str:
        """The key of the line under the cursor; empty if there is none."""
        keys = list(self._lines)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else ""

    @property
    def room(self) -> int:
        """Characters of the column that takes what is left."""
        fixed = sum(column.width + 1 for column in self._columns if column.width)
        return max(self.size.width - fixed - _BAR, 8)

    def choose(self, key: str) -> None:
        """Move the cursor to a line, if it is there."""
        if key in self._lines:
            self.move_cursor(row=list(self._lines).index(key))

    def show(self, lines: dict[str, tuple[Text, ...]]) -> None:
        """Show these lines by key, in this order; only what has changed is drawn."""
        width = self.size.width
        if list(lines) != list(self._lines) or width != self._laid_out_for:
            self._draw(lines, width)
            return
        for key, cells in lines.items():
            for place, (new, old) in enumerate(zip(cells, self._lines[key], strict=True)):
                if new != old or new.style != old.style:
                    self.update_cell(key, str(place), new)
        self._lines = lines

    def on_resize(self, event: events.Resize) -> None:
        """Give the last column the room that there is now."""
        if event.size.width != self._laid_out_for:
            self._draw(self._lines, event.size.width)

    def _draw(self, lines: dict[str, tuple[Text, ...]], width: int) -> None:
        chosen, place = self.chosen, self.cursor_row
        self.clear(columns=True)
        for number, column in enumerate(self._columns):
            self.add_column(column.head, width=(column.width or self.room) + 1, key=str(number))
        for key, cells in lines.items():
            self.add_row(*cells, key=key)
        self._lines, self._laid_out_for = lines, width
        keys = list(lines)
        if keys:
            # Whoever was chosen stays so, wherever the line went; the top is for who has not chosen yet.
            at_top = place <= 0
            row = keys.index(chosen) if chosen in lines and not at_top else min(max(place, 0), len(keys) - 1)
            self.move_cursor(row=row)
