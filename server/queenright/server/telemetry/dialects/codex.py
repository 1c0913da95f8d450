"""
Codex CLI: log records and hook calls.

| | log record | hook call |
| --- | --- | --- |
| session | | SessionStart, SessionEnd |
| turn begins | user_prompt | UserPromptSubmit |
| turn ends | sse_event, unless a tool begins | Stop |
| model call ends | sse_event (response.completed with tokens), api_request (not 2xx) | |
| tool call begins | tool_decision, tool_result of a command that still runs | PreToolUse |
| tool call ends | tool_result | PostToolUse |
| waits for a person | sse_event, unless a tool begins | PermissionRequest |

`exec_command` returns after 10 s while its command runs, and `write_stdin` polls it. The command is one call
until it exits. A model that calls tools from code does so inside `exec`, which is not counted as a call. Only
log records have the exit code of a command, in the text of its output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from queenright.instrumentation.fingerprint import result_fingerprint
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.names import ToolOutcome, WaitingReason
from queenright.instrumentation.redaction import redact
from queenright.server.telemetry.client import Client
from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import Process
from queenright.server.telemetry.tool_calls import (
    add_arguments,
    add_error,
    add_unreported_failure,
    make_context_response,
    parse_arguments,
    read_hook_session,
)
from queenright.server.telemetry.unusable import RecordFault, UnusableRecordError
from queenright.server.telemetry.values import (
    MILLISECOND,
    get_folder_name,
    parse_count,
    read_tool_name,
    to_text,
)

NAME: Final = "codex"

_COMMAND_TOOL: Final = "exec_command"
_POLL_TOOL: Final = "write_stdin"
_CODE_TOOL: Final = "exec"
_HEAD_LENGTH: Final = 1_000
"""Number of characters at the start of an output that contain the client's status lines."""
_EXIT_CODE_PATTERN: Final = re.compile(r"^Process exited with code (-?\d+)$", re.MULTILINE)
_RUNNING_PATTERN: Final = re.compile(r"^Process running with session ID (\d+)$", re.MULTILINE)

_LOG_EVENTS: Final[Mapping[str, tuple[ObservationKind, bool]]] = {
    "user_prompt": (ObservationKind.TURN, False),
    "api_request": (ObservationKind.LLM, True),
    "sse_event": (ObservationKind.LLM, True),
    "tool_decision": (ObservationKind.TOOL, False),
    "tool_result": (ObservationKind.TOOL, True),
}
_HOOK_EVENTS: Final[Mapping[str, tuple[ObservationKind, bool]]] = {
    "SessionStart": (ObservationKind.AGENT, False),
    "SessionEnd": (ObservationKind.AGENT, True),
    "UserPromptSubmit": (ObservationKind.TURN, False),
    "Stop": (ObservationKind.TURN, True),
    "PreToolUse": (ObservationKind.TOOL, False),
    "PostToolUse": (ObservationKind.TOOL, True),
    "PermissionRequest": (ObservationKind.WAIT, False),
}


def _read_log(record: Mapping[str, Any], process: Process, time: int) -> Observation | None:
    name = str(record.get("event.name") or "").removeprefix("codex.")
    if name not in _LOG_EVENTS:
        return None
    session = process.clean_id(record.get("conversation.id"))
    if not session:
        raise UnusableRecordError(RecordFault.NO_SESSION, "a record of Codex CLI without conversation.id")
    status = str(record.get("http.response.status_code") or "")
    if name == "api_request" and status.startswith("2"):
        return None
    if name == "sse_event" and (
        record.get("event.kind") != "response.completed" or record.get("input_token_count") is None
    ):
        return None
    tool = clean_name(to_text(record.get("tool_name") or "unknown"))
    output = to_text(record.get("output") or "")
    is_running = name == "tool_result" and _RUNNING_PATTERN.search(output[:_HEAD_LENGTH]) is not None
    # Code that calls tools is not a call. A poll is neither a call nor progress, but reports an exit.
    is_exit = (
        name == "tool_result"
        and tool == _POLL_TOOL
        and _EXIT_CODE_PATTERN.search(output[:_HEAD_LENGTH]) is not None
    )
    if name.startswith("tool_") and tool in (_CODE_TOOL, _POLL_TOOL) and not is_exit:
        return None
    running_match = _RUNNING_PATTERN.search(output[:_HEAD_LENGTH]) if is_running else None
    kind, is_end = _LOG_EVENTS[name]
    call_id = process.clean_id(record.get("call_id"))
    duration_ns = (
        parse_count(record.get("duration_ms")) * MILLISECOND if name in ("api_request", "tool_result") else 0
    )
    observation = Observation(
        identity=f"{NAME}\n{session}\n{name}\n{time}\n{call_id}\n{record.get('attempt')}".encode(),
        process=process,
        kind=kind,
        start=time - duration_ns,
        end=time if is_end and not is_running else 0,
        client=NAME,
        source="log",
        session=session,
        call=call_id if kind is ObservationKind.TOOL and not is_exit else "",
        continuation=running_match[1]
        if running_match
        else _find_polled_session(record.get("arguments"))
        if is_exit
        else "",
        library=NAME,
        version=clean_name(to_text(record.get("app.version") or "")),
    )
    if kind is ObservationKind.LLM:
        observation.data["model"] = clean_name(to_text(record.get("model") or ""))
        if name == "sse_event":
            observation.data["input_tokens"] = parse_count(record.get("input_token_count"))
            observation.data["output_tokens"] = parse_count(record.get("output_token_count"))
            observation.data["cache_read_tokens"] = parse_count(record.get("cached_token_count"))
            # The tool calls of the response are not reported. Until a tool starts, the session waits for its
            # user: for an approval or the next prompt.
            observation.requested_tools = ()
        else:
            add_error(observation.data, status or "api_error", record.get("error.message"))
            observation.data["duration"] = duration_ns / 1e9
    elif kind is ObservationKind.TOOL:
        observation.data["tool"] = tool
        if name == "tool_decision" and str(record.get("decision")).lower() in ("denied", "abort"):
            # A person or a rule rejected the call. It has ended, but the tool did not fail.
            observation.end = time
            observation.data["outcome"] = ToolOutcome.OK.value
        elif is_exit:
            _add_result(observation.data, output, True)
        elif name == "tool_result":
            if observation.end:
                observation.data["duration"] = duration_ns / 1e9
            arguments = _read_arguments(record.get("arguments"))
            if arguments:
                add_arguments(observation.data, arguments)
            if observation.end:
                _add_result(
                    observation.data, output, str(record.get("success")).lower() != "false", arguments
                )
    return observation


def _find_polled_session(arguments: Any) -> str:
    """Return the session id of the command that a poll reads."""
    match = re.search(r'"session_id"\s*:\s*(\d+)', to_text(arguments or "")[:_HEAD_LENGTH])
    return match[1] if match else ""


def _add_result(data: dict[str, Any], output: str, is_success: bool, arguments: Any = None) -> None:
    match = _EXIT_CODE_PATTERN.search(output[:_HEAD_LENGTH])
    failure = "" if is_success else "error"
    if match and match[1] != "0":
        failure = f"exit_code_{match[1]}"
    # The chunk id and wall time above the output differ on each call.
    text = output.partition("\nOutput:\n")[2] if match else output
    data["outcome"] = (ToolOutcome.ERROR if failure else ToolOutcome.OK).value
    if failure:
        data["error_type"], data["error"] = failure, redact(text)
    else:
        add_unreported_failure(data, text, arguments)
        failure = data.get("error_type", "")
    data["result_hash"] = result_fingerprint(f"{failure}\n{text}", arguments, has_failed=bool(failure))


def _read_hook(call: Mapping[str, Any], process: Process, now: int) -> Observation | None:
    name = str(call.get("hook_event_name") or "")
    session = read_hook_session(call, process, "Codex CLI")
    if name not in _HOOK_EVENTS:
        return None
    kind, is_end = _HOOK_EVENTS[name]
    tool = read_tool_name(call.get("tool_name"))
    tool = _COMMAND_TOOL if tool == "Bash" else tool
    if kind is ObservationKind.TOOL and tool == _POLL_TOOL:
        return None
    call_id, turn_id = process.clean_id(call.get("tool_use_id")), process.clean_id(call.get("turn_id"))
    observation = Observation(
        identity=f"{NAME}\nhook\n{session}\n{name}\n{call_id}\n{turn_id}\n{now}".encode(),
        process=process,
        kind=kind,
        start=now,
        end=now if is_end else 0,
        client=NAME,
        source="hook",
        subagent=process.clean_id(call.get("agent_id")),
        folder=get_folder_name(call.get("cwd")),
        session=session,
        call=call_id if kind is ObservationKind.TOOL else turn_id if kind is ObservationKind.TURN else "",
        library=NAME,
    )
    if kind is ObservationKind.TOOL:
        observation.data["tool"] = tool
        if is_end:
            arguments = None
            if call.get("tool_input") is not None:
                arguments = _read_arguments(call["tool_input"])
                add_arguments(observation.data, arguments)
            response = call.get("tool_response")
            text = response if isinstance(response, str) else json.dumps(response, default=str)
            _add_result(observation.data, to_text(text), True, arguments)
    elif kind is ObservationKind.WAIT:
        observation.data["reason"] = WaitingReason.USER_INPUT.value
    return observation


def _read_arguments(arguments: Any) -> Any:
    """Return a tool's arguments. For a command, return only its text, as in hooks."""
    arguments = parse_arguments(arguments)
    if isinstance(arguments, dict) and (command := arguments.get("cmd") or arguments.get("command")):
        return {"command": command}
    return arguments


def _make_instruction_answer(event: str, kind: str, message: str) -> dict[str, Any]:
    # A hook cannot end the turn, so each further call is denied.
    if kind == "terminate" and event == "PreToolUse":
        return {
            "hookSpecificOutput": {
                "hookEventName": event,
                "permissionDecision": "deny",
                "permissionDecisionReason": message,
            }
        }
    if kind == "nudge" and event == "PostToolUse":
        return make_context_response(event, message)
    return {}


CLIENT: Final = Client(
    name=NAME,
    log_scope="codex_otel.log_only",
    read_log=_read_log,
    read_hook=_read_hook,
    instruction_answer=_make_instruction_answer,
)
