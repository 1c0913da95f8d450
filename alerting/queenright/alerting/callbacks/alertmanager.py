"""
What Alertmanager told people, by its own word: which receiver, of which ticket, when.

That a peer took an alert is not yet that anybody was told of it: it may be silenced, inhibited, or wait for
its group. So receivers for people also post Alertmanager's webhook (version 4) here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from queenright.alerting.callbacks.names import person
from queenright.alerting.notification import alert_key
from queenright.alerting.webhook import MAX_ALERTS, InvalidWebhookError
from queenright.instrumentation.faults import explain_fault


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifiedAlert:
    """One alert of a message to people."""

    ticket_id: str
    alert_key: str
    """What the outbox keeps it under."""
    status: Literal["firing", "resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What one receiver was told of one group."""

    receiver: str
    dedup_key: str
    alerts: tuple[NotifiedAlert, ...]
    """Those about tickets."""
    truncated: int = 0
    """How many alerts of the message Alertmanager does not name here."""


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _Annotations(_Read):
    ticket_id: Annotated[str, Field(max_length=100)] = ""


class _Alert(_Read):
    status: Literal["firing", "resolved"]
    labels: Annotated[dict[str, str], Field(max_length=100)]
    annotations: _Annotations = _Annotations()


class _Webhook(_Read):
    model_config = ConfigDict(extra="ignore", strict=True, alias_generator=to_camel)

    version: Literal["4"]
    group_key: Annotated[str, Field(min_length=1, max_length=100_000)]
    receiver: Annotated[str, Field(min_length=1, max_length=200)]
    alerts: Annotated[list[_Alert], Field(max_length=MAX_ALERTS)]
    truncated_alerts: Annotated[int, Field(ge=0)] = 0


def dedup_key(group_key: str) -> str:
    """Return what Alertmanager calls a group towards PagerDuty: the SHA-256 of its key, as 64 hex digits."""
    return hashlib.sha256(group_key.encode()).hexdigest()


def parse_notification(body: bytes) -> Message:
    """
    Read what Alertmanager posts when it has told a receiver.

    Raises:
        InvalidWebhookError: it is no JSON, or a field is missing or wrong; the first one is named.
    """
    try:
        webhook = _Webhook.model_validate_json(body)
    except ValidationError as error:
        raise InvalidWebhookError(
            explain_fault(error.errors(include_url=False, include_input=False)[0])
        ) from None
    return Message(
        receiver=person(webhook.receiver, otherwise="somebody"),
        dedup_key=dedup_key(webhook.group_key),
        alerts=tuple(
            NotifiedAlert(
                ticket_id=one.annotations.ticket_id, alert_key=alert_key(one.labels), status=one.status
            )
            for one in webhook.alerts
            if one.annotations.ticket_id
        ),
        truncated=webhook.truncated_alerts,
    )
