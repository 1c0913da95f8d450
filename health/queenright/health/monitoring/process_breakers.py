"""Circuit breakers that run in a worker's own process, as the worker reports them."""

from __future__ import annotations

from queenright.health.breakers.circuit_breaker import BreakerStatus
from queenright.health.breakers.registry import BreakerName
from queenright.health.breakers.state_machine import BreakerState
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.vitals.vital_facts import PROCESS_PREFIX
from queenright.instrumentation.errors import ConflictError

_KIND = PROCESS_PREFIX.strip()


class ProcessBreakerError(ConflictError):
    """Raised when a reset is requested for a breaker that runs in a worker's process."""

    def __init__(self, breaker: BreakerStatus) -> None:
        super().__init__(
            f"circuit breaker {breaker.name!r} is in the process of {breaker.agent_id!r}, session "
            f"{breaker.session_id!r}; it closes when a probe there succeeds"
        )


def process_breakers(worker: WorkerHealth) -> list[BreakerStatus]:
    """Return the breakers in a worker's process that are not closed. Their counts and probes are unknown."""
    v = worker.vitals
    if not v.breakers or v.has_ended:
        return []
    states = [(name, BreakerState.OPEN) for name in v.breakers.open]
    states += [(name, BreakerState.HALF_OPEN) for name in v.breakers.half_open]
    return [
        BreakerStatus(
            name=str(BreakerName(_KIND, v.agent_id, f"{v.session_id}:{name.removeprefix(PROCESS_PREFIX)}")),
            kind=_KIND,
            agent_id=v.agent_id,
            session_id=v.session_id,
            target=name.removeprefix(PROCESS_PREFIX),
            state=state,
            failures=0,
            threshold=0,
            reason="reported by the worker's process",
            opened_at=v.breakers_since if len(states) == 1 else None,
            half_open_at=None,
        )
        for name, state in states
        if name.startswith(PROCESS_PREFIX)
    ]
