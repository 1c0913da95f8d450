"""Reports of circuit breakers from a process that Queenright does not run, in its telemetry."""

from __future__ import annotations

from queenright.health.breakers.circuit import BreakerChange
from queenright.instrumentation.worker import current_worker


def report_change(change: BreakerChange) -> None:
    """Report a change of state as the worker whose call caused it; without a worker, not at all."""
    worker = current_worker()
    if worker is not None:
        worker.circuit_breaker(change.status.name, change.status.state.value)
