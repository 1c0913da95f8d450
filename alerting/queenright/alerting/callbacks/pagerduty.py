"""
Parse PagerDuty webhooks (version 3) about incidents. Pure.

https://github.com/PagerDuty/developer-docs, docs/webhooks/01-Overview.md and 02-Behavior.md
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from queenright.alerting.callbacks.display_name import display_name
from queenright.instrumentation.validation_messages import describe_faults

MAX_AGE_SECONDS: Final = 86_400.0
"""
Age in seconds from which an event is ignored. PagerDuty retries for about 20 minutes, and handled events are
remembered for longer than this age, so no event is handled twice.
"""

MAX_AHEAD_SECONDS: Final = 300.0
"""Seconds by which an event may be ahead of the local clock."""


class InvalidEventError(ValueError):
    """Raised for a body that is not a PagerDuty event. The message names the invalid field."""


class IncidentChange(StrEnum):
    """The changes of an incident that Queenright handles."""

    ACKNOWLEDGED = "incident.acknowledged"
    UNACKNOWLEDGED = "incident.unacknowledged"
    RESOLVED = "incident.resolved"
    REOPENED = "incident.reopened"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentEvent:
    """One event. ``dedup_key`` is "" if no alert opened the incident."""

    event_id: str
    event_type: str
    change: IncidentChange | None
    """None for any other event, which is ignored."""
    at: float
    """Seconds since the epoch."""
    by: str
    by_person: bool
    """Whether a person made the change, rather than Alertmanager, a timeout or a rule."""
    dedup_key: str


class _WebhookModel(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Agent(_WebhookModel):
    id: Annotated[str, Field(max_length=200)] | None = None
    summary: Annotated[str, Field(max_length=20_000)] | None = None
    type: Annotated[str, Field(max_length=200)] | None = None


class _Data(_WebhookModel):
    incident_key: Annotated[str, Field(max_length=1000)] | None = None


class _Event(_WebhookModel):
    id: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]
    event_type: Annotated[str, Field(min_length=1, max_length=200)]
    occurred_at: AwareDatetime
    agent: _Agent | None = None
    data: _Data | None = None


class _Webhook(_WebhookModel):
    event: _Event


def read_event(body: bytes) -> IncidentEvent:
    """
    Parse one event posted by PagerDuty.

    Raises:
        InvalidEventError: The body is not JSON, or a field is missing or invalid. The message names the
            first.
    """
    try:
        event = _Webhook.model_validate_json(body).event
    except ValidationError as error:
        raise InvalidEventError(describe_faults(error.errors(include_input=False), limit=1)) from None
    agent, changes = event.agent or _Agent(), list(IncidentChange)
    data = event.data or _Data()
    return IncidentEvent(
        event_id=event.id,
        event_type=event.event_type,
        change=IncidentChange(event.event_type) if event.event_type in changes else None,
        at=event.occurred_at.timestamp(),
        by=display_name(agent.summary or "", agent.id or "", fallback="PagerDuty"),
        by_person=agent.type == "user_reference",
        dedup_key=data.incident_key or "",
    )
