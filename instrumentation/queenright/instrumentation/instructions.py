"""
Parse the service's instructions for a worker. No I/O.

Input is not trusted. Items without an id, or for another session or incarnation, are skipped; other malformed
items are returned as ``InvalidInstruction``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

MESSAGE_LIMIT: Final = 16_384
"""Maximum number of characters in a message; longer messages are truncated."""

_MAX_ID_LENGTH: Final = 200
_ITEM_LIMIT: Final = 100
"""Maximum number of instructions read from one response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nudge:
    """A message to add to the worker's context. ``expires_at`` is in seconds since the epoch."""

    message: str
    instruction_id: str
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """An instruction to save the state and stop. ``expires_at`` is in seconds since the epoch."""

    reason: str
    instruction_id: str
    expires_at: float


Instruction = Nudge | Termination


@dataclass(frozen=True, slots=True)
class InvalidInstruction:
    """An instruction that cannot be carried out, and the reason."""

    instruction_id: str
    reason: str


def parse_instructions(
    body: object, *, session_id: str, incarnation_id: str, now: float, clock_offset: float = 0.0
) -> list[Instruction | InvalidInstruction]:
    """
    Return the instructions in a response, in order.

    Items for another session or incarnation, and items without an id, are skipped.

    Args:
        body: The decoded JSON response.
        session_id: The session that the client polls for.
        incarnation_id: The incarnation that the client polls for.
        now: Current time on the local clock, in seconds since the epoch.
        clock_offset: Seconds by which the local clock is ahead of the service's. Returned times are local.

    Raises:
        ValueError: The response has no ``instructions`` list.
    """
    items = body.get("instructions") if isinstance(body, dict) else None
    if not isinstance(items, list):
        raise ValueError("the response has no 'instructions' list")
    identity = {"session_id": session_id, "incarnation_id": incarnation_id}
    instructions = []
    for item in items[:_ITEM_LIMIT]:
        if isinstance(item, dict) and all(item.get(key) in (None, value) for key, value in identity.items()):
            instruction = _parse_instruction(item, now, clock_offset)
            if instruction is not None:
                instructions.append(instruction)
    return instructions


def _parse_instruction(
    item: Mapping[str, Any], now: float, clock_offset: float
) -> Instruction | InvalidInstruction | None:
    instruction_id = item.get("instruction_id")
    if not isinstance(instruction_id, str) or not 0 < len(instruction_id) <= _MAX_ID_LENGTH:
        return None
    kind, text, expires_at = item.get("kind"), item.get("message"), _parse_time(item.get("expires_at"))
    if kind not in ("nudge", "terminate"):
        return InvalidInstruction(
            instruction_id, f"unknown instruction kind {str(kind)[:40]!r}; use 'nudge' or 'terminate'"
        )
    if expires_at is None:
        return InvalidInstruction(instruction_id, "expires_at is missing or is not a valid time")
    expires_at += clock_offset
    if expires_at <= now:
        return InvalidInstruction(instruction_id, "the instruction has expired")
    message = text[:MESSAGE_LIMIT] if isinstance(text, str) else ""
    if kind == "terminate":
        return Termination(reason=message, instruction_id=instruction_id, expires_at=expires_at)
    if not message:
        return InvalidInstruction(instruction_id, "the nudge has no message")
    return Nudge(message=message, instruction_id=instruction_id, expires_at=expires_at)


def _parse_time(value: object) -> float | None:
    """Return seconds since the epoch from a number or an ISO 8601 string (UTC if it has no zone)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value[:64])
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
