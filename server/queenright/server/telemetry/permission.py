"""Permission requests, in the format that Claude Code and Codex share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from queenright.health.vitals.vital_facts import QUESTION_LIMIT
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.server.telemetry.values import to_text

PERMISSION_EVENT: Final = "PermissionRequest"
_MAX_READ_LENGTH: Final = 20_000
"""Maximum characters to read. Secrets are masked before truncation, so that no part of one remains."""
_VISIBLE_REPLACEMENTS: Final = {"\n": " ⏎ ", "\t": " "}


def describe_permission(tool: Any, arguments: Any) -> dict[str, Any]:
    """Return the tool of a permission request, and the question: the command or the arguments."""
    name = clean_name(to_text(tool or "unknown"))
    command = arguments.get("command") if isinstance(arguments, Mapping) else None
    if not isinstance(command, str):
        command = "" if arguments is None else json.dumps(arguments, ensure_ascii=False, default=str)
    return {"tool": name, "question": format_question(f"{name}: {command}" if command else name)}


def format_question(text: Any) -> str:
    """
    Return a question for a person, with secrets masked. Truncation is marked.

    Characters that do not print are replaced, so that they cannot hide a part of the question.
    """
    full_text = to_text(text)
    # Mask before truncating.
    masked_text = redact(full_text[:_MAX_READ_LENGTH], 2 * _MAX_READ_LENGTH)
    masked_text = "".join(
        _VISIBLE_REPLACEMENTS.get(character, character if character.isprintable() else "�")
        for character in masked_text
    )
    if len(masked_text) <= QUESTION_LIMIT:
        return masked_text
    note = f" … (truncated, {len(full_text)} characters)"
    return masked_text[: QUESTION_LIMIT - len(note)] + note


def make_permission_answer(decision: str, message: str) -> dict[str, Any]:
    """Return the response to the hook: ``allow``, or ``deny`` with a message for the model."""
    answer = {"behavior": decision} | ({"message": message} if decision == "deny" else {})
    return {"hookSpecificOutput": {"hookEventName": PERMISSION_EVENT, "decision": answer}}
