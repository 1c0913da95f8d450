"""Entries of a conversation: a message with the facts that the runtime needs after a restart."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from queenright.runtime.llm.model import Message, Role
from queenright.runtime.storage.files import json_bytes


class EntryKind(StrEnum):
    """Kind of an entry: its author and purpose."""

    INPUT = "input"
    """The task that starts a visit."""
    USER = "user"
    """User input."""
    FEEDBACK = "feedback"
    """Feedback of a judge, a guard or the runtime."""
    ASSISTANT = "assistant"
    TOOL = "tool"
    """The answer to a tool call."""
    SUMMARY = "summary"
    """Replaces all entries up to it."""


_ROLES: Final[Mapping[EntryKind, Role]] = {
    EntryKind.INPUT: "user",
    EntryKind.USER: "user",
    EntryKind.FEEDBACK: "user",
    EntryKind.ASSISTANT: "assistant",
    EntryKind.TOOL: "tool",
    EntryKind.SUMMARY: "user",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An entry that is not stored yet. ``data`` contains JSON values."""

    kind: EntryKind
    message: Message
    visit_id: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry: number ``seq`` of its conversation, at ``at`` seconds since the epoch."""

    seq: int
    at: float
    kind: EntryKind
    message: Message
    visit_id: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, draft: Draft, *, seq: int, at: float) -> Entry:
        """
        Create an entry from ``draft``, equal to what will be read back from disk (lists for tuples etc.).

        Raises:
            TypeError: ``data`` contains a value that is not JSON.
            ValueError: The kind does not match the message's role.
        """
        entry = cls(seq=seq, at=float(at), kind=draft.kind, message=draft.message, visit_id=draft.visit_id)
        row = {**entry.to_dict(), "data": dict(draft.data)}
        return cls.from_dict(json.loads(json_bytes(row)))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "seq": self.seq,
            "at": self.at,
            "kind": self.kind.value,
            "message": self.message.to_dict(),
            "visit_id": self.visit_id,
            "data": dict(self.data),
        }

    @classmethod
    def from_dict(cls, row: object) -> Entry:
        """
        Read the output of ``to_dict``.

        Raises:
            ValueError: ``row`` is not an entry; says why.
        """
        if not isinstance(row, Mapping):
            raise ValueError(f"not an entry: it is {type(row).__name__} instead of an object")
        seq, at, message = row.get("seq"), row.get("at"), row.get("message")
        visit_id, data = row.get("visit_id", ""), row.get("data", {})
        if not isinstance(seq, int) or isinstance(seq, bool) or seq < 1:
            raise ValueError(f"not an entry: seq is {seq!r}")
        if not isinstance(at, float) or not math.isfinite(at):
            raise ValueError(f"not an entry: at is {at!r}")
        if not isinstance(message, Mapping) or not isinstance(visit_id, str) or not isinstance(data, Mapping):
            raise ValueError("not an entry: one of message, visit_id and data has the wrong type")
        kind = EntryKind(str(row.get("kind")))
        return cls(seq=seq, at=at, kind=kind, message=_message(message, kind), visit_id=visit_id, data=data)


def _message(row: Mapping[str, Any], kind: EntryKind) -> Message:
    message = Message.from_dict(row)
    texts = [message.tool_call_id]
    for call in message.tool_calls:
        texts += [call.id, call.name, call.arguments]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("not a message: a tool call's id, name or arguments is not text")
    if message.role != _ROLES[kind]:
        raise ValueError(
            f"an entry of kind {kind.value!r} must have role {_ROLES[kind]!r}, not {message.role!r}"
        )
    if message.tool_calls and kind is not EntryKind.ASSISTANT:
        raise ValueError(f"an entry of kind {kind.value!r} cannot call tools")
    return message
