"""
Thresholds and timings of the health layer, in one table for detectors, alert rules and dashboards.

The block is ``health_monitoring`` in ``queenright.yaml``. A block written for the requirement document
(IMPL-REQ-003 §7) is valid as it is. All times are in seconds.
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
"""The share that may fail."""
INTERVENTION_SECONDS: Final = (5, 10, 30, 60, 120, 300, 600, 1200, 1800, 2700, 3600, 7200)
"""The buckets of the time to intervention, in seconds."""

_BREAKER_KINDS: Final = tuple(kind.value for kind in BreakerKind)


def _web_address(url: SecretStr) -> SecretStr:
    """Refuse an unusable URL. The error does not repeat it, because it may contain a token."""
    text = url.get_secret_value()
    try:
        parts = urlsplit(text)
        host, fault = parts.hostname, "" if parts.port != 0 else "its port is 0"
    except ValueError:
        parts, host, fault = urlsplit(""), None, "its host or port is invalid"
    if any(not sign.isprintable() or sign.isspace() for sign in text):
        fault = "it contains a space or a control character"
    elif not fault and parts.scheme not in ("http", "https"):
        fault = "it does not begin with http:// or https://"
    elif not fault and not host:
        fault = "it has no host"
    if fault:
        raise ValueError(f"{fault}; write it like https://hooks.example.com/queenright")
    return url


def _breaker_name(name: str) -> str:
    """Refuse a name that no breaker has."""
    kind, colon, rest = name.partition(":")
    if kind not in _BREAKER_KINDS:
        near = get_close_matches(kind, _BREAKER_KINDS, 1)
        meant = f"; did you mean {near[0] + colon + rest!r}?" if near else ""
        kinds = ", ".join(_BREAKER_KINDS)
        raise ValueError(f"it must be kind, kind:agent or kind:agent:target, where kind is {kinds}{meant}")
    if name.endswith(":") and not rest.strip(":"):
        raise ValueError(f"nothing follows the colon; for all breakers of this kind write {kind!r}")
    agent, colon, target = rest.partition(":")
    if colon and not target:
        raise ValueError(f"nothing follows the last colon; for all targets write {f'{kind}:{agent}'!r}")
    return name


def _mode_name(mode: object) -> object:
    """Convert the booleans that YAML makes of unquoted ``on`` and ``off`` back."""
    return {True: "on", False: "off"}[mode] if isinstance(mode, bool) else mode


DetectorMode = Annotated[Literal["on", "shadow", "off"], BeforeValidator(_mode_name)]
"""Shadow: findings are shown and counted, and nothing follows. Off: the detector does not run."""
WebAddress = Annotated[SecretStr, AfterValidator(_web_address)]
BreakerKey = Annotated[str, AfterValidator(_breaker_name)]


class _Block(BaseModel):
    """A block of settings: unknown keys are refused, and values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Heartbeat(_Block):
    """When a heartbeat is missing."""

    interval_seconds: Seconds = 300
    """The assumed interval of workers that do not report theirs."""
    timeout_seconds: Seconds = 600
    """A worker is degraded after this silence; with another interval, in proportion to it."""

    @model_validator(mode="after")
    def _check_order(self) -> Heartbeat:
        if self.timeout_seconds < self.interval_seconds:
            raise ValueError(
                f"timeout_seconds {self.timeout_seconds} must not be below "
                f"interval_seconds {self.interval_seconds}: every worker would seem dead between heartbeats"
            )
        return self

    def limit(self, interval: float | None) -> float:
        """Return for how many seconds a worker with this heartbeat interval may be silent."""
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
    """More consecutive failures than this make a worker failing."""
    error_rate: Share = 0.25
    """A larger share of failed calls and steps makes a worker degraded."""
    error_rate_clear: Share = 0.20
    """The share below which that ends; lower, so that the state does not flap."""
    error_window: Annotated[int, Field(ge=4, le=64)] = 20
    """The number of recent calls and steps that the share is taken of."""
    error_minimum: Count = 8
    """The share is ignored below this number of calls and steps."""
    no_tokens_seconds: Seconds = 900
    """Active without using tokens; for workers that report tokens."""
    output_unchanged_seconds: Seconds = 1800
    output_unchanged_reports: Count = 3
    """As many consecutive reports of the same output, over that time, are no progress."""
    resource_warning: Share = 0.9
    """A reported resource is shown as nearly used up from this share of its limit."""
    polling_seconds: Seconds = 1800
    """How long a worker may poll something that always gives the same answer."""
    mcp_server_seconds: Seconds = 60
    """After this time a worker that goes on without a lost MCP server does not need it."""

    @model_validator(mode="after")
    def _check_order(self) -> HealthCheck:
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
    """How long a worker may be silent, by phase."""

    idle_seconds: Seconds = 240
    llm_seconds: Seconds = 240
    tool_seconds: Seconds = 600
    unknown_seconds: Seconds = 900


class LearnedClockSettings(_Block):
    """Limits of silence that are learned from how long an agent's calls and pauses usually take."""

    mode: DetectorMode = "shadow"
    """On: learned limits apply. Shadow: their findings are shown and counted. Off: nothing is learned."""
    calls: Count = 30
    """The number of calls before a limit is learned."""
    shortest: Annotated[float, Field(gt=0, le=1)] = 0.5
    """A learned limit is at least this fraction of the configured one."""
    longest: Annotated[float, Field(ge=1, le=100)] = 3
    """A learned limit is at most this multiple of the configured one."""


class Bands(_Block):
    """Bad steps since the last ACCEPT, and consecutive failed calls; ``>=`` everywhere."""

    warning: Count = 5
    medium: Count = 10
    high: Count = 15
    critical: Count = 20

    @model_validator(mode="after")
    def _check_order(self) -> Bands:
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
    """Non-consecutive repeats in a window without a change between two of them."""
    repeats_high: Count = 5
    """As many in a window have severity high."""
    repeats_at_all: Count = 8
    """Non-consecutive repeats in a window despite changes: failures are medium, others only shown."""
    cycles: Count = 3
    blind_repeats: Count = 10
    """Consecutive repeats of a call of unknown result: an edit-test cycle repeats arguments on purpose."""
    error_streak: Count = 5
    provider_failures: Count = 3
    stale_calls: Count = 4
    """Consecutive tool calls without new information."""
    fruitless_calls: Count = 5
    """New searches without a hit and without other news: shown; twice as many are medium."""
    refused_changes: Count = 5
    """Turns in which edits or submissions failed with one class of error since the last successful one."""
    idle_turns: Count = 8
    """Consecutive turns of the model without a tool call and without a user message."""
    grinding_calls: Count = 60
    """Tool calls since anything was changed, accepted or saved, or the user sent a message."""
    burn_factor: Annotated[float, Field(gt=1)] = 3
    """Tokens since then, as a multiple of what 99 of 100 changes of the agent took."""
    burn_minimum: Count = 200_000
    """Fewer tokens than this are ignored, whatever the multiple."""
    told_calls: Count = 7
    """From this number of results on, the share without new information counts."""
    told_known_share: Annotated[float, Field(gt=0.5, le=1)] = 0.55
    """Above a half, so that neither acknowledgements nor new errors, which count half, suffice alone."""
    token_spike_factor: Annotated[float, Field(gt=1)] = 4
    """Input tokens of one call as a multiple of the median of the five before it."""
    token_spike_minimum: Count = 20_000
    """Fewer tokens than this are ignored: a first big file among short prompts is not a spike."""
    poll_seconds: Seconds = 15
    """Repeating a query after such a pause is polling: of a job, of a log."""
    pause_seconds: Seconds = 60
    """Repeating any call after such a pause is polling."""
    exempt_tools: tuple[str, ...] = ()


class Judge(_Block):
    """Intervals of the judge. A new incarnation gets no ticket in its start grace."""

    interval_seconds: Seconds = 120
    start_grace_seconds: Annotated[float, Field(ge=0)] = 120
    bypass_seconds: Seconds = 60
    """A high or critical candidate that waits this long for the judge's model gets a ticket by the rules."""
    triage_timeout_seconds: Seconds = 120


class ReEscalation(_Block):
    """Reminders of tickets that were notified and not acknowledged."""

    after_minutes: Annotated[float, Field(gt=0, le=10_080)] = 60
    """The time since the last notification, reminder, rise or relapse."""
    max: Annotated[int, Field(ge=0, le=10)] = 3
    """The maximum number of reminders since the severity last rose; 0: none."""


class Tickets(_Block):
    """When tickets close, and reminders until somebody acknowledges them."""

    hold_seconds: Annotated[float, Field(ge=0)] = 120
    """How long a recovery must hold before its ticket resolves; a relapse within it reopens."""
    dead_worker_seconds: Seconds = 86_400
    """This long after a worker was found dead it is over, outcome unknown, and its tickets close."""
    abandoned_run_seconds: Seconds = 3_600
    """
    This long after it stalled, a run without heartbeats and open work is over, outcome unknown, and its
    tickets close, unless its process sends something.
    """
    re_escalation: ReEscalation = ReEscalation()
    incident_workers: Annotated[int, Field(ge=2, le=100_000)] = 3
    """As many workers whose calls of one tool fail in the same way are one incident."""
    incident_window_seconds: Seconds = 600
    """Only workers that were active within this time count."""


class Nudge(_Block):
    """The first level of the intervention ladder."""

    enabled: bool = True
    max_attempts: Annotated[int, Field(ge=0, le=100)] = 3
    interval_seconds: Seconds = 600
    ttl_seconds: Seconds = 600
    """A nudge that was not fetched within this time is discarded."""


class Escalation(_Block):
    """The second level of the intervention ladder."""

    timeout_seconds: Seconds = 900
    orchestrator: Literal["queen", "webhook", "none"] = "queen"
    """Who chooses between more time, a hand-off and termination; without a decision it is termination."""
    webhook_url: Annotated[WebAddress | None, Field(repr=False)] = None
    """Receives each escalation as JSON; it answers at once, or later through the API."""
    webhook_secret_file: Path | None = None
    """The file with the secret that signs escalations, readable by its owner only; None: not signed."""
    more_time_seconds: Seconds = 900
    """The length of "more time" if the decision does not give one."""

    @model_validator(mode="after")
    def _url(self) -> Escalation:
        if self.orchestrator == "webhook" and self.webhook_url is None:
            raise ValueError("webhook_url is required if orchestrator is 'webhook'")
        return self


class Termination(_Block):
    """The third level of the intervention ladder."""

    cleanup_timeout_seconds: Seconds = 30
    automatic: bool = True
    """False: only the orchestrator or an operator terminates a worker; the ladder ends there."""
    on_request: Literal["ask", "allow", "never"] = "ask"
    """Whether a worker is terminated when the queen asks for it, in triage or in a chat: once an operator has
    approved it, at once, or never."""
    approval_timeout_seconds: Seconds = 1800
    """A request expires after this time."""


class Storm(_Block):
    """Many workers that get worse at once are rarely at fault themselves; acting on all makes it worse."""

    workers: Annotated[int, Field(ge=2, le=100_000)] = 5
    """As many within the window are a storm: their alerts are one group."""
    window_seconds: Seconds = 30
    quiet_seconds: Seconds = 120
    """The storm is over when no worker got worse for this long."""
    max_actions: Count = 10
    """The maximum number of interventions within a minute, with or without a storm."""


class Permission(_Block):
    """Permission requests of coding agents."""

    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 0
    """How long a permission request waits for an answer given here; 0: it is asked at the terminal only."""


ActionName = Literal["nudge", "escalate", "terminate", "recover", "answer"]


class Intervention(_Block):
    """The intervention ladder."""

    enabled: bool = True
    """False: no automatic action; an operator can still act."""
    dry_run: bool | frozenset[ActionName] = False
    """Only record what would have been done: for every kind of action, or for these."""
    quiet_seconds: Annotated[float, Field(ge=0)] = 120
    """No automatic action for this long after a start, or after the clock jumped."""
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
                "it has escalate without terminate: workers would be terminated without asking the "
                "orchestrator; add terminate"
            )
        return dry

    def is_dry(self, kind: str) -> bool:
        """Return whether actions of a kind are only recorded."""
        return self.dry_run if isinstance(self.dry_run, bool) else kind in self.dry_run


class Breaker(_Block):
    """One circuit breaker."""

    failure_threshold: Count = 3
    recovery_timeout_seconds: Seconds = 60
    half_open_requests: Count = 1


class CircuitBreakers(_Block):
    """The default of all circuit breakers, and overrides by name."""

    default: Breaker = Breaker()
    overrides: dict[BreakerKey, Breaker] = {}
    """By kind, ``kind:agent`` or ``kind:agent:target``; write a colon in an agent's name as ``%3A``."""


class Recovery(_Block):
    """Limits of recovery."""

    max_attempts_per_task: Count = 3
    max_attempts_per_hour: Count = 5
    """For one agent, over all of its tasks: recoveries of other agents do not count."""
    backoff_seconds: Annotated[tuple[Seconds, ...], Field(min_length=1)] = (60, 120, 240)
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Each backoff is longer by up to this share, so that many tasks do not return at once."""
    watch_seconds: Seconds = 900
    """How long a recovered worker is watched: if it fails again, the recovery has failed."""
    automatic: bool = True
    """False: only an operator or the orchestrator recovers anything."""
    webhook_url: Annotated[WebAddress | None, Field(repr=False)] = None
    """Starts workers that do not run on our own runtime."""
    webhook_secret_file: Path | None = None
    """The file with the secret that signs requests, readable by its owner only; None: not signed."""


Dollars = Annotated[float, Field(gt=0, le=1_000_000)]


class Spending(_Block):
    """Spending limits of agents in US dollars; without a limit nothing is checked."""

    run_usd: Dollars | None = None
    """For a session."""
    agent_day_usd: Dollars | None = None
    """For all sessions of an agent in a day, UTC."""
    day_usd: Dollars | None = None
    """For all agents in a day, UTC."""
    warn_at: Annotated[float, Field(gt=0, le=1)] = 0.8
    """A ticket warns from this share of a limit on."""
    brake: Literal["nudge", "approval", "stop"] = "nudge"
    """At a limit: nudge the worker, ask an operator whether to stop it, or stop it."""
    dry_run: bool = True
    """Only record the brake."""

    @property
    def is_on(self) -> bool:
        """Whether there is a limit."""
        return not (self.run_usd is None and self.agent_day_usd is None and self.day_usd is None)


class Retention(_Block):
    """Retention periods."""

    days: Annotated[float, Field(gt=0, le=36_500)] = 30
    """Events, closed tickets, interventions, recoveries."""
    audit_days: Annotated[float, Field(gt=0, le=36_500)] = 365
    """The audit trail among the events: changes of state, decisions, interventions."""
    batch_rows: Annotated[int, Field(ge=1, le=10_000)] = 500
    """Rows deleted in one transaction: other writers wait for one of these at most."""
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
        raise ValueError(f"{repeated} is listed {channels.count(repeated)} times; list each channel once")
    return channels


_Channels = Annotated[tuple[ChannelName, ...], AfterValidator(_refuse_repeated)]


class TicketChannel(_Block):
    """
    Where tickets of a kind are sent, as the requirement document has it.

    A ticket's channels follow from its severity, and that from its findings. So only the values of the
    requirement document are accepted: others would have no effect.
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
    """The values of IMPL-REQ-003 §7; alerts have the severity of their ticket."""

    severity: AlertSeverity = "warning"


class BreakerChannel(_Block):
    """Where the alert about a circuit breaker that stays open is sent: only critical ones page."""

    channels: _Channels = ("slack",)
    severity: AlertSeverity = "warning"

    @model_validator(mode="before")
    @classmethod
    def _default_channels(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("severity") == "critical" and "channels" not in values:
            return {**values, "channels": _ALL_CHANNELS}
        return values

    @model_validator(mode="after")
    def _check_channels(self) -> BreakerChannel:
        if set(self.channels) != (set(_ALL_CHANNELS) if self.severity == "critical" else {"slack"}):
            raise ValueError(
                f"channels {list(self.channels)} do not match severity {self.severity}: critical goes to "
                "slack and pagerduty, warning and info to slack; change the severity, or leave channels out"
            )
        return self


class Channels(_Block):
    """Channels by kind of alert."""

    stuck_agent: StuckAgentChannel = StuckAgentChannel()
    circuit_breaker_open: BreakerChannel = BreakerChannel()
    recovery_failed: TicketChannel = TicketChannel()


class BadStepsObjective(_Block):
    """The share of bad steps (retry, escalate, error) over all workers."""

    error_budget: ErrorBudget = 0.25
    """Recorded runs that reached their goal had errors in 2 to 38 % of their turns, most in 10 to 20."""
    minimum: Count = 100
    """The share is ignored if there are fewer steps in the longer window."""


class SlowInterventionsObjective(_Block):
    """The share of troubled workers without an action in time."""

    seconds: float = 300
    """From the beginning of the trouble to the first action; one of INTERVENTION_SECONDS."""
    error_budget: ErrorBudget = 0.05
    minimum: Count = 20
    """The share is ignored if there are fewer in the longer window."""

    @model_validator(mode="after")
    def _bucket(self) -> SlowInterventionsObjective:
        if self.seconds not in INTERVENTION_SECONDS:
            allowed = ", ".join(f"{bound:g}" for bound in INTERVENTION_SECONDS)
            raise ValueError(f"seconds {self.seconds:g} must be one of the measured values: {allowed}")
        return self


class Rules(_Block):
    """Thresholds of alert rules without a detector, about the fleet and the monitor itself."""

    degraded_share: Share = 0.5
    """This share of agents in trouble is one page about the fleet."""
    degraded_minimum_agents: Count = 5
    """Smaller fleets have tickets only."""
    bad_steps: BadStepsObjective = BadStepsObjective()
    slow_interventions: SlowInterventionsObjective = SlowInterventionsObjective()
    tool_error_share: Share = 0.5
    waiting_for_user_seconds: Seconds = 1800
    outbox_stuck_seconds: Seconds = 120
    judge_unknown_share: Share = 0.5
    judge_minimum_checks: Count = 4
    budget_low_share: Share = 0.8
    """The share of the judging budget from which on it is nearly used up."""


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
    """By kind of finding; the default is on, for ``grinding`` and ``token_burn`` shadow."""
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
    """An event whose time is further off than this is timed by its arrival."""

    @cached_property
    def in_shadow(self) -> frozenset[FindingKind]:
        """The detectors in shadow."""
        return frozenset(kind for kind in FindingKind if self.mode_of(kind) == "shadow")

    @cached_property
    def are_on(self) -> frozenset[FindingKind]:
        """The detectors that are on."""
        return frozenset(kind for kind in FindingKind if self.mode_of(kind) == "on")

    @property
    def has_shadows(self) -> bool:
        """Whether anything is in shadow."""
        return self.learned_clocks.mode == "shadow" or bool(self.in_shadow)

    def mode_of(self, kind: FindingKind) -> DetectorMode:
        """Return the mode of a detector."""
        return self.detectors.get(kind) or ("shadow" if kind in ON_TRIAL else "on")

    def acts_on(self, kind: FindingKind) -> bool:
        """Return whether a detector is on."""
        return self.mode_of(kind) == "on"
