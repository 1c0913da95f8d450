"""Notices: what a person must see now, wherever they are; each goes by itself or when it is dismissed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

STAYS: Final = 30.0
"""Seconds that a notice is there."""

_SHOWN: Final = 3
"""Notices at once; there is no room for more in 24 lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One of them; ``kind`` is a severity, or a word of ``looks``."""

    number: int
    kind: str
    title: str
    text: str
    ticket_id: str = ""
    agent_id: str = ""


class Notices:
    """Those that are there, oldest first."""

    def __init__(self) -> None:
        self._there: list[Notice] = []
        self._last = 0

    def __iter__(self) -> Iterator[Notice]:
        return iter(self._there)

    def __len__(self) -> int:
        return len(self._there)

    @property
    def shown(self) -> list[Notice]:
        """The newest, which there is room for; newest last."""
        return self._there[-_SHOWN:]

    @property
    def hidden(self) -> int:
        """How many there is no room for."""
        return len(self._there) - len(self.shown)

    @property
    def newest(self) -> Notice | None:
        """The one that Esc dismisses."""
        return self._there[-1] if self._there else None

    def add(self, kind: str, title: str, text: str, *, ticket_id: str = "", agent_id: str = "") -> Notice:
        """Add one; a new one about a ticket takes the place of what was said of it before."""
        if ticket_id:
            self._there = [one for one in self._there if one.ticket_id != ticket_id]
        self._last += 1
        notice = Notice(
            number=self._last, kind=kind, title=title, text=text, ticket_id=ticket_id, agent_id=agent_id
        )
        self._there.append(notice)
        return notice

    def dismiss(self, number: int | None = None) -> bool:
        """Take one away, the newest without ``number``; return whether it was there."""
        gone = number if number is not None else (self.newest.number if self.newest else -1)
        left = [one for one in self._there if one.number != gone]
        was_there = len(left) < len(self._there)
        self._there = left
        return was_there
