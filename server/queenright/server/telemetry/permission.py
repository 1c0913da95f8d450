"""Permission requests in the format shared by Claude Code and Codex."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from queenright.health.vitals.vital_facts import QUESTION_LIMIT
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.server.telemetry.values import plain_text

EVENT: Final = "PermissionRequest"
_MAX_READ: Final = 20_000
"""Maximum characters that are read. Secrets are masked before the text is truncated, so no part remains."""
_VISIBLE: Final = {"\n": " ⏎ ", "\t": " "}


def describe_permission(tool: Any, arguments: Any) -> dict[str, Any]:
    """Return the tool of a permission request, and the question: the command or the arguments."""
    name = clean_name(plain_text(tool or "unknown"))
    command = arguments.get("command") if isinstance(arguments, Mapping) else None
    if not isinstance(command, str):
        command = "" if arguments is None else json.dumps(arguments, ensure_ascii=False, default=str)
    return {"tool": name, "question": format_question(f"{name}: {command}" if command else name)}


def format_question(text: Any) -> str:
    """
    Return a question for a person, with secrets masked. Truncation is marked.

    Characters that do not print are replaced, so that they cannot hide a part of the question.
    """
    full_text = plain_text(text)
    # Mask before truncating.
    masked_text = redact(full_text[:_MAX_READ], 2 * _MAX_READ)
    masked_text = "".join(
        _VISIBLE.get(character, character if character.isprintable() else "�") for character in masked_text
    )
    if len(masked_text) <= QUESTION_LIMIT:
        return masked_text
    note = f" … (cut, of {len(full_text)} characters)"
    return masked_text[: QUESTION_LIMIT - len(note)] + note


def permission_answer(decision: str, message: str) -> dict[str, Any]:
    """Return the answer to the hook: ``allow``, or ``deny`` with a message for the model."""
    answer = {"behavior": decision} | ({"message": message} if decision == "deny" else {})
    return {"hookSpecificOutput": {"hookEventName": EVENT, "decision": answer}}
