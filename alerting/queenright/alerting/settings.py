"""The ``alerting`` block of the settings: Alertmanager peers, delivery and links."""

from __future__ import annotations

from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator

from queenright.alerting.peer import PeerAddress

Seconds = Annotated[float, Field(gt=0, le=86_400)]

PLACEHOLDERS: Final = frozenset({"agent", "ticket_id", "session_id", "trace_id"})
"""Placeholders that a link template may contain; values are URL-quoted."""


class AlertingSettings(BaseModel):
    """Alertmanager peers, outbox intervals and notification links. Times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alertmanager_urls: Annotated[tuple[str, ...], Field(repr=False)] = ()
    """All peers of the cluster; each gets every alert. With credentials: ``http://user:password@host:9093``."""
    lifetime_seconds: Annotated[float, Field(ge=180, le=30 * 86_400)] = 7 * 86_400
    """Alertmanager resolves an alert that is not sent again for this long."""
    late_resolve_seconds: Seconds = 60
    """Delay of the resolve if the alert was delivered late; must be longer than ``group_wait``."""
    slack_signing_secret_file: Path | None = None
    """File with the signing secret of the Slack app; None: button clicks are not accepted."""
    pagerduty_webhook_secret_files: tuple[Path, ...] = ()
    """Files with the secrets of PagerDuty webhook subscriptions, for example the old and the new one."""
    cluster: Annotated[str, Field(min_length=1, max_length=100)] = "default"
    """Label ``cluster``; must equal Prometheus' external label, otherwise inhibition does not work."""

    console_url: str = "http://127.0.0.1:8420"
    """URL at which people reach this service."""
    runbook_url: str = ""
    """Base URL of the runbooks; ``/runbooks`` of the console if empty."""
    dashboard_url: str = ""
    """URL template, for example ``https://grafana.example/d/queenright-agent?var-agent={agent}``."""
    trace_url: str = ""
    """URL template, for example ``https://tempo.example/trace/{trace_id}``."""

    @field_validator("alertmanager_urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        names = [PeerAddress.parse(url).name for url in urls]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(duplicates)} is listed twice; list each peer once")
        return urls

    @field_validator("dashboard_url", "trace_url")
    @classmethod
    def _template(cls, template: str) -> str:
        try:
            fields = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
        except ValueError as error:
            raise ValueError(f"is not a valid template: {error}") from None
        if unknown := fields - PLACEHOLDERS:
            allowed = ", ".join(f"{{{name}}}" for name in sorted(PLACEHOLDERS))
            raise ValueError(f"{{{sorted(unknown)[0]}}} is unknown; allowed are {allowed}")
        return template

    @field_serializer("alertmanager_urls", when_used="json")
    def _without_credentials(self, urls: tuple[str, ...]) -> Any:
        return [PeerAddress.parse(url).name for url in urls]

    @property
    def runbooks(self) -> str:
        """The base URL of the runbooks, without a trailing slash."""
        return (self.runbook_url or f"{self.console_url.rstrip('/')}/runbooks").rstrip("/")
