"""
Claude Code: log records, hook calls, and the spans of its tracing beta.

| | log record | hook call | span |
| --- | --- | --- | --- |
| session | | SessionStart, SessionEnd | |
| turn begins | user_prompt | UserPromptSubmit | |
| turn ends | assistant_response, api_retries_exhausted | Stop, StopFailure | interaction |
| model call ends | api_request, api_error, api_refusal | | llm_request |
| tool call begins | tool_decision | PreToolUse | |
| tool call ends | tool_result | PostToolUse, PostToolUseFailure | tool, tool.execution |
| waits for a person | | PermissionRequest, Elicitation, Notification of a permission prompt | |
| MCP server connected, failed or disconnected | mcp_server_connection | | |

No record reports the start of a model call, which follows a prompt or the end of all tool calls. After a
turn, the agent waits for its user. https://code.claude.com/docs/en/monitoring-usage, .../hooks
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queenright.instrumentation.effects import extract_question
from queenright.instrumentation.fingerprint import arguments_fingerprint, result_fingerprint
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.names import ToolOutcome, WaitingReason
from queenright.instrumentation.redaction import redact
from queenright.server.telemetry.client import Client
from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.permission import (
    describe_permission,
    format_question,
    make_permission_answer,
)
from queenright.server.telemetry.process import Process
from queenright.server.telemetry.tool_calls import (
    add_arguments,
    add_error,
    drop_description,
    make_context_response,
    read_hook_session,
)
from queenright.server.telemetry.unusable import RecordFault, UnusableRecordError
from queenright.server.telemetry.values import (
    MILLISECOND,
    get_folder_name,
    parse_count,
    parse_number,
    read_tool_name,
    to_text,
)

NAME: Final = "claude-code"

_ATTRIBUTES: Final = {
    "input_tokens": ("input_tokens",),
    "output_tokens": ("output_tokens",),
    "model": ("model",),
    "call_id": ("tool_use_id",),
    "succeeded": ("success",),
}

_SPAN_KINDS: Final[Mapping[str, ObservationKind]] = {
    "claude_code.interaction": ObservationKind.TURN,
    "claude_code.llm_request": ObservationKind.LLM,
    "claude_code.tool": ObservationKind.TOOL,
    "claude_code.tool.execution": ObservationKind.NOTE,
}


def _read_log(record: Mapping[str, Any], process: Process, time: int) -> Observation | None:
    name = str(record.get("event.name") or "").removeprefix("claude_code.")
    if name not in _LOG_EVENTS:
        return None
    session = process.clean_id(record.get("session.id"))
    if not session:
        raise UnusableRecordError(
            RecordFault.NO_SESSION,
            "a record of Claude Code without session.id",
            remedy="set OTEL_METRICS_INCLUDE_SESSION_ID=true",
        )
    kind, is_end = _LOG_EVENTS[name]
    duration_ns = (
        parse_count(record.get("duration_ms")) * MILLISECOND
        if is_end and kind in (ObservationKind.LLM, ObservationKind.TOOL)
        else 0
    )
    call_id, prompt_id = (
        process.clean_id(record.get("tool_use_id")),
        process.clean_id(record.get("prompt.id")),
    )
    observation = Observation(
        identity=f"{NAME}\n{session}\n{name}\n{time}\n{record.get('event.sequence')}".encode(),
        process=process,
        kind=kind,
        start=time - duration_ns,
        end=time if is_end else 0,
        client=NAME,
        source="log",
        session=session,
        call=call_id if kind is ObservationKind.TOOL else prompt_id if kind is ObservationKind.TURN else "",
        library=NAME,
        version=process.version,
    )
    if kind is ObservationKind.LLM:
        _add_model_call(observation.data, name, record)
    elif kind is ObservationKind.MCP_SERVER:
        _add_mcp_server(observation.data, record)
    elif kind is ObservationKind.TOOL:
        observation.data["tool"] = clean_name(to_text(record.get("tool_name") or "unknown"))
        if name == "tool_decision" and record.get("decision") == "reject":
            # A person or a rule rejected the call. It has ended, but the tool did not fail.
            observation.end = time
            observation.data["outcome"] = ToolOutcome.OK.value
        elif is_end:
            _add_tool_result(observation.data, record)
    return observation


_LOG_EVENTS: Final[Mapping[str, tuple[ObservationKind, bool]]] = {
    "user_prompt": (ObservationKind.TURN, False),
    "assistant_response": (ObservationKind.TURN, True),
    "api_retries_exhausted": (ObservationKind.TURN, True),
    "api_request": (ObservationKind.LLM, True),
    "api_error": (ObservationKind.LLM, True),
    "api_refusal": (ObservationKind.LLM, True),
    "tool_decision": (ObservationKind.TOOL, False),
    "tool_result": (ObservationKind.TOOL, True),
    "mcp_server_connection": (ObservationKind.MCP_SERVER, False),
}
"""The events that are used, each with its kind and whether it reports an end."""


def _add_model_call(data: dict[str, Any], name: str, record: Mapping[str, Any]) -> None:
    data["model"] = clean_name(to_text(record.get("model") or ""))
    data["provider"] = "anthropic"
    if record.get("duration_ms") is not None:
        data["duration"] = parse_count(record["duration_ms"]) / 1000
    if name == "api_request":
        cached_tokens = parse_count(record.get("cache_read_tokens")) + parse_count(
            record.get("cache_creation_tokens")
        )
        data["input_tokens"] = parse_count(record.get("input_tokens")) + cached_tokens
        data["output_tokens"] = parse_count(record.get("output_tokens"))
        if record.get("cost_usd") is not None:
            data["cost_usd"] = parse_number(record["cost_usd"])
    else:
        add_error(data, record.get("status_code") or name, record.get("error"))


def _add_tool_result(data: dict[str, Any], record: Mapping[str, Any]) -> None:
    has_failed = str(record.get("success")).lower() == "false"
    data["outcome"] = (ToolOutcome.ERROR if has_failed else ToolOutcome.OK).value
    if has_failed:
        add_error(data, record.get("error_type") or "error", record.get("error"))
    if record.get("duration_ms") is not None:
        data["duration"] = parse_count(record["duration_ms"]) / 1000
    arguments = None
    if record.get("tool_input"):
        arguments = drop_description(record["tool_input"])
        add_arguments(data, arguments)
    # The log has no results. A repeated failure counts as a repeated result.
    if has_failed:
        text = f"{data['error_type']}: {data.get('error', '')}"
        data["result_hash"] = result_fingerprint(text, arguments, has_failed=True)


def _add_mcp_server(data: dict[str, Any], record: Mapping[str, Any]) -> None:
    # The name is present only with OTEL_LOG_TOOL_DETAILS=1.
    named_fields = {
        "status": record.get("status"),
        "server": record.get("server_name"),
        "transport": record.get("transport_type"),
        "scope": record.get("server_scope"),
        "error_type": record.get("error_code"),
    }
    data |= {key: clean_name(to_text(value)) for key, value in named_fields.items() if value}
    if record.get("duration_ms") is not None:
        data["duration"] = parse_count(record["duration_ms"]) / 1000


def _read_hook(call: Mapping[str, Any], process: Process, now: int) -> Observation | None:
    # Hook calls carry no time.
    name = str(call.get("hook_event_name") or "")
    event_kind = _HOOK_EVENTS.get(name)
    session = read_hook_session(call, process, "Claude Code")
    if event_kind is None or (name == "Notification" and not _is_permission_prompt(call)):
        return None
    kind, is_end = event_kind
    call_id, prompt_id = process.clean_id(call.get("tool_use_id")), process.clean_id(call.get("prompt_id"))
    duration_ns = parse_count(call.get("duration_ms")) * MILLISECOND if is_end else 0
    observation = Observation(
        identity=f"{NAME}\n{session}\n{name}\n{call_id}\n{prompt_id}\n{now}".encode(),
        process=process,
        kind=kind,
        start=now - duration_ns,
        end=now if is_end else 0,
        client=NAME,
        source="hook",
        subagent=process.clean_id(call.get("agent_id")),
        folder=get_folder_name(call.get("cwd")),
        session=session,
        call=call_id if kind is ObservationKind.TOOL else prompt_id if kind is ObservationKind.TURN else "",
        library=NAME,
        version=process.version,
    )
    if kind is ObservationKind.TOOL:
        observation.data["tool"] = read_tool_name(call.get("tool_name"))
        arguments = None
        if call.get("tool_input") is not None:
            arguments = drop_description(call["tool_input"])
            add_arguments(observation.data, arguments)
        if is_end:
            _add_tool_response(observation.data, call, arguments)
        elif question := extract_question(observation.data["tool"], arguments):
            observation.data["question"] = format_question(question)
    elif name == "StopFailure":
        observation.data["error_type"] = clean_name(to_text(call.get("error") or "error"))
    elif kind is ObservationKind.WAIT:
        observation.data["reason"] = WaitingReason.USER_INPUT.value
        observation.is_of_open_call = name == "Notification"
        if name == "PermissionRequest":
            observation.data |= describe_permission(call.get("tool_name"), call.get("tool_input"))
            observation.data["args_hash"] = arguments_fingerprint(drop_description(call.get("tool_input")))
        elif call.get("message"):
            observation.data["question"] = format_question(call["message"])
    return observation


_HOOK_EVENTS: Final[Mapping[str, tuple[ObservationKind, bool]]] = {
    "SessionStart": (ObservationKind.AGENT, False),
    "SessionEnd": (ObservationKind.AGENT, True),
    "UserPromptSubmit": (ObservationKind.TURN, False),
    "Stop": (ObservationKind.TURN, True),
    "StopFailure": (ObservationKind.TURN, True),
    "PreToolUse": (ObservationKind.TOOL, False),
    "PostToolUse": (ObservationKind.TOOL, True),
    "PostToolUseFailure": (ObservationKind.TOOL, True),
    "PermissionRequest": (ObservationKind.WAIT, False),
    "Elicitation": (ObservationKind.WAIT, False),
    "Notification": (ObservationKind.WAIT, False),
}


def _is_permission_prompt(notification: Mapping[str, Any]) -> bool:
    """Return whether a notification is a permission prompt. Earlier versions send only its text."""
    kind = notification.get("notification_type")
    if kind is not None:
        return bool(kind == "permission_prompt")
    return "needs your permission" in to_text(notification.get("message") or "")


def _add_tool_response(data: dict[str, Any], call: Mapping[str, Any], arguments: Any) -> None:
    error = call.get("error")
    data["outcome"] = (ToolOutcome.ERROR if error else ToolOutcome.OK).value
    if call.get("duration_ms") is not None:
        data["duration"] = parse_count(call["duration_ms"]) / 1000
    if error:
        data["error_type"] = "interrupted" if call.get("is_interrupt") else "error"
        data["error"] = redact(to_text(error))
    result = error or call.get("tool_response")
    if result is not None:
        data["result_hash"] = result_fingerprint(result, arguments, has_failed=bool(error))


def _make_instruction_answer(event: str, kind: str, message: str) -> dict[str, Any]:
    # PostToolUseFailure ignores a stop; added context reaches the model after a tool call.
    if kind == "terminate" and event in ("PreToolUse", "PostToolUse"):
        return {"continue": False, "stopReason": message}
    if kind == "nudge" and event in ("PostToolUse", "PostToolUseFailure"):
        return make_context_response(event, message)
    return {}


CLIENT: Final = Client(
    name=NAME,
    log_scope="com.anthropic.claude_code.events",
    read_log=_read_log,
    read_hook=_read_hook,
    instruction_answer=_make_instruction_answer,
    span_scope="com.anthropic.claude_code.tracing",
    attributes=_ATTRIBUTES,
    spans=_SPAN_KINDS,
    reports_cost=True,
    permission_answer=make_permission_answer,
)
