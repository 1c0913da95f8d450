"""What all screens share: the service, what is known of the fleet, notices, the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from queenright.tui.belonging import Belonging
from queenright.tui.fleet import Fleet
from queenright.tui.link import Link
from queenright.tui.notices import Notices
from queenright.tui.values import Moment

_BRIEF: Final = 10.0
"""Seconds that what was just done is shown."""


@dataclass(slots=True)
class Shared:
    """
    One of these is behind all screens.

    Attributes:
        link: The service.
        clock: Returns seconds since the epoch.
        fleet: What is known.
        notices: What a person must see.
        away: Why nothing comes from the service, in words; empty if it does.
        has_answered: Whether the service has answered once; until then nothing is known.
        talked: Agents that were talked with here.
        owners: Whose run it is that an event is of.
    """

    link: Link
    clock: Callable[[], float]
    fleet: Fleet = field(default_factory=Fleet)
    notices: Notices = field(default_factory=Notices)
    away: str = ""
    has_answered: bool = False
    talked: set[str] = field(default_factory=set)
    owners: Belonging = field(init=False)
    _said: tuple[str, str] = ("", "")
    _until: float = 0.0

    def __post_init__(self) -> None:
        self.owners = Belonging(self.link.has_run)

    def say(self, kind: str, text: str) -> None:
        """Say for a while what was done, or went wrong; ``kind`` is a word of ``looks``."""
        self._said, self._until = (kind, text), self.clock() + _BRIEF

    @property
    def said(self) -> tuple[str, str]:
        """What is said now."""
        return self._said if self.clock() < self._until else ("", "")


def notice_of(event: Moment, notices: Notices) -> int | None:
    """Add the notice that an event deserves, whatever is on the screen; return its number, None for none."""
    if event.type != "queen_intervention_requested":
        return None
    data = event.data
    untriaged = " (not triaged)" if data.get("untriaged") else ""
    return notices.add(
        str(data["severity"]),
        f"{str(data['severity']).upper()} {event.agent_id or 'ticket'}{untriaged}",
        str(data["analysis"]),
        ticket_id=str(data["ticket_id"]),
        agent_id=event.agent_id,
    ).number
