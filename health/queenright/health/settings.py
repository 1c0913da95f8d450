"""
Thresholds and timings of the health layer, which detectors, alert rules and dashboards share.

They are the block ``health_monitoring`` in ``queenright.yaml``. A block that was written for the requirement
document (IMPL-REQ-003 §7) is valid without changes. All times are in seconds.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
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

from queenright.health.action_kind import ActionKind
from queenright.health.findings import SHADOW_KINDS, FindingKind
from queenright.runtime.breaker_protocols import BreakerKind

Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
ErrorBudget = Annotated[float, Field(gt=0, le=0.5)]
"""The share of steps that may fail."""

CLOCK_TOLERANCE_SECONDS: Final = 60.0
"""An event from a clock that differs by more is timed by its arrival. NTP keeps clocks far closer."""

_BREAKER_KINDS: Final = tuple(kind.value for kind in BreakerKind)


def _validate_url(url: SecretStr) -> SecretStr:
    """Validate a URL. The error does not repeat it, because it may contain a token."""
    text = url.get_secret_value()
    try:
        parts = urlsplit(text)
        host, fault = parts.hostname, "" if parts.port != 0 else "the port is 0"
    except ValueError:
        parts, host, fault = urlsplit(""), None, "the host or the port is invalid"
    if any(not character.isprintable() or character.isspace() for character in text):
        fault = "the URL contains a space or a control character"
    elif not fault and parts.scheme not in ("http", "https"):
        fault = "the URL does not begin with http:// or https://"
    elif not fault and not host:
        fault = "the URL has no host"
    if fault:
        raise ValueError(f"{fault}; write a URL like https://hooks.example.com/queenright")
    return url


def _validate_breaker_name(name: str) -> str:
    """Validate the key of an override, which must be able to match a breaker's name."""
    kind, colon, agent_and_target = name.partition(":")
    if kind not in _BREAKER_KINDS:
        suggestions = get_close_matches(kind, _BREAKER_KINDS, 1)
        hint = f"; did you mean {suggestions[0] + colon + agent_and_target!r}?" if suggestions else ""
        kinds = ", ".join(_BREAKER_KINDS)
        raise ValueError(f"must be kind, kind:agent or kind:agent:target, where kind is one of {kinds}{hint}")
    if name.endswith(":") and not agent_and_target.strip(":"):
        raise ValueError(f"{name!r} ends with a colon; for all breakers of this kind write {kind!r}")
    agent, colon, target = agent_and_target.partition(":")
    if colon and not target:
        raise ValueError(f"{name!r} ends with a colon; for all targets write {f'{kind}:{agent}'!r}")
    return name


def _convert_boolean(mode: object) -> object:
    """
    Return ``on`` or ``off`` for a boolean, because YAML reads these words as booleans unless they are quoted.
    """
    return {True: "on", False: "off"}[mode] if isinstance(mode, bool) else mode


DetectorMode = Annotated[Literal["on", "shadow", "off"], BeforeValidator(_convert_boolean)]
"""``shadow``: findings are only shown and counted. ``off``: the detector does not run."""
WebAddress = Annotated[SecretStr, AfterValidator(_validate_url)]
BreakerKey = Annotated[str, AfterValidator(_validate_breaker_name)]


class _Block(BaseModel):
    """An immutable block of settings. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class HeartbeatSettings(_Block):
    """When a process counts as silent."""

    interval_seconds: Seconds = 300
    """Seconds between heartbeats, for workers that do not declare an interval."""
    timeout_seconds: Seconds = 600
    """Seconds of silence after which such a worker is degraded. It scales with a declared interval."""

    @model_validator(mode="after")
    def _validate_order(self) -> HeartbeatSettings:
        if self.timeout_seconds < self.interval_seconds:
            raise ValueError(
                f"timeout_seconds {self.timeout_seconds} must not be below interval_seconds "
                f"{self.interval_seconds}, otherwise every worker times out between two heartbeats"
            )
        return self

    def limit(self, interval: float | None) -> float:
        """Return the seconds of silence allowed to a worker with this heartbeat interval."""
        if interval is None:
            return self.timeout_seconds
        return self.timeout_seconds * (interval / self.interval_seconds)


class HealthCheckSettings(_Block):
    """The periodic sweep over all workers, and thresholds that concern neither loops nor stalls."""

    interval_seconds: Seconds = 60
    """Seconds between two sweeps. A sweep is a safety net, for which findings do not wait."""
    checkpoint_stale_threshold_seconds: Seconds = 1800
    """
    Age of the last checkpoint, in seconds, at which a worker is stuck. At a third of it, it is degraded.
    """
    no_tool_call_seconds: Seconds = 900
    """Seconds of activity without a tool call or progress after which a worker is stuck."""
    consecutive_failures: Count = 3
    """Consecutive failures above which a worker is failing."""

    @property
    def no_tokens_seconds(self) -> float:
        """Seconds of activity without tokens after which a worker that reports tokens has a finding."""
        return self.no_tool_call_seconds

    @property
    def polling_seconds(self) -> float:
        """
        Seconds of polling with the same answer after which it is a finding. Polling is visible, so this is
        longer.
        """
        return 2 * self.no_tool_call_seconds

    @property
    def checkpoint_degraded_seconds(self) -> float:
        """The age, in seconds, at which a checkpoint is a finding without a ticket."""
        return self.checkpoint_stale_threshold_seconds / 3


class StallSettings(_Block):
    """Seconds of silence after which a worker is stalled, by phase."""

    idle_seconds: Seconds = 240
    """Between steps."""
    llm_seconds: Seconds = 240
    """In a model call without tokens."""
    tool_seconds: Seconds = 600
    """In a tool that declares no timeout."""
    unknown_seconds: Seconds = 900
    """In an unknown phase, for frameworks that report calls only when they end."""


class LearnedClockSettings(_Block):
    """Stall limits learned from the usual durations of an agent."""

    mode: DetectorMode = "shadow"
    """``on``: learned limits apply. ``shadow``: they are only shown. ``off``: nothing is learned."""
    shortest: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Lower bound of a learned limit, as a fraction of the configured limit."""
    longest: Annotated[float, Field(ge=1, le=100)] = 3
    """Upper bound of a learned limit, as a multiple of the configured limit."""


class BandSettings(_Block):
    """
    The counts of bad steps since the last ACCEPT, or of consecutive failed calls, that determine the
    severity.
    """

    warning: Count = 5
    """A finding without a ticket."""
    medium: Count = 10
    """A medium ticket if half of the steps are repeats."""
    high: Count = 15
    """A high ticket."""
    critical: Count = 20
    """A critical ticket."""

    @model_validator(mode="after")
    def _validate_order(self) -> BandSettings:
        if not self.warning < self.medium < self.high < self.critical:
            raise ValueError(
                f"bands must rise: warning {self.warning} < medium {self.medium} "
                f"< high {self.high} < critical {self.critical}"
            )
        return self


class LoopSettings(_Block):
    """
    The counts at which repetition is a finding. tests/detection/README.md explains each.

    Counts that share a reason share a setting. A value that no user would change is a constant.
    """

    blind_repeats: ClassVar = 10
    """Identical calls in a row whose results are unknown."""
    minimum_results: ClassVar = 7
    """The minimum number of results for ``known_results_share`` to apply."""
    known_results_share: ClassVar = 0.55
    """Share of results that are not new. It is above one half, because acknowledgements count half."""
    pause_seconds: ClassVar = 60.0
    """Minimum seconds between two identical calls for any call to be a poll."""
    polls: ClassVar = 20
    """Polls with the same answer that are too frequent, or whose call does not read a state."""
    poll_seconds: ClassVar = 15.0
    """
    Minimum seconds between two identical reads in a row for them to be polls (5 for a read of a state). Loops
    repeat faster.
    """
    window: ClassVar = 20
    """
    The number of recent calls among which repeats are counted: more than three rounds of the longest cycle, 4
    calls.
    """
    error_streak: ClassVar = 5
    """Turns in a row in which one tool failed with one class of error. Equals ``bands.warning``."""
    provider_failures: ClassVar = 3
    """Failed model calls in a row. Clients already retry twice on their own."""
    token_spike_factor: ClassVar = 4.0
    """Input tokens of a model call, as a multiple of the median of the previous five calls."""
    token_spike_minimum: ClassVar = 20_000
    """Input tokens below which a call is never a spike. Reading a file stays below this."""

    consecutive: Count = 3
    """Identical calls with identical results in a row."""
    repeats: Count = 4
    """Identical calls with identical results in the window, without a change between them."""
    idle_turns: Count = 8
    """Model answers in a row without a tool call or a user message."""
    exempt_tools: tuple[str, ...] = ()
    """Names of tools that may repeat calls; empty: none."""

    @property
    def cycles(self) -> int:
        """Rounds of a cycle of two to four calls. Each round counts as one repeat."""
        return self.consecutive

    @property
    def repeats_high(self) -> int:
        """Repeats at which the severity is high."""
        return self.repeats + 1

    @property
    def repeats_at_all(self) -> int:
        """Repeats regardless of changes between them. Repeated failures are medium, others open no ticket."""
        return 2 * self.repeats

    @property
    def stale_calls(self) -> int:
        """Calls in a row that returned nothing new. They differ, so each is weaker evidence than a repeat."""
        return self.consecutive + 1

    @property
    def fruitless_calls(self) -> int:
        """
        Searches in a row that found nothing, without other new results between them. Twice as many are
        medium.
        """
        return self.stale_calls + 1

    @property
    def known_results(self) -> int:
        """
        Repeats and failures since the last change at which the severity is high, if they are most of the
        results.
        """
        return self.stale_calls + 1

    @property
    def refused_changes(self) -> int:
        """Edits or submissions that failed with one class of error since a change succeeded."""
        return self.error_streak


class JudgeScheduleSettings(_Block):
    """When the judge checks workers, and how long the queen may take."""

    interval_seconds: Seconds = 120
    """Seconds between two checks of all workers. Findings wake the judge immediately."""
    start_grace_seconds: Annotated[float, Field(ge=0)] = 120
    """Seconds after the start of a process in which it gets no tickets; 0: none."""
    triage_timeout_seconds: Seconds = 120
    """Seconds after which a high or critical ticket without a decision is sent as ``untriaged``."""


class ReEscalationSettings(_Block):
    """Reminders of unacknowledged tickets."""

    after_minutes: Annotated[float, Field(gt=0, le=10_080)] = 60
    """Minutes between the last notification of a ticket and a reminder."""
    max: Annotated[int, Field(ge=0, le=10)] = 3
    """Maximum number of reminders per severity of a ticket; 0: none."""


class TicketSettings(_Block):
    """How tickets end, and when people are reminded of them."""

    abandoned_run_seconds: ClassVar = 3_600.0
    """Like ``dead_worker_seconds``, for a stalled run without heartbeats and without open work."""

    hold_seconds: Annotated[float, Field(ge=0)] = 120
    """Seconds that a recovery must last before its ticket resolves; 0: it resolves immediately."""
    dead_worker_seconds: Seconds = 86_400
    """Seconds after which a dead worker ends with outcome ``unknown`` and its tickets close."""
    re_escalation: ReEscalationSettings = ReEscalationSettings()


class NudgeSettings(_Block):
    """The first level of intervention: a message to the worker."""

    enabled: bool = True
    """``false``: interventions begin with the escalation."""
    max_attempts: Annotated[int, Field(ge=0, le=100)] = 3
    """Nudges before the escalation; 0: none."""
    interval_seconds: Seconds = 600
    """Seconds between two nudges, and from the last nudge to the escalation."""


class EscalationSettings(_Block):
    """The second level: the orchestrator decides on more time, a hand-off or a termination."""

    timeout_seconds: Seconds = 900
    """Seconds that the orchestrator has to answer before the worker is terminated."""
    orchestrator: Literal["queen", "webhook", "none"] = "queen"
    """Who decides escalations; ``none``: only people."""
    webhook_url: Annotated[WebAddress | None, Field(repr=False)] = None
    """URL to which each escalation is posted, as JSON. Required with ``orchestrator: webhook``."""
    webhook_secret_file: Path | None = None
    """
    File with the key that signs these requests, readable only by its owner; None: requests are not signed.
    """

    @model_validator(mode="after")
    def _require_url(self) -> EscalationSettings:
        if self.orchestrator == "webhook" and self.webhook_url is None:
            raise ValueError("orchestrator 'webhook' requires webhook_url; set it, or choose queen or none")
        return self


class TerminationSettings(_Block):
    """The third level: the end of the worker's process."""

    cleanup_timeout_seconds: Seconds = 30
    """Seconds that a worker has to save its work before it is stopped."""
    automatic: bool = True
    """``false``: only the orchestrator or an operator terminates."""
    on_request: Literal["ask", "allow", "never"] = "ask"
    """What happens if the queen requests a termination: an operator is asked, it runs, or it is refused."""


class StormSettings(_Block):
    """
    Limits for storms: many workers whose health gets worse at the same time, usually with a shared cause.
    """

    workers: Annotated[int, Field(ge=2, le=100_000)] = 5
    """Number of workers that must get worse within 30 s to share one notification."""
    max_actions: Count = 10
    """Interventions per minute in the whole fleet, even without a storm."""


class PermissionSettings(_Block):
    """Permission requests of coding agents."""

    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 0
    """Seconds that a request waits for an answer through Queenright; 0: only the terminal is asked."""


class InterventionSettings(_Block):
    """Interventions on a worker in trouble: nudge, escalate, terminate, recover."""

    enabled: bool = True
    """``false``: only an operator acts."""
    dry_run: bool | frozenset[ActionKind] = False
    """``true``: actions are only recorded. Or the kinds of actions that are only recorded."""
    quiet_seconds: Annotated[float, Field(ge=0)] = 120
    """Seconds without automatic actions after the service starts or its clock jumps; 0: none."""
    nudge: NudgeSettings = NudgeSettings()
    escalation: EscalationSettings = EscalationSettings()
    termination: TerminationSettings = TerminationSettings()
    permission: PermissionSettings = PermissionSettings()
    storm: StormSettings = StormSettings()

    @field_validator("dry_run")
    @classmethod
    def _require_terminate_with_escalate(
        cls, dry: bool | frozenset[ActionKind]
    ) -> bool | frozenset[ActionKind]:
        if not isinstance(dry, bool) and ActionKind.ESCALATE in dry and ActionKind.TERMINATE not in dry:
            raise ValueError(
                "escalate without terminate would terminate workers without asking anyone; add terminate"
            )
        return dry

    def is_dry(self, kind: str) -> bool:
        """Return whether actions of this kind are only recorded."""
        return self.dry_run if isinstance(self.dry_run, bool) else kind in self.dry_run


class BreakerSettings(_Block):
    """Settings of a circuit breaker."""

    failure_threshold: Count = 3
    """Consecutive failures that open the breaker."""
    recovery_timeout_seconds: Seconds = 60
    """Seconds that a breaker stays open before it half-opens."""
    half_open_requests: Count = 1
    """Number of concurrent probes while the breaker is half-open."""


class CircuitBreakerSettings(_Block):
    """All circuit breakers."""

    default: BreakerSettings = BreakerSettings()
    overrides: dict[BreakerKey, BreakerSettings] = {}
    """
    Settings by ``kind``, ``kind:agent`` or ``kind:agent:target``. Write a colon in an agent's name as
    ``%3A``.
    """


class RecoverySettings(_Block):
    """Limits of recovery: starting a worker again from its last valid checkpoint."""

    max_attempts_per_task: Count = 3
    """Total attempts at a task before a person must review it."""
    max_attempts_per_hour: Count = 5
    """Attempts per agent within an hour, over all its tasks."""
    backoff_seconds: Annotated[tuple[Seconds, ...], Field(min_length=1)] = (60, 120, 240)
    """Seconds to wait after each failed attempt. The last value repeats."""
    automatic: bool = True
    """``false``: only an operator or the orchestrator recovers."""
    webhook_url: Annotated[WebAddress | None, Field(repr=False)] = None
    """URL that starts workers which run elsewhere; None: these are not recovered."""
    webhook_secret_file: Path | None = None
    """
    File with the key that signs these requests, readable only by its owner; None: requests are not signed.
    """


Dollars = Annotated[float, Field(gt=0, le=1_000_000)]


class SpendingSettings(_Block):
    """Spending limits of agents, in US dollars. Without a limit, spending has no findings."""

    run_usd: Dollars | None = None
    """Limit per session; None: no limit."""
    agent_day_usd: Dollars | None = None
    """Limit per agent and UTC day; None: no limit."""
    day_usd: Dollars | None = None
    """Limit of all agents per UTC day; None: no limit."""
    brake: Literal["none", "nudge", "approval", "stop"] = "none"
    """
    What happens at a limit in addition to the ticket: the worker is nudged, an operator is asked to approve
    its termination, or it is terminated.
    """

    @property
    def is_on(self) -> bool:
        """Whether any limit is set."""
        return self.run_usd is not None or self.is_of_fleet

    @property
    def is_of_fleet(self) -> bool:
        """Whether a limit applies to more than one session."""
        return self.agent_day_usd is not None or self.day_usd is not None


class RetentionSettings(_Block):
    """How long the service keeps its data."""

    days: Annotated[float, Field(gt=0, le=36_500)] = 30
    """Days for events, closed tickets, interventions and recoveries."""
    audit_days: Annotated[float, Field(gt=0, le=36_500)] = 365
    """Days for the audit trail among the events; at least ``days``."""

    @model_validator(mode="after")
    def _validate_order(self) -> RetentionSettings:
        if self.audit_days < self.days:
            raise ValueError(f"audit_days {self.audit_days:g} must not be below days {self.days:g}")
        return self


ChannelName = Literal["slack", "pagerduty"]
AlertSeverity = Literal["critical", "warning", "info"]
_ALL_CHANNELS: Final[tuple[ChannelName, ...]] = ("slack", "pagerduty")


class TicketChannel(_Block):
    """
    Where tickets of a kind are sent, in the form of IMPL-REQ-003 §7.

    These are not settings, because a ticket's severity follows its findings, and its channels follow the
    severity. The values of the document are accepted. Other values are refused, because they would have no
    effect.
    """

    channels: tuple[ChannelName, ...] = _ALL_CHANNELS
    severity: AlertSeverity = "critical"

    @field_validator("channels", "severity")
    @classmethod
    def _require_fixed_value(cls, value: Any, info: ValidationInfo) -> Any:
        defaults = cls.model_fields[info.field_name or ""].default
        if (set(value) != set(defaults)) if isinstance(defaults, tuple) else (value != defaults):
            choice = ", ".join(defaults) if isinstance(defaults, tuple) else defaults
            raise ValueError(
                f"cannot be changed here (leave it out, or write {choice}): high and critical tickets go to "
                "Slack and PagerDuty, others to Slack; to send some elsewhere, put a route of your own "
                "before ours in Alertmanager's configuration (docs/alerting.md)"
            )
        return value


class StuckAgentChannel(TicketChannel):
    """The form of IMPL-REQ-003 §7. A notification has the severity of its ticket."""

    severity: AlertSeverity = "warning"


class BreakerChannel(_Block):
    """The alert about a circuit breaker that stays open."""

    severity: AlertSeverity = "warning"
    """``critical`` goes to Slack and PagerDuty, ``warning`` and ``info`` to Slack."""
    channels: Annotated[tuple[ChannelName, ...], Field(exclude=True)] = ("slack",)
    # Accepted in the form of IMPL-REQ-003 §7. The channels follow from the severity, so they are not a
    # setting.

    @model_validator(mode="before")
    @classmethod
    def _derive_channels(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("severity") == "critical" and "channels" not in value:
            return {**value, "channels": _ALL_CHANNELS}
        return value

    @model_validator(mode="after")
    def _validate_channels(self) -> BreakerChannel:
        if set(self.channels) != (set(_ALL_CHANNELS) if self.severity == "critical" else {"slack"}):
            raise ValueError(
                f"channels {list(self.channels)} do not go with severity {self.severity}: critical goes to "
                "slack and pagerduty, warning and info to slack; change the severity, or leave channels out"
            )
        return self


class ChannelSettings(_Block):
    """Severities of alerts."""

    stuck_agent: Annotated[StuckAgentChannel, Field(exclude=True)] = StuckAgentChannel()
    circuit_breaker_open: BreakerChannel = BreakerChannel()
    recovery_failed: Annotated[TicketChannel, Field(exclude=True)] = TicketChannel()


class BadStepsObjective(_Block):
    """The objective for bad steps (verdict retry or escalate, or an error), over all workers."""

    error_budget: ErrorBudget = 0.25
    """Share of steps that may be bad. Recorded runs that succeeded had errors in 2 to 38 % of their turns."""


class RuleSettings(_Block):
    """Thresholds of alert rules that do not belong to a detector. Export the rules after a change."""

    bad_steps: BadStepsObjective = BadStepsObjective()


class HealthSettings(_Block):
    """The ``health_monitoring`` block."""

    enabled: bool = True
    """``false``: telemetry is only stored and forwarded."""
    heartbeat: HeartbeatSettings = HeartbeatSettings()
    health_check: HealthCheckSettings = HealthCheckSettings()
    stall: StallSettings = StallSettings()
    learned_clocks: LearnedClockSettings = LearnedClockSettings()
    bands: BandSettings = BandSettings()
    loops: LoopSettings = LoopSettings()
    detectors: dict[FindingKind, DetectorMode] = {}
    """Mode by kind of finding. The default is ``on``, but ``shadow`` for ``grinding`` and ``token_burn``."""
    judge: JudgeScheduleSettings = JudgeScheduleSettings()
    tickets: TicketSettings = TicketSettings()
    intervention: InterventionSettings = InterventionSettings()
    circuit_breaker: CircuitBreakerSettings = CircuitBreakerSettings()
    recovery: RecoverySettings = RecoverySettings()
    spending: SpendingSettings = SpendingSettings()
    retention: RetentionSettings = RetentionSettings()
    alerting: ChannelSettings = ChannelSettings()
    rules: RuleSettings = RuleSettings()

    @cached_property
    def shadow_kinds(self) -> frozenset[FindingKind]:
        """The kinds of findings whose detectors are in shadow mode."""
        return frozenset(kind for kind in FindingKind if self.mode_of(kind) == "shadow")

    @cached_property
    def active_kinds(self) -> frozenset[FindingKind]:
        """The kinds of findings whose detectors are on."""
        return frozenset(kind for kind in FindingKind if self.mode_of(kind) == "on")

    @property
    def has_shadows(self) -> bool:
        """Whether any detector or learned limit is in shadow mode."""
        return self.learned_clocks.mode == "shadow" or bool(self.shadow_kinds)

    def mode_of(self, kind: FindingKind) -> DetectorMode:
        """Return the mode of a detector."""
        return self.detectors.get(kind) or ("shadow" if kind in SHADOW_KINDS else "on")

    def acts_on(self, kind: FindingKind) -> bool:
        """
        Return whether the detector of this kind is on, so that its findings lead to tickets and actions.
        """
        return self.mode_of(kind) == "on"
