"""
Claude Code: log records, hook calls, and spans of its traces beta.

| | log record | hook call | span |
| --- | --- | --- | --- |
| session | | SessionStart, SessionEnd | |
| turn begins | user_prompt | UserPromptSubmit | |
| turn ends | assistant_response, api_retries_exhausted | Stop, StopFailure | interaction |
| model call ends | api_request, api_error, api_refusal | | llm_request |
| tool call begins | tool_decision | PreToolUse | |
| tool call ends | tool_result | PostToolUse, PostToolUseFailure | tool, tool.execution |
| waits for a person | | PermissionRequest, Elicitation | |

Nothing says when it asks its model: that is once a prompt is there, and once all tools have answered.
A turn that ended waits for its person. https://code.claude.com/docs/en/monitoring-usage, .../hooks
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from queenright.instrumentation.fingerprint import fingerprint
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.names import ToolOutcome, WaitingReason
from queenright.instrumentation.redaction import redact
from queenright.server.telemetry.kind import Kind
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import Process

CLIENT: Final = "claude-code"
LOG_SCOPE: Final = "com.anthropic.claude_code.events"
SPAN_SCOPE: Final = "com.anthropic.claude_code.tracing"

ATTRIBUTES = {
    "input_tokens": ("input_tokens",),
    "output_tokens": ("output_tokens",),
    "model": ("model",),
    "call_id": ("tool_use_id",),
    "succeeded": ("success",),
}

_SPANS: Final[Mapping[str, Kind]] = {
    "claude_code.interaction": Kind.TURN,
    "claude_code.llm_request": Kind.LLM,
    "claude_code.tool": Kind.TOOL,
    "claude_code.tool.execution": Kind.NOTE,
}

_NANO: Final = 1_000_000_000
_MILLI: Final = 1_000_000


def kind_of_span(name: str) -> Kind | None:
    """Return what one of its spans is; None for what says nothing."""
    return _SPANS.get(name)


def read_log(name: str, said: Mapping[str, Any], process: Process, time: int) -> Observation | None:
    """
    Return what a log record says; None if it is nothing that we use.

    Args:
        name: Of the event, without ``claude_code.``.
        said: Its attributes.
        process: Where it comes from.
        time: When it happened, in nanoseconds.

    Raises:
        ValueError: it has no session.
    """
    if name not in _LOGS:
        return None
    session = _id(said.get("session.id"))
    if not session:
        raise ValueError(
            "a record of Claude Code without session.id: set OTEL_METRICS_INCLUDE_SESSION_ID=true"
        )
    kind, is_end = _LOGS[name]
    took = _count(said.get("duration_ms")) * _MILLI if is_end and kind in (Kind.LLM, Kind.TOOL) else 0
    prompt = _id(said.get("prompt.id"))
    one = Observation(
        identity=f"{CLIENT}\n{session}\n{name}\n{time}\n{said.get('event.sequence')}".encode(),
        process=process,
        kind=kind,
        start=time - took,
        end=time if is_end else 0,
        client=CLIENT,
        source="log",
        agent=agent_of(process),
        session=session,
        call=_id(said.get("tool_use_id")) if kind is Kind.TOOL else prompt if kind is Kind.TURN else "",
        library=CLIENT,
        version=process.version,
    )
    if kind is Kind.LLM:
        _of_model_call(one.data, name, said)
    elif kind is Kind.TOOL:
        one.data["tool"] = clean_name(_text(said.get("tool_name") or "unknown"))
        if name == "tool_decision" and said.get("decision") == "reject":
            # A person, or a rule of theirs, said no: it ended, and that is no failure of the tool.
            one.end = time
            one.data["outcome"] = ToolOutcome.OK.value
        elif is_end:
            _of_tool_result(one.data, said)
    return one


_LOGS: Final[Mapping[str, tuple[Kind, bool]]] = {
    "user_prompt": (Kind.TURN, False),
    "assistant_response": (Kind.TURN, True),
    "api_retries_exhausted": (Kind.TURN, True),
    "api_request": (Kind.LLM, True),
    "api_error": (Kind.LLM, True),
    "api_refusal": (Kind.LLM, True),
    "tool_decision": (Kind.TOOL, False),
    "tool_result": (Kind.TOOL, True),
}
"""What is used of its events, and whether that has ended then."""


def _of_model_call(data: dict[str, Any], name: str, said: Mapping[str, Any]) -> None:
    data["model"] = clean_name(_text(said.get("model") or ""))
    data["provider"] = "anthropic"
    if said.get("duration_ms") is not None:
        data["duration"] = _count(said["duration_ms"]) / 1000
    if name == "api_request":
        cached = _count(said.get("cache_read_tokens")) + _count(said.get("cache_creation_tokens"))
        data["input_tokens"] = _count(said.get("input_tokens")) + cached
        data["output_tokens"] = _count(said.get("output_tokens"))
        if said.get("cost_usd") is not None:
            data["cost_usd"] = _number(said["cost_usd"])
    else:
        data["error_type"] = clean_name(_text(said.get("status_code") or name))
        if said.get("error"):
            data["error"] = redact(_text(said["error"]))


def _of_tool_result(data: dict[str, Any], said: Mapping[str, Any]) -> None:
    failed = str(said.get("success")).lower() == "false"
    data["outcome"] = (ToolOutcome.ERROR if failed else ToolOutcome.OK).value
    if failed:
        data["error_type"] = clean_name(_text(said.get("error_type") or "error"))
        if said.get("error"):
            data["error"] = redact(_text(said["error"]))
    if said.get("duration_ms") is not None:
        data["duration"] = _count(said["duration_ms"]) / 1000
    if said.get("tool_input"):
        data["args_hash"] = fingerprint(_without_description(said["tool_input"]))
    # Its result is never recorded here. The same failure again is the same result again.
    if failed:
        data["result_hash"] = fingerprint(f"{data['error_type']}: {data.get('error', '')}")


def read_hook(call: Mapping[str, Any], process: Process, now: int) -> Observation | None:
    """
    Return what a hook call says; None if it is nothing that we use.

    Args:
        call: Its JSON.
        process: Where it comes from, as far as is known.
        now: When it arrived, in nanoseconds: it says no time itself.

    Raises:
        ValueError: it has no session.
    """
    name = str(call.get("hook_event_name") or "")
    known = _HOOKS.get(name)
    session = _id(call.get("session_id"))
    if not session:
        raise ValueError("a hook call of Claude Code without session_id")
    if known is None:
        return None
    kind, is_end = known
    tool, prompt = _id(call.get("tool_use_id")), _id(call.get("prompt_id"))
    took = _count(call.get("duration_ms")) * _MILLI if is_end else 0
    one = Observation(
        identity=f"{CLIENT}\n{session}\n{name}\n{tool}\n{prompt}\n{now}".encode(),
        process=process,
        kind=kind,
        start=now - took,
        end=now if is_end else 0,
        client=CLIENT,
        source="hook",
        agent=agent_of(process, str(call.get("cwd") or "")),
        session=session,
        call=tool if kind is Kind.TOOL else prompt if kind is Kind.TURN else "",
        library=CLIENT,
        version=process.version,
    )
    if kind is Kind.TOOL:
        one.data["tool"] = clean_name(_text(call.get("tool_name") or "unknown"))
        if is_end:
            _of_tool_response(one.data, call)
    elif name == "StopFailure":
        one.data["error_type"] = clean_name(_text(call.get("error") or "error"))
    elif kind is Kind.WAIT:
        one.data["reason"] = WaitingReason.USER_INPUT.value
    return one


_HOOKS: Final[Mapping[str, tuple[Kind, bool]]] = {
    "SessionStart": (Kind.AGENT, False),
    "SessionEnd": (Kind.AGENT, True),
    "UserPromptSubmit": (Kind.TURN, False),
    "Stop": (Kind.TURN, True),
    "StopFailure": (Kind.TURN, True),
    "PreToolUse": (Kind.TOOL, False),
    "PostToolUse": (Kind.TOOL, True),
    "PostToolUseFailure": (Kind.TOOL, True),
    "PermissionRequest": (Kind.WAIT, False),
    "Elicitation": (Kind.WAIT, False),
}


def _of_tool_response(data: dict[str, Any], call: Mapping[str, Any]) -> None:
    error = call.get("error")
    data["outcome"] = (ToolOutcome.ERROR if error else ToolOutcome.OK).value
    if call.get("duration_ms") is not None:
        data["duration"] = _count(call["duration_ms"]) / 1000
    if error:
        data["error_type"] = "interrupted" if call.get("is_interrupt") else "error"
        data["error"] = redact(_text(error))
    if call.get("tool_input"):
        data["args_hash"] = fingerprint(_without_description(call["tool_input"]))
    result = error or call.get("tool_response")
    if result is not None:
        data["result_hash"] = fingerprint(result)


def order(event: str, kind: str, message: str) -> dict[str, Any]:
    """
    Return the answer to a hook call that hands an instruction over; empty if this call cannot.

    A stop is ignored at ``PostToolUseFailure``; added context reaches the model after a tool.
    """
    if kind == "terminate" and event in ("PreToolUse", "PostToolUse"):
        return {"continue": False, "stopReason": message}
    if kind == "nudge" and event in ("PostToolUse", "PostToolUseFailure"):
        return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": message}}
    return {}


def agent_of(process: Process, folder: str = "") -> str:
    """Return a name that says whose session it is: ``claude-code/ada@laptop/website``."""
    repository = process.repository or clean_name(folder.rstrip("/\\").replace("\\", "/").rpartition("/")[2])
    return "/".join(part for part in (CLIENT, process.owner, repository) if part)


def _without_description(arguments: Any) -> Any:
    """Return a tool's arguments without what the model says of them: new words are no new call."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
    if isinstance(arguments, dict) and len(arguments) > 1:
        return {key: value for key, value in arguments.items() if key != "description"}
    return arguments


def _text(value: Any) -> str:
    return str(value)[:100_000]


def _id(value: Any) -> str:
    return clean_name(value[:1_000]) if isinstance(value, str) else ""


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if 0 <= number < 1e12 else 0.0


def _count(value: Any) -> int:
    return int(_number(value))
