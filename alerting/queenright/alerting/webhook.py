"""Alertmanager's webhook, version 4, read strictly: what it says of symptoms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from queenright.instrumentation.faults import explain_fault

MAX_ALERTS: Final = 3_000
"""In one body: so many, with little in each, are as many JSON values as the API takes."""


class InvalidWebhookError(ValueError):
    """Raised when a body is no webhook of Alertmanager; names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SymptomAlert:
    """One alert of Prometheus: a reason to look, never a verdict. ``agent`` is empty if it names none."""

    alertname: str
    agent: str
    status: Literal["firing", "resolved"]


class _Strict(BaseModel):
    # Alertmanager may add keys in later versions; what is read must have its type.
    model_config = ConfigDict(extra="ignore", strict=True)


class _Labels(_Strict):
    alertname: Annotated[str, Field(min_length=1, max_length=200)]
    agent: Annotated[str, Field(max_length=200)] = ""


class _Alert(_Strict):
    status: Literal["firing", "resolved"]
    labels: _Labels


class _Webhook(_Strict):
    version: Literal["4"]
    alerts: Annotated[list[_Alert], Field(max_length=MAX_ALERTS)]


def parse_webhook(body: bytes | str) -> list[SymptomAlert]:
    """
    Read the body that Alertmanager posts.

    Raises:
        InvalidWebhookError: it is no JSON, or a field is missing or wrong; the first one is named.
    """
    try:
        webhook = _Webhook.model_validate_json(body)
    except ValidationError as error:
        raise InvalidWebhookError(
            explain_fault(error.errors(include_url=False, include_input=False)[0])
        ) from None
    return [
        SymptomAlert(alertname=alert.labels.alertname, agent=alert.labels.agent, status=alert.status)
        for alert in webhook.alerts
    ]
