"""Circuit breakers: who fails again and again is left alone for a while, and then tried with care."""

from queenright.health.breakers.breaker import BreakerMachine, BreakerState
from queenright.health.breakers.circuit import (
    BreakerChange,
    BreakerStatus,
    CallPermit,
    CircuitBreaker,
    CircuitOpen,
)
from queenright.health.breakers.registry import BreakerRegistry, BreakerUnknown
from queenright.health.breakers.store import BreakerStore
from queenright.runtime.breakers import BreakerKind

__all__ = [
    "BreakerChange",
    "BreakerKind",
    "BreakerMachine",
    "BreakerRegistry",
    "BreakerState",
    "BreakerStatus",
    "BreakerStore",
    "BreakerUnknown",
    "CallPermit",
    "CircuitBreaker",
    "CircuitOpen",
]
