"""Vital signs: everything the detectors know of one run of one worker, brought up to date event by event."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from queenright.health.calls import RecentCalls, Seen, digest
from queenright.health.settings import Loops
from queenright.instrumentation.names import Phase, Verdict, WaitingReason
from queenright.runtime.events import AgentEvent, EventType

EVIDENCE_LIMIT: Final = 500
"""Characters of the last error or text that are kept."""

_SEEN: Final = 48
"""Results and texts that are remembered to tell the new from the known."""

_RECENT_VERDICTS: Final = 20
_RECENT_INPUTS: Final = 5
_OPEN_TOOLS: Final = 64

_LETTERS: Final = {Verdict.ACCEPT: "A", Verdict.RETRY: "R", Verdict.CONTINUE: "C", Verdict.ESCALATE: "E"}
_WORDS: Final = {letter: verdict.value for verdict, letter in _LETTERS.items()} | {"X": "ERROR", "-": "NONE"}


class SessionStatus(StrEnum):
    """Where a session is in its life; a word not listed here is ``unknown``."""

    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> SessionStatus:
        return cls.UNKNOWN


_OVER: Final = frozenset(
    {SessionStatus.COMPLETED, SessionStatus.FAILED, SessionStatus.CANCELLED, SessionStatus.TERMINATED}
)


class OpenTool(NamedTuple):
    """A tool call that has begun and not ended; ``timeout`` in seconds, as declared, or None."""

    call_id: str
    tool: str
    node_id: str
    started: float
    timeout: float | None


class VitalSigns:
    """
    One run of one worker, compact: a hundred thousand of these fit one process.

    All times are seconds since the epoch. They never go backwards, and
    reading never moves them.
    """

    __slots__ = (
        "_inputs",
        "_known_result",
        "_loops",
        "_new_result",
        "_previous_incarnation",
        "_seen",
        "_streak_turn",
        "_verdicts",
        "agent_id",
        "bad_repeats",
        "bad_since",
        "calls",
        "clock_base",
        "consecutive_failures",
        "ended_at",
        "error_count",
        "evidence",
        "framework",
        "graph_id",
        "heartbeat_interval",
        "incarnation_id",
        "incarnation_started",
        "last_activity",
        "last_checkpoint",
        "last_heartbeat",
        "last_progress",
        "last_span_id",
        "last_tool_call",
        "last_trace_id",
        "llm_error",
        "llm_error_since",
        "llm_errors",
        "llm_open",
        "node_id",
        "only_heartbeats",
        "open_tools",
        "session_id",
        "stale_calls",
        "stale_since",
        "start_records",
        "started_at",
        "status",
        "steps_since_last_accept",
        "steps_total",
        "streak",
        "streak_error",
        "streak_since",
        "streak_tool",
        "token_spike",
        "tokens",
        "told",
        "told_known",
        "tool_calls_total",
        "waiting",
        "waiting_since",
    )

    def __init__(self, agent_id: str, session_id: str, at: float, loops: Loops) -> None:
        self._loops = loops
        self._previous_incarnation = ""
        self.only_heartbeats = True
        self._seen: bytearray | None = None
        self._inputs: array[int] | None = None
        self._verdicts = ""
        self._new_result = False
        self._known_result = False
        self._streak_turn: object = None
        self.agent_id = sys.intern(agent_id)
        self.session_id = session_id
        self.incarnation_id = ""
        self.graph_id = ""
        self.node_id = ""
        self.framework = ""
        self.status = SessionStatus.ACTIVE
        self.started_at = at
        self.incarnation_started = at
        self.ended_at: float | None = None
        self.clock_base = at
        """Silence counts from here at the earliest: a new incarnation, the end of a wait, a clock set."""
        self.last_activity = at
        self.last_progress: float | None = None
        self.last_heartbeat: float | None = None
        self.heartbeat_interval: float | None = None
        self.last_checkpoint: float | None = None
        self.last_tool_call: float | None = None
        self.last_trace_id = ""
        self.last_span_id = ""
        self.start_records = False
        self.open_tools: list[OpenTool] | None = None
        self.llm_open = 0
        self.waiting: WaitingReason | None = None
        self.waiting_since: float | None = None
        self.steps_total = 0
        self.tool_calls_total = 0
        self.error_count = 0
        self.tokens = 0
        self.evidence = ""
        self.steps_since_last_accept = 0
        self.bad_repeats = 0
        """How many of the bad steps brought nothing new."""
        self.bad_since = at
        self.consecutive_failures = 0
        self.calls: RecentCalls | None = None
        self.stale_calls = 0
        """Tool calls in a row that told nothing new."""
        self.stale_since = at
        self.told = 0
        """Tool calls whose result is known, since the last ACCEPT, checkpoint or new visit."""
        self.told_known = 0.0
        """How many told nothing new: a repeat counts 1, a new error or a result known from elsewhere ½."""
        self.streak = 0
        """Turns in a row in which one tool failed with one class of error."""
        self.streak_tool = ""
        self.streak_error = ""
        self.streak_since = at
        self.llm_errors = 0
        """LLM API errors in a row."""
        self.llm_error = ""
        self.llm_error_since = at
        self.token_spike = 0.0
        """Input tokens of the last LLM call as a multiple of the usual; 0 if that is nothing special."""

    # -- what is read -------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the session is over."""
        return self.ended_at is not None

    @property
    def phase(self) -> Phase:
        """What the worker is in the middle of, as far as it said so."""
        if not self.start_records:
            return Phase.UNKNOWN
        if self.open_tools:
            return Phase.TOOL
        return Phase.LLM if self.llm_open else Phase.IDLE

    @property
    def open_tool(self) -> OpenTool | None:
        """The open call whose declared time is over first; without declared times the oldest."""
        if not self.open_tools:
            return None
        return min(self.open_tools, key=lambda t: (t.timeout is None, t.started + (t.timeout or 0.0)))

    @property
    def tool(self) -> str:
        """The tool that is running, or an empty string."""
        running = self.open_tool
        return running.tool if running else ""

    @property
    def tool_timeout(self) -> float | None:
        """The time that the running tool declared, in seconds."""
        running = self.open_tool
        return running.timeout if running else None

    @property
    def recent_verdicts(self) -> list[str]:
        """How the last steps ended, oldest first: a verdict, ``ERROR``, or ``NONE`` if nobody judged."""
        return [_WORDS[letter] for letter in self._verdicts]

    @property
    def last_event(self) -> float:
        """When the worker was last heard of, heartbeats included."""
        return max(self.last_activity, self.last_heartbeat or 0.0)

    # -- what is written ----------------------------------------------------------------------------

    def apply(self, event: AgentEvent, at: float) -> None:
        """
        Take in one event of this worker.

        Args:
            event: What happened.
            at: When it happened, on our clock; how far the author's clock is trusted is the monitor's affair.
        """
        handler = _HANDLERS.get(event.type)
        if handler is None:
            return
        incarnation = event.incarnation_id
        if incarnation and incarnation != self.incarnation_id:
            if incarnation == self._previous_incarnation:
                return  # the last words of a process that has been replaced
            if self.incarnation_id:
                self._begin_incarnation(at)
            self._previous_incarnation = self.incarnation_id
            self.incarnation_id = incarnation
        if event.graph_id and event.graph_id != self.graph_id:
            self.graph_id = sys.intern(event.graph_id)
        handler(self, event, event.data, at)

    def restart_clocks(self, now: float) -> None:
        """Count silence from ``now``: the clock has jumped and what it said before means nothing."""
        self.clock_base = now
        self.last_activity = min(self.last_activity, now)
        self._no_later_than(now)

    def shift_clocks(self, seconds: float, now: float) -> None:
        """Move every clock by ``seconds``, so that every age at ``now`` is what it was before the jump."""
        self.clock_base += seconds
        self.last_activity += seconds
        for name in ("last_heartbeat", "last_checkpoint", "last_tool_call", "last_progress", "waiting_since"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value + seconds)
        self._no_later_than(now)

    def _no_later_than(self, now: float) -> None:
        for name in ("clock_base", "last_activity", "incarnation_started", "started_at"):
            setattr(self, name, min(getattr(self, name), now))
        for name in ("last_heartbeat", "last_checkpoint", "last_tool_call", "last_progress", "waiting_since"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, min(value, now))
        if self.open_tools:
            self.open_tools = [tool._replace(started=min(tool.started, now)) for tool in self.open_tools]

    def _active(self, at: float) -> bool:
        """Note that the worker did something; False if it is over and this is a late report."""
        if self.ended_at is not None:
            if at <= self.ended_at or self.status is SessionStatus.TERMINATED:
                return False
            self._reopen(at)
        self.only_heartbeats = False
        if at > self.last_activity:
            self.last_activity = at
        return True

    def _busy(self, at: float) -> bool:
        """Note that the worker began something, which ends every wait but a pause."""
        if not self._active(at):
            return False
        if self.waiting is not None and self.waiting is not WaitingReason.PAUSED:
            self._end_wait(at)
        return True

    def _done(self, at: float) -> bool:
        """Note that something ended: of a worker that never says what it begins, that ends a wait too."""
        return self._active(at) if self.start_records else self._busy(at)

    def _progressed(self, at: float) -> None:
        if self.last_progress is None or at > self.last_progress:
            self.last_progress = at
        self.stale_calls = 0

    def _got_further(self, at: float) -> None:
        self._progressed(at)
        self.told, self.told_known = 0, 0.0

    def _begin_incarnation(self, at: float) -> None:
        self.incarnation_started = at
        self.clock_base = max(self.clock_base, at)
        self.status = SessionStatus.ACTIVE
        self.ended_at = None
        self.waiting = self.waiting_since = None
        self.last_heartbeat = None
        self._forget_open()
        self._begin_visit()
        self.llm_errors = 0
        self.streak = 0
        self.stale_calls = 0
        self.token_spike = 0.0
        if self.calls is not None:
            self.calls.rest()

    def _reopen(self, at: float) -> None:
        """Start another execution in the same session."""
        self.status = SessionStatus.ACTIVE
        self.ended_at = None
        self.waiting = self.waiting_since = None
        self.clock_base = max(self.clock_base, at)
        self._begin_visit()
        self.llm_errors = 0
        self.streak = 0
        self.stale_calls = 0
        self.token_spike = 0.0
        if self.calls is not None:
            self.calls.rest()

    def _begin_visit(self) -> None:
        self.steps_since_last_accept = 0
        self.bad_repeats = 0
        self.told, self.told_known = 0, 0.0

    def _enter(self, node_id: str, at: float) -> None:
        """Note in which node the worker is; another node is a new visit."""
        if node_id and node_id != self.node_id:
            if self.node_id:
                self._begin_visit()
            self.node_id = sys.intern(node_id)

    def _forget_open(self) -> None:
        self.open_tools = None
        self.llm_open = 0

    def _begin_wait(self, reason: WaitingReason, at: float) -> None:
        if self.waiting is not reason:
            self.waiting = reason
            self.waiting_since = at

    def _end_wait(self, at: float) -> None:
        self.waiting = self.waiting_since = None
        self.clock_base = max(self.clock_base, at)

    def _end(self, status: SessionStatus, at: float) -> None:
        self.status = status
        self.ended_at = max(at, self.last_activity)
        self.last_activity = self.ended_at
        self._forget_open()
        if status is SessionStatus.COMPLETED:
            self._begin_wait(WaitingReason.DONE, at)
        else:
            self.waiting = self.waiting_since = None

    def _is_new(self, what: bytes) -> bool:
        """Return whether this was not seen lately, and remember it."""
        seen = self._seen
        if seen is None:
            self._seen = bytearray(what)
            return True
        found = seen.find(what)
        while found >= 0 and found % 8:
            found = seen.find(what, found + 1)
        if found >= 0:
            return False
        seen += what
        if len(seen) > 8 * _SEEN:
            del seen[:8]
        return True

    def _note_error(self, data: Mapping[str, Any]) -> None:
        self.error_count += 1
        text = data.get("error") or data.get("error_type")
        if text:
            self.evidence = str(text)[-EVIDENCE_LIMIT:]

    # -- one method an event type -------------------------------------------------------------------

    def _on_execution_started(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if self.ended_at is not None and at > self.ended_at:
            self._reopen(at)
        self._busy(at)
        if data.get("framework"):
            self.framework = sys.intern(str(data["framework"]))
        self.heartbeat_interval = _seconds(data.get("heartbeat_interval")) or self.heartbeat_interval
        if data.get("start_records"):
            self.start_records = True

    def _on_execution_completed(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if at >= self.incarnation_started:
            self._end(SessionStatus.COMPLETED, at)
            self.consecutive_failures = 0

    def _on_execution_failed(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if at < self.incarnation_started:
            return
        if str(data.get("error_type", "")).lower() in _CANCELLED:
            self._end(SessionStatus.CANCELLED, at)
            return
        self._note_error(data)
        self.consecutive_failures += 1
        self._end(SessionStatus.FAILED, at)

    def _on_terminated(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        self._end(SessionStatus.TERMINATED, at)

    def _on_paused(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if self._active(at):
            self.status = SessionStatus.PAUSED
            self._begin_wait(WaitingReason.PAUSED, at)

    def _on_resumed(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if self._active(at):
            self.status = SessionStatus.ACTIVE
            self._end_wait(at)

    def _on_waiting(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if not self._active(at):
            return
        try:
            reason = WaitingReason(str(data.get("reason")))
        except ValueError:
            self.status = SessionStatus.ACTIVE
            self._end_wait(at)
            return
        self.status = SessionStatus.PAUSED if reason is WaitingReason.PAUSED else SessionStatus.ACTIVE
        self._begin_wait(reason, at)

    def _on_input_requested(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if self._active(at):
            self._begin_wait(WaitingReason.USER_INPUT, at)

    def _on_input_received(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if self._active(at) and self.waiting is WaitingReason.USER_INPUT:
            self._end_wait(at)

    def _on_visit(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if self._busy(at):
            self._begin_visit()
            if event.node_id:
                self.node_id = sys.intern(event.node_id)

    def _on_activity(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        self._active(at)

    def _on_step_started(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if self._busy(at):
            self.start_records = True
            self._enter(event.node_id, at)

    def _on_step(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if not self._done(at):
            return
        self._enter(event.node_id, at)
        self.steps_total += 1
        self.llm_open = 0
        if self.open_tools:
            # Their own ends were lost: a step is over when its calls are.
            self.open_tools = [tool for tool in self.open_tools if tool.node_id != event.node_id] or None
        if event.span_id:
            self.last_trace_id, self.last_span_id = event.trace_id, event.span_id
        verdict = data.get("verdict")
        failed = bool(data.get("error_type") or data.get("error"))
        text = data.get("error") or data.get("text") or data.get("error_type")
        if text:
            self.evidence = str(text)[-EVIDENCE_LIMIT:]
        if failed:
            self.error_count += 1
        letter = _LETTERS.get(verdict) if isinstance(verdict, str) else None  # type: ignore[call-overload]
        letter = letter or ("X" if failed else "-")
        self._verdicts = (self._verdicts + letter)[-_RECENT_VERDICTS:]
        self.consecutive_failures = self.consecutive_failures + 1 if letter == "X" else 0
        if letter == "A":
            self._begin_visit()
            self._got_further(at)
            self.streak = 0
            if self.calls is not None:
                self.calls.clear()
        elif letter in "REX":
            self._count_bad(str(text) if text else "", at)
        self._new_result = self._known_result = False

    def _count_bad(self, text: str, at: float) -> None:
        if self.steps_since_last_accept == 0:
            self.bad_since = at
        self.steps_since_last_accept += 1
        new_text = bool(text) and self._is_new(digest("text", text))
        # Results are harder evidence than words: a model finds new words for the same failure.
        new = self._new_result if self._known_result else new_text
        if not new:
            self.bad_repeats += 1

    def _on_llm_started(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if self._busy(at):
            self.start_records = True
            self.llm_open += 1

    def _on_llm(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if not self._done(at):
            return
        if self.llm_open:
            self.llm_open -= 1
        if data.get("error_type") or data.get("error"):
            if self.llm_errors == 0:
                self.llm_error_since = at
            self.llm_errors += 1
            self.llm_error = sys.intern(str(data.get("error_type") or "error")[:80])
            self._note_error(data)
            return
        self.llm_errors = 0
        received = _count(data.get("input_tokens"))
        self.tokens += received + _count(data.get("output_tokens"))
        if received:
            self._weigh(received)

    def _weigh(self, received: int) -> None:
        """Compare the input tokens of this call with those of the last few."""
        inputs = self._inputs
        if inputs is None:
            inputs = self._inputs = array("Q")
        self.token_spike = 0.0
        if len(inputs) == _RECENT_INPUTS:
            if received >= self._loops.token_spike_minimum:
                ratio = received / max(1, sorted(inputs)[_RECENT_INPUTS // 2])
                self.token_spike = ratio if ratio >= self._loops.token_spike_factor else 0.0
            del inputs[0]
        inputs.append(received)

    def _on_tool_started(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if not self._busy(at):
            return
        self.start_records = True
        tool = OpenTool(
            call_id=str(data.get("call_id") or ""),
            tool=sys.intern(str(data.get("tool") or "")),
            node_id=event.node_id,
            started=at,
            timeout=_seconds(data.get("timeout")),
        )
        opened = self.open_tools
        if opened is None:
            self.open_tools = [tool]
        else:
            opened.append(tool)
            del opened[:-_OPEN_TOOLS]
        if self.last_tool_call is None or at > self.last_tool_call:
            self.last_tool_call = at

    def _close_tool(self, call_id: str, tool: str) -> None:
        opened = self.open_tools
        if not opened:
            return
        for index, one in enumerate(opened):
            if one.call_id == call_id if call_id and one.call_id else one.tool == tool:
                del opened[index]
                break
        if not opened:
            self.open_tools = None

    def _on_tool(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if not self._done(at):
            return
        tool = sys.intern(str(data.get("tool") or ""))
        self.tool_calls_total += 1
        if self.last_tool_call is None or at > self.last_tool_call:
            self.last_tool_call = at
        if self.open_tools:
            self._close_tool(str(data.get("call_id") or ""), tool)
        failed = data.get("outcome") in ("error", "timeout")
        if failed:
            self._note_error(data)
        args, result, turn = data.get("args_hash"), data.get("result_hash"), data.get("turn")
        if tool in self._loops.exempt_tools:
            if result is not None and self._is_new(digest("result", tool, result)):
                self._progressed(at)
            return
        seen: Seen | None = None
        if args is not None:
            if self.calls is None:
                self.calls = RecentCalls(self._loops.window)
            seen = self.calls.add(tool, args, result, turn, at)
        if result is not None and seen is not Seen.BESIDE:
            self._weigh_result(digest("result", result), seen is Seen.BEFORE, failed, at)
        self._count_streak(tool, data, failed, turn, at)

    def _weigh_result(self, result: bytes, again: bool, failed: bool, at: float) -> None:
        """Tell progress from none by one result: never seen, seen from this very call, seen from another."""
        self._known_result = True
        self.told += 1
        if self._is_new(result):
            self._new_result = True
            self._progressed(at)
            self.told_known += 0.5 if failed else 0.0
        elif again or failed:
            if self.stale_calls == 0:
                self.stale_since = at
            self.stale_calls += 1
            self.told_known += 1.0
        else:
            # Perhaps an acknowledgement: edits and messages are answered alike, and get somewhere.
            self.told_known += 0.5

    def _count_streak(
        self, tool: str, data: Mapping[str, Any], failed: bool, turn: object, at: float
    ) -> None:
        if not failed:
            self.streak = 0
            return
        error = str(data.get("error_type") or data.get("outcome"))[:80]
        if self.streak and tool == self.streak_tool and error == self.streak_error:
            if turn is None or turn != self._streak_turn:
                self.streak += 1
        else:
            self.streak = 1
            self.streak_since = at
            self.streak_tool = tool
            self.streak_error = sys.intern(error)
        self._streak_turn = turn

    def _on_checkpoint(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if self._active(at):
            self.last_checkpoint = max(at, self.last_checkpoint or at)
            self._got_further(at)

    def _on_heartbeat(self, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
        if self.ended_at is None:
            self.last_heartbeat = max(at, self.last_heartbeat or at)
            self.heartbeat_interval = _seconds(data.get("interval")) or self.heartbeat_interval


_CANCELLED: Final = frozenset({"cancelled", "canceled", "cancellederror", "keyboardinterrupt"})


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 1e12 else 0


def _seconds(value: object) -> float | None:
    """Return a declared time if it is one: a finite number above zero."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    return None


_Handler = Callable[[VitalSigns, AgentEvent, Mapping[str, Any], float], None]

_HANDLERS: Final[dict[EventType, _Handler]] = {
    EventType.EXECUTION_STARTED: VitalSigns._on_execution_started,
    EventType.EXECUTION_COMPLETED: VitalSigns._on_execution_completed,
    EventType.EXECUTION_FAILED: VitalSigns._on_execution_failed,
    EventType.EXECUTION_PAUSED: VitalSigns._on_paused,
    EventType.EXECUTION_RESUMED: VitalSigns._on_resumed,
    EventType.NODE_LOOP_STARTED: VitalSigns._on_visit,
    EventType.NODE_LOOP_COMPLETED: VitalSigns._on_activity,
    EventType.EDGE_TRAVERSED: VitalSigns._on_activity,
    EventType.GOAL_PROGRESS: VitalSigns._on_activity,
    EventType.CLIENT_OUTPUT_DELTA: VitalSigns._on_activity,
    EventType.CLIENT_INPUT_REQUESTED: VitalSigns._on_input_requested,
    EventType.CLIENT_INPUT_RECEIVED: VitalSigns._on_input_received,
    EventType.STEP_STARTED: VitalSigns._on_step_started,
    EventType.STEP_COMPLETED: VitalSigns._on_step,
    EventType.LLM_CALL_STARTED: VitalSigns._on_llm_started,
    EventType.LLM_TEXT_DELTA: VitalSigns._on_activity,
    EventType.LLM_CALL_COMPLETED: VitalSigns._on_llm,
    EventType.TOOL_CALL_STARTED: VitalSigns._on_tool_started,
    EventType.TOOL_CALL_COMPLETED: VitalSigns._on_tool,
    EventType.WORKER_WAITING: VitalSigns._on_waiting,
    EventType.CHECKPOINT_SAVED: VitalSigns._on_checkpoint,
    EventType.AGENT_HEARTBEAT: VitalSigns._on_heartbeat,
    EventType.AGENT_TERMINATED: VitalSigns._on_terminated,
}

WORKER_EVENTS: Final = frozenset(_HANDLERS)
"""What the monitor listens to; everything else is its own echo or somebody else's business."""
