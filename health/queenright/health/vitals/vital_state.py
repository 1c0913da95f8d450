"""The state of a worker's session, which detectors read."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, Final

from queenright.health.settings import HealthSettings
from queenright.health.vitals.calls import RecentCalls
from queenright.health.vitals.learned_clocks import LearnedClocks
from queenright.health.vitals.resource_limits import NOT_CUT, CutAnswers, Resources
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.source_clock import SourceClock
from queenright.health.vitals.tool_counts import ToolCounts
from queenright.health.vitals.vital_facts import (
    NO_BREAKERS,
    HeartbeatFields,
    McpServers,
    OpenBreakers,
    OpenTool,
    Output,
    Refusals,
    SpentToday,
    cut_to_tail,
)
from queenright.instrumentation.names import Phase, WaitingReason
from queenright.instrumentation.verdict import Verdict
from queenright.runtime.events import AgentEvent

_MAX_SEEN: Final = 48
"""The maximum number of results and texts that are remembered to recognize new ones."""

_VERDICT_NAMES: Final = {
    "A": Verdict.ACCEPT.value,
    "R": Verdict.RETRY.value,
    "C": Verdict.CONTINUE.value,
    "E": Verdict.ESCALATE.value,
    "X": "ERROR",
    "-": "NONE",
}
NO_OUTCOMES: Final = 1
"""The value of ``_outcomes`` before the first call or step."""
_CLOCKS: Final = (
    "children_at",
    "last_heartbeat",
    "last_checkpoint",
    "saved_from",
    "last_tool_call",
    "progress_from",
    "failing_since",
    "waiting_since",
    "tokens_from",
    "limited_until",
    "limit_due",
    "polls_since",
)
"""The attributes from which silences and ages are counted. They may be None."""
_EVENT_TIMES: Final = (
    "started_at",
    "incarnation_started",
    "ended_at",
    "last_progress",
    "tokens_at",
    "bad_since",
    "stale_since",
    "fruitless_since",
    "last_gain_at",
    "idle_turns_since",
    "streak_since",
    "llm_error_since",
    "error_rate_since",
    "breakers_since",
    "runs_failed_since",
    "recovered_at",
    "recovery_failed_at",
)
"""
The attributes with times of events. Clock shifts do not move them, except to keep them out of the future.
They may be None.
"""
_DEFAULTS: Final = HealthSettings()


@dataclass(slots=True, eq=False, repr=False)
class VitalState:
    """
    The state of a worker's session. It is compact, because one process holds a hundred thousand of them.

    All times are in seconds since the epoch. They never decrease, and reading never changes them. The
    functions that change the state are in one module per topic: ``activity``, ``progress``, ``waiting``,
    ``incarnation`` and ``error_rate``. Only they use attributes with an underscore. ``vital_events`` has the
    handler of each event type.

    Args:
        agent_id: The id of the worker.
        session_id: The id of the session.
        at: When the first event arrived.
        settings: The limits of loop detection, and those with hysteresis: error rate and late heartbeats.
    """

    agent_id: str
    session_id: str
    at: InitVar[float]
    settings: HealthSettings = _DEFAULTS
    _outcomes: int = NO_OUTCOMES  # one bit per outcome, 1 for a failure; the leading bit marks their number
    _failed_incarnation: int = 0
    _previous_incarnation: str = ""
    only_heartbeats: bool = True
    _seen_digests: bytearray | None = None
    _inputs: array[int] | None = None
    _verdicts: str = ""
    _new_result: bool = False
    _known_result: bool = False
    _streak_turn: object = None
    _stale_turn: object = None
    _refused_turn: object = None
    _has_waited: bool = False
    _idle_before: int = 0  # idle turns at the last judged step; -1 after a later tool call
    _answer: str = ""
    _llm_began: float = 0.0  # when the last LLM call began, on the worker's own clock
    _answer_end: float | None = None  # these three are on the source's clock
    _tool_ended: float | None = None
    _side_by_side: tuple[object, float, str] | None = None
    task_id: str = field(init=False)
    """The task of the session. It is the session id unless the worker reports a task."""
    incarnation_id: str = ""
    incarnation_count: int = 1
    """The number of incarnations and executions. Only a new incarnation or execution ends a termination."""
    graph_id: str = ""
    node_id: str = ""
    framework: str = ""
    owner: str = ""
    """The user or team that the worker works for; empty if unknown."""
    repository: str = ""
    """The repository or folder in which the worker works; empty if unknown."""
    status: WorkerStatus = WorkerStatus.ACTIVE
    started_at: float = field(init=False)
    incarnation_started: float = field(init=False)
    ended_at: float | None = None
    has_new_start: bool = False
    """
    Whether the worker restarted after its termination, although its clock dates the start before the end.
    """
    outlived_termination: bool = False
    """Whether this incarnation continued to work after its termination was reported."""
    refused_input: str = ""
    """Why the input was refused, which is an error of the caller; empty if it was not."""
    has_user: bool = False
    """Whether the worker has received user input or asked a question."""
    withdrawal_due: bool = False
    """Whether the withdrawal of the termination is not recorded yet."""
    clocks: LearnedClocks | None = None
    """The learned limits of the agent, which its sessions share; None if there are none."""
    model: str = ""
    """The model of the last LLM call."""
    provider: str = ""
    """The provider of that model, if reported."""
    clock_base: float = field(init=False)
    """
    The earliest time from which silence counts: the last new incarnation, end of a wait, or clock change.
    """
    last_activity: float = field(init=False)
    children_at: float | None = None
    """
    The last activity of child workers during the current call. It is updated before the worker would stall.
    """
    source: SourceClock = field(default_factory=SourceClock)
    active_for: float = 0.0
    """The last activity on the source's clock, which measures pauses and durations."""
    last_progress: float | None = None
    """The time of the last progress. Clock shifts do not move it, so a later value means new progress."""
    progress_from: float | None = None
    """The time from which silence since the last progress is counted. Clock shifts move it."""
    last_heartbeat: float | None = None
    heartbeat_interval: float | None = None
    heartbeat_late: bool = False
    """Whether the last heartbeat was late."""
    beat: HeartbeatFields | None = None
    metrics_served: bool = False
    """Whether the worker reports that it serves metrics."""
    fetches: bool = False
    """Whether the worker reports that it fetches instructions."""
    last_checkpoint: float | None = None
    saved_from: float | None = None
    """
    The time from which the checkpoint's age counts: the last checkpoint, plus the allowed time of later tool
    calls.
    """
    last_tool_call: float | None = None
    last_trace_id: str = ""
    last_span_id: str = ""
    start_records: bool = False
    is_foreign: bool = False
    """Whether the worker runs in another framework, whose telemetry may lack heartbeats and ends of runs."""
    open_tools: list[OpenTool] | None = None
    llm_open: int = 0
    waiting: WaitingReason | None = None
    waiting_since: float | None = None
    limited_until: float | None = None
    """The end of the rate limit for which the worker waits."""
    limit_due: float | None = None
    """
    The end of the rate limit that the first of consecutive refusals stated; None after a successful call.
    """
    held_by: str = ""
    """The finding because of which the guard holds the worker; empty if it is not held."""
    question: str = ""
    """The question to the user, with secrets masked; empty if there is none."""
    steps_total: int = 0
    tool_calls_total: int = 0
    tools: ToolCounts | None = None
    """The calls and errors of each tool; None before the first call."""
    error_count: int = 0
    error_rate_high: bool = False
    """Whether the error rate is too high. It clears at a lower rate than that at which it begins."""
    error_rate_since: float = field(init=False)
    tokens: int = 0
    cost_usd: float | None = None
    """The known cost of the model calls, in US dollars."""
    unpriced_tokens: int = 0
    """The tokens of calls without a known cost."""
    spent_today: SpentToday | None = None
    """The spending of the agent, and of all agents, on the day of the last model call with a cost."""
    tokens_at: float | None = None
    """When tokens were last used; None if the worker reports no tokens."""
    tokens_from: float | None = None
    """The time from which the time without tokens counts: ``tokens_at``, plus the time in tools."""
    output: Output | None = None
    resources: Resources = ()
    """The reported usage of memory, disk and quotas."""
    cut_answers: CutAnswers = NOT_CUT
    mcp_servers: McpServers = ()
    """The MCP servers that the worker reported."""
    breakers: OpenBreakers = NO_BREAKERS
    """The agent's circuit breakers that are not closed."""
    breakers_since: float = field(init=False)
    recovery_failed: str = ""
    """Why recovery was abandoned; empty after new progress."""
    recovery_failed_at: float | None = None
    recovered_at: float | None = None
    repeatable: bool = False
    """Whether the task may be repeated from its start."""
    evidence: str = ""
    steps_since_last_accept: int = 0
    bad_repeats: int = 0
    """The number of bad steps without a new result."""
    bad_since: float = field(init=False)
    consecutive_failures: int = 0
    away: tuple[float, float] | None = None
    """The start and end of an outage of the service. None after the worker's next event."""
    failed_runs: int = 0
    """Consecutive failed runs of the agent, if this session represents them, otherwise 0."""
    runs_failed_since: float = field(init=False)
    counted_end: tuple[int, WorkerStatus] | None = None
    """The incarnation and status of the last counted end of a run. An end may be reported twice."""
    calls: RecentCalls | None = None
    stale_calls: int = 0
    """Consecutive tool calls that returned nothing new."""
    stale_since: float = field(init=False)
    fruitless: int = 0
    """New searches and reads that found nothing, since the last progress or change."""
    fruitless_since: float = field(init=False)
    polls: int = 0
    """The number of polls that returned a known result."""
    polls_since: float = field(init=False)
    polls_from: float = 0.0
    """When polling began, on the source's clock."""
    rereads: int = 0
    """
    The number of polls that repeated a read after a pause, although its target does not change on its own.
    """
    refusals: Refusals = ()
    """
    Refusals of edits, submissions or commands since a change or a command succeeded, at most one per turn.
    """
    last_gain_at: float = field(init=False)
    """The time of the last change, ACCEPT, checkpoint or user message."""
    calls_since_gain: int = 0
    tokens_since_gain: int = 0
    results_since_gain: int = 0
    """The number of calls with a recorded result since the last gain, in the same visit."""
    stale_results_since_gain: float = 0.0
    """
    How many of these results were repeats or failures. A new error or a repeat after a change counts ½.
    """
    new_in_a_row: int = 0
    """Consecutive new results. Several of them end zero progress, like a change."""
    idle_turns: int = 0
    """Consecutive model turns without a tool call, except calls that submit a result."""
    unprompted_turns: int = 0
    """Idle turns that repeat the previous answer, or that began too soon to follow a person's reply."""
    idle_turns_since: float = field(init=False)
    idle_turns_of_model: bool = False
    """Whether the last idle turn was an answer of the model, and no call followed."""
    talks: bool = False
    """Whether text answers preceded the last tool call, so that the worker may be talking to a person."""
    failed_calls: int = 0
    """Consecutive turns in which calls of any tools failed and no other call succeeded."""
    failing_since: float | None = None
    recorded_results: int = 0
    """The number of tool calls with a recorded result since the last ACCEPT, checkpoint or new visit."""
    stale_results: float = 0.0
    """
    The number of results without new information. A repeat counts 1, a new error or a result of another call
    ½.
    """
    streak: int = 0
    """Consecutive turns in which one tool failed with one error class."""
    streak_tool: str = ""
    streak_error: str = ""
    streak_is_missing: bool = False
    """Whether each of these calls looked for a different item that does not exist."""
    streak_since: float = field(init=False)
    llm_errors: int = 0
    """Consecutive LLM API errors."""
    llm_error: str = ""
    llm_error_since: float = field(init=False)
    token_spike: float = 0.0
    """The input tokens of the last LLM call, as a multiple of the usual number; 0 if the number is usual."""

    def __post_init__(self, at: float) -> None:
        self.task_id = self.session_id
        self.started_at = self.incarnation_started = self.clock_base = self.last_activity = at
        self.error_rate_since = self.breakers_since = self.bad_since = self.runs_failed_since = at
        self.stale_since = self.fruitless_since = self.polls_since = self.last_gain_at = at
        self.idle_turns_since = self.streak_since = self.llm_error_since = at

    def rename(self, agent_id: str, session_id: str) -> None:
        """Change the agent's name and the session's id."""
        if self.task_id == self.session_id:
            self.task_id = session_id
        self.agent_id, self.session_id = agent_id, session_id

    def absorb(self, other: VitalState) -> None:
        """Add the totals of ``other``, which are vital signs of the same session under another name."""
        self.started_at = min(self.started_at, other.started_at)
        self.owner = self.owner or other.owner
        self.repository = self.repository or other.repository
        self.steps_total += other.steps_total
        self.tool_calls_total += other.tool_calls_total
        self.error_count += other.error_count
        self.tokens += other.tokens
        self.unpriced_tokens += other.unpriced_tokens
        if other.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + other.cost_usd
        if other.tools is not None:
            if self.tools is None:
                self.tools = ToolCounts()
            self.tools.absorb(other.tools)

    # -- reads --------------------------------------------------------------------------------------

    def replace_settings(self, settings: HealthSettings) -> None:
        """Use new thresholds. Counts and the window size stay."""
        self.settings = settings

    @property
    def has_ended(self) -> bool:
        """Whether the session has ended."""
        return self.ended_at is not None

    @property
    def has_failed_recovery(self) -> bool:
        """Whether the recovery was abandoned and the worker has not restarted since."""
        return bool(self.recovery_failed) and self._failed_incarnation == self.incarnation_count

    @property
    def open_breakers(self) -> tuple[str, ...]:
        """The names of the circuit breakers that refuse the worker's calls."""
        return self.breakers.open

    @property
    def phase(self) -> Phase:
        """The worker's current phase, as reported."""
        if not self.start_records:
            return Phase.UNKNOWN
        if self.open_tools:
            return Phase.TOOL
        return Phase.LLM if self.llm_open else Phase.IDLE

    @property
    def open_tool(self) -> OpenTool | None:
        """The open call whose declared timeout ends first, or the oldest call if none declared one."""
        tools = self.open_tools
        if not tools:
            return None
        # Fast path, because there is nearly always one call, and listing workers reads this for each of them.
        return (
            tools[0]
            if len(tools) == 1
            else min(tools, key=lambda t: (t.timeout is None, t.started + (t.timeout or 0.0)))
        )

    @property
    def tool(self) -> str:
        """The tool that is running, or an empty string."""
        running = self.open_tool
        return running.tool if running else ""

    @property
    def recent_verdicts(self) -> list[str]:
        """
        The results of the last steps, oldest first: a verdict, ``ERROR``, or ``NONE`` for a step without a
        verdict.
        """
        return [_VERDICT_NAMES[letter] for letter in self._verdicts]

    @property
    def is_continued(self) -> bool:
        """Whether the last step was judged CONTINUE."""
        return self._verdicts.endswith("C")

    @property
    def last_event(self) -> float:
        """The time of the worker's last event, including heartbeats."""
        return max(self.last_activity, self.last_heartbeat or 0.0)

    @property
    def certain_idle_turns(self) -> int:
        """Idle turns that cannot be replies to a user."""
        if self.has_user or self.is_continued:
            return self.idle_turns
        return min(self.unprompted_turns, self.idle_turns)

    @property
    def error_share(self) -> float:
        """The share of the last calls and steps that failed; 0 without calls and steps."""
        count = self._outcomes.bit_length() - 1
        return (self._outcomes.bit_count() - 1) / count if count else 0.0

    @property
    def outcomes(self) -> int:
        """The number of calls and steps that ``error_share`` covers."""
        return self._outcomes.bit_length() - 1

    @property
    def token_count(self) -> int:
        """The tokens used: the sum over calls or the count in heartbeats, whichever is larger."""
        return max(self.tokens, (self.beat.token_count or 0) if self.beat else 0)

    @property
    def all_errors(self) -> int:
        """The number of errors: those of calls and steps or the count in heartbeats, whichever is larger."""
        return max(self.error_count, (self.beat.error_count or 0) if self.beat else 0)

    # -- writes -------------------------------------------------------------------------------------

    def restart_clocks(self, now: float) -> None:
        """Measure silence from ``now``, because the clock jumped."""
        self.clock_base = now
        self.last_activity = min(self.last_activity, now)
        self._cap_times(now)

    def shift_clocks(self, seconds: float, now: float) -> None:
        """
        Move every clock by ``seconds``, so that every age at ``now`` is the same as before the clock jumped.
        """
        self.clock_base += seconds
        self.last_activity += seconds
        for name in _CLOCKS:
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value + seconds)
        if self.open_tools:
            self.open_tools = [tool._replace(started=tool.started + seconds) for tool in self.open_tools]
        if self.output is not None:
            self.output = self.output._replace(since=self.output.since + seconds)
        self.mcp_servers = tuple(server.shift_times(seconds) for server in self.mcp_servers)
        self.resources = tuple(each._replace(since=each.since + seconds) for each in self.resources)
        self.cut_answers = self.cut_answers._replace(since=self.cut_answers.since + seconds)
        if self.away is not None:
            self.away = (self.away[0] + seconds, self.away[1] + seconds)
        self._cap_times(now)

    def _cap_times(self, now: float) -> None:
        for name in ("clock_base", "last_activity", *_CLOCKS, *_EVENT_TIMES):
            value = getattr(self, name)
            if value is not None and value > now:
                setattr(self, name, now)
        if self.open_tools:
            self.open_tools = [tool._replace(started=min(tool.started, now)) for tool in self.open_tools]
        if self.output is not None and self.output.since > now:
            self.output = self.output._replace(since=now)
        self.mcp_servers = tuple(server.shift_times(0.0, now) for server in self.mcp_servers)
        self.resources = tuple(each._replace(since=min(each.since, now)) for each in self.resources)
        self.cut_answers = self.cut_answers._replace(since=min(self.cut_answers.since, now))
        self.refusals = tuple(each._replace(since=min(each.since, now)) for each in self.refusals)
        if self.away is not None:
            self.away = (min(self.away[0], now), min(self.away[1], now))

    @property
    def may_be_idle(self) -> bool:
        """Whether the worker waits and needs no intervention. A worker that its guard holds may need one."""
        return self.waiting is not None and self.waiting is not WaitingReason.HELD

    def is_new(self, digest: bytes) -> bool:
        """Remember a value, and return whether it is new."""
        results = self._seen_digests
        if results is None:
            self._seen_digests = bytearray(digest)
            return True
        if self.knows(digest):
            return False
        results += digest
        if len(results) > 8 * _MAX_SEEN:
            del results[:8]
        return True

    def knows(self, digest: bytes) -> bool:
        """Return whether a value is remembered."""
        results = self._seen_digests
        if results is None:
            return False
        index = results.find(digest)
        while index >= 0 and index % 8:
            index = results.find(digest, index + 1)
        return index >= 0

    def note_error(self, data: Mapping[str, Any]) -> None:
        """Count an error, and keep its text as evidence."""
        self.error_count += 1
        text = data.get("error") or data.get("error_type")
        if text:
            self.evidence = cut_to_tail(text)


Handler = Callable[[VitalState, AgentEvent, Mapping[str, Any], float], None]
"""Applies an event and its data at a time (seconds since the epoch)."""
