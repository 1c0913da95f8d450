"""Parse Alertmanager's webhook (version 4) that reports symptoms of agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from queenright.instrumentation.validation_messages import describe_faults

MAX_ALERTS: Final = 3_000
"""Maximum alerts per body; with small alerts, this is the API's limit of JSON values."""


class InvalidWebhookError(ValueError):
    """Raised for a body that is not an Alertmanager webhook; names the invalid field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SymptomAlert:
    """A Prometheus alert about an agent: a reason for a check, not a verdict. ``agent`` may be empty."""

    alertname: str
    agent: str
    status: Literal["firing", "resolved"]


class _Strict(BaseModel):
    # Unknown keys are ignored because later versions may add some; known keys must have the right type.
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
    Parse the body of Alertmanager's webhook.

    Raises:
        InvalidWebhookError: The body is not JSON, or a field is missing or invalid; names the first one.
    """
    try:
        webhook = _Webhook.model_validate_json(body)
    except ValidationError as error:
        raise InvalidWebhookError(describe_faults(error.errors(include_input=False), limit=1)) from None
    return [
        SymptomAlert(alertname=alert.labels.alertname, agent=alert.labels.agent, status=alert.status)
        for alert in webhook.alerts
    ]
