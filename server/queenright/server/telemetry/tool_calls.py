"""Read arguments, errors and results of tool calls, which several senders report in the same way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from queenright.instrumentation.effects import get_effect_facts, infer_tool_effect
from queenright.instrumentation.error_class import find_unreported_failure
from queenright.instrumentation.fingerprint import arguments_fingerprint
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.names import ToolOutcome
from queenright.instrumentation.redaction import redact
from queenright.server.telemetry.process import Process
from queenright.server.telemetry.unusable import RecordFault, UnusableRecordError
from queenright.server.telemetry.values import to_text


def read_hook_session(call: Mapping[str, Any], process: Process, client: str) -> str:
    """
    Return the session of a hook call.

    Raises:
        UnusableRecordError: The call has no session id.
    """
    session = process.clean_id(call.get("session_id"))
    if not session:
        raise UnusableRecordError(
            RecordFault.NO_SESSION,
            f"a hook call of {client} without a session_id that is text",
            remedy=f"send the JSON that {client} gives its hooks",
        )
    return session


def parse_arguments(arguments: Any) -> Any:
    """Return a tool's arguments, parsed if they are JSON text."""
    if isinstance(arguments, str):
        try:
            return json.loads(arguments)
        except (ValueError, RecursionError):
            pass
    return arguments


def drop_description(arguments: Any) -> Any:
    """Return a tool's arguments without the model's description, which may differ in a repeated call."""
    arguments = parse_arguments(arguments)
    if isinstance(arguments, dict) and len(arguments) > 1:
        return {key: value for key, value in arguments.items() if key != "description"}
    return arguments


def add_arguments(data: dict[str, Any], arguments: Any) -> None:
    """Add the fingerprint and the effect of a call's arguments to the call's data."""
    data["args_hash"] = arguments_fingerprint(arguments)
    data |= get_effect_facts(data["tool"], arguments)


def add_error(data: dict[str, Any], error_type: Any, message: Any) -> None:
    """Add an error to the data of a call. Without a message, add only its type."""
    data["error_type"] = clean_name(to_text(error_type))
    if message:
        data["error"] = redact(to_text(message))


def add_unreported_failure(data: dict[str, Any], result: Any, arguments: Any) -> None:
    """Mark a call that reports success as failed if its result shows a failure. Changes ``data``."""
    if data["outcome"] != ToolOutcome.OK.value:
        return
    effect = data.get("effect") or infer_tool_effect(data["tool"])
    kind = find_unreported_failure(result, effect, arguments)
    if kind:
        text = result if isinstance(result, str) else json.dumps(result, default=str)
        data |= {"outcome": ToolOutcome.ERROR.value, "error_type": kind, "error": redact(text)}


def make_context_response(event: str, message: str) -> dict[str, Any]:
    """Return the response to a hook call that adds a message to the agent's context."""
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": message}}
