"""The content of the status page, and the service's readiness."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from queenright.api.agents import AgentRow
from queenright.api.alerts import Notification, Outbox
from queenright.api.shared import Incident, Provider
from queenright.api.terms import BreakerState, Decision, LadderLevel, RecoveryState
from queenright.api.tickets import Ticket
from queenright.api.wire import NOW, Age, ClockTime, RelativeToNow, Wire, example_of, shown


class Ready(Wire):
    """Whether the service is ready; if not, what is missing."""

    model_config = shown({"ready": False, "missing": ["the store cannot be written to: disk full"]})

    ready: bool
    missing: list[str]


class StatusEmergencyStop(Wire):
    """The state of the emergency stop."""

    model_config = shown({"on": False, "by": "", "reason": "", "changed_at": None, "since": ""})

    on: bool
    by: str
    reason: str
    changed_at: float | None = Field(default=None, description="When it was last set; null: never.")
    since: ClockTime = Field(description="A time of day, UTC; empty: never set.")


class Storm(Wire):
    """The storm: many workers whose health worsens at once."""

    model_config = shown({"id": "", "workers": 0, "since": None})

    id: str = Field(description="Empty: no storm.")
    workers: int
    since: float | None = Field(description="Seconds since the epoch.")


class Budget(Wire):
    """The limit on interventions per minute."""

    model_config = shown({"most": 10, "used": 1, "free_at": NOW})

    most: int = Field(description="Per minute.")
    used: int
    free_at: Annotated[float, RelativeToNow()] = Field(
        description="When the next one is allowed, in seconds since the epoch."
    )


class StatusLadder(Wire):
    """The interventions on a worker so far, and the next one."""

    model_config = shown(
        {
            "agent_id": "researcher",
            "session_id": "session-1",
            "level": "nudged",
            "what": "nudge 1 sent",
            "trouble_since": NOW - 120,
            "trouble_for": "2 min",
            "acted_at": NOW - 60,
            "acted_ago": "60 s",
            "until": NOW + 240,
            "next": "nudge",
            "next_at": NOW + 240,
            "when": "next in 4 min",
        }
    )

    agent_id: str
    session_id: str
    level: LadderLevel
    what: str
    trouble_since: float = Field(default=0.0, description="Seconds since the epoch.")
    trouble_for: Age
    acted_at: float | None = Field(default=None, description="Time of the last intervention.")
    acted_ago: Age
    until: float | None
    next: str = Field(description="The next intervention; empty: none.")
    next_at: float | None
    when: Age


class StatusEscalation(Wire):
    """An escalation without a decision."""

    model_config = shown(
        {
            "escalation_id": "018f6f7e-0000-7000-8000-0000000000e1",
            "agent_id": "researcher",
            "reason": "no progress after 3 nudges",
            "options": ["more_time", "hand_off", "terminate"],
            "deadline": NOW + 840,
            "when": "14 min left",
        }
    )

    escalation_id: str
    agent_id: str
    reason: str
    options: list[Decision]
    deadline: float
    when: Age


class StatusApproval(Wire):
    """A pending request to terminate a worker."""

    model_config = shown(
        {
            "approval_id": "018f6f7e-0000-7000-8000-0000000000a1",
            "agent_id": "researcher",
            "ticket_id": "018f6f7e-0000-7000-8000-0000000000c1",
            "reason": "it repeats one search and spends tokens",
            "by": "queen",
            "expires_at": NOW + 1740,
            "when": "29 min left",
        }
    )

    approval_id: str
    agent_id: str
    ticket_id: str
    reason: str
    by: str
    expires_at: float
    when: Age


class StatusBreaker(Wire):
    """A circuit breaker that is not closed."""

    model_config = shown(
        {
            "name": "tool:researcher:search",
            "state": "open",
            "colour": "failing",
            "failures": 5,
            "threshold": 5,
            "reason": "5 failures in a row: TimeoutError",
            "half_open_at": NOW + 30,
            "half_open_in": "30 s",
        }
    )

    name: str
    state: BreakerState
    colour: str
    failures: int
    threshold: int
    reason: str
    half_open_at: float | None
    half_open_in: Age


class StatusRecovery(Wire):
    """A recovery attempt."""

    model_config = shown(
        {
            "recovery_id": "018f6f7e-0000-7000-8000-0000000000f1",
            "task_id": "report-7",
            "agent_id": "researcher",
            "state": "watching",
            "colour": "degraded",
            "exhausted": False,
            "attempt": 1,
            "from_start": False,
            "reason": "it was terminated",
            "created_at": NOW - 60,
            "not_before": NOW - 55,
            "when": "60 s ago",
        }
    )

    recovery_id: str
    task_id: str
    agent_id: str
    state: RecoveryState
    colour: str
    exhausted: bool
    attempt: int
    from_start: bool
    reason: str
    created_at: float = Field(default=0.0, description="Seconds since the epoch.")
    not_before: float = Field(default=0.0, description="When a waiting recovery starts.")
    when: Age


class Acting(Wire):
    """Interventions in progress, and what limits them."""

    model_config = shown(
        {
            "emergency_stop": example_of(StatusEmergencyStop),
            "storm": example_of(Storm),
            "budget": example_of(Budget),
            "brakes": [],
            "dry_run": False,
            "ladders": [example_of(StatusLadder)],
            "ladders_more": 0,
            "escalations": [example_of(StatusEscalation)],
            "escalations_more": 0,
            "approvals": [example_of(StatusApproval)],
            "approvals_more": 0,
            "breakers": [example_of(StatusBreaker)],
            "breakers_known": 4,
            "breakers_more": 0,
            "recoveries": [example_of(StatusRecovery)],
        }
    )

    emergency_stop: StatusEmergencyStop
    storm: Storm
    budget: Budget
    brakes: list[str] = Field(
        description="What limits interventions, and which models the rules replace; one sentence each."
    )
    dry_run: bool = Field(description="Interventions are logged, not carried out.")
    ladders: list[StatusLadder]
    ladders_more: int = Field(description="Ladders that are not shown.")
    escalations: list[StatusEscalation]
    escalations_more: int
    approvals: list[StatusApproval]
    approvals_more: int
    breakers: list[StatusBreaker]
    breakers_known: int = Field(description="All breakers, closed or not.")
    breakers_more: int
    recoveries: list[StatusRecovery]


class FeedLine(Wire):
    """An event as a sentence."""

    model_config = shown(
        {
            "at": NOW - 120,
            "time": "09:58:00",
            "kind": "stuck",
            "text": "researcher: healthy → stuck. search was called 12 times",
            "id": "018f6f7e-0000-7000-8000-0000000000aa",
            "ticket": "",
        }
    )

    at: float = Field(default=0.0, description="Seconds since the epoch.")
    time: ClockTime = Field(description="Time of day, UTC.")
    kind: str = Field(description="The colour in which it is shown.")
    text: str
    id: str = Field(description="The event's id.")
    ticket: str = Field(description="The id of its ticket; empty: none.")


class StandInMessage(Wire):
    """A message that the stand-in for Slack and PagerDuty received."""

    model_config = shown(
        {
            "at": NOW - 108,
            "time": "09:58:12",
            "channel": "pagerduty",
            "status": "firing",
            "title": "researcher repeats one search",
            "text": "The worker repeats the same search.",
        }
    )

    at: float = Field(default=0.0, description="Seconds since the epoch.")
    time: ClockTime
    channel: str
    status: str
    title: str
    text: str


class Status(Wire):
    """The content of the status page."""

    model_config = shown(
        {
            "at": NOW,
            "started_at": NOW - 10_800,
            "now": "10:00:00",
            "up_for": "3 h",
            "counts": {"failing": 0, "stuck": 1, "degraded": 0, "healthy": 11, "terminated": 0},
            "agents": [example_of(AgentRow)],
            "agents_left_out": 0,
            "ended": [],
            "tickets": [example_of(Ticket)],
            "tickets_left_out": 0,
            "silences_unknown": "",
            "outbox": example_of(Outbox),
            "handed_over": [example_of(Notification)],
            "feed": [example_of(FeedLine)],
            "not_ready": [],
            "incidents": [example_of(Incident)],
            "providers": [example_of(Provider)],
            "acting": example_of(Acting),
            "stand_in": False,
            "paged": [],
        }
    )

    at: Annotated[float, RelativeToNow()] = Field(
        default=0.0, description="The time of the response, in seconds since the epoch."
    )
    started_at: float = Field(default=0.0, description="When the service started.")
    now: Age = Field(description="Time of day, UTC.")
    up_for: Age
    counts: dict[str, int] = Field(description="Running workers by state, the worst first.")
    agents: list[AgentRow] = Field(
        description="Running sessions, and ended ones with an open ticket or an active recovery, which count "
        "as failing; the worst 200. `/api/agents` has all."
    )
    agents_left_out: int = Field(description="Running sessions that are not shown.")
    ended: list[AgentRow] = Field(description="Ended sessions, ten at most.")
    tickets: list[Ticket] = Field(
        description="The worst 100 open tickets, newest first; `/api/tickets` has all."
    )
    tickets_left_out: int = Field(description="Open tickets that are not shown.")
    silences_unknown: str
    outbox: Outbox
    handed_over: list[Notification]
    feed: list[FeedLine] = Field(description="Newest first.")
    not_ready: list[str] = Field(description="Why the service is not ready; empty: it is.")
    incidents: list[Incident] = Field(description="Open ones, newest first; `/api/incidents` has all.")
    providers: list[Provider] = Field(description="As in `/api/providers`.")
    acting: Acting
    stand_in: bool = Field(description="Whether a stand-in receives messages to Slack and PagerDuty.")
    paged: list[StandInMessage] = Field(description="Messages that the stand-in received, newest first.")
