"""
Find tool calls in the messages of a model call, for libraries without tool spans.

A response names the tools to call; the next request ends with their results. Messages are JSON in the shape
of the GenAI conventions (`parts`), OpenAI, Anthropic or Gemini.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from queenright.instrumentation.effects import extract_question, get_effect_facts
from queenright.instrumentation.fingerprint import arguments_fingerprint, fingerprint, result_fingerprint
from queenright.server.telemetry.payload import unwrap_payload
from queenright.server.telemetry.values import clean_id

MAX_LENGTH: Final = 1_000_000
"""Maximum characters of messages that are read."""
MAX_CALLS: Final = 64
"""Maximum tool calls per message list."""
_MAX_DEPTH: Final = 10
_LIST_KEYS: Final = (
    "messages",
    "message",
    "input",
    "contents",
    "choices",
    "parts",
    "content",
    "tool_calls",
    "output",
)
_CALL_TYPES: Final = frozenset({"tool_call", "tool_use", "function_call", "function"})
_RESULT_TYPES: Final = frozenset({"tool_call_response", "tool_result", "function_call_output"})


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A tool call that a model response requests."""

    id: str
    tool: str
    args_hash: str | None
    effect: dict[str, str] = field(default_factory=dict)
    """The effect of the call, if its arguments show it."""
    question: str = ""
    """The question to a person; "" if there is none."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a tool call."""

    id: str
    result_hash: str | None
    has_failed: bool


def find_tool_calls(text: str) -> tuple[list[RequestedCall], list[CallResult]]:
    """
    Return the requested tool calls, and the results that follow the model's last message.

    Both are empty if the messages cannot be read or are longer than `MAX_LENGTH`.
    """
    requested_calls: list[RequestedCall] = []
    results: list[CallResult] = []
    if not text or len(text) > MAX_LENGTH:
        return requested_calls, results
    try:
        messages = orjson.loads(text)
    except orjson.JSONDecodeError:
        return requested_calls, results
    for role, item in _walk_messages(messages, "", _MAX_DEPTH):
        if isinstance(item, RequestedCall):
            requested_calls.append(item)
        elif isinstance(item, CallResult):
            results.append(item)
        elif role in ("assistant", "model"):
            results.clear()
    return requested_calls[-MAX_CALLS:], results[-MAX_CALLS:]


def _walk_messages(
    value: Any, role: str, depth: int
) -> Iterator[tuple[str, RequestedCall | CallResult | None]]:
    """Yield the role of each message, and the tool calls and results in it."""
    if depth < 0:
        return
    if isinstance(value, list):
        for item in value:
            yield from _walk_messages(item, role, depth - 1)
        return
    if not isinstance(value, dict):
        return
    if isinstance(value.get("role"), str):
        role = value["role"].lower()
        yield role, None
    tool_item = _parse_call(value) or _parse_result(value, role)
    if tool_item is not None:
        yield role, tool_item
        return
    for name in _LIST_KEYS:
        if isinstance(inner := value.get(name), list | dict):
            yield from _walk_messages(inner, role, depth - 1)


def _parse_call(value: Mapping[str, Any]) -> RequestedCall | None:
    kind, function = value.get("type"), value.get("functionCall") or value.get("function_call")
    if isinstance(function, Mapping) and "name" in function:
        return _make_requested_call(function.get("id"), function["name"], function.get("args"))
    if not isinstance(kind, str) or kind not in _CALL_TYPES:
        return None
    function = value.get("function")
    inner = function if isinstance(function, Mapping) else value
    arguments = inner.get("arguments", inner.get("input"))
    return _make_requested_call(value.get("call_id") or value.get("id"), inner.get("name"), arguments)


def _make_requested_call(id_: Any, name: Any, arguments: Any) -> RequestedCall | None:
    tool = clean_id(name)
    if not tool:
        return None
    call_arguments = None if arguments is None else unwrap_payload(arguments)
    arguments_hash = None if call_arguments is None else arguments_fingerprint(call_arguments)
    return RequestedCall(
        clean_id(id_),
        tool,
        arguments_hash,
        get_effect_facts(tool, call_arguments),
        extract_question(tool, call_arguments),
    )


def _parse_result(value: Mapping[str, Any], role: str) -> CallResult | None:
    response = value.get("functionResponse") or value.get("function_response")
    if isinstance(response, Mapping):
        content = response.get("response")
        return CallResult(
            clean_id(response.get("id")),
            _hash_content(None if content is None else unwrap_payload(content)),
            False,
        )
    kind = value.get("type")
    if isinstance(kind, str) and kind in _RESULT_TYPES:
        id_ = next((value[key] for key in ("tool_use_id", "call_id", "id") if value.get(key)), "")
    elif role == "tool" and value.get("tool_call_id"):
        id_ = value["tool_call_id"]
    else:
        return None
    content = next((value[key] for key in ("response", "result", "output", "content") if key in value), None)
    has_failed = value.get("is_error") is True
    content_hash = (
        None if content is None else result_fingerprint(unwrap_payload(content), has_failed=has_failed)
    )
    return CallResult(clean_id(id_), content_hash, has_failed)


def _hash_content(value: Any) -> str | None:
    return None if value is None else fingerprint(value)
