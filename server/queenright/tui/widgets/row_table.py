"""A table with one line per row, whose last column takes the remaining width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

_MARGIN: Final = 3
"""Width of the scroll bar and the padding."""

_WIDE_COLUMNS: Final = 110
"""Width from which all columns are shown."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: title, width (0 takes the remaining width), and whether it needs a wide terminal."""

    head: str
    width: int = 0
    wide: bool = False


class RowTable(DataTable[Text]):
    """
    Rows that keep their place and their cursor when their content changes.

    Args:
        columns: The columns; one of them may have the width 0.
        name: Id of the widget.
        holds_top: Whether the cursor follows a top row that moves down. Otherwise it stays at the top.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down", show=False),
        Binding("k", "cursor_up", "Up", show=False),
    ]

    def __init__(self, columns: Sequence[Column], *, name: str, holds_top: bool = False) -> None:
        super().__init__(id=name, cursor_type="row", cell_padding=0, zebra_stripes=False)
        self._columns = columns
        self._holds_top = holds_top
        self._rows_by_key: dict[str, tuple[Text, ...]] = {}
        self._drawn_width = 0

    @property
    def selected(self) -> str:
        """Key of the selected row; empty if there is none."""
        keys = list(self._rows_by_key)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else ""

    @property
    def room(self) -> int:
        """Width of the column that takes the remaining width."""
        columns = [self._columns[index] for index in self._visible]
        fixed_width = sum(column.width + 1 for column in columns if column.width)
        return max(self.size.width - fixed_width - _MARGIN, 8)

    @property
    def _visible(self) -> list[int]:
        """Indexes of the columns that fit."""
        wide = self.size.width >= _WIDE_COLUMNS
        return [index for index, column in enumerate(self._columns) if wide or not column.wide]

    def select(self, key: str) -> None:
        """Select a row, if it exists."""
        if key in self._rows_by_key:
            self.move_cursor(row=list(self._rows_by_key).index(key))

    def show(self, lines: dict[str, tuple[Text, ...]]) -> None:
        """Show rows by key, in order; only changes are drawn."""
        width = self.size.width
        if list(lines) != list(self._rows_by_key) or width != self._drawn_width:
            self._draw(lines, width)
            return
        for key, cells in lines.items():
            for index in self._visible:
                new, old = cells[index], self._rows_by_key[key][index]
                if new != old or new.style != old.style:
                    self.update_cell(key, str(index), new)
        self._rows_by_key = lines

    def on_resize(self, event: events.Resize) -> None:
        """Adapt the last column to the new width."""
        if self.size.width != self._drawn_width:
            self._draw(self._rows_by_key, self.size.width)

    def _draw(self, lines: dict[str, tuple[Text, ...]], width: int) -> None:
        selected, row = self.selected, self.cursor_row
        self.clear(columns=True)
        for index in self._visible:
            column = self._columns[index]
            self.add_column(
                column.head, width=column.width + 1 if column.width else self.room, key=str(index)
            )
        for key, cells in lines.items():
            self.add_row(*(cells[index] for index in self._visible), key=key)
        self._rows_by_key, self._drawn_width = lines, width
        keys = list(lines)
        if keys:
            # A selected row stays selected when it moves.
            should_stay = selected in lines and (row > 0 or self._holds_top)
            self.move_cursor(row=keys.index(selected) if should_stay else min(max(row, 0), len(keys) - 1))
