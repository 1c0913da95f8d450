"""Entries of a conversation: a message, and what the runtime must know of it after a restart."""

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
    """Who speaks in an entry, and to what end."""

    INPUT = "input"
    """What a visit begins with: the task."""
    USER = "user"
    """The user's words."""
    FEEDBACK = "feedback"
    """What a judge, a guard or the runtime has to say."""
    ASSISTANT = "assistant"
    TOOL = "tool"
    """A tool's answer to a call."""
    SUMMARY = "summary"
    """Stands for all that was said up to it."""


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
    """An entry to be. ``data`` holds JSON values."""

    kind: EntryKind
    message: Message
    visit_id: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that was said: the ``seq``-th of its conversation, at ``at`` seconds since the epoch."""

    seq: int
    at: float
    kind: EntryKind
    message: Message
    visit_id: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, draft: Draft, *, seq: int, at: float) -> Entry:
        """
        Return ``draft`` as an entry: just what will be read from the disk again, lists for tuples and all.

        Raises:
            TypeError: ``data`` holds what is no JSON value.
            ValueError: The kind does not go with the message's role.
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
        Read what ``to_dict`` wrote.

        Raises:
            ValueError: ``row`` is no entry; the message says why.
        """
        if not isinstance(row, Mapping):
            raise ValueError(f"no entry, it is {type(row).__name__} instead of an object")
        seq, at, message = row.get("seq"), row.get("at"), row.get("message")
        visit_id, data = row.get("visit_id", ""), row.get("data", {})
        if not isinstance(seq, int) or isinstance(seq, bool) or seq < 1:
            raise ValueError(f"no entry, seq is {seq!r}")
        if not isinstance(at, float) or not math.isfinite(at):
            raise ValueError(f"no entry, at is {at!r}")
        if not isinstance(message, Mapping) or not isinstance(visit_id, str) or not isinstance(data, Mapping):
            raise ValueError("no entry, one of message, visit_id and data has the wrong type")
        kind = EntryKind(str(row.get("kind")))
        return cls(seq=seq, at=at, kind=kind, message=_message(message, kind), visit_id=visit_id, data=data)


def _message(row: Mapping[str, Any], kind: EntryKind) -> Message:
    message = Message.from_dict(row)
    texts = [message.tool_call_id]
    for call in message.tool_calls:
        texts += [call.id, call.name, call.arguments]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("not a message: a tool call's id, name or arguments is no text")
    if message.role != _ROLES[kind]:
        raise ValueError(f"an entry of kind {kind.value!r} has role {_ROLES[kind]!r}, not {message.role!r}")
    if message.tool_calls and kind is not EntryKind.ASSISTANT:
        raise ValueError(f"an entry of kind {kind.value!r} calls no tools")
    return message
