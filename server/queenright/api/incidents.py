"""Incidents and model providers."""

from __future__ import annotations

from pydantic import Field

from queenright.api.base_model import ApiModel
from queenright.api.terms import ProviderStatus, Severity


class Incident(ApiModel):
    """Tickets of several workers with a shared cause."""

    incident_id: str = Field(description="The id of its first ticket.")
    cause: str = Field(
        description="The shared cause: `provider:anthropic`, `mcp:github`, `tool:search`, or `storm` if only "
        "the time is shared."
    )
    severity: Severity = Field(
        description="The worst severity of its open tickets, or of all its tickets if it is closed."
    )
    opened_at: float = Field(description="Seconds since the epoch.")
    closed_at: float | None = Field(
        description="When calls succeeded again, or the last failure; null while it is open."
    )
    workers: int = Field(description="Sessions with a ticket in it; failed runs of one agent count once.")
    open_tickets: int
    ticket_ids: list[str] = Field(description="Oldest first.")


class Incidents(ApiModel):
    """The open incidents, and those of the last seven days."""

    incidents: list[Incident] = Field(description="Newest first.")


class ProviderError(ApiModel):
    """A type of error and its count."""

    error_type: str
    count: int


class Provider(ApiModel):
    """The fleet's calls of one model at one provider in the last ten minutes."""

    provider: str = Field(description="Empty: unknown.")
    model: str
    status: ProviderStatus = Field(
        description="`degraded` from 10 % failures, `failing` from 50 %; `limited` until the known end of a "
        "rate limit; `unknown` without calls."
    )
    calls: int = Field(description="At most the last 500.")
    failed: int
    errors: list[ProviderError] = Field(description="The three most frequent.")
    seconds_p50: float | None = Field(description="Median duration of successful calls.")
    seconds_p95: float | None
    limited_until: float | None = Field(description="Seconds since the epoch.")
    agents_failing: int = Field(description="Agents whose last call failed.")
    last_success: float | None
    last_failure: float | None


class Providers(ApiModel):
    """Model providers, measured on the fleet's own calls."""

    providers: list[Provider] = Field(description="Providers called within the last hour, by name.")
