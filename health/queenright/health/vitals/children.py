"""Child workers: workers that joined the trace of another worker after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queenright.health.findings import WorkerKey
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.runtime.events import AgentEvent

_MAX_TRACES: Final = 20_000
_MAX_WORKERS: Final = 64
"""The maximum number of traces, and of workers in each trace. The oldest traces are dropped first."""


class Children:
    """The workers of each trace, and the time when each joined it."""

    def __init__(self) -> None:
        self._traces: dict[str, dict[WorkerKey, float]] = {}

    def join(self, key: WorkerKey, event: AgentEvent) -> None:
        """Add a worker to the trace that its start event names."""
        if not event.trace_id:
            return
        workers = self._traces.pop(event.trace_id, {})
        if len(self._traces) >= _MAX_TRACES:
            del self._traces[next(iter(self._traces))]
        self._traces[event.trace_id] = workers
        if len(workers) < _MAX_WORKERS:
            workers.setdefault(key, event.time)

    def rename(self, v: VitalSigns, old: WorkerKey, new: WorkerKey) -> None:
        """Rename a worker in its current trace."""
        workers = self._traces.get(v.last_trace_id, {})
        if old in workers:
            workers[new] = workers.pop(old)

    def of(self, v: VitalSigns) -> Iterator[WorkerKey]:
        """Yield the workers that joined the worker's current trace after it."""
        workers, began = self._find_trace(v)
        return (other for other, at in workers.items() if at > began)

    def parents(self, v: VitalSigns) -> Iterator[WorkerKey]:
        """Yield the workers that joined the worker's current trace before it."""
        workers, began = self._find_trace(v)
        return (other for other, at in workers.items() if at < began)

    def _find_trace(self, v: VitalSigns) -> tuple[dict[WorkerKey, float], float]:
        workers = self._traces.get(v.last_trace_id, {})
        return workers, workers.get((v.agent_id, v.session_id), v.incarnation_started)
