"""The ``alerting`` block of the settings: Alertmanager peers, delivery and links."""

from __future__ import annotations

from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator

from queenright.alerting.peer import PeerAddress

Seconds = Annotated[float, Field(gt=0, le=86_400)]

PLACEHOLDERS: Final = frozenset({"agent", "ticket_id", "session_id", "trace_id"})
"""Placeholders that a link template may contain. Their values are URL-quoted."""


class AlertingSettings(BaseModel):
    """The ``alerting`` block."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alertmanager_urls: Annotated[tuple[str, ...], Field(repr=False)] = ()
    """URLs of all peers of the Alertmanager cluster. Each gets every alert. If empty, no alert is sent."""
    lifetime_seconds: Annotated[float, Field(ge=180, le=30 * 86_400)] = 7 * 86_400
    """
    Seconds without an update after which Alertmanager resolves an alert, for example while the service is
    down.
    """
    late_resolve_seconds: Seconds = 60
    """
    Minimum seconds between a late delivery of an alert and its end. Must exceed Alertmanager's
    ``group_wait``.
    """
    slack_signing_secret_file: Path | None = None
    """File with the signing secret of the Slack app. If unset, clicks on buttons are rejected."""
    pagerduty_webhook_secret_files: tuple[Path, ...] = ()
    """Files with the secrets of PagerDuty webhook subscriptions. If empty, webhooks are rejected."""
    cluster: Annotated[str, Field(min_length=1, max_length=100)] = "default"
    """
    Label ``cluster`` of alerts. Must equal Prometheus' external label, otherwise inhibition does not work.
    """

    console_url: str = "http://127.0.0.1:8420"
    """URL of this service for links in notifications. Defaults to the address on which it listens."""
    runbook_url: str = ""
    """Base URL of the runbooks. If empty, ``/runbooks`` below the console's URL."""
    dashboard_url: str = ""
    """
    Link template such as ``https://grafana.example/d/queenright-agent?var-agent={agent}``. If empty, no link.
    """
    trace_url: str = ""
    """Link template such as ``https://tempo.example/trace/{trace_id}``. If empty, no link."""

    @field_validator("alertmanager_urls")
    @classmethod
    def _check_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        names = [PeerAddress.parse(url).name for url in urls]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(duplicates)} is listed twice; list each peer once")
        return urls

    @field_validator("console_url", "runbook_url", "dashboard_url", "trace_url")
    @classmethod
    def _check_link(cls, url: str) -> str:
        if url and not url.lower().startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return url

    @field_validator("dashboard_url", "trace_url")
    @classmethod
    def _check_template(cls, template: str) -> str:
        try:
            fields = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
        except ValueError as error:
            raise ValueError(f"is not a valid template: {error}") from None
        if unknown := fields - PLACEHOLDERS:
            placeholders = ", ".join(f"{{{name}}}" for name in sorted(PLACEHOLDERS))
            raise ValueError(f"{{{sorted(unknown)[0]}}} is unknown; allowed are {placeholders}")
        return template

    @field_serializer("alertmanager_urls", when_used="json")
    def _without_credentials(self, urls: tuple[str, ...]) -> Any:
        return [PeerAddress.parse(url).name for url in urls]

    @property
    def runbooks(self) -> str:
        """The base URL of the runbooks, without a trailing slash."""
        return (self.runbook_url or f"{self.console_url.rstrip('/')}/runbooks").rstrip("/")
