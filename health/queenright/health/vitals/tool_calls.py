"""Apply tool calls to vital signs: results, repeats, changes, polls and failures."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from queenright.health.vitals.activity import (
    get_tool_time_limit,
    is_late_report,
    learn_duration,
    record_activity,
    record_end,
    record_start,
)
from queenright.health.vitals.calls import CallNovelty, RecentCalls, digest
from queenright.health.vitals.error_rate import record_outcome
from queenright.health.vitals.progress import (
    FASTEST_REPLY_SECONDS,
    SLOWEST_ANSWER_SECONDS,
    add_idle_turn,
    end_failed_calls,
    end_standstill,
    record_gain,
    record_progress,
    record_user_input,
)
from queenright.health.vitals.tool_counts import ToolCounts
from queenright.health.vitals.vital_facts import (
    UNCLASSIFIED,
    OpenTool,
    add_refusal,
    classify_failure,
    clean_display_name,
    is_bare_exit,
    is_missing,
    is_stopped_by_user,
    parse_question,
    parse_seconds,
)
from queenright.health.vitals.vital_state import VitalState
from queenright.health.vitals.waiting import begin_wait, end_wait
from queenright.instrumentation.effect import CHANGING, READING, Effect
from queenright.instrumentation.effects import (
    infer_tool_effect,
    is_messaging_tool,
    is_note,
    is_question_tool,
    is_shell,
)
from queenright.instrumentation.error_class import NOT_ACCEPTED, SHELL_REFUSED
from queenright.instrumentation.fingerprint import NOTHING_FOUND, NOTHING_NEW, fingerprint
from queenright.instrumentation.names import Phase, ToolOutcome, WaitingReason
from queenright.instrumentation.shell_effects import MIN_WAIT_SECONDS
from queenright.runtime.events import AgentEvent

_MAX_OPEN_TOOLS: Final = 64
_TIMED_OUT: Final = re.compile(r"time[ds]?[ _-]?out|\bwaiting for\b", re.IGNORECASE)


class _Failure(Enum):
    """The meaning of a failed call."""

    TROUBLE = "trouble"
    MISS = "miss"
    """The tool works, but the requested item does not exist or fails its check."""
    POLL = "poll"
    """The state that the call waits for has not been reached."""


_NOTHING_NEW: Final = digest("result", NOTHING_NEW)
_NOTHING_FOUND: Final = digest("result", NOTHING_FOUND)
_EMPTY_ARGUMENTS: Final = frozenset({fingerprint({}), fingerprint(None), fingerprint("")})
_SIGNATURE_BYTES: Final = 8
_REFUSABLE_EFFECTS: Final = frozenset({Effect.EDITS, Effect.SUBMITS})
"""The effects (edits and submissions) for which an error means that the tool rejected the change."""

# Comparing with a module constant is faster than looking up an enum member.
_EDITS: Final = Effect.EDITS
_POLLS: Final = Effect.POLLS
_RUNS: Final = Effect.RUNS
_CHECKS: Final = Effect.CHECKS
_SEARCHES: Final = Effect.SEARCHES
_SUBMITS: Final = Effect.SUBMITS
_WAITS: Final = Effect.WAITS


def on_tool_started(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Apply the start of a tool call."""
    # Calls that start while a question is open, such as those of a sub-agent, do not answer it.
    is_asking = v.waiting is WaitingReason.USER_INPUT and _has_open_question(v)
    if not (record_activity(v, at) if is_asking else record_start(v, at)):
        return
    v.start_records = True
    tool = OpenTool(
        call_id=str(data.get("call_id") or ""),
        tool=clean_display_name(data.get("tool")),
        node_id=event.node_id,
        started=at,
        timeout=parse_seconds(data.get("timeout")),
        source_started=v.active_for,
        began=event.time,
    )
    open_tools = v.open_tools
    if open_tools is None:
        v.open_tools = [tool]
    else:
        open_tools.append(tool)
        del open_tools[:-_MAX_OPEN_TOOLS]
    if v.waiting is None and is_question_tool(tool.tool):
        begin_wait(v, WaitingReason.USER_INPUT, at, question=parse_question(data) or tool.tool)
    if v.last_tool_call is None or at > v.last_tool_call:
        v.last_tool_call = at


def _has_open_question(v: VitalState) -> bool:
    return any(is_question_tool(tool.tool) for tool in v.open_tools or ())


def _end_question(v: VitalState, at: float) -> None:
    """End the wait for the user, unless another question is open."""
    if v.waiting is WaitingReason.USER_INPUT and not _has_open_question(v):
        end_wait(v, at)


def _close_tool(v: VitalState, call_id: str, tool: str, at: float) -> float | None:
    """Close the matching open call, and return its duration in seconds, or None if no call matches."""
    open_tools, ran = v.open_tools, None
    if not open_tools:
        return None
    for index, open_tool in enumerate(open_tools):
        if open_tool.call_id == call_id if call_id and open_tool.call_id else open_tool.tool == tool:
            # Time before the clocks restarted, for example while the host slept, never counts.
            took = max(0.0, at - max(open_tool.started, v.clock_base))
            if v.tokens_from is not None and len(open_tools) == 1:
                # No tokens are used while a tool runs, so its time does not count.
                v.tokens_from = min(at, max(v.tokens_from, v.clock_base) + took)
            if v.saved_from is not None and len(open_tools) == 1:
                # No checkpoint is saved while a tool runs, so its allowed time does not count.
                v.saved_from = min(
                    at, max(v.saved_from, v.clock_base) + min(get_tool_time_limit(v, open_tool), took)
                )
            ran = v.active_for - open_tool.source_started
            del open_tools[index]
            break
    if not open_tools:
        v.open_tools = None
    return ran


_SUCCESS_OUTCOMES: Final = (None, "", ToolOutcome.OK.value, "success", "succeeded", "completed")
"""The outcomes of a call that did not fail."""


def is_failed_tool_call(data: Mapping[str, Any]) -> bool:
    """Return whether a tool call failed: it has an error, or an outcome other than ``ok``."""
    if data.get("error") or data.get("error_type"):
        return True
    return data.get("outcome") not in _SUCCESS_OUTCOMES


def _is_expected_failure(data: Mapping[str, Any], effect: str | None) -> bool:
    """
    Return whether a reported failure is a normal result.

    For example, ``grep`` fails if it finds nothing, and a wait fails if the expected state does not occur in
    time.
    """
    if effect == _SEARCHES:
        return data.get("result_hash") == NOTHING_FOUND
    if effect != _WAITS:
        return False
    if data.get("outcome") == ToolOutcome.TIMEOUT:
        return True
    return _TIMED_OUT.search(f"{data.get('error_type') or ''} {data.get('error') or ''}") is not None


def call_signature(data: Mapping[str, Any]) -> str:
    """
    Return a signature that is the same for calls that the loop detector considers identical.

    Args:
        data: The data of ``tool_call_completed``.

    Returns:
        The signature in hex, or an empty string if the arguments are unknown.
    """
    if data.get("args_hash") is None:
        return ""
    tool, args = clean_display_name(data.get("tool")), str(data["args_hash"])
    effect = _determine_effect(data, tool)
    is_failure = is_failed_tool_call(data) and not _is_expected_failure(data, effect)
    result = None if data.get("result_hash") is None else str(data["result_hash"])
    effective_result = _normalize_result(args, result, effect)
    parts = (tool, _normalize_args(args, data.get("subagent")), effective_result, is_failure)
    return hashlib.blake2b(repr(parts).encode(), digest_size=_SIGNATURE_BYTES).hexdigest()


def _determine_effect(data: Mapping[str, Any], tool: str) -> str | None:
    declared_effect = data.get("effect")
    return (
        declared_effect if declared_effect and isinstance(declared_effect, str) else infer_tool_effect(tool)
    )


def _normalize_args(args: str, subagent: str | None) -> str:
    # Sub-agents do not know each other's calls, so their calls are not repeats of each other.
    return f"{subagent} {args}" if subagent else args


def _normalize_result(args: str, result: str | None, effect: str | None) -> str | None:
    # An edit with the same arguments is a repeat regardless of its result. Without arguments, two calls may
    # do different things, such as reading the next page, so their results are compared.
    return "" if result is not None and effect == _EDITS and args not in _EMPTY_ARGUMENTS else result


def on_tool_completed(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Apply the end of a tool call and its result."""
    tool = clean_display_name(data.get("tool"))
    if data.get("amends"):
        _count_late_failure(v, tool, data, at)
        return
    effect = _determine_effect(data, tool)
    is_late = is_late_report(v, at)
    is_failure = is_failed_tool_call(data) and not _is_expected_failure(data, effect)
    is_stopped = is_failure and is_stopped_by_user(data)
    is_failure = is_failure and not is_stopped
    if not is_late and not record_end(v, at):
        return
    v.tool_calls_total += 1
    if v.last_tool_call is None or at > v.last_tool_call:
        v.last_tool_call = at
    if v.tools is None:
        v.tools = ToolCounts()
    v.tools.add(tool, is_failure, at)
    if is_failure:
        v.note_error(data)
    if is_late:
        return
    ran = _close_tool(v, str(data.get("call_id") or ""), tool, at) if v.open_tools else None
    if ran is not None and is_question_tool(tool):
        _end_question(v, at)
    duration = parse_seconds(data.get("duration"))
    if ran is None and duration is not None and v.tokens_from is not None:
        # No tokens are used while a tool runs, so its time does not count.
        v.tokens_from = min(at, v.tokens_from + duration)
    if is_stopped:
        v.has_user = True
        v.idle_turns = 0
        return
    record_outcome(v, is_failure, at)
    args, result = data.get("args_hash"), data.get("result_hash")
    args, result = None if args is None else str(args), None if result is None else str(result)
    if effect == _WAITS and not is_failure and is_failed_tool_call(data):
        result = None  # a call that timed out has no result
    if (took := duration if duration is not None else ran) is not None:
        learn_duration(v, Phase.TOOL, tool, took, at)
    v.calls_since_gain += 1
    # A question that is answered immediately was answered by a harness, not by a user.
    if is_question_tool(tool) and (took is None or took >= FASTEST_REPLY_SECONDS):
        v.has_user = True
        if not is_failure:
            record_user_input(v, at)
    turn = data.get("turn")
    if duration is not None:
        turn = _find_turn(v, turn, event.trace_id, v.active_for - duration, v.active_for)
    pause = 0.0 if v._tool_ended is None else v.active_for - (duration or 0.0) - v._tool_ended
    v._tool_ended = v.active_for
    _count_turn(v, tool, effect, result, at, is_unprompted=is_failure or pause < SLOWEST_ANSWER_SECONDS)
    if tool in v.settings.loops.exempt_tools:
        if result is not None and not is_failure and v.is_new(digest("result", tool, result)):
            record_progress(v, at)
        return
    error = ""
    if is_failure:
        error_type = str(data.get("error_type") or data.get("outcome"))
        error = classify_failure(error_type, str(data.get("error") or ""))
    failure = _Failure.TROUBLE
    if effect == _WAITS:
        if is_failure and error != SHELL_REFUSED and _is_failed_again(v, tool, args, result):
            failure = _Failure.POLL
            _add_poll(v, at)
        _record_poll(v, result, is_failure, at)
    else:
        is_failed_check = is_failure and effect == _CHECKS and data.get("outcome") != ToolOutcome.TIMEOUT
        is_bare = is_failure and effect in READING and is_shell(tool) and is_bare_exit(data)
        is_gone = is_failure and effect in READING and is_missing(data)
        may_miss = is_bare or (error != SHELL_REFUSED and (is_failed_check or is_gone))
        failure = _record_call(
            v,
            tool,
            args,
            result,
            effect,
            error,
            turn,
            pause,
            duration or 0.0,
            at,
            may_miss=may_miss,
            is_bare=is_bare,
            subagent=data.get("subagent"),
        )
    if is_failure and failure is _Failure.TROUBLE:
        _count_failed_call(v, turn, at)
    if failure is not _Failure.POLL:
        _count_streak(v, tool, error, turn, at, is_miss=failure is _Failure.MISS)


def _find_turn(v: VitalState, turn: object, trace_id: str, began: float, at: float) -> object:
    """
    Return the turn of a call.

    If turns are not reported, overlapping calls form a turn, which is identified by the time when the first
    of them ended. A call of another trace belongs to the turn if it began before a call of the turn ended.
    """
    turn_id, until, trace_of_first = v._side_by_side or (at, at, trace_id)
    if turn is None:
        if began >= until:
            turn_id, until = at, at
        v._side_by_side = (turn_id, max(at, until), trace_id)
        return turn_id
    if trace_id == trace_of_first or began >= until:
        v._side_by_side = (turn, at, trace_id)
        return turn
    return turn_id


def _count_turn(
    v: VitalState, tool: str, effect: str | None, result: str | None, at: float, *, is_unprompted: bool
) -> None:
    """Count turns without work: a text answer, or a result that was submitted again."""
    is_idle = effect == _SUBMITS or result == NOTHING_NEW
    if effect is None and not is_idle and result is not None and is_messaging_tool(tool):
        is_idle = v.knows(digest("result", result))  # the message got no new answer
    if not is_idle:
        if v.idle_turns:
            # The last idle turn is the answer that made this call.
            v.talks = v.idle_turns > 1
        v.idle_turns = 0
        v._idle_before = -1 if v._verdicts else 0
    elif v.idle_turns_of_model:
        v.idle_turns_of_model = False  # the model's answer has already counted this turn
    else:
        add_idle_turn(v, at, is_unprompted=is_unprompted)


def _record_poll(v: VitalState, result: str | None, is_failure: bool, at: float) -> None:
    """Record a call that waits or polls. Repeated polls do not count as a loop."""
    v._has_waited = True
    if v.calls is not None:
        v.calls.record_change()
    if not is_failure:
        _count_poll(v, result, at)


def _is_failed_again(v: VitalState, tool: str, args: str | None, result: str | None) -> bool:
    """
    Return whether a command that waits failed as before, so that its expected state has not been reached.
    """
    if not is_shell(tool) or args is None or result is None:
        return False
    return not v.is_new(digest("wait", args, result))


def _count_poll(v: VitalState, result: str | None, at: float) -> None:
    if result is not None and v.is_new(digest("result", result)):
        record_progress(v, at)
        return
    _add_poll(v, at)


def _add_poll(v: VitalState, at: float) -> None:
    if v.polls == 0:
        v.polls_since, v.polls_from = at, v.active_for
    v.polls += 1


def _record_call(
    v: VitalState,
    tool: str,
    args: str | None,
    result: str | None,
    effect: str | None,
    error: str,
    turn: object,
    pause: float,
    duration: float,
    at: float,
    *,
    may_miss: bool = False,
    is_bare: bool = False,
    subagent: str | None = None,
) -> _Failure:
    """
    Record a call that is not a wait. Return the meaning of its failure, or ``TROUBLE`` if it succeeded.

    A shell error that is known names the same missing item as before, so it is not a new miss. This does not
    apply to a bare exit code, which names no item.
    """
    is_failure = bool(error)
    call: CallNovelty | None = None
    if args is not None:
        if v.calls is None:
            v.calls = RecentCalls(v.settings.loops.window)
        has_arguments = args not in _EMPTY_ARGUMENTS
        effective_result = _normalize_result(args, result, effect)
        args = _normalize_args(args, subagent)
        if (
            effect in CHANGING
            and not (is_failure or has_arguments or v.stale_calls)
            and not v.calls.is_last(tool, args, effective_result)
        ):
            v.calls.record_change()
        may_poll = not is_failure or (effect == _POLLS and error != SHELL_REFUSED)
        if may_poll and _is_poll(
            v, v.calls, tool, args, effective_result, effect, pause, duration, is_failure=is_failure
        ):
            if v._has_waited or effect == _POLLS:
                _record_poll(v, result, False, at)
            else:
                _count_poll(v, result, at)
                v.rereads += 1
            return _Failure.POLL if is_failure else _Failure.TROUBLE
        v._has_waited = False
        is_check = effect in (_RUNS, _CHECKS)
        # An unknown tool without arguments may report the state of the work.
        is_look = not is_failure and (effect in READING or (effect is None and not has_arguments))
        call = v.calls.add(
            tool, args, effective_result, turn, at, is_failure=is_failure, is_check=is_check, is_look=is_look
        )
        # A check in a shell may build or generate something.
        may_change = (is_check if is_shell(tool) else effect == _RUNS) or (
            effect is None and not is_note(tool)
        )
        if may_change and call is CallNovelty.NEVER and not is_failure:
            v.calls.record_possible_change()
            if effect == _RUNS or is_shell(tool):
                v.fruitless = 0
                v.refusals = ()
    # A check that is repeated after a change may go through a list again.
    is_miss = may_miss and (
        call is CallNovelty.NEVER or (effect == _CHECKS and call is CallNovelty.AFTER_CHANGE)
    )
    if result is not None and call is not CallNovelty.PARALLEL:
        result_digest = digest("result", result)
        is_known = is_shell(tool) and v.knows(result_digest)
        is_miss = is_miss and (is_bare or effect == _CHECKS or not is_known)
        is_new_miss = is_miss and call is CallNovelty.NEVER
        _record_result(v, result_digest, call, effect, is_failure, turn, at, is_miss=is_new_miss)
    if not is_failure and call in (None, CallNovelty.NEVER):
        end_failed_calls(v)  # the call may have had an effect; only repeats certainly had none
        if result is None:
            v.stale_calls = 0
            end_standstill(v)
    if error:
        is_refused = error in (SHELL_REFUSED, NOT_ACCEPTED) or (
            effect in _REFUSABLE_EFFECTS and error != UNCLASSIFIED
        )
        if is_refused and (turn is None or turn != v._refused_turn):
            loops = v.settings.loops
            v.refusals = add_refusal(
                v.refusals,
                error,
                at,
                call=v.tool_calls_total,
                window=loops.window,
                limit=loops.refused_changes,
            )
            v._refused_turn = turn
    elif effect in CHANGING:
        _record_change(v, call, at)
    return _Failure.MISS if is_miss else _Failure.TROUBLE


def _is_poll(
    v: VitalState,
    calls: RecentCalls,
    tool: str,
    args: str,
    result: str | None,
    effect: str | None,
    pause: float,
    duration: float,
    *,
    is_failure: bool,
) -> bool:
    """Return whether a call polls, because it is repeated after a wait or a pause."""
    loops = v.settings.loops
    # A query of a state may itself have waited.
    is_state = effect == _POLLS and pause + duration >= min(MIN_WAIT_SECONDS, loops.poll_seconds)
    if v._has_waited or is_state:
        return calls.has(tool, args, result, is_failure=is_failure)
    # A slow model pauses before every call, so only consecutive identical calls are polls. Searches are no
    # polls, because their results seldom change on their own.
    is_read = effect in READING and effect != _SEARCHES
    min_pause = loops.poll_seconds if is_read else loops.pause_seconds
    return not is_failure and pause >= min_pause and calls.is_last(tool, args, result)


def _record_change(v: VitalState, call: CallNovelty | None, at: float) -> None:
    """Record a successful change, after which other calls may return different results."""
    v.refusals = ()
    v.fruitless = 0
    if call is not CallNovelty.BEFORE:
        record_gain(v, at)
    if v.calls is not None and call is CallNovelty.NEVER:
        v.calls.record_change()


def _count_late_failure(v: VitalState, tool: str, data: Mapping[str, Any], at: float) -> None:
    """Count a call as failed that another source has counted as successful."""
    if v.tools is None or not is_failed_tool_call(data) or is_stopped_by_user(data):
        return
    v.tools.add_error(tool)
    record_outcome(v, True, at)
    v.note_error(data)
    _count_failed_call(v, data.get("turn"), at)


def _record_result(
    v: VitalState,
    result: bytes,
    call: CallNovelty | None,
    effect: str | None,
    is_failure: bool,
    turn: object,
    at: float,
    *,
    is_miss: bool = False,
) -> None:
    """
    Classify a result as new, known from the same call, or known from another call, and count it.

    A new error is neither a repeat nor progress.
    """
    v._known_result = True
    v.recorded_results += 1
    v.results_since_gain += 1
    if is_miss:
        v.stale_results += 0.5
        if not v.is_new(result) and effect != _CHECKS:
            _count_fruitless(v, at)
        return
    if result != _NOTHING_NEW and v.is_new(result):
        v._new_result = True
        if is_failure:
            _count_stale_result(v, 0.5)
            v.stale_calls = 0
        else:
            record_progress(v, at)
            v.new_in_a_row += 1
            if v.new_in_a_row >= v.settings.loops.consecutive:
                end_standstill(v)
    elif call is CallNovelty.AFTER_CHANGE:
        # A repeat after a change is shown, but opens no ticket.
        v.stale_results += 1.0
        v.stale_results_since_gain += 0.5
    elif call is CallNovelty.BEFORE or is_failure:
        if turn is not None and v.stale_calls and turn == v._stale_turn:
            v.recorded_results -= 1  # another call of the same turn has counted
            v.results_since_gain -= 1
            return
        if v.stale_calls == 0:
            v.stale_since = at
        v.stale_calls += 1
        v._stale_turn = turn
        _count_stale_result(v, 1.0)
    else:
        # The result may be an acknowledgement, because successful edits and messages return the same text.
        v.stale_results += 0.5
        if effect == _SEARCHES and result == _NOTHING_FOUND:
            _count_fruitless(v, at)
        elif call is CallNovelty.NEVER:
            v.stale_calls = 0


def _count_stale_result(v: VitalState, weight: float) -> None:
    v.stale_results += weight
    v.stale_results_since_gain += weight
    v.new_in_a_row = 0


def _count_fruitless(v: VitalState, at: float) -> None:
    if v.fruitless == 0:
        v.fruitless_since = at
    v.fruitless += 1


def _count_failed_call(v: VitalState, turn: object, at: float) -> None:
    """Count a failed call of any tool. The failed calls of a turn count once."""
    if v.failed_calls == 0:
        v.failing_since = at
    elif turn is not None and turn == v._streak_turn:
        return
    v.failed_calls += 1


def _count_streak(
    v: VitalState, tool: str, error: str, turn: object, at: float, *, is_miss: bool = False
) -> None:
    if not error:
        v.streak = 0
        return
    if error == UNCLASSIFIED:
        v.streak, v.streak_tool, v.streak_error = 0, tool, error  # each may be a different error
    elif v.streak and tool == v.streak_tool and error == v.streak_error:
        if turn is None or turn != v._streak_turn:
            v.streak += 1
        v.streak_is_missing = v.streak_is_missing and is_miss
    else:
        v.streak = 1
        v.streak_is_missing = is_miss
        v.streak_since = at
        v.streak_tool = tool
        v.streak_error = error
    v._streak_turn = turn
