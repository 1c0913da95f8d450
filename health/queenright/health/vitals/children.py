"""Child workers, which work for another worker in its trace and began later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queenright.health.findings import WorkerKey
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.runtime.events import AgentEvent

_TRACES: Final = 20_000
_WORKERS: Final = 64
"""Maximum number of remembered traces, and of workers in each; the newest traces stay."""


class Children:
    """The workers of each trace, with the time when they began in it."""

    def __init__(self) -> None:
        self._traces: dict[str, dict[WorkerKey, float]] = {}

    def join(self, key: WorkerKey, event: AgentEvent) -> None:
        """Add a worker to the trace of its start."""
        if not event.trace_id:
            return
        workers = self._traces.pop(event.trace_id, {})
        if len(self._traces) >= _TRACES:
            del self._traces[next(iter(self._traces))]
        self._traces[event.trace_id] = workers
        if len(workers) < _WORKERS:
            workers.setdefault(key, event.time)

    def rename(self, v: VitalSigns, old: WorkerKey, new: WorkerKey) -> None:
        """Change the name of a worker in its current trace."""
        workers = self._traces.get(v.last_trace_id, {})
        if old in workers:
            workers[new] = workers.pop(old)

    def of(self, v: VitalSigns) -> Iterator[WorkerKey]:
        """Yield the workers that began later in the current trace of a worker."""
        workers, began = self._began(v)
        return (other for other, at in workers.items() if at > began)

    def parents(self, v: VitalSigns) -> Iterator[WorkerKey]:
        """Yield the workers that began earlier in the current trace of a worker."""
        workers, began = self._began(v)
        return (other for other, at in workers.items() if at < began)

    def _began(self, v: VitalSigns) -> tuple[dict[WorkerKey, float], float]:
        workers = self._traces.get(v.last_trace_id, {})
        return workers, workers.get((v.agent_id, v.session_id), v.incarnation_started)
