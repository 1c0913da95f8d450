"""Where notifications go and what their links point at: the ``alerting`` block of the settings."""

from __future__ import annotations

from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

from queenright.alerting.peer import PeerAddress

Seconds = Annotated[float, Field(gt=0, le=86_400)]

PLACEHOLDERS: Final = frozenset({"agent", "ticket_id", "session_id", "trace_id"})
"""What a link's template may hold in braces; values are URL-quoted."""


class AlertingSettings(BaseModel):
    """Alertmanager's peers, the clock of the outbox, and the links of a notification. Times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alertmanager_urls: Annotated[tuple[str, ...], Field(repr=False)] = ()
    """Every peer of the cluster, for each is told; ``http://user:password@host:9093`` logs in."""
    resend_seconds: Seconds = 60
    """How often an active alert is repeated to a peer, which forgets it otherwise."""
    lifetime_seconds: Annotated[float, Field(gt=0, le=30 * 86_400)] = 7 * 86_400
    """An alert that is not repeated for so long ends by itself at Alertmanager: people get an all-clear."""
    late_resolve_seconds: Seconds = 60
    """A notification that was late, and over when it left, ends so much later; longer than ``group_wait``."""
    timeout_seconds: Seconds = 10
    """How long a peer may take to answer."""
    silences_seconds: Seconds = 30
    """How often every peer is asked which alerts are silenced."""
    slack_signing_secret_file: Path | None = None
    """Holds the signing secret of the Slack app whose buttons are clicked; None: no clicks are taken."""
    pagerduty_webhook_secret_files: tuple[Path, ...] = ()
    """Each holds the secret of a webhook subscription of PagerDuty, say the old and the new one."""
    cluster: Annotated[str, Field(min_length=1, max_length=100)] = "default"
    """Label ``cluster``: the same as Prometheus' external label, or inhibition between the two ends."""

    console_url: str = "http://127.0.0.1:8420"
    """Where people reach this service."""
    runbook_url: str = ""
    """Base of the runbooks' addresses; ``/runbooks`` of the console if empty."""
    dashboard_url: str = ""
    """Template, for example ``https://grafana.example/d/queenright-agent?var-agent={agent}``."""
    trace_url: str = ""
    """Template, for example ``https://tempo.example/trace/{trace_id}``."""

    @field_validator("alertmanager_urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        names = [PeerAddress.parse(url).name for url in urls]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)} is named twice")
        return urls

    @field_validator("dashboard_url", "trace_url")
    @classmethod
    def _template(cls, template: str) -> str:
        try:
            fields = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
        except ValueError as error:
            raise ValueError(f"is no template: {error}") from None
        if unknown := fields - PLACEHOLDERS:
            allowed = ", ".join(f"{{{name}}}" for name in sorted(PLACEHOLDERS))
            raise ValueError(f"{{{sorted(unknown)[0]}}} is unknown; allowed are {allowed}")
        return template

    @model_validator(mode="after")
    def _outlives_resend(self) -> AlertingSettings:
        if self.lifetime_seconds < 3 * self.resend_seconds:
            raise ValueError(
                f"lifetime_seconds ({self.lifetime_seconds:g}) must be at least three times resend_seconds "
                f"({self.resend_seconds:g}), or a lost repeat ends an alert that still holds"
            )
        return self

    @field_serializer("alertmanager_urls", when_used="json")
    def _without_credentials(self, urls: tuple[str, ...]) -> Any:
        return [PeerAddress.parse(url).name for url in urls]

    @property
    def runbooks(self) -> str:
        """The base of the runbooks' addresses, without a slash at its end."""
        return (self.runbook_url or f"{self.console_url.rstrip('/')}/runbooks").rstrip("/")
