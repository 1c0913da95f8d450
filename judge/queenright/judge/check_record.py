"""The record of a check of the judge, as an event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from queenright.health.findings import WorkerKey
from queenright.judge.metrics import CheckOutcome
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.nodes.event_loop import NodeResult

_MAX_REASONS = 5
"""The number of wake-up reasons that are listed. Any others are only counted."""


@dataclass(slots=True)
class CheckRecord:
    """The extent and cost of a check, which are filled in during the check."""

    started_at: float
    workers: int = 0
    """The number of checked workers."""
    woken_by: list[str] = field(default_factory=list)
    """The reasons of the check: ``timer`` if all workers were checked, and the events that woke the judge."""
    counted: int = 0
    """The number of workers whose ticket still applies, which were counted without a model call."""
    model_calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    """The cost in US dollars."""

    def note_workers(self, workers: int, *, is_full: bool, wakes: Iterable[str]) -> None:
        """Record how many workers were checked, and why."""
        self.workers = workers
        reasons = [name for name, _ in Counter(wakes).most_common()]
        overflow = [f"and {len(reasons) - _MAX_REASONS} more"] if len(reasons) > _MAX_REASONS else []
        self.woken_by = [*(["timer"] if is_full else []), *reasons[:_MAX_REASONS], *overflow]

    def add_cost(self, result: NodeResult) -> None:
        """Add the cost of a run of the model."""
        self.model_calls += result.turns
        self.tokens += result.input_tokens + result.output_tokens
        self.cost += result.cost

    def event(
        self, outcomes: Mapping[WorkerKey, CheckOutcome], now: float, *, graph_id: str, **fields: Any
    ) -> AgentEvent:
        """Return the record as a ``judge_checked`` event. ``fields`` are added to its data."""
        counts = Counter(outcomes.values())
        outcome = "unknown" if counts["unknown"] else "ticket" if counts["ticket"] else "healthy"
        return AgentEvent(
            type=EventType.JUDGE_CHECKED,
            time=now,
            graph_id=graph_id,
            data={
                "outcome": outcome,
                "woken_by": self.woken_by,
                "workers": self.workers,
                "judged": len(outcomes),
                "tickets": counts["ticket"],
                "healthy": counts["healthy"],
                "unknown": counts["unknown"],
                "counted": self.counted,
                "model_calls": self.model_calls,
                "tokens": self.tokens,
                "cost": round(self.cost, 6),
                "seconds": round(max(0.0, now - self.started_at), 3),
                **fields,
            },
        )
