"""Notifications, silences, and callbacks of Alertmanager, Slack and PagerDuty."""

from __future__ import annotations

from pydantic import Field

from queenright.api.base_model import NEXT, ApiModel
from queenright.api.terms import AlertStatus
from queenright.api.tickets import ReceiverDelivery


class NotificationPeer(ApiModel):
    """Delivery of a notification, or of its end, to one Alertmanager."""

    peer: str = Field(description="Its URL, without credentials.")
    status: AlertStatus
    delivered_at: float | None = Field(
        description="When the peer accepted the alert, in seconds since the epoch; null if it has not."
    )
    attempts: int | None = Field(description="Attempts until it answered; null if it has not answered.")
    last_error: str | None = Field(description="Why the peer refused the alert, or was unreachable.")
    outcome: str = Field(description="The result in words.")


class Notification(ApiModel):
    """A notification and its deliveries. Times in seconds since the epoch."""

    id: int
    ticket_id: str
    agent_id: str = Field(default="", description="The worker's name.")
    cause: str
    severity: str = Field(description="The label `severity` of the alert, by which it is routed.")
    ticket_severity: str = Field(description="The ticket's severity when this alert was first sent.")
    title: str
    status: AlertStatus = Field(description="`resolved` once it has ended, for any reason.")
    written_at: float
    ended_at: float | None
    active: bool = Field(description="Whether the alert is firing, or a peer has not accepted its end yet.")
    peers: list[NotificationPeer]
    notified: list[ReceiverDelivery]


class OutboxPeer(ApiModel):
    """Deliveries to one Alertmanager. Times in seconds since the epoch."""

    peer: str
    ok: bool
    pending: int
    error: str = Field(description="Error of the last attempt; empty if it succeeded.")
    failing_since: float | None
    next_attempt_at: float | None


class RefusedAlert(ApiModel):
    """An alert that an Alertmanager refused."""

    ticket_ids: list[str]
    peer: str
    status: AlertStatus
    error: str


class Outbox(ApiModel):
    """State of the outbox."""

    active: int = Field(description="Firing alerts.")
    pending: int = Field(description="Notifications that a peer has not accepted yet.")
    oldest: float | None = Field(description="When the oldest pending notification was written; null: none.")
    peers: list[OutboxPeer]
    refused: list[RefusedAlert]


class NotificationsPage(ApiModel):
    """Notifications, newest first, and the state of the outbox."""

    outbox: Outbox
    notifications: list[Notification]
    next: str | None = Field(description=NEXT)


class Silence(ApiModel):
    """An active or pending silence. Times in seconds since the epoch."""

    silence_id: str
    by: str
    comment: str
    state: str = Field(description="`active` or `pending`.")
    starts_at: float
    ends_at: float
    matchers: list[str] = Field(description="In Alertmanager's syntax.")
    peers: list[str] = Field(description="Alertmanagers that have it.")
    tickets: list[str] = Field(description="Tickets that it silences.")


class SilencePeer(ApiModel):
    """Whether the silences of an Alertmanager could be read."""

    peer: str
    read_at: float | None = Field(description="Seconds since the epoch; null: never.")
    error: str | None


class Silences(ApiModel):
    """Active and pending silences, the first to end first."""

    silences: list[Silence]
    unknown: str = Field(description="Peers whose silences are unknown, and why; empty if all answered.")
    peers: list[SilencePeer]


class SilenceResult(ApiModel):
    """The new silence, and the Alertmanager that created it."""

    silence_id: str
    peer: str


class SymptomsReceipt(ApiModel):
    """The number of symptom alerts in the request."""

    symptoms: int


class DeliveriesReceipt(ApiModel):
    """The number of alerts whose delivery was recorded."""

    noted: int


class SlackReply(ApiModel):
    """The reply that Slack shows below the message."""

    response_type: str
    replace_original: bool
    text: str


class IncidentReceipt(ApiModel):
    """The effect of a PagerDuty event on tickets."""

    did: str
    tickets: dict[str, str] = Field(description="The effect by ticket.")
