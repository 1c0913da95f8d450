"""
Parse Alertmanager's webhooks (version 4): symptoms of agents, and reports of notifications sent to people.

An alert that a peer accepted may still be silenced, inhibited or waiting for its group. So receivers that
notify people also post to a webhook, which reports who was notified about which ticket.
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
"""Maximum number of alerts per body. More would exceed the API's limit of JSON values, even if small."""


class InvalidWebhookError(ValueError):
    """Raised for a body that is not an Alertmanager webhook. The message names the invalid field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SymptomAlert:
    """A Prometheus alert about an agent. It triggers a check and is not a verdict. ``agent`` is empty
    if the alert has no such label."""

    alertname: str
    agent: str
    status: Literal["firing", "resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifiedAlert:
    """One alert of a notification."""

    ticket_id: str
    alert_key: str
    """The alert's key in the outbox."""
    status: Literal["firing", "resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverNotification:
    """A notification that a receiver sent about a group of alerts."""

    receiver: str
    dedup_key: str
    alerts: tuple[NotifiedAlert, ...]
    """The alerts about tickets; others are left out."""
    truncated: int = 0
    """Number of alerts that Alertmanager left out of the body."""


class _WebhookModel(BaseModel):
    # Unknown keys are ignored, because later versions may add some. Known keys must have the right type.
    model_config = ConfigDict(extra="ignore", strict=True)


class _SymptomLabels(_WebhookModel):
    alertname: Annotated[str, Field(min_length=1, max_length=200)]
    agent: Annotated[str, Field(max_length=200)] = ""


class _Symptom(_WebhookModel):
    status: Literal["firing", "resolved"]
    labels: _SymptomLabels


class SymptomsBody(_WebhookModel):
    """The payload of Alertmanager's webhook about symptoms."""

    version: Literal["4"]
    alerts: Annotated[list[_Symptom], Field(max_length=MAX_ALERTS)]


class _Annotations(_WebhookModel):
    ticket_id: Annotated[str, Field(max_length=100)] = ""


class _Alert(_WebhookModel):
    status: Literal["firing", "resolved"]
    labels: Annotated[dict[str, str], Field(max_length=100)]
    annotations: _Annotations = _Annotations()


class NotificationBody(_WebhookModel):
    """The payload of Alertmanager's webhook about one notification."""

    model_config = ConfigDict(extra="ignore", strict=True, alias_generator=to_camel)

    version: Literal["4"]
    group_key: Annotated[str, Field(min_length=1, max_length=100_000)]
    receiver: Annotated[str, Field(min_length=1, max_length=200)]
    alerts: Annotated[list[_Alert], Field(max_length=MAX_ALERTS)]
    truncated_alerts: Annotated[int, Field(ge=0)] = 0


_Model = TypeVar("_Model", bound=_WebhookModel)


def _parse(model: type[_Model], body: bytes | str) -> _Model:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise InvalidWebhookError(describe_faults(error.errors(include_input=False), limit=1)) from None


def parse_symptoms(body: bytes | str) -> list[SymptomAlert]:
    """
    Parse the body of Alertmanager's webhook that reports symptoms of agents.

    Raises:
        InvalidWebhookError: The body is not JSON, or a field is missing or invalid. The message names
            the first invalid field.
    """
    return [
        SymptomAlert(alertname=alert.labels.alertname, agent=alert.labels.agent, status=alert.status)
        for alert in _parse(SymptomsBody, body).alerts
    ]


def dedup_key(group_key: str) -> str:
    """
    Return the dedup key that Alertmanager sends to PagerDuty: the SHA-256 of the group key in hexadecimal.
    """
    return hashlib.sha256(group_key.encode()).hexdigest()


def parse_notification(body: bytes) -> ReceiverNotification:
    """
    Parse the body that Alertmanager posts after notifying a receiver.

    Raises:
        InvalidWebhookError: The body is not JSON, or a field is missing or invalid. The message names
            the first invalid field.
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
