"""
Parse Alertmanager's webhooks (version 4): symptoms of agents, and notifications that it sent to people.

An alert that a peer accepted may still be silenced, inhibited or waiting for its group. Receivers for people
therefore also post to a webhook, which reports who was notified about which ticket.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from queenright.alerting.callbacks.display_name import display_name
from queenright.alerting.notification import alert_key
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifiedAlert:
    """One alert of a notification."""

    ticket_id: str
    alert_key: str
    """The outbox key of the alert."""
    status: Literal["firing", "resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverNotification:
    """One notification: a group of alerts sent to one receiver."""

    receiver: str
    dedup_key: str
    alerts: tuple[NotifiedAlert, ...]
    """The alerts about tickets."""
    truncated: int = 0
    """Number of alerts that Alertmanager left out of this body."""


class _Read(BaseModel):
    # Unknown keys are ignored because later versions may add some; known keys must have the right type.
    model_config = ConfigDict(extra="ignore", strict=True)


class _SymptomLabels(_Read):
    alertname: Annotated[str, Field(min_length=1, max_length=200)]
    agent: Annotated[str, Field(max_length=200)] = ""


class _Symptom(_Read):
    status: Literal["firing", "resolved"]
    labels: _SymptomLabels


class SymptomsBody(_Read):
    """Alertmanager's webhook payload with symptoms."""

    version: Literal["4"]
    alerts: Annotated[list[_Symptom], Field(max_length=MAX_ALERTS)]


class _Annotations(_Read):
    ticket_id: Annotated[str, Field(max_length=100)] = ""


class _Alert(_Read):
    status: Literal["firing", "resolved"]
    labels: Annotated[dict[str, str], Field(max_length=100)]
    annotations: _Annotations = _Annotations()


class NotificationBody(_Read):
    """Alertmanager's webhook payload about one notification."""

    model_config = ConfigDict(extra="ignore", strict=True, alias_generator=to_camel)

    version: Literal["4"]
    group_key: Annotated[str, Field(min_length=1, max_length=100_000)]
    receiver: Annotated[str, Field(min_length=1, max_length=200)]
    alerts: Annotated[list[_Alert], Field(max_length=MAX_ALERTS)]
    truncated_alerts: Annotated[int, Field(ge=0)] = 0


_Model = TypeVar("_Model", bound=_Read)


def _parse(model: type[_Model], body: bytes | str) -> _Model:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise InvalidWebhookError(describe_faults(error.errors(include_input=False), limit=1)) from None


def parse_symptoms(body: bytes | str) -> list[SymptomAlert]:
    """
    Parse the body of Alertmanager's webhook that reports symptoms of agents.

    Raises:
        InvalidWebhookError: The body is not JSON, or a field is missing or invalid; names the first one.
    """
    return [
        SymptomAlert(alertname=alert.labels.alertname, agent=alert.labels.agent, status=alert.status)
        for alert in _parse(SymptomsBody, body).alerts
    ]


def dedup_key(group_key: str) -> str:
    """Return the dedup key that Alertmanager sends to PagerDuty: the SHA-256 of the group key, in hex."""
    return hashlib.sha256(group_key.encode()).hexdigest()


def parse_notification(body: bytes) -> ReceiverNotification:
    """
    Parse the body that Alertmanager posts after notifying a receiver.

    Raises:
        InvalidWebhookError: The body is not JSON, or a field is missing or invalid; names the first one.
    """
    webhook = _parse(NotificationBody, body)
    return ReceiverNotification(
        receiver=display_name(webhook.receiver, fallback="somebody"),
        dedup_key=dedup_key(webhook.group_key),
        alerts=tuple(
            NotifiedAlert(
                ticket_id=alert.annotations.ticket_id, alert_key=alert_key(alert.labels), status=alert.status
            )
            for alert in webhook.alerts
            if alert.annotations.ticket_id
        ),
        truncated=webhook.truncated_alerts,
    )
