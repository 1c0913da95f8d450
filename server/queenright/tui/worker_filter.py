"""Filter of the list of workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from queenright.api.agents import AgentRow
from queenright.api.terms import Activity, ListedState, list_values

_HEALTH: Final = list_values(ListedState)
_ACTIVITIES: Final = list_values(Activity)


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
            tuple(state for state in _HEALTH if state in words),
            tuple(activity for activity in _ACTIVITIES if activity in words),
            " ".join(word for word in words if word not in _HEALTH + _ACTIVITIES).lower(),
        )

    def __str__(self) -> str:
        return " ".join((*self.health, *self.activities, *([self.text] if self.text else [])))

    def matches(self, worker: AgentRow) -> bool:
        """Return whether a worker is listed."""
        text = (worker.agent_id, worker.session_id, worker.task_id, worker.reason, worker.question)
        return (
            (not self.health or ("ended" if worker.ended else worker.state) in self.health)
            and (not self.activities or worker.activity_kind in self.activities)
            and any(self.text in part.lower() for part in text)
        )
