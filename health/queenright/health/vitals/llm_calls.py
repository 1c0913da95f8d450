"""Apply LLM calls to vital signs: tokens, costs, errors, and turns without a tool call."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Final

from queenright.health.vitals.activity import (
    is_late_report,
    learn_duration,
    record_activity,
    record_end,
    record_start,
)
from queenright.health.vitals.error_rate import record_outcome
from queenright.health.vitals.progress import FASTEST_REPLY_SECONDS, SLOWEST_ANSWER_SECONDS, add_idle_turn
from queenright.health.vitals.rate_limits import parse_rate_limit_seconds
from queenright.health.vitals.resource_limits import add_answer
from queenright.health.vitals.vital_facts import (
    CONTEXT_FULL,
    UNCLASSIFIED,
    classify_failure,
    clean_display_name,
    count_or_zero,
    is_cancelled_call,
    is_context_full,
    parse_dollars,
    parse_seconds,
)
from queenright.health.vitals.vital_state import VitalState
from queenright.health.vitals.waiting import wait_for_rate_limit
from queenright.instrumentation.names import Phase
from queenright.runtime.events import AgentEvent

_RECENT_INPUTS: Final = 5
_SPIKE_CLEAR_FACTOR: Final = 0.75


def on_llm_started(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Apply the start of an LLM call."""
    if record_start(v, at):
        _set_model(v, data)
        v.start_records = True
        v.llm_open += 1
        v._llm_began = event.time


def on_text_delta(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Apply streamed text."""
    if record_activity(v, at) and v.tokens_at is not None:
        v.tokens_from = at


def on_llm_completed(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Apply the end of an LLM call."""
    if (cost := parse_dollars(data.get("cost_usd"))) is not None:
        v.cost_usd = (v.cost_usd or 0.0) + cost
        v.unpriced_tokens -= min(count_or_zero(data.get("priced_tokens")), v.unpriced_tokens)
    is_late = is_late_report(v, at)
    if data.get("amends") or (not is_late and not record_end(v, at)):
        return
    _set_model(v, data)
    if v.llm_open:
        v.llm_open -= 1
    if data.get("error_type") or data.get("error"):
        kind = _classify_provider_error(data)
        if is_cancelled_call(f"{kind} {data.get('error') or ''}"):
            return  # a person or the agent cancelled it, so the provider did not fail
        wait = None if is_late else parse_rate_limit_seconds(data, at)
        if wait is not None and wait_for_rate_limit(v, at, at + wait):
            return
        if v.llm_errors == 0:
            v.llm_error_since = at
        v.llm_errors += 1
        is_full = is_context_full(kind) or is_context_full(str(data.get("error") or ""))
        v.llm_error = CONTEXT_FULL if is_full else kind
        v.note_error(data)
        record_outcome(v, True, at)
        return
    if not is_late or at >= v.llm_error_since:
        v.llm_errors = 0
        v.limit_due = None
    input_tokens = _count_tokens(v, data, at)
    if is_late:
        return
    v.cut_answers = add_answer(v.cut_answers, data, at, v.settings.loops.token_spike_minimum)
    duration = parse_seconds(data.get("duration"))
    # Parallel model calls are one turn.
    is_parallel = (
        duration is not None and v._answer_end is not None and v.active_for - duration < v._answer_end
    )
    is_unprompted = _is_unprompted(v, data, duration)
    v._answer_end = v.active_for
    if not v.open_tools and not is_parallel:
        add_idle_turn(v, at, is_unprompted=is_unprompted)
        v.idle_turns_of_model = True
    record_outcome(v, False, at)
    if duration is not None:
        learn_duration(v, Phase.LLM, v.model, duration, at)
    if v.tokens_at is not None:
        v.tokens_from = at  # a finished call used tokens even if it reports none
    if input_tokens:
        _update_token_spike(v, input_tokens)


def _is_unprompted(v: VitalState, data: Mapping[str, Any], duration: float | None) -> bool:
    """Return whether an answer repeats the previous one, or began too soon to reply to a person's message."""
    before, v._answer = v._answer, str(data.get("answer_hash") or "")
    if before and before == v._answer:
        return True
    last_end = max(v._answer_end or 0.0, v._tool_ended or 0.0)
    pause = v.active_for - last_end
    return pause < SLOWEST_ANSWER_SECONDS if duration is None else pause - duration < FASTEST_REPLY_SECONDS


def _set_model(v: VitalState, data: Mapping[str, Any]) -> None:
    v.model = clean_display_name(data.get("model")) or v.model
    v.provider = clean_display_name(data.get("provider")) or v.provider


def _count_tokens(v: VitalState, data: Mapping[str, Any], at: float) -> int:
    """Count the tokens of a model call and return its input tokens."""
    input_tokens = count_or_zero(data.get("input_tokens"))
    tokens = input_tokens + count_or_zero(data.get("output_tokens"))
    if tokens:
        v.tokens += tokens
        v.tokens_since_gain += tokens
        if parse_dollars(data.get("cost_usd")) is None:
            v.unpriced_tokens += tokens
        v.tokens_at = at if v.tokens_at is None else max(v.tokens_at, at)
    return input_tokens


def _update_token_spike(v: VitalState, input_tokens: int) -> None:
    """Compare the input tokens of this call with those of the previous calls."""
    inputs = v._inputs
    if inputs is None:
        inputs = v._inputs = array("Q")
    before, v.token_spike = v.token_spike, 0.0
    if len(inputs) == _RECENT_INPUTS:
        if input_tokens >= v.settings.loops.token_spike_minimum:
            ratio = input_tokens / max(1, sorted(inputs)[_RECENT_INPUTS // 2])
            # A spike ends well below the threshold at which it begins, so that it does not flap.
            factor = v.settings.loops.token_spike_factor * (_SPIKE_CLEAR_FACTOR if before else 1.0)
            v.token_spike = ratio if ratio >= factor else 0.0
        del inputs[0]
    inputs.append(input_tokens)


def _classify_provider_error(data: Mapping[str, Any]) -> str:
    """Return the error class of a failed model call, or ``error`` if it has none."""
    error_type = clean_display_name(data.get("error_type"))
    if error_type.isdecimal():
        return error_type  # the status of the answer
    error_class = classify_failure(error_type, str(data.get("error") or ""))
    return error_class if error_class != UNCLASSIFIED else error_type or "error"
