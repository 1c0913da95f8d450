"""
Exchanges: a conversation in the order in which a model may be shown it.

Models refuse a tool call without its answer directly behind it, and an answer without its call. So entries
are put together in exchanges, an assistant's entry and the answers to its calls being one, every other
entry one by itself. All functions are pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from queenright.runtime.llm.model import Message, ToolCall
from queenright.runtime.storage.entries import Entry, EntryKind

ANSWERS: Final = "answers"
"""Key in an answer's ``data``: ``seq`` of the entry that called, where that is not the last one to call."""

_CLIPPED: Final = "\n[… clipped]"
_SHORTEST: Final = 32


@dataclass(slots=True)
class Exchange:
    """An entry and the answers to its calls."""

    head: Entry
    answers: list[Entry] = field(default_factory=list)
    unanswered: list[ToolCall] = field(default_factory=list)

    @property
    def entries(self) -> list[Entry]:
        """The head and its answers."""
        return [self.head, *self.answers]

    @property
    def whole(self) -> bool:
        """Whether a model may be shown it: every call is answered, and it is no answer without a call."""
        return not self.unanswered and self.head.kind is not EntryKind.TOOL


def exchanges(entries: Iterable[Entry]) -> list[Exchange]:
    """
    Put entries, oldest first, together in exchanges, in the order of their heads.

    An answer belongs to the last assistant's entry before it that called under its id, or to the one that
    its ``data`` names; ids repeat from turn to turn. An answer whose call is lost, or has its answer
    already, is an exchange by itself, and not whole.
    """
    result: list[Exchange] = []
    calling: dict[int, Exchange] = {}
    last: dict[str, Exchange] = {}
    for entry in entries:
        if entry.kind is EntryKind.TOOL:
            named = entry.data.get(ANSWERS)
            call_id = entry.message.tool_call_id
            asked = calling.get(named) if isinstance(named, int) else last.get(call_id)
            call = next((c for c in asked.unanswered if c.id == call_id), None) if asked else None
            if asked is not None and call is not None:
                asked.unanswered.remove(call)
                asked.answers.append(entry)
                continue
        exchange = Exchange(entry, unanswered=list(entry.message.tool_calls))
        result.append(exchange)
        if exchange.unanswered:
            calling[entry.seq] = exchange
            last.update((call.id, exchange) for call in exchange.unanswered)
    return result


def shown(entries: Iterable[Entry]) -> list[Message]:
    """Return the messages that a model may be shown."""
    return [entry.message for exchange in exchanges(entries) if exchange.whole for entry in exchange.entries]


def estimated_tokens(messages: Iterable[Message]) -> int:
    """Return about how many tokens ``messages`` have: a quarter of each one's characters, and 4."""
    return sum(math.ceil(_characters(message) / 4) + 4 for message in messages)


def tokens(items: Iterable[Exchange]) -> int:
    """Return about how many tokens exchanges have, shown or not."""
    return estimated_tokens(entry.message for item in items for entry in item.entries)


def first_kept(items: Sequence[Exchange], *, max_tokens: int, max_entries: int | None) -> int:
    """
    Return from which exchange on they are to be kept: as many of the newest as have room.

    The newest always is, and calls that wait for their answers are, with all that came after them.
    """
    kept = len(items)
    used = entries = 0
    waiting = _waiting(items)
    while kept > 0:
        item = items[kept - 1]
        used += tokens([item])
        entries += len(item.entries)
        room = used <= max_tokens and (max_entries is None or entries <= max_entries)
        if not room and kept < len(items) and (waiting is None or kept <= waiting):
            break
        kept -= 1
    return kept


def clipped_to(entries: Sequence[Entry], max_tokens: int) -> list[Entry]:
    """Return ``entries``, their longest texts clipped until all are at most ``max_tokens``, if possible."""
    result = list(entries)
    longest = max((_longest(entry.message) for entry in result), default=0)
    while estimated_tokens(entry.message for entry in result) > max_tokens and longest > _SHORTEST:
        longest = max(longest * 3 // 4, _SHORTEST)
        result = [replace(entry, message=_clipped(entry.message, longest)) for entry in entries]
    return result


def clip(text: str, length: int) -> str:
    """Return ``text``, or as much of it as is ``length`` characters with the note that there was more."""
    return text if len(text) <= length else text[: max(length - len(_CLIPPED), 0)] + _CLIPPED


def _waiting(items: Sequence[Exchange]) -> int | None:
    """Return where the newest assistant's entry is, if its calls are still to be answered."""
    for position in range(len(items) - 1, -1, -1):
        if items[position].head.kind is EntryKind.ASSISTANT:
            return position if items[position].unanswered else None
    return None


def _characters(message: Message) -> int:
    return len(message.content) + sum(len(call.name) + len(call.arguments) for call in message.tool_calls)


def _longest(message: Message) -> int:
    return max(len(message.content), *(len(call.arguments) for call in message.tool_calls), 0)


def _clipped(message: Message, length: int) -> Message:
    calls = tuple(
        replace(call, arguments=_clipped_json(call.arguments, length)) for call in message.tool_calls
    )
    return replace(message, content=clip(message.content, length), tool_calls=calls)


def _clipped_json(arguments: str, length: int) -> str:
    """Clip arguments to what is still a JSON object: providers refuse others."""
    if len(arguments) <= length:
        return arguments
    row: dict[str, Any] = {"clipped": arguments[: max((length - 16) // 2, 0)]}
    # Quotes and such are escaped and take more room than they had.
    text = json.dumps(row, ensure_ascii=False)
    return text if len(text) <= length else "{}"
