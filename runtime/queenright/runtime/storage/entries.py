"""Entries of a conversation: a message with the facts that the runtime needs after a restart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from queenright.runtime.llm.model import Message, Role
from queenright.runtime.storage.files import encode_json
from queenright.runtime.storage.session_state import describe_invalid_state


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

    seq: Annotated[int, Field(strict=True, ge=1)]
    at: Annotated[FiniteFloat, Field(strict=True)]
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
        return cls.from_dict(json.loads(encode_json(row)))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        row: dict[str, Any] = _ENTRY.dump_python(self, mode="json")
        return row

    @classmethod
    def from_dict(cls, row: object) -> Entry:
        """
        Read the output of ``to_dict``.

        Raises:
            ValueError: ``row`` is not an entry; says why.
        """
        try:
            entry = _ENTRY.validate_python(row)
        except (ValidationError, RecursionError) as error:
            raise ValueError(f"not an entry: {describe_invalid_state(error)}") from error
        kind, message = entry.kind, entry.message
        if message.role != _ROLES[kind]:
            raise ValueError(
                f"an entry of kind {kind.value!r} must have role {_ROLES[kind]!r}, not {message.role!r}"
            )
        if message.tool_calls and kind is not EntryKind.ASSISTANT:
            raise ValueError(f"an entry of kind {kind.value!r} cannot call tools")
        return entry


_ENTRY: Final = TypeAdapter(Entry)
