"""
Circuit breakers: stop calling what keeps failing, and retry it carefully later.

``store`` keeps them over restarts. It is not imported here, because it imports the database.
"""

from queenright.health.breakers.breaker import BreakerMachine, BreakerState
from queenright.health.breakers.circuit import (
    BreakerChange,
    BreakerStatus,
    CallPermit,
    CircuitBreaker,
    CircuitOpenError,
    report_change,
)
from queenright.health.breakers.registry import BreakerNotFoundError, BreakerRegistry
from queenright.runtime.breakers import BreakerKind

__all__ = [
    "BreakerChange",
    "BreakerKind",
    "BreakerMachine",
    "BreakerNotFoundError",
    "BreakerRegistry",
    "BreakerState",
    "BreakerStatus",
    "CallPermit",
    "CircuitBreaker",
    "CircuitOpenError",
    "report_change",
]
