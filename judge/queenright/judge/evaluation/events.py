"""
Convert recorded steps to the events that their agent would have sent.

Recorded runs of other systems lack some data, such as times, turns, error classes and hashes. Missing data is
inferred from the other fields of the step where possible. Otherwise it is unknown, as in a live run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from queenright.instrumentation.effects import infer_effect, wait_seconds
from queenright.instrumentation.error_class import classify_error_text, find_unreported_failure
from queenright.instrumentation.fingerprint import arguments_fingerprint, fingerprint, result_fingerprint
from queenright.runtime.events import AgentEvent, EventType

_MAX_RECORDED_LENGTH: Final = 400
"""Recorded texts are cut to this many characters. A longer text contains a cut mark."""

_EXCERPT: Final = 500
_SEARCH_LENGTH: Final = 4_000
"""The number of characters that are searched for a provider failure."""

_USER_KINDS: Final = frozenset({"user", "human", "user_message", "prompt"})

_NO_CLOCK_STEP_SECONDS: Final = 1.0
"""The seconds between the steps of a run without times, which are too few to look like silence."""

_MAX_WAIT_SECONDS: Final = 3600.0
"""The longest wait, in seconds, that a step of such a run may report."""

_LLM_KINDS: Final = frozenset({"llm", "model", "generation", "chat"})
_TOOL_KINDS: Final = frozenset({"tool", "tool_call", "function", "action"})

_WORDS: Final = re.compile(r"[^\W\d_]+")
"""Matches the words of an answer. Answers that differ only in numbers and punctuation count as identical."""

_MAX_TOOLS_PER_MODEL_CALL: Final = 4
_MAX_PARALLEL_CALLS: Final = 32

# Error messages of LLM APIs, for records that keep the text without marking it as an error.
_PROVIDER_FAILED: Final = re.compile(
    r"litellm\.\w*(?:Error|Timeout)|\b(?:APIConnectionError|APITimeoutError|APIStatusError|RateLimitError"
    r"|InternalServerError|ServiceUnavailableError|OverloadedError)\b|\bError code: [45]\d\d\b"
    r"|\boverloaded_error\b|\b(?:429 Too Many Requests|503 Service Unavailable|529 overloaded)\b",
    re.IGNORECASE,
)
# A text that begins like this is an error message of the client rather than an answer.
_NO_ANSWER: Final = re.compile(
    r"\s*(?:[\w.]*(?:Error|Timeout|Exception)\s*[:(\[]|Connection error\.|Request timed out\."
    r"|Internal Server Error|You exceeded your current quota|Error code: [45]\d\d\b"
    r"|(?:Error )?(?:429|50[0234]|529)\b)"
)


class RunSteps:
    """Converts the steps of a recorded run to events."""

    def __init__(self, steps: Sequence[Mapping[str, Any]]) -> None:
        self._steps = steps
        self._kinds = [_find_kind(step) for step in steps]
        self._turns = _find_turns(steps, self._kinds)
        self._truncated_texts = _find_truncated_texts(steps)
        self._has_times = any(to_finite_number(step.get("t")) is not None for step in steps)

    def __len__(self) -> int:
        return len(self._steps)

    def time(self, index: int, clock: float) -> float:
        """Return when a step ended, in seconds from the record's own origin. It is never before ``clock``."""
        recorded_time = to_finite_number(self._steps[index].get("t"))
        if recorded_time is not None:
            # The first recorded time is arbitrary. Later times never decrease.
            return recorded_time if index == 0 else max(clock, recorded_time)
        if self._has_times:
            return clock
        step = self._steps[index]
        is_call = self._kinds[index] == "tool"
        pause = wait_seconds(_to_word(step.get("name")), step.get("args")) if is_call else 0.0
        return clock + _NO_CLOCK_STEP_SECONDS + min(pause, _MAX_WAIT_SECONDS)

    def event(self, index: int, at: float) -> AgentEvent:
        """Return a step as an event."""
        step, kind = self._steps[index], self._kinds[index]
        if kind == "event":
            return _convert_logged_event(step, at)
        if kind == "llm":
            return _convert_llm_step(step, at)
        if kind == "tool":
            return self._convert_tool_step(step, self._turns[index], at)
        if kind in _USER_KINDS:
            return AgentEvent(type=EventType.CLIENT_INPUT_RECEIVED, time=at, id="")
        # An unknown kind still shows activity.
        return AgentEvent(type=EventType.LLM_TEXT_DELTA, time=at, id="")

    def _convert_tool_step(self, step: Mapping[str, Any], turn: object, at: float) -> AgentEvent:
        name = _to_word(step.get("name"))
        is_failure = _is_true(step.get("is_error"))
        recorded_args, result = step.get("args"), step.get("result_excerpt")
        args, args_hash = _parse_arguments(recorded_args), _to_word(step.get("args_hash")) or None
        if self._is_complete(name, recorded_args, args_hash, "args"):
            args_hash = arguments_fingerprint(args)
        effect = infer_effect(name, args)
        hidden_failure = "" if is_failure else find_unreported_failure(result, effect, args)
        is_failure = is_failure or bool(hidden_failure)
        data: dict[str, Any] = {
            "tool": name,
            "turn": turn,
            "args_hash": args_hash,
            "outcome": "error" if is_failure else "ok",
            "effect": effect,
        }
        is_complete = self._is_complete(name, result, step.get("result_hash"), "result")
        if is_complete:
            data["result_hash"] = result_fingerprint(result, args, has_failed=is_failure)
        else:
            data["result_hash"] = _to_word(step.get("result_hash")) or None
        if is_failure:
            text = _to_text(step.get("result_excerpt"))
            data["error_type"] = (
                hidden_failure or _to_word(step.get("err_sig")) or classify_error_text(text, step.get("args"))
            )
            data["error"] = text[-_EXCERPT:]
        return AgentEvent(type=EventType.TOOL_CALL_COMPLETED, time=at, data=data, id="")

    def _is_complete(self, name: str, value: object, original: object, field: str) -> bool:
        """
        Return whether a recorded text or value is complete.

        A complete text is preferred to its recorded hash, which changes with every id and timestamp in the
        text.
        """
        if not isinstance(value, str):
            return value is not None
        recorded_hash = _to_word(original)
        return not recorded_hash or (
            0 < len(value) <= _MAX_RECORDED_LENGTH and (field, name, value) not in self._truncated_texts
        )


def _convert_logged_event(step: Mapping[str, Any], at: float) -> AgentEvent:
    """Convert a logged event. An event of an unknown type only counts as activity."""
    try:
        kind = EventType(_to_word(step.get("type")))
    except ValueError:
        kind = EventType.LLM_TEXT_DELTA
    data = step.get("data")
    return AgentEvent(
        type=kind,
        time=to_finite_number(step.get("t")) or at,
        incarnation_id=_to_word(step.get("incarnation_id")),
        node_id=_to_word(step.get("node_id")),
        data=data if isinstance(data, Mapping) else {},
        id="",
    )


def _convert_llm_step(step: Mapping[str, Any], at: float) -> AgentEvent:
    tokens = step.get("tokens")
    numbers = tokens if isinstance(tokens, Mapping) else {}
    data: dict[str, Any] = {
        "model": _to_word(step.get("name")),
        "input_tokens": numbers.get("in"),
        "output_tokens": numbers.get("out"),
    }
    is_error, text = step.get("is_error"), _to_text(step.get("result_excerpt"))
    if words := _WORDS.findall(text.lower()):
        data["answer_hash"] = fingerprint(" ".join(words))
    answer = text or _to_text(step.get("args"))
    no_answer = _PROVIDER_FAILED.search(text[:_SEARCH_LENGTH]) or _NO_ANSWER.match(answer)
    if _is_true(is_error) or (is_error is None and no_answer):
        text = answer
        data["error_type"] = classify_error_text(text) if text else _to_word(step.get("err_sig")) or "error"
        data["error"] = text[-_EXCERPT:]
    return AgentEvent(type=EventType.LLM_CALL_COMPLETED, time=at, data=data, id="")


def _find_kind(step: Mapping[str, Any]) -> str:
    kind = step.get("kind")
    word = kind.strip().lower() if isinstance(kind, str) else ""
    if word in _LLM_KINDS:
        return "llm"
    if word in _TOOL_KINDS or (
        not word and any(step.get(key) for key in ("args_hash", "args", "result_hash"))
    ):
        return "tool"
    return word or "unknown"


def _find_turns(steps: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> list[object]:
    """
    Return a key for each step. The calls of a turn share a key.

    A model call between two calls separates them, regardless of their content. If turns are not recorded, the
    calls after a model call form a turn, provided that the record contains model calls.
    """
    model_calls, tool_calls = kinds.count("llm"), kinds.count("tool")
    has_model_calls = model_calls * _MAX_TOOLS_PER_MODEL_CALL >= tool_calls
    turns: list[object] = []
    number = 0
    for step, kind in zip(steps, kinds, strict=True):
        number += kind == "llm"
        turn = step.get("turn")
        if isinstance(turn, str | int | float) and not isinstance(turn, bool):
            turns.append(f"{turn}/{number}")
        else:
            turns.append(f"/{number}" if has_model_calls and number else None)
    for turn, members in groupby(range(len(steps)), key=turns.__getitem__):
        tool_indexes = [index for index in members if kinds[index] == "tool"]
        if str(turn).startswith("/") and len(tool_indexes) > _MAX_PARALLEL_CALLS:
            for index in tool_indexes:
                turns[index] = None
    return turns


def _find_truncated_texts(steps: Sequence[Mapping[str, Any]]) -> frozenset[tuple[str, str, str]]:
    """Return the texts that are recorded with several hashes, because the recorder truncated them."""
    hashes: dict[tuple[str, str, str], str] = {}
    truncated_texts = set()
    for step in steps:
        name = _to_word(step.get("name"))
        for field, text, original in (
            ("args", step.get("args"), step.get("args_hash")),
            ("result", step.get("result_excerpt"), step.get("result_hash")),
        ):
            recorded_hash = _to_word(original)
            if isinstance(text, str) and recorded_hash and len(text) <= _MAX_RECORDED_LENGTH:
                key = (field, name, text)
                if hashes.setdefault(key, recorded_hash) != recorded_hash:
                    truncated_texts.add(key)
    return frozenset(truncated_texts)


def _parse_arguments(args: object) -> object:
    """Parse arguments from their JSON text. Return any other or truncated text unchanged."""
    if isinstance(args, str) and args[:1] == "{" and args[-1:] == "}":
        try:
            return json.loads(args)
        except (ValueError, RecursionError):
            pass
    return args


def to_finite_number(value: object) -> float | None:
    """Return a finite number, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _to_word(value: object) -> str:
    """Return a name or hash as text, or an empty string for any other type."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _to_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _is_true(value: object) -> bool:
    return value is True or (isinstance(value, int) and value == 1) or str(value).lower() == "true"
