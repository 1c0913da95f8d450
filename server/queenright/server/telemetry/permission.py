"""Permission requests in the form that Claude Code and Codex share: what is asked, and the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from queenright.health.vital_facts import QUESTION_LIMIT
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.server.telemetry.values import plain_text

EVENT: Final = "PermissionRequest"
_READ: Final = 20_000
"""Characters that are looked at; a question is cut once its secrets are masked, so no half of one is left."""
_SHOWN: Final = {"\n": " ⏎ ", "\t": " "}


def permission(tool: Any, arguments: Any) -> dict[str, Any]:
    """Return which tool a client asks permission for, and the question: its command, or its arguments."""
    name = clean_name(plain_text(tool or "unknown"))
    command = arguments.get("command") if isinstance(arguments, Mapping) else None
    if not isinstance(command, str):
        command = "" if arguments is None else json.dumps(arguments, ensure_ascii=False, default=str)
    return {"tool": name, "question": quoted(f"{name}: {command}" if command else name)}


def quoted(text: Any) -> str:
    """
    Return the beginning of what a person is asked, its secrets masked; a cut is said.

    What does not print is replaced, so that what is shown is what is asked: nothing hides behind it.
    """
    whole = plain_text(text)
    # The end of what is too long is masked with it, and then left out.
    masked = redact(whole[:_READ], 2 * _READ)
    masked = "".join(_SHOWN.get(each, each if each.isprintable() else "�") for each in masked)
    if len(masked) <= QUESTION_LIMIT:
        return masked
    note = f" … (cut, of {len(whole)} characters)"
    return masked[: QUESTION_LIMIT - len(note)] + note


def permission_answer(decision: str, message: str) -> dict[str, Any]:
    """Return the answer to the hook: ``allow``, or ``deny`` with words that the model is given."""
    answer = {"behavior": decision} | ({"message": message} if decision == "deny" else {})
    return {"hookSpecificOutput": {"hookEventName": EVENT, "decision": answer}}
