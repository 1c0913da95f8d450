"""What several workers share over HTTP: incidents, and how their model providers do."""

from __future__ import annotations

from pydantic import Field

from queenright.api.terms import ProviderStatus, Severity
from queenright.api.wire import NOW, Wire, example_of, shown


class Incident(Wire):
    """Tickets of several workers that are one trouble."""

    model_config = shown(
        {
            "incident_id": "018f6f7e-0000-7000-8000-000000000001",
            "cause": "provider:anthropic",
            "severity": "critical",
            "opened_at": NOW - 300,
            "closed_at": None,
            "workers": 40,
            "open_tickets": 38,
            "ticket_ids": ["018f6f7e-0000-7000-8000-000000000001"],
        }
    )

    incident_id: str = Field(description="The id of its first ticket.")
    cause: str = Field(
        description="What they share: `provider:anthropic`, `mcp:github`, `tool:search`, or `storm` where no "
        "more is known than that many got worse at once."
    )
    severity: Severity = Field(description="The worst of its open tickets; once closed, of all.")
    opened_at: float = Field(description="Seconds since the epoch.")
    closed_at: float | None = Field(description="When its last ticket closed; null while one is open.")
    workers: int = Field(description="Sessions that have a ticket in it.")
    open_tickets: int
    ticket_ids: list[str] = Field(description="Oldest first.")


class Incidents(Wire):
    """The incidents of the last seven days."""

    model_config = shown({"incidents": [example_of(Incident)]})

    incidents: list[Incident] = Field(description="Newest first.")


class ProviderError(Wire):
    """A class of error and how often it came."""

    model_config = shown({"error_type": "overloaded_error", "count": 12})

    error_type: str
    count: int


class Provider(Wire):
    """What the fleet's calls of one model at one provider came to in the last ten minutes."""

    model_config = shown(
        {
            "provider": "anthropic",
            "model": "claude-sonnet-4-5",
            "status": "failing",
            "calls": 40,
            "failed": 31,
            "errors": [example_of(ProviderError)],
            "seconds_p50": 4.2,
            "seconds_p95": 21.5,
            "limited_until": None,
            "agents_failing": 12,
            "last_success": NOW - 240,
            "last_failure": NOW - 2,
        }
    )

    provider: str = Field(description="Empty if no telemetry says it.")
    model: str
    status: ProviderStatus = Field(
        description="`degraded` from a tenth of failed calls on, `failing` from a half; `limited` while a "
        "rate limit holds that said until when; `unknown` without a call."
    )
    calls: int = Field(description="The last 500 at most.")
    failed: int
    errors: list[ProviderError] = Field(description="The three most frequent.")
    seconds_p50: float | None = Field(description="How long calls took that succeeded: the median.")
    seconds_p95: float | None
    limited_until: float | None = Field(description="Seconds since the epoch.")
    agents_failing: int = Field(description="Agents whose last call failed.")
    last_success: float | None
    last_failure: float | None


class Providers(Wire):
    """How model providers do, by the fleet's own calls."""

    model_config = shown({"providers": [example_of(Provider)]})

    providers: list[Provider] = Field(description="Called within the hour, by name.")
