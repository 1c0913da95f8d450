"""
Gemini CLI: log records and hook calls.

| | log record | hook call |
| --- | --- | --- |
| session | | SessionStart, SessionEnd |
| turn begins | user_prompt | BeforeAgent |
| turn ends | api_response that calls no tool | AfterAgent |
| model call begins | api_request | BeforeModel |
| model call ends | api_response, api_error | AfterModel with a finish reason |
| tool call begins | api_response that calls it | BeforeTool |
| tool call ends | tool_call | AfterTool |
| waits for a person | | Notification of ToolPermission |

The log reports ``success`` for a command that exited with 2. Only the hook call's result has the exit code.
Tool calls have no id in either. The tool calls of a model response are in the log unless
``telemetry.logPrompts`` is false. Spans add nothing to the log and are not used.
https://geminicli.com/docs/cli/telemetry, .../hooks/reference
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from queenright.instrumentation.fingerprint import arguments_fingerprint, result_fingerprint
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.names import ToolOutcome, WaitingReason
from queenright.instrumentation.redaction import redact
from queenright.server.telemetry.client import Client
from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.permission import format_question
from queenright.server.telemetry.process import Process
from queenright.server.telemetry.tool_calls import (
    add_arguments,
    add_error,
    add_unreported_failure,
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

NAME: Final = "gemini-cli"

_LOG_EVENTS: Final[Mapping[str, tuple[ObservationKind, bool]]] = {
    "user_prompt": (ObservationKind.TURN, False),
    "api_request": (ObservationKind.LLM, False),
    "api_response": (ObservationKind.LLM, True),
    "api_error": (ObservationKind.LLM, True),
    "tool_call": (ObservationKind.TOOL, True),
}
"""The events that are used, each with its kind and whether it reports an end."""

_HOOK_EVENTS: Final[Mapping[str, tuple[ObservationKind, bool]]] = {
    "SessionStart": (ObservationKind.AGENT, False),
    "SessionEnd": (ObservationKind.AGENT, True),
    "BeforeAgent": (ObservationKind.TURN, False),
    "AfterAgent": (ObservationKind.TURN, True),
    "BeforeModel": (ObservationKind.LLM, False),
    "AfterModel": (ObservationKind.LLM, True),
    "BeforeTool": (ObservationKind.TOOL, False),
    "AfterTool": (ObservationKind.TOOL, True),
    "Notification": (ObservationKind.WAIT, False),
}

_MAIN_ROLE: Final = "main"
"""The role of model calls that are turns of the agent. Others summarize."""
_ROUTER_ROLE: Final = "utility_router"
"""The role of model calls that choose the model for a turn. They are not steps of the agent."""
_MAX_TEXT_LENGTH: Final = 100_000
_NANOSECONDS_PER_SECOND: Final = 1_000_000_000

_EXIT_CODE_PATTERN: Final = re.compile(r"^Exit Code: (-?\d+)$", re.MULTILINE)
_SIGNAL_PATTERN: Final = re.compile(r"^Signal: (\w+)$", re.MULTILINE)
_PROCESS_IDS_PATTERN: Final = re.compile(r"^(?:Process Group PGID|Background PIDs): .*$\n?", re.MULTILINE)
"""Lines that differ on each call and are not part of the result."""


def _read_log(record: Mapping[str, Any], process: Process, time: int) -> Observation | None:
    name = str(record.get("event.name") or "").removeprefix("gemini_cli.")
    if name not in _LOG_EVENTS:
        return None
    session = process.clean_id(record.get("session.id"))
    if not session:
        raise UnusableRecordError(RecordFault.NO_SESSION, f"a {name} record of Gemini CLI without session.id")
    kind, is_end = _LOG_EVENTS[name]
    duration_ms = parse_count(record.get("duration_ms")) if is_end else 0
    tool, arguments = record.get("function_name"), record.get("function_args")
    arguments_hash = arguments_fingerprint(arguments)
    detail = f"{record.get('role')}\n{record.get('model')}\n{tool}\n{arguments_hash}\n{duration_ms}"
    observation = Observation(
        identity=f"{NAME}\n{session}\n{name}\n{time}\n{detail}".encode(),
        process=process,
        kind=kind,
        start=time - duration_ms * MILLISECOND,
        end=time if is_end else 0,
        client=NAME,
        source="log",
        session=session,
        library=NAME,
    )
    if kind is ObservationKind.LLM and is_end:
        observation.data |= {
            "model": clean_name(to_text(record.get("model") or "")),
            "provider": "google",
            "duration": duration_ms / 1000,
        }
        observation.is_step = record.get("role") != _ROUTER_ROLE
        if name == "api_error":
            code = record.get("status_code") or record.get("error_type") or record.get("error.type")
            add_error(
                observation.data, code or "api_error", record.get("error") or record.get("error.message")
            )
        else:
            _add_tokens(observation.data, record)
            if record.get("role") == _MAIN_ROLE:
                observation.requested_tools = _list_tools(record.get("response_text"))
    elif kind is ObservationKind.TOOL:
        observation.data |= {
            "tool": clean_name(to_text(tool or "unknown")),
            "duration": duration_ms / 1000,
            "outcome": ToolOutcome.OK.value,
        }
        arguments = drop_description(arguments)
        if arguments:
            add_arguments(observation.data, arguments)
        # A person or a rule rejected the call. It has ended, but the tool did not fail.
        is_refused = record.get("decision") == "reject"
        if str(record.get("success")).lower() == "false" and not is_refused:
            observation.data["outcome"] = ToolOutcome.ERROR.value
            add_error(observation.data, record.get("error_type") or "error", record.get("error"))
            text = f"{observation.data['error_type']}: {observation.data.get('error', '')}"
            observation.data["result_hash"] = result_fingerprint(text, arguments, has_failed=True)
    return observation


def _add_tokens(data: dict[str, Any], record: Mapping[str, Any]) -> None:
    # Input tokens include cached tokens.
    data["input_tokens"] = parse_count(record.get("input_token_count"))
    data["cache_read_tokens"] = parse_count(record.get("cached_content_token_count"))
    thoughts = parse_count(record.get("thoughts_token_count"))
    data["output_tokens"] = parse_count(record.get("output_token_count")) + thoughts


def _list_tools(response: Any) -> tuple[str, ...] | None:
    """Return the tools that a model response calls; None if the recorded response is incomplete."""
    if not isinstance(response, str) or len(response) > _MAX_TEXT_LENGTH:
        return None
    try:
        chunks = json.loads(response)
    except (ValueError, RecursionError):
        return None
    tools, is_finished = list[str](), False
    for candidate in _list_candidates(chunks if isinstance(chunks, list) else [chunks]):
        is_finished = is_finished or bool(candidate.get("finishReason"))
        content = candidate.get("content")
        parts = content.get("parts") if isinstance(content, dict) else None
        for part in parts if isinstance(parts, list) else []:
            call = part.get("functionCall") if isinstance(part, dict) else None
            if isinstance(call, dict):
                tools.append(clean_name(to_text(call.get("name") or "unknown")))
    return tuple(tools) if tools or is_finished else None


def _list_candidates(chunks: list[Any]) -> list[dict[str, Any]]:
    all_candidates = list[dict[str, Any]]()
    for chunk in chunks:
        candidates = chunk.get("candidates") if isinstance(chunk, dict) else None
        if isinstance(candidates, list):
            all_candidates += [each for each in candidates if isinstance(each, dict)]
    return all_candidates


def _read_hook(call: Mapping[str, Any], process: Process, now: int) -> Observation | None:
    name = str(call.get("hook_event_name") or "")
    session = read_hook_session(call, process, "Gemini CLI")
    if name not in _HOOK_EVENTS:
        return None
    kind, is_end = _HOOK_EVENTS[name]
    response = call.get("llm_response")
    if name == "AfterModel" and not _is_finished(response):
        return None  # a chunk of a response
    if name == "Notification" and call.get("notification_type") != "ToolPermission":
        return None
    time = _parse_time(call.get("timestamp"), now)
    tool, arguments = call.get("tool_name"), call.get("tool_input")
    observation = Observation(
        identity=f"{NAME}\nhook\n{session}\n{name}\n{time}\n{tool}\n{arguments_fingerprint(arguments)}".encode(),
        process=process,
        kind=kind,
        start=time,
        end=time if is_end else 0,
        client=NAME,
        source="hook",
        folder=get_folder_name(call.get("cwd")),
        session=session,
        library=NAME,
    )
    if kind is ObservationKind.TOOL:
        observation.data["tool"] = read_tool_name(tool)
        arguments = drop_description(arguments)
        if arguments:
            add_arguments(observation.data, arguments)
        if is_end:
            _add_result(observation.data, call.get("tool_response"), arguments)
    elif kind is ObservationKind.LLM and is_end:
        request = call.get("llm_request")
        model = request.get("model") if isinstance(request, dict) else None
        observation.data |= {"model": clean_name(to_text(model or "")), "provider": "google"}
        usage = response.get("usageMetadata") if isinstance(response, dict) else None
        if isinstance(usage, dict):
            observation.data["input_tokens"] = parse_count(usage.get("promptTokenCount"))
            observation.data["cache_read_tokens"] = parse_count(usage.get("cachedContentTokenCount"))
            thoughts = parse_count(usage.get("thoughtsTokenCount"))
            observation.data["output_tokens"] = parse_count(usage.get("candidatesTokenCount")) + thoughts
    elif kind is ObservationKind.WAIT:
        observation.data["reason"] = WaitingReason.USER_INPUT.value
        details = call.get("details")
        command = details.get("command") if isinstance(details, dict) else None
        observation.data["question"] = format_question(command or call.get("message") or "")
    return observation


def _is_finished(response: Any) -> bool:
    return any(each.get("finishReason") for each in _list_candidates([response]))


def _parse_time(timestamp: Any, now: int) -> int:
    """Return the time of a hook call by the client's clock, as in the log; ``now`` if it is not valid."""
    try:
        seconds = datetime.fromisoformat(timestamp).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return now
    return int(parse_number(seconds) * _NANOSECONDS_PER_SECOND) or now


def _add_result(data: dict[str, Any], response: Any, arguments: Any) -> None:
    data["outcome"] = ToolOutcome.OK.value
    if response is None:
        return
    content = response.get("llmContent") if isinstance(response, dict) else None
    error = response.get("error") if isinstance(response, dict) else None
    text = _PROCESS_IDS_PATTERN.sub("", content[:_MAX_TEXT_LENGTH]) if isinstance(content, str) else None
    failure = None
    if error:
        failure = clean_name(to_text(error.get("type") or "error") if isinstance(error, dict) else "error")
    elif text and (match := _EXIT_CODE_PATTERN.search(text)) and match[1] != "0":
        failure = f"exit_code_{match[1]}"
    elif text and (match := _SIGNAL_PATTERN.search(text)):
        failure = f"signal_{match[1]}"
    if failure:
        message = error.get("message") if isinstance(error, dict) else error
        data |= {
            "outcome": ToolOutcome.ERROR.value,
            "error_type": failure,
            "error": redact(to_text(message or text or "")),
        }
    result = response if text is None else text
    add_unreported_failure(data, result, arguments)
    has_failed = data["outcome"] != ToolOutcome.OK.value
    data["result_hash"] = result_fingerprint(result, arguments, has_failed=has_failed)


def _make_instruction_answer(event: str, kind: str, message: str) -> dict[str, Any]:
    if event != "AfterTool":
        return {}
    if kind == "terminate":
        return {"continue": False, "stopReason": message}
    if kind == "nudge":
        return make_context_response(event, message)
    return {}


CLIENT: Final = Client(
    name=NAME,
    log_scope="gemini-cli",
    read_log=_read_log,
    read_hook=_read_hook,
    instruction_answer=_make_instruction_answer,
    span_scope="gemini-cli",
    spans={},
)
