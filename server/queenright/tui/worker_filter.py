"""Which workers of the fleet are listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from queenright.api.agents import AgentRow

_HEALTH: Final = ("failing", "stuck", "degraded", "healthy", "ended")
_ACTIVITIES: Final = ("working", "waiting", "held", "paused", "queued", "idle")


@dataclass(frozen=True, slots=True)
class WorkerFilter:
    """Health states, activities and text of the workers that are listed; empty ones match all."""

    health: tuple[str, ...] = ()
    activities: tuple[str, ...] = ()
    text: str = ""

    @classmethod
    def parse(cls, line: str) -> Self:
        """Return the filter for a line: words that are a health state or an activity, and other text."""
        words = line.split()
        return cls(
            tuple(one for one in _HEALTH if one in words),
            tuple(one for one in _ACTIVITIES if one in words),
            " ".join(one for one in words if one not in _HEALTH + _ACTIVITIES).lower(),
        )

    def __str__(self) -> str:
        return " ".join((*self.health, *self.activities, *([self.text] if self.text else [])))

    def matches(self, one: AgentRow) -> bool:
        """Return whether a worker is listed."""
        text = (one.agent_id, one.session_id, one.task_id, one.reason, one.question)
        return (
            (not self.health or ("ended" if one.ended else one.state) in self.health)
            and (not self.activities or one.activity_kind in self.activities)
            and any(self.text in part.lower() for part in text)
        )
