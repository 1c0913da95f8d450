"""The record of one check of the judge: one event, for every outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from queenright.health.findings import WorkerKey
from queenright.judge.metrics import CheckOutcome
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.nodes.event_loop import NodeResult

_REASONS = 5
"""Number of wake-up reasons that are listed; the others are only counted."""


@dataclass(slots=True)
class CheckRecord:
    """Extent and cost of a check; filled during the check."""

    started_at: float
    workers: int = 0
    """Number of checked workers."""
    woken_by: list[str] = field(default_factory=list)
    """``timer`` if all workers were checked, and what else woke the judge."""
    counted: int = 0
    """Workers whose ticket still applies: counted without a model call."""
    model_calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    """Dollars."""

    def note_workers(self, workers: int, *, is_full: bool, wakes: Iterable[str]) -> None:
        """Note how many workers were checked, and why."""
        self.workers = workers
        reasons = [name for name, _ in Counter(wakes).most_common()]
        more = [f"and {len(reasons) - _REASONS} more"] if len(reasons) > _REASONS else []
        self.woken_by = [*(["timer"] if is_full else []), *reasons[:_REASONS], *more]

    def add_cost(self, result: NodeResult) -> None:
        """Add the cost of one run of the model."""
        self.model_calls += result.turns
        self.tokens += result.input_tokens + result.output_tokens
        self.cost += result.cost

    def event(
        self, outcomes: Mapping[WorkerKey, CheckOutcome], now: float, *, graph_id: str, **more: Any
    ) -> AgentEvent:
        """Return the record as an event: ``judge_checked``."""
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
                **more,
            },
        )
