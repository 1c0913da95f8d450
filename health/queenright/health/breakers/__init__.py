"""
Circuit breakers: who fails again and again is left alone for a while, and then tried with care.

``store`` keeps them over restarts; it is not imported here, for it brings the database with it.
"""

from queenright.health.breakers.breaker import BreakerMachine, BreakerState
from queenright.health.breakers.circuit import (
    BreakerChange,
    BreakerStatus,
    CallPermit,
    CircuitBreaker,
    CircuitOpen,
)
from queenright.health.breakers.registry import BreakerNotFoundError, BreakerRegistry
from queenright.health.breakers.reporting import report_change
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
    "CircuitOpen",
    "report_change",
]
