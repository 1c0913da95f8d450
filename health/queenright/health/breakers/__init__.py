"""
Circuit breakers, which stop calls that keep failing and retry them carefully later.

``store`` keeps their states across restarts. It is not imported here, because it imports the database.
"""

from queenright.health.breakers.circuit_breaker import (
    BreakerChange,
    BreakerStatus,
    CallPermit,
    CircuitBreaker,
    CircuitOpenError,
    report_change,
)
from queenright.health.breakers.registry import BreakerNotFoundError, BreakerRegistry
from queenright.health.breakers.state_machine import BreakerMachine, BreakerState
from queenright.runtime.breaker_protocols import BreakerKind

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
