"""What goes to Alertmanager and what comes back, over HTTP."""

from __future__ import annotations

from pydantic import Field

from queenright.api.terms import AlertStatus
from queenright.api.tickets import ReceiverDelivery
from queenright.api.wire import NOW, Age, ClockTime, Deprecated, Wire, example_of, shown


class NotificationPeer(Wire):
    """What became of a notification, or of its end, at one Alertmanager."""

    model_config = shown(
        {
            "peer": "http://127.0.0.1:9093",
            "status": "firing",
            "delivered_at": NOW - 109,
            "attempts": 1,
            "last_error": None,
            "outcome": "taken 09:58:11",
        }
    )

    peer: str = Field(description="Its URL, without credentials.")
    status: AlertStatus
    delivered_at: float | None = Field(description="When it took it, in seconds since the epoch.")
    attempts: int | None = Field(description="How often it was sent until it answered; null before.")
    last_error: str | None = Field(description="Why it refused it, or could not be reached.")
    outcome: str = Field(description="The same in words.")


class Notification(Wire):
    """One notification, and what became of it. Times in seconds since the epoch."""

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
            "told": [example_of(ReceiverDelivery)],
            "time": "09:58:10",
            "age": "2 min",
        }
    )

    id: int
    ticket_id: str
    agent_id: str = Field(default="", description="The worker's name.")
    agent: Deprecated[str] = Field(description="The same as `agent_id`.")
    cause: str
    severity: str = Field(description="The word that people see and alerts are routed by.")
    ticket_severity: str = Field(description="The ticket's severity when this alert was first sent.")
    title: str
    status: AlertStatus = Field(description="`resolved` once it has ended, for whatever reason.")
    written_at: float
    ended_at: float | None
    active: bool = Field(
        description="Whether it holds, or some peer that was told of it is still to be told of its end."
    )
    peers: list[NotificationPeer]
    told: list[ReceiverDelivery]
    time: ClockTime = Field(description="`written_at` as a time of day, UTC.")
    age: Age


class OutboxPeer(Wire):
    """How telling one Alertmanager is going. Times in seconds since the epoch."""

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
    error: str = Field(description="Why it could not be told the last time; empty if it could.")
    failing_since: float | None
    next_attempt_at: float | None


class RefusedAlert(Wire):
    """An alert that an Alertmanager does not take as it is."""

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
    """What was handed over and what was not."""

    model_config = shown(
        {"active": 1, "pending": 0, "oldest": None, "peers": [example_of(OutboxPeer)], "refused": []}
    )

    active: int = Field(description="Alerts that hold.")
    pending: int = Field(description="Notifications that some peer has not taken yet.")
    oldest: float | None = Field(description="Since when the oldest of them waits; null: none does.")
    peers: list[OutboxPeer]
    refused: list[RefusedAlert]


class NotificationsPage(Wire):
    """Notifications, newest first, and how the outbox is doing."""

    model_config = shown(
        {"outbox": example_of(Outbox), "notifications": [example_of(Notification)], "next": None}
    )

    outbox: Outbox
    notifications: list[Notification]
    next: str | None = Field(description="The cursor of the next page; null on the last one.")


class Silence(Wire):
    """A silence that holds or will. Times in seconds since the epoch."""

    model_config = shown(
        {
            "silence_id": "b3c5",
            "by": "ada",
            "comment": "being mended (ticket 018f6f7e-0000-7000-8000-0000000000c1)",
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
    matchers: list[str] = Field(description="As Alertmanager writes them.")
    peers: list[str] = Field(description="Which Alertmanagers know it.")
    tickets: list[str] = Field(description="Of which tickets nobody hears because of it.")


class SilencePeer(Wire):
    """Whether an Alertmanager could be asked for its silences."""

    model_config = shown({"peer": "http://127.0.0.1:9093", "read_at": NOW, "error": None})

    peer: str
    read_at: float | None = Field(description="Seconds since the epoch; null: it never answered.")
    error: str | None


class Silences(Wire):
    """Silences that hold or will, the first to end first."""

    model_config = shown(
        {"silences": [example_of(Silence)], "unknown": "", "peers": [example_of(SilencePeer)]}
    )

    silences: list[Silence]
    unknown: str = Field(description="Of which peers they are not known, and why; empty if all answered.")
    peers: list[SilencePeer]


class SilenceResult(Wire):
    """A silence that was made, and where."""

    model_config = shown({"silence_id": "b3c5", "peer": "http://127.0.0.1:9093"})

    silence_id: str
    peer: str


class SymptomsReceipt(Wire):
    """How many symptom alerts came in."""

    model_config = shown({"symptoms": 2})

    symptoms: int


class DeliveriesReceipt(Wire):
    """Of how many alerts about tickets it was noted whom Alertmanager told."""

    model_config = shown({"noted": 1})

    noted: int


class SlackReply(Wire):
    """What Slack shows below the message."""

    model_config = shown(
        {"response_type": "in_channel", "replace_original": False, "text": "ada has it in hand."}
    )

    response_type: str
    replace_original: bool
    text: str


class IncidentReceipt(Wire):
    """What was done about what became of an incident."""

    model_config = shown(
        {
            "did": "see tickets",
            "tickets": {"018f6f7e-0000-7000-8000-0000000000c1": "ada has it in hand."},
        }
    )

    did: str
    tickets: dict[str, str] = Field(description="By ticket, in words.")
