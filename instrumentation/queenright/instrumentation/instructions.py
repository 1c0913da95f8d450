"""
Instructions: what the service tells a worker, read from what came over the network. No I/O.

Nothing in them is trusted: what cannot be read is no instruction, and what is stale or for another
life of the worker is thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

MESSAGE_LIMIT: Final = 16_384
"""Characters of a message that are kept, from its beginning."""

_ID_LENGTH: Final = 200
_MOST: Final = 100
"""So many instructions of one answer are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nudge:
    """A reminder for the worker: text for its context. Times are seconds since the epoch."""

    message: str
    instruction_id: str
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """The order to save what there is, and stop. Times are seconds since the epoch."""

    reason: str
    instruction_id: str
    expires_at: float


Instruction = Nudge | Termination


@dataclass(frozen=True, slots=True)
class Unusable:
    """An instruction that cannot be followed, and why."""

    instruction_id: str
    reason: str


def parse_instructions(
    body: object, *, session_id: str, incarnation_id: str, now: float, ahead: float = 0.0
) -> list[Instruction | Unusable]:
    """
    Return what is in an answer of the service, in its order.

    What names another session or incarnation, and what has no id, is left out.

    Args:
        body: The answer as JSON values.
        session_id: The session that asks.
        incarnation_id: The life of the worker that asks.
        now: Seconds since the epoch on our clock, to tell what is stale.
        ahead: Seconds that our clock is ahead of the service's; times are returned on ours.

    Raises:
        ValueError: It is no answer of the service.
    """
    listed = body.get("instructions") if isinstance(body, dict) else None
    if not isinstance(listed, list):
        raise ValueError("the answer has no list of instructions")
    mine = {"session_id": session_id, "incarnation_id": incarnation_id}
    found = []
    for item in listed[:_MOST]:
        if isinstance(item, dict) and all(item.get(key) in (None, value) for key, value in mine.items()):
            one = _instruction(item, now, ahead)
            if one is not None:
                found.append(one)
    return found


def _instruction(item: Mapping[str, Any], now: float, ahead: float) -> Instruction | Unusable | None:
    instruction_id = item.get("instruction_id")
    if not isinstance(instruction_id, str) or not 0 < len(instruction_id) <= _ID_LENGTH:
        return None
    kind, text, expires_at = item.get("kind"), item.get("message"), _moment(item.get("expires_at"))
    if kind not in ("nudge", "terminate"):
        return Unusable(instruction_id, f"no kind of instruction that is known: {str(kind)[:40]!r}")
    if expires_at is None:
        return Unusable(instruction_id, "it does not say when it expires")
    expires_at += ahead
    if expires_at <= now:
        return Unusable(instruction_id, "it has expired")
    message = text[:MESSAGE_LIMIT] if isinstance(text, str) else ""
    if kind == "terminate":
        return Termination(reason=message, instruction_id=instruction_id, expires_at=expires_at)
    if not message:
        return Unusable(instruction_id, "it has no message")
    return Nudge(message=message, instruction_id=instruction_id, expires_at=expires_at)


def _moment(value: object) -> float | None:
    """Return a time in seconds since the epoch: given so, or as ISO 8601 (UTC if it names no zone)."""
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
