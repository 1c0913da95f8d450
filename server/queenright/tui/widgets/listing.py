"""A table of the terminal: one line each, the last column takes what room there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

_BAR: Final = 3
"""Characters that a scroll bar and the space beside the lines need."""

_WIDE: Final = 110
"""Characters of a terminal that is wide."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, its characters (0 is all that is left), and whether it needs a wide terminal."""

    head: str
    width: int = 0
    wide: bool = False


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
        columns = [self._columns[place] for place in self._places]
        fixed = sum(column.width + 1 for column in columns if column.width)
        return max(self.size.width - fixed - _BAR, 8)

    @property
    def _places(self) -> list[int]:
        """Which columns there is room for."""
        wide = self.size.width >= _WIDE
        return [place for place, column in enumerate(self._columns) if wide or not column.wide]

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
            for place in self._places:
                new, old = cells[place], self._lines[key][place]
                if new != old or new.style != old.style:
                    self.update_cell(key, str(place), new)
        self._lines = lines

    def on_resize(self, event: events.Resize) -> None:
        """Give the last column the room that there is now."""
        if self.size.width != self._laid_out_for:
            self._draw(self._lines, self.size.width)

    def _draw(self, lines: dict[str, tuple[Text, ...]], width: int) -> None:
        chosen, row = self.chosen, self.cursor_row
        self.clear(columns=True)
        for place in self._places:
            column = self._columns[place]
            self.add_column(
                column.head, width=column.width + 1 if column.width else self.room, key=str(place)
            )
        for key, cells in lines.items():
            self.add_row(*(cells[place] for place in self._places), key=key)
        self._lines, self._laid_out_for = lines, width
        keys = list(lines)
        if keys:
            # Whoever was chosen stays so, wherever the line went; the top is for who has not chosen yet.
            stays = row > 0 and chosen in lines
            self.move_cursor(row=keys.index(chosen) if stays else min(max(row, 0), len(keys) - 1))
