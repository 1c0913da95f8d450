"""Notifications, silences, and callbacks of Alertmanager, Slack and PagerDuty."""

from __future__ import annotations

from pydantic import Field

from queenright.api.terms import AlertStatus
from queenright.api.tickets import ReceiverDelivery
from queenright.api.wire import NOW, Age, ClockTime, Deprecated, Wire, example_of, shown


class NotificationPeer(Wire):
    """Delivery of a notification, or of its end, to one Alertmanager."""

    model_config = shown(
        {
            "peer": "http://127.0.0.1:9093",
            "status": "firing",
            "delivered_at": NOW - 109,
            "attempts": 1,
            "last_error": None,
            "outcome": "accepted 09:58:11",
        }
    )

    peer: str = Field(description="Its URL, without credentials.")
    status: AlertStatus
    delivered_at: float | None = Field(description="When it accepted the alert, in seconds since the epoch.")
    attempts: int | None = Field(description="Attempts until it answered; null before.")
    last_error: str | None = Field(description="Why it refused the alert, or was not reachable.")
    outcome: str = Field(description="The same in words.")


class Notification(Wire):
    """A notification and its deliveries. Times in seconds since the epoch."""

    model_config = shown(
        {
            "id": 7,
            "ticket_id": "018f6f7e-0000-7000-8000-0000000000c1",
            "agent_id": "researcher",
            "agent": "researcher",
            "cause": "doom_loop",
            "severity": "critical",
            "ticket_severity": "high",
            "title": "researcher repeats one search",
            "status": "firing",
            "written_at": NOW - 110,
            "ended_at": None,
            "active": True,
            "peers": [example_of(NotificationPeer)],
            "notified": [example_of(ReceiverDelivery)],
            "time": "09:58:10",
            "age": "2 min",
        }
    )

    id: int
    ticket_id: str
    agent_id: str = Field(default="", description="The worker's name.")
    agent: Deprecated[str] = Field(description="The same as `agent_id`.")
    cause: str
    severity: str = Field(description="The label `severity` of the alert, by which it is routed.")
    ticket_severity: str = Field(description="The ticket's severity when this alert was first sent.")
    title: str
    status: AlertStatus = Field(description="`resolved` once it has ended, for any reason.")
    written_at: float
    ended_at: float | None
    active: bool = Field(description="Whether it is firing, or a peer has yet to accept its end.")
    peers: list[NotificationPeer]
    notified: list[ReceiverDelivery]
    time: ClockTime = Field(description="`written_at` as a time of day, UTC.")
    age: Age


class OutboxPeer(Wire):
    """Deliveries to one Alertmanager. Times in seconds since the epoch."""

    model_config = shown(
        {
            "peer": "http://127.0.0.1:9093",
            "ok": True,
            "pending": 0,
            "error": "",
            "failing_since": None,
            "next_attempt_at": None,
        }
    )

    peer: str
    ok: bool
    pending: int
    error: str = Field(description="Error of the last attempt; empty if it succeeded.")
    failing_since: float | None
    next_attempt_at: float | None


class RefusedAlert(Wire):
    """An alert that an Alertmanager refused."""

    model_config = shown(
        {
            "ticket_ids": ["018f6f7e-0000-7000-8000-0000000000c1"],
            "peer": "http://127.0.0.1:9093",
            "status": "firing",
            "error": "400: label name is invalid",
        }
    )

    ticket_ids: list[str]
    peer: str
    status: AlertStatus
    error: str


class Outbox(Wire):
    """State of the outbox."""

    model_config = shown(
        {"active": 1, "pending": 0, "oldest": None, "peers": [example_of(OutboxPeer)], "refused": []}
    )

    active: int = Field(description="Firing alerts.")
    pending: int = Field(description="Notifications that a peer has not accepted yet.")
    oldest: float | None = Field(description="When the oldest pending notification was written; null: none.")
    peers: list[OutboxPeer]
    refused: list[RefusedAlert]


class NotificationsPage(Wire):
    """Notifications, newest first, and the state of the outbox."""

    model_config = shown(
        {"outbox": example_of(Outbox), "notifications": [example_of(Notification)], "next": None}
    )

    outbox: Outbox
    notifications: list[Notification]
    next: str | None = Field(description="The cursor of the next page; null on the last one.")


class Silence(Wire):
    """An active or pending silence. Times in seconds since the epoch."""

    model_config = shown(
        {
            "silence_id": "b3c5",
            "by": "ada",
            "comment": "being fixed (ticket 018f6f7e-0000-7000-8000-0000000000c1)",
            "state": "active",
            "starts_at": NOW - 60,
            "ends_at": NOW + 3540,
            "matchers": ['agent="researcher"', 'cause="doom_loop"'],
            "peers": ["http://127.0.0.1:9093"],
            "tickets": ["018f6f7e-0000-7000-8000-0000000000c1"],
        }
    )

    silence_id: str
    by: str
    comment: str
    state: str = Field(description="`active` or `pending`.")
    starts_at: float
    ends_at: float
    matchers: list[str] = Field(description="In Alertmanager's syntax.")
    peers: list[str] = Field(description="Alertmanagers that have it.")
    tickets: list[str] = Field(description="Tickets that it silences.")


class SilencePeer(Wire):
    """Whether the silences of an Alertmanager could be read."""

    model_config = shown({"peer": "http://127.0.0.1:9093", "read_at": NOW, "error": None})

    peer: str
    read_at: float | None = Field(description="Seconds since the epoch; null: never.")
    error: str | None


class Silences(Wire):
    """Active and pending silences, the first to end first."""

    model_config = shown(
        {"silences": [example_of(Silence)], "unknown": "", "peers": [example_of(SilencePeer)]}
    )

    silences: list[Silence]
    unknown: str = Field(description="Peers whose silences are unknown, and why; empty if all answered.")
    peers: list[SilencePeer]


class SilenceResult(Wire):
    """The new silence, and the Alertmanager that created it."""

    model_config = shown({"silence_id": "b3c5", "peer": "http://127.0.0.1:9093"})

    silence_id: str
    peer: str


class SymptomsReceipt(Wire):
    """The number of symptom alerts in the request."""

    model_config = shown({"symptoms": 2})

    symptoms: int


class DeliveriesReceipt(Wire):
    """The number of alerts whose delivery was recorded."""

    model_config = shown({"noted": 1})

    noted: int


class SlackReply(Wire):
    """The reply that Slack shows below the message."""

    model_config = shown(
        {"response_type": "in_channel", "replace_original": False, "text": "ada acknowledged it."}
    )

    response_type: str
    replace_original: bool
    text: str


class IncidentReceipt(Wire):
    """The effect of a PagerDuty event on tickets."""

    model_config = shown(
        {
            "did": "see tickets",
            "tickets": {"018f6f7e-0000-7000-8000-0000000000c1": "ada acknowledged it."},
        }
    )

    did: str
    tickets: dict[str, str] = Field(description="The effect by ticket.")
