"""
Thresholds and timings of the health layer: the one table that detectors, alert rules and dashboards share.

The block is called ``health_monitoring`` in ``queenright.yaml``; a block written for the
requirement document (IMPL-REQ-003 §7) is valid as it stands. All times are in seconds.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from queenright.health.findings import ON_TRIAL, FindingKind
from queenright.runtime.breakers import BreakerKind

Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
ErrorBudget = Annotated[float, Field(gt=0, le=0.5)]
"""The share that may go wrong."""
INTERVENTION_SECONDS: Final = (5, 10, 30, 60, 120, 300, 600, 1200, 1800, 2700, 3600, 7200)
"""The bounds by which times to intervention are counted, in seconds."""

_BREAKER_KINDS: Final = tuple(kind.value for kind in BreakerKind)


def _web_address(url: SecretStr) -> SecretStr:
    """Refuse what nothing can be posted to; its words repeat nothing, for a URL may hold a token."""
    said = url.get_secret_value()
    try:
        parts = urlsplit(said)
        host, fault = parts.hostname, "" if parts.port != 0 else "its port is 0"
    except ValueError:
        parts, host, fault = urlsplit(""), None, "its host or its port is none"
    if any(not sign.isprintable() or sign.isspace() for sign in said):
        fault = "there is a space or a control character in it"
    elif not fault and parts.scheme not in ("http", "https"):
        fault = "it begins with neither http:// nor https://"
    elif not fault and not host:
        fault = "it names no host"
    if fault:
        raise ValueError(f"{fault}; it must be like https://hooks.example.com/queenright")
    return url


def _breaker_name(name: str) -> str:
    """Refuse a name under which no breaker looks for its settings."""
    kind, colon, rest = name.partition(":")
    if kind not in _BREAKER_KINDS:
        near = get_close_matches(kind, _BREAKER_KINDS, 1)
        meant = f"; did you mean {near[0] + colon + rest!r}?" if near else ""
        kinds = ", ".join(_BREAKER_KINDS)
        raise ValueError(f"it must be kind, kind:agent or kind:agent:target, and a kind is {kinds}{meant}")
    if name.endswith(":") and not rest.strip(":"):
        raise ValueError(f"nothing follows its colon; for all of this kind write {kind!r}")
    agent, colon, target = rest.partition(":")
    if colon and not target:
        raise ValueError(f"nothing follows its last colon; for all targets write {f'{kind}:{agent}'!r}")
    return name


def _word_for(mode: object) -> object:
    """Return ``on`` and ``off`` for what YAML makes of these words where they stand unquoted."""
    return {True: "on", False: "off"}[mode] if isinstance(mode, bool) else mode


DetectorMode = Annotated[Literal["on", "shadow", "off"], BeforeValidator(_word_for)]
"""Shadow: it looks, and what it finds is shown and counted, nothing follows. Off: it does not look."""
WebAddress = Annotated[SecretStr, AfterValidator(_web_address)]
BreakerKey = Annotated[str, AfterValidator(_breaker_name)]


class _Block(BaseModel):
    """A block of settings: unknown keys are refused, values do not change after start."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Heartbeat(_Block):
    """When a process counts as silent."""

    interval_seconds: Seconds = 300
    """How often a worker is taken to beat that does not say."""
    timeout_seconds: Seconds = 600
    """Silent for so long, such a worker is degraded; one with another interval in proportion to it."""

    @model_validator(mode="after")
    def _borders(self) -> Heartbeat:
        if self.timeout_seconds < self.interval_seconds:
            raise ValueError(
                f"timeout_seconds {self.timeout_seconds} must not be below "
                f"interval_seconds {self.interval_seconds}: all would seem dead between two heartbeats"
            )
        return self

    def limit(self, interval: float | None) -> float:
        """Return for how many seconds a worker may be silent that says that it beats at ``interval``."""
        if interval is None:
            return self.timeout_seconds
        return self.timeout_seconds * (interval / self.interval_seconds)


class HealthCheck(_Block):
    """The safety net below the deadlines, and the age of checkpoints."""

    interval_seconds: Seconds = 60
    checkpoint_degraded_seconds: Seconds = 600
    checkpoint_stale_threshold_seconds: Seconds = 1800
    no_tool_call_seconds: Seconds = 900
    consecutive_failures: Count = 3
    """More failures in a row than this make a worker failing."""
    error_rate: Share = 0.25
    """A larger share of failed calls and steps than this is degraded."""
    error_rate_clear: Share = 0.20
    """It is over when the share is below this: a border value does not flap."""
    error_window: Annotated[int, Field(ge=4, le=64)] = 20
    """So many calls and steps back the share is taken."""
    error_minimum: Count = 8
    """Of fewer, a share says nothing."""
    no_tokens_seconds: Seconds = 900
    """Active, and no token was used: for workers that report tokens."""
    output_unchanged_seconds: Seconds = 1800
    output_unchanged_reports: Count = 3
    """So many reports of the same output in a row, for so long, are no progress."""
    resource_warning: Share = 0.9
    """From this share of its limit on, a resource that a worker reports is shown as nearly used up."""
    polling_seconds: Seconds = 1800
    """So long may a worker wait for something that answers alike each time it is asked."""
    mcp_server_seconds: Seconds = 60
    """A worker that goes on for so long after it lost an MCP server does without it."""

    @model_validator(mode="after")
    def _borders(self) -> HealthCheck:
        if self.error_rate_clear > self.error_rate:
            raise ValueError(
                f"error_rate_clear {self.error_rate_clear} must not be above error_rate {self.error_rate}"
            )
        if self.checkpoint_degraded_seconds > self.checkpoint_stale_threshold_seconds:
            raise ValueError(
                f"checkpoint_degraded_seconds {self.checkpoint_degraded_seconds:g} must not be above "
                f"checkpoint_stale_threshold_seconds {self.checkpoint_stale_threshold_seconds:g}"
            )
        return self


class Stall(_Block):
    """How long a worker may do nothing, by what it is in the middle of."""

    idle_seconds: Seconds = 240
    llm_seconds: Seconds = 240
    tool_seconds: Seconds = 600
    unknown_seconds: Seconds = 900


class LearnedClockSettings(_Block):
    """Limits of silence that fit the agent: by how long its calls and pauses usually take."""

    mode: DetectorMode = "shadow"
    """On: learned limits hold. Shadow: what they would find is shown and counted. Off: nothing is learned."""
    calls: Count = 30
    """So many must have been timed before anything is learned of them."""
    shortest: Annotated[float, Field(gt=0, le=1)] = 0.5
    """No learned limit is a smaller part of the configured one than this."""
    longest: Annotated[float, Field(ge=1, le=100)] = 3
    """No learned limit is a greater multiple of the configured one than this."""


class Bands(_Block):
    """Bad steps since the last ACCEPT, and calls in a row that only failed; ``>=`` everywhere."""

    warning: Count = 5
    medium: Count = 10
    high: Count = 15
    critical: Count = 20

    @model_validator(mode="after")
    def _rising(self) -> Bands:
        if not self.warning < self.medium < self.high < self.critical:
            raise ValueError(
                f"bands must rise: warning {self.warning} < medium {self.medium} "
                f"< high {self.high} < critical {self.critical}"
            )
        return self


class Loops(_Block):
    """Repeats: the same call with the same result, cycles, and streaks of one error."""

    window: Count = 20
    consecutive: Count = 3
    repeats: Count = 4
    """With others between, in a window, with nothing changed since the one before."""
    repeats_high: Count = 5
    """So many in a window are high."""
    repeats_at_all: Count = 8
    """With others between, in a window, whatever was changed: failures are medium, others shown only."""
    cycles: Count = 3
    blind_repeats: Count = 10
    """Repeats in a row of a call of unknown result: an edit-test cycle repeats arguments on purpose."""
    error_streak: Count = 5
    provider_failures: Count = 3
    stale_calls: Count = 4
    """Tool calls in a row that told nothing new."""
    fruitless_calls: Count = 5
    """New searches that found nothing, with nothing new between: shown; twice that is medium."""
    refused_changes: Count = 5
    """Turns in which edits or submissions failed with one class of error, since a change succeeded."""
    idle_turns: Count = 8
    """Turns of the model in a row without a tool call and without a message from the user."""
    grinding_calls: Count = 60
    """Tool calls since anything was changed, accepted or saved, or the user spoke."""
    burn_factor: Annotated[float, Field(gt=1)] = 3
    """Tokens since then, against what 99 of 100 changes of the agent took."""
    burn_minimum: Count = 200_000
    """A multiple of little is little."""
    told_calls: Count = 7
    """From so many results on, their share that told nothing new means something."""
    told_known_share: Annotated[float, Field(gt=0.5, le=1)] = 0.55
    """Above a half, so that neither acknowledgements nor new errors, which count half, make it alone."""
    known_results: Count = 5
    """Repeats and failures since the last change that are high if they are most results, in a row or not."""
    token_spike_factor: Annotated[float, Field(gt=1)] = 4
    """Input tokens of one call against the median of the five before it."""
    token_spike_minimum: Count = 20_000
    """A multiple of little is little: a first big file among short prompts is no spike."""
    poll_seconds: Seconds = 15
    """Who asks for the same state again after such a pause waits for it: a job's, a log's."""
    pause_seconds: Seconds = 60
    """After such a pause any call that is made again is a poll."""
    exempt_tools: tuple[str, ...] = ()


class Judge(_Block):
    """The judge's clock. A new incarnation gets one interval before any ticket."""

    interval_seconds: Seconds = 120
    start_grace_seconds: Annotated[float, Field(ge=0)] = 120
    bypass_seconds: Seconds = 60
    """What is high or critical and waits so long for the judge's model is ticketed by the rules."""
    triage_timeout_seconds: Seconds = 120


class ReEscalation(_Block):
    """When a ticket that the operator was told of, and nobody acknowledged, is brought up again."""

    after_minutes: Annotated[float, Field(gt=0, le=10_080)] = 60
    """So long after it was last brought up: told, reminded of, risen or back."""
    max: Annotated[int, Field(ge=0, le=10)] = 3
    """At most so often since its severity last rose; 0: never."""


class Tickets(_Block):
    """How tickets end, and what happens until somebody looks at them."""

    hold_seconds: Annotated[float, Field(ge=0)] = 120
    """How long a recovery must hold before its ticket resolves; a relapse within it reopens."""
    dead_worker_seconds: Seconds = 86_400
    """So long after a worker was found to be dead it is over, outcome unknown, and its tickets close."""
    abandoned_run_seconds: Seconds = 3_600
    """
    So long after it stalled a run without heartbeats and open work is over, outcome unknown, and its tickets
    close, if its process sends nothing meanwhile.
    """
    re_escalation: ReEscalation = ReEscalation()
    incident_workers: Annotated[int, Field(ge=2, le=100_000)] = 3
    """So many workers whose calls of one tool fail in the same way are one incident."""
    incident_window_seconds: Seconds = 600
    """Of these only those count that did something within so long."""


class Nudge(_Block):
    """First level of intervention."""

    enabled: bool = True
    max_attempts: Annotated[int, Field(ge=0, le=100)] = 3
    interval_seconds: Seconds = 600
    ttl_seconds: Seconds = 600
    """A nudge that was not fetched by then is thrown away: it would speak of what is over."""


class Escalation(_Block):
    """Second level."""

    timeout_seconds: Seconds = 900
    orchestrator: Literal["queen", "webhook", "none"] = "queen"
    """Who decides between more time, a hand-off and the end; unanswered, the end comes at the time-out."""
    webhook_url: Annotated[WebAddress | None, Field(repr=False)] = None
    """Is sent each escalation as JSON; it answers at once, or later over the API."""
    webhook_secret_file: Path | None = None
    """What escalations are signed with is in this file, which nobody else may read; None: not signed."""
    more_time_seconds: Seconds = 900
    """What "more time" is, where the answer names none."""

    @model_validator(mode="after")
    def _url(self) -> Escalation:
        if self.orchestrator == "webhook" and self.webhook_url is None:
            raise ValueError("webhook_url must be given where orchestrator is 'webhook'")
        return self


class Termination(_Block):
    """Third level."""

    cleanup_timeout_seconds: Seconds = 30
    automatic: bool = True
    """False: nobody is terminated unless the orchestrator or an operator says so; the ladder ends there."""
    on_request: Literal["ask", "allow", "never"] = "ask"
    """Whether a worker is stopped where the queen, triaging or in a chat, asks for that: once an operator has
    approved it, at once, or never."""
    approval_timeout_seconds: Seconds = 1800
    """A request that nobody has approved by then comes to nothing."""


class Storm(_Block):
    """When many workers get worse at once it is rarely their fault, and acting on all makes it worse."""

    workers: Annotated[int, Field(ge=2, le=100_000)] = 5
    """So many within the window are a storm: their alerts are one group."""
    window_seconds: Seconds = 30
    quiet_seconds: Seconds = 120
    """The storm is over when nobody got worse for so long."""
    max_actions: Count = 10
    """So many interventions within a minute, at most, storm or not."""


class Permission(_Block):
    """Permission requests of coding agents."""

    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 0
    """How long a permission request waits for an answer given here; 0: only the terminal is asked."""


ActionName = Literal["nudge", "escalate", "terminate", "recover", "answer"]


class Intervention(_Block):
    """The ladder."""

    enabled: bool = True
    """False: nothing is done by itself; an operator still can."""
    dry_run: bool | frozenset[ActionName] = False
    """Write down what would have been done, and do nothing: of every kind of action, or of these."""
    quiet_seconds: Annotated[float, Field(ge=0)] = 120
    """Nothing is done by itself so soon after a start, or a clock that jumped: workers were not heard yet."""
    nudge: Nudge = Nudge()
    escalation: Escalation = Escalation()
    termination: Termination = Termination()
    permission: Permission = Permission()
    storm: Storm = Storm()

    @field_validator("dry_run")
    @classmethod
    def _check_order(cls, dry: bool | frozenset[ActionName]) -> bool | frozenset[ActionName]:
        if not isinstance(dry, bool) and "escalate" in dry and "terminate" not in dry:
            raise ValueError(
                "it has escalate without terminate: workers would be terminated about whom nobody was asked; "
                "add terminate"
            )
        return dry

    def is_dry(self, kind: str) -> bool:
        """Return whether actions of a kind are only written down."""
        return self.dry_run if isinstance(self.dry_run, bool) else kind in self.dry_run


class Breaker(_Block):
    """One circuit breaker."""

    failure_threshold: Count = 3
    recovery_timeout_seconds: Seconds = 60
    half_open_requests: Count = 1


class CircuitBreakers(_Block):
    """All circuit breakers: the default and what differs by name."""

    default: Breaker = Breaker()
    overrides: dict[BreakerKey, Breaker] = {}
    """By kind, ``kind:agent`` or ``kind:agent:target``; a colon in the agent's name is written ``%3A``."""


class Recovery(_Block):
    """Limits of recovery."""

    max_attempts_per_task: Count = 3
    max_attempts_per_hour: Count = 5
    """Of one agent, whatever its tasks: one agent's recoveries do not use up another's."""
    backoff_seconds: Annotated[tuple[Seconds, ...], Field(min_length=1)] = (60, 120, 240)
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Each backoff is longer by up to this share, so that many do not come back at once."""
    watch_seconds: Seconds = 900
    """So long a recovered worker is watched closely: if it fails again, the recovery has failed."""
    automatic: bool = True
    """False: only an operator or the orchestrator recovers anything."""
    webhook_url: Annotated[WebAddress | None, Field(repr=False)] = None
    """Is asked to start workers again that do not run on our own runtime."""
    webhook_secret_file: Path | None = None
    """What that is signed with is in this file, which nobody else may read; None: not signed."""


Dollars = Annotated[float, Field(gt=0, le=1_000_000)]


class Spending(_Block):
    """What agents may spend, in US dollars: without limits nothing is looked at."""

    run_usd: Dollars | None = None
    """A session."""
    agent_day_usd: Dollars | None = None
    """All sessions of an agent in a day, UTC."""
    day_usd: Dollars | None = None
    """All agents in a day, UTC."""
    warn_at: Annotated[float, Field(gt=0, le=1)] = 0.8
    """From this share of a limit on there is a ticket that warns."""
    brake: Literal["nudge", "approval", "stop"] = "nudge"
    """Who reaches a limit is told so; or an operator is asked whether to stop it; or it is stopped."""
    dry_run: bool = True
    """The brake is only written down."""

    @property
    def is_on(self) -> bool:
        """Whether there is any limit."""
        return not (self.run_usd is None and self.agent_day_usd is None and self.day_usd is None)


class Retention(_Block):
    """How long is kept what happened."""

    days: Annotated[float, Field(gt=0, le=36_500)] = 30
    """Events, tickets that are closed, interventions, recoveries."""
    audit_days: Annotated[float, Field(gt=0, le=36_500)] = 365
    """Of these events, the audit trail: changes of state, decisions, interventions."""
    batch_rows: Annotated[int, Field(ge=1, le=10_000)] = 500
    """Rows let go of in one transaction: whoever wants to write meanwhile waits for one of these at most."""
    interval_seconds: Seconds = 3600

    @model_validator(mode="after")
    def _order(self) -> Retention:
        if self.audit_days < self.days:
            raise ValueError(f"audit_days {self.audit_days:g} must not be below days {self.days:g}")
        return self


ChannelName = Literal["slack", "pagerduty"]
AlertSeverity = Literal["critical", "warning", "info"]
_ALL_CHANNELS: Final[tuple[ChannelName, ...]] = ("slack", "pagerduty")


def _refuse_repeated(channels: tuple[ChannelName, ...]) -> tuple[ChannelName, ...]:
    if repeated := next((one for one in channels if channels.count(one) > 1), None):
        raise ValueError(f"{repeated} is named {channels.count(repeated)} times; name each channel once")
    return channels


_Channels = Annotated[tuple[ChannelName, ...], AfterValidator(_refuse_repeated)]


class TicketChannel(_Block):
    """
    Where tickets of a kind are sent, in the requirement document's words.

    A ticket's severity follows its findings, and its channels follow the severity, so that the values of the
    requirement document are taken and all others are refused: they would change nothing.
    """

    channels: _Channels = _ALL_CHANNELS
    severity: AlertSeverity = "critical"

    @field_validator("channels", "severity")
    @classmethod
    def _as_required(cls, value: Any, info: ValidationInfo) -> Any:
        required = cls.model_fields[info.field_name or ""].default
        if (set(value) != set(required)) if isinstance(required, tuple) else (value != required):
            allowed = ", ".join(required) if isinstance(required, tuple) else required
            raise ValueError(
                f"cannot be changed here (leave it out, or write {allowed}): high and critical tickets go to "
                "Slack and PagerDuty, others to Slack; to send some elsewhere, put a route of your own "
                "before ours in Alertmanager's configuration (docs/alerting.md)"
            )
        return value


class StuckAgentChannel(TicketChannel):
    """As IMPL-REQ-003 §7 writes it; what is sent has the severity of its ticket."""

    severity: AlertSeverity = "warning"


class BreakerChannel(_Block):
    """Where the alert about a circuit breaker that stays open is sent: critical pages, the rest does not."""

    channels: _Channels = ("slack",)
    severity: AlertSeverity = "warning"

    @model_validator(mode="before")
    @classmethod
    def _channels_left_out(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("severity") == "critical" and "channels" not in given:
            return {**given, "channels": _ALL_CHANNELS}
        return given

    @model_validator(mode="after")
    def _channels_of_severity(self) -> BreakerChannel:
        if set(self.channels) != (set(_ALL_CHANNELS) if self.severity == "critical" else {"slack"}):
            raise ValueError(
                f"channels {list(self.channels)} do not go with severity {self.severity}: critical goes to "
                "slack and pagerduty, warning and info to slack; change the severity, or leave channels out"
            )
        return self


class Channels(_Block):
    """Kinds of trouble."""

    stuck_agent: StuckAgentChannel = StuckAgentChannel()
    circuit_breaker_open: BreakerChannel = BreakerChannel()
    recovery_failed: TicketChannel = TicketChannel()


class BadStepsObjective(_Block):
    """The share of steps that may be judged bad (retry, escalate, error), over all workers."""

    error_budget: ErrorBudget = 0.25
    """Recorded runs that reached their goal had errors in 2 to 38 % of their turns, most in 10 to 20."""
    minimum: Count = 100
    """Of fewer steps in the longer window, a share says nothing."""


class SlowInterventionsObjective(_Block):
    """The share of troubles in which nothing was done about a worker in time."""

    seconds: float = 300
    """From the beginning of a trouble to the first thing done about it; one of INTERVENTION_SECONDS."""
    error_budget: ErrorBudget = 0.05
    minimum: Count = 20
    """Of fewer troubles in the longer window, a share says nothing."""

    @model_validator(mode="after")
    def _bucket(self) -> SlowInterventionsObjective:
        if self.seconds not in INTERVENTION_SECONDS:
            allowed = ", ".join(f"{bound:g}" for bound in INTERVENTION_SECONDS)
            raise ValueError(f"seconds {self.seconds:g} must be one that is measured: {allowed}")
        return self


class Rules(_Block):
    """Thresholds of alert rules that no detector has: those about the fleet and about the monitor itself."""

    degraded_share: Share = 0.5
    """So large a share of the agents in trouble is one page about the fleet."""
    degraded_minimum_agents: Count = 5
    """Fewer agents speak for themselves."""
    bad_steps: BadStepsObjective = BadStepsObjective()
    slow_interventions: SlowInterventionsObjective = SlowInterventionsObjective()
    tool_error_share: Share = 0.5
    waiting_for_user_seconds: Seconds = 1800
    outbox_stuck_seconds: Seconds = 120
    judge_unknown_share: Share = 0.5
    judge_minimum_checks: Count = 4
    budget_low_share: Share = 0.8
    """So large a share of what judging may cost is nearly all of it."""


class HealthSettings(_Block):
    """The ``health_monitoring`` block."""

    enabled: bool = True
    heartbeat: Heartbeat = Heartbeat()
    health_check: HealthCheck = HealthCheck()
    stall: Stall = Stall()
    learned_clocks: LearnedClockSettings = LearnedClockSettings()
    bands: Bands = Bands()
    loops: Loops = Loops()
    detectors: dict[FindingKind, DetectorMode] = {}
    """By the kind of finding; one that is not named is on, but ``grinding`` and ``token_burn`` in shadow."""
    judge: Judge = Judge()
    tickets: Tickets = Tickets()
    intervention: Intervention = Intervention()
    circuit_breaker: CircuitBreakers = CircuitBreakers()
    recovery: Recovery = Recovery()
    spending: Spending = Spending()
    retention: Retention = Retention()
    alerting: Channels = Channels()
    rules: Rules = Rules()
    clock_tolerance_seconds: Seconds = 60
    """An event whose author's clock is further off than this is timed by its arrival."""

    @cached_property
    def in_shadow(self) -> frozenset[FindingKind]:
        """The detectors that look, and nothing follows from what they find."""
        return frozenset(kind for kind in FindingKind if self.mode_of(kind) == "shadow")

    @cached_property
    def are_on(self) -> frozenset[FindingKind]:
        """The detectors that are on."""
        return frozenset(kind for kind in FindingKind if self.mode_of(kind) == "on")

    @property
    def has_shadows(self) -> bool:
        """Whether anything is looked at of which nothing follows."""
        return self.learned_clocks.mode == "shadow" or bool(self.in_shadow)

    def mode_of(self, kind: FindingKind) -> DetectorMode:
        """Return whether a detector is on, in shadow, or off."""
        return self.detectors.get(kind) or ("shadow" if kind in ON_TRIAL else "on")

    def acts_on(self, kind: FindingKind) -> bool:
        """Return whether anything may follow from what this detector looks at."""
        return self.mode_of(kind) == "on"
