"""Notices shown on every screen until they time out or are dismissed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

NOTICE_SECONDS: Final = 30.0
"""Seconds until a notice disappears."""

_MAX_SHOWN: Final = 3
"""Notices shown at once; more do not fit 24 lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenNotice:
    """A notice; ``kind`` is a key of ``styles``."""

    number: int
    kind: str
    title: str
    text: str
    ticket_id: str = ""
    agent_id: str = ""


class NoticeList:
    """The current notices, oldest first."""

    def __init__(self) -> None:
        self._notices: list[ScreenNotice] = []
        self._last = 0

    def __iter__(self) -> Iterator[ScreenNotice]:
        return iter(self._notices)

    def __len__(self) -> int:
        return len(self._notices)

    @property
    def visible(self) -> list[ScreenNotice]:
        """The newest notices, as many as fit; newest last."""
        return self._notices[-_MAX_SHOWN:]

    @property
    def hidden_count(self) -> int:
        """Number of notices that do not fit."""
        return len(self._notices) - len(self.visible)

    @property
    def newest(self) -> ScreenNotice | None:
        """The notice that Esc dismisses."""
        return self._notices[-1] if self._notices else None

    def add(
        self, kind: str, title: str, text: str, *, ticket_id: str = "", agent_id: str = ""
    ) -> ScreenNotice:
        """Add a notice; a new one about a ticket replaces the previous one."""
        if ticket_id:
            self._notices = [notice for notice in self._notices if notice.ticket_id != ticket_id]
        self._last += 1
        notice = ScreenNotice(
            number=self._last, kind=kind, title=title, text=text, ticket_id=ticket_id, agent_id=agent_id
        )
        self._notices.append(notice)
        return notice

    def dismiss(self, number: int | None = None) -> bool:
        """Remove a notice, by default the newest; return whether it existed."""
        target = number if number is not None else (self.newest.number if self.newest else -1)
        remaining = [notice for notice in self._notices if notice.number != target]
        has_changed = len(remaining) < len(self._notices)
        self._notices = remaining
        return has_changed
