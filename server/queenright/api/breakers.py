"""Circuit breakers."""

from __future__ import annotations

from pydantic import Field

from queenright.api.base_model import NEXT, ApiModel
from queenright.api.terms import BreakerState


class Breaker(ApiModel):
    """A circuit breaker."""

    name: str
    kind: str = Field(description="What it protects; `process`: reported by a worker.")
    agent_id: str = Field(description="The worker whose calls it guards; empty: all workers.")
    session_id: str = Field(
        description="The session whose process has the breaker, which cannot be reset; empty: service."
    )
    target: str = Field(description="The tool or the provider.")
    state: BreakerState
    failures: int = Field(description="Consecutive failures; 0 in a worker's process.")
    threshold: int = Field(description="Failures that open it; 0 in a worker's process.")
    reason: str = Field(description="Why it is in this state; empty if it never changed.")
    opened_at: float | None = Field(description="Seconds since the epoch; null: closed, or not known.")
    half_open_at: float | None = Field(description="When it allows a probe; null: closed, or not known.")


class BreakersPage(ApiModel):
    """Circuit breakers by name."""

    breakers: list[Breaker]
    next: str | None = Field(description=NEXT)
