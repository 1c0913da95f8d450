"""Apply steps to vital signs: verdicts, errors and repeated failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queenright.health.vitals.activity import is_late_report, record_activity, record_end, record_start
from queenright.health.vitals.calls import digest
from queenright.health.vitals.error_rate import record_outcome
from queenright.health.vitals.progress import begin_visit, enter_node, record_accepted_work
from queenright.health.vitals.vital_facts import CONTEXT_FULL, cut_to_tail
from queenright.health.vitals.vital_state import VitalState
from queenright.instrumentation.verdict import Verdict
from queenright.runtime.events import AgentEvent

_RECENT_VERDICTS: Final = 20
_LETTERS: Final[Mapping[str, str]] = {
    Verdict.ACCEPT: "A",
    Verdict.RETRY: "R",
    Verdict.CONTINUE: "C",
    Verdict.ESCALATE: "E",
}


def on_step_started(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Apply the start of a step."""
    if record_start(v, at):
        v.start_records = True
        enter_node(v, event.node_id, at)


def on_step_completed(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Apply the end of a step and its verdict."""
    is_late = is_late_report(v, at)
    is_failure = bool(data.get("error_type") or data.get("error"))
    # A step that fails during a rate limit fails because of the limit. So the worker is still waiting.
    is_limited = is_failure and v.limited_until is not None and at <= v.limited_until
    if not is_late and not (record_activity(v, at) if is_limited else record_end(v, at)):
        return
    v.steps_total += 1
    text = data.get("error") or data.get("text") or data.get("error_type")
    if text:
        v.evidence = cut_to_tail(text)
    # A step that failed because of its LLM call is counted as a provider failure.
    is_provider_failure = is_limited or (is_failure and v.llm_errors > 0)
    if not is_provider_failure:
        v.error_count += is_failure
    if is_late:
        return
    enter_node(v, event.node_id, at)
    # Calls that began before the step ended have ended, even if their end events were lost. Later calls
    # belong to a later step, whose start records precede this span in a batch.
    if v._llm_began < event.time:
        v.llm_open = 0
    if v.open_tools and not data.get("is_model_turn"):
        v.open_tools = [
            tool for tool in v.open_tools if tool.node_id != event.node_id or tool.began >= event.time
        ] or None
    if event.span_id:
        v.last_trace_id, v.last_span_id = event.trace_id, event.span_id
    verdict = data.get("verdict")
    if not is_provider_failure:
        record_outcome(v, is_failure, at)
    letter = _LETTERS.get(verdict) if isinstance(verdict, str) else None
    letter = letter or ("X" if is_failure else "-")
    v._verdicts = (v._verdicts + letter)[-_RECENT_VERDICTS:]
    if not is_limited:
        v.consecutive_failures = v.consecutive_failures + 1 if letter == "X" else 0
    if letter == "C":
        _count_continued(v)
    elif letter != "-":
        v.idle_turns = 0  # the step was accepted, or counts as bad
    if letter == "A":
        begin_visit(v)
        record_accepted_work(v, at)
        v.streak = 0
        v.llm_errors = 0  # a model answered, even if no call was reported
        if v.calls is not None:
            v.calls.clear()
    elif letter in "RE" or (letter == "X" and (not is_provider_failure or v.llm_error == CONTEXT_FULL)):
        _count_bad(v, str(text) if text else "", at)
    v._new_result = v._known_result = False


def _count_continued(v: VitalState) -> None:
    """Count a turn with the verdict CONTINUE once, even if the judge also called the model."""
    v.idle_turns = min(v.idle_turns, v._idle_before + 1) if v._idle_before >= 0 else 0
    v._idle_before = v.idle_turns


def _count_bad(v: VitalState, text: str, at: float) -> None:
    if v.steps_since_last_accept == 0:
        v.bad_since = at
    v.steps_since_last_accept += 1
    new_text = bool(text) and v.is_new(digest("text", text))
    # Results are stronger evidence than text: models rephrase the same failure.
    is_new = v._new_result if v._known_result else new_text
    if not is_new:
        v.bad_repeats += 1
