"""
Tool calls in the messages of a model call, for libraries that make no spans of tools.

An answer says which tools are called; the question after it ends with their results. Messages are in JSON: of
the GenAI conventions (`parts`), or as OpenAI, Anthropic or Gemini have them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from queenright.instrumentation.fingerprint import fingerprint
from queenright.server.telemetry.payload import payload_of
from queenright.server.telemetry.values import id_in

LONGEST: Final = 1_000_000
"""Characters of messages that are read."""
MAX_CALLS: Final = 64
"""Of one answer or question."""
_DEPTH: Final = 4
_LISTS: Final = ("messages", "input", "contents", "choices", "parts", "content", "tool_calls", "output")
_CALLS: Final = frozenset({"tool_call", "tool_use", "function_call", "function"})
_RESULTS: Final = frozenset({"tool_call_response", "tool_result", "function_call_output"})


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A tool call that the model asks for."""

    id: str
    tool: str
    args_hash: str | None


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a tool call came to."""

    id: str
    result_hash: str | None
    has_failed: bool


def asked_calls(text: str) -> list[AskedCall]:
    """Return the tool calls that messages ask for; none if they cannot be read."""
    return [one for _, one in _items(text) if isinstance(one, AskedCall)][-MAX_CALLS:]


def last_results(text: str) -> list[CallResult]:
    """Return the results at the end of messages, after which the model has said nothing."""
    found: list[CallResult] = []
    for role, one in _items(text):
        if isinstance(one, CallResult):
            found.append(one)
        elif role in ("assistant", "model"):
            found.clear()
    return found[-MAX_CALLS:]


def _items(text: str) -> Iterator[tuple[str, AskedCall | CallResult | None]]:
    """Yield the role of each message, and what of tools is in it."""
    if len(text) > LONGEST:
        return
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        return
    yield from _within(said, "", _DEPTH)


def _within(value: Any, role: str, depth: int) -> Iterator[tuple[str, AskedCall | CallResult | None]]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _within(item, role, depth)
        return
    if not isinstance(value, Mapping) or depth < 0:
        return
    own_role = value.get("role")
    if isinstance(own_role, str):
        role = own_role.lower()
        yield role, None
    found = _call(value) or _result(value, role)
    if found is not None:
        yield role, found
        return
    if isinstance(message := value.get("message"), Mapping):
        yield from _within(message, role, depth - 1)
    for name in _LISTS:
        if isinstance(items := value.get(name), list):
            yield from _within(items, role, depth - 1)


def _call(value: Mapping[str, Any]) -> AskedCall | None:
    kind, function = value.get("type"), value.get("functionCall") or value.get("function_call")
    if isinstance(function, Mapping) and "name" in function:
        return _asked(function.get("id"), function["name"], function.get("args"))
    if kind not in _CALLS:
        return None
    function = value.get("function")
    inner = function if isinstance(function, Mapping) else value
    arguments = inner.get("arguments", inner.get("input"))
    return _asked(value.get("call_id") or value.get("id"), inner.get("name"), arguments)


def _asked(id_: Any, name: Any, arguments: Any) -> AskedCall | None:
    tool = id_in(name)
    return AskedCall(id_in(id_), tool, _hash(arguments)) if tool else None


def _result(value: Mapping[str, Any], role: str) -> CallResult | None:
    response = value.get("functionResponse") or value.get("function_response")
    if isinstance(response, Mapping):
        return CallResult(id_in(response.get("id")), _hash(response.get("response")), False)
    if value.get("type") in _RESULTS:
        id_ = next((value[key] for key in ("tool_use_id", "call_id", "id") if value.get(key)), "")
    elif role == "tool" and value.get("tool_call_id"):
        id_ = value["tool_call_id"]
    else:
        return None
    content = next((value[key] for key in ("response", "result", "output", "content") if key in value), None)
    return CallResult(id_in(id_), _hash(content), value.get("is_error") is True)


def _hash(value: Any) -> str | None:
    return None if value is None else fingerprint(payload_of(value))
