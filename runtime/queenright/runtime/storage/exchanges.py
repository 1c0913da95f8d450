"""
Exchanges: the order in which a conversation may be sent to a model.

Models reject a tool call that is not directly followed by its answer, and an answer without its call. An
assistant's entry and the answers to its calls therefore form one exchange; every other entry is one by
itself. All functions are pure.
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
"""Key in an answer's ``data``: ``seq`` of the calling entry, unless it is the last with that call id."""

_CLIP_MARK: Final = "\n[… clipped]"
_MIN_LENGTH: Final = 32


@dataclass(slots=True)
class Exchange:
    """An entry and the answers to its calls."""

    head: Entry
    answers: list[Entry] = field(default_factory=list)
    unanswered_calls: list[ToolCall] = field(default_factory=list)

    @property
    def entries(self) -> list[Entry]:
        """The head and its answers."""
        return [self.head, *self.answers]

    @property
    def is_complete(self) -> bool:
        """Whether it may be sent to a model: every call is answered, and no answer lacks its call."""
        return not self.unanswered_calls and self.head.kind is not EntryKind.TOOL


def group_exchanges(entries: Iterable[Entry]) -> list[Exchange]:
    """
    Group entries, oldest first, into exchanges, in the order of their heads.

    An answer belongs to the entry named in its ``data``, otherwise to the last assistant's entry before it
    that has a call with its id; ids repeat from turn to turn. An answer whose call is lost or already
    answered is a separate, incomplete exchange.
    """
    result: list[Exchange] = []
    by_seq: dict[int, Exchange] = {}
    by_call_id: dict[str, Exchange] = {}
    for entry in entries:
        if entry.kind is EntryKind.TOOL:
            seq = entry.data.get(ANSWERS)
            call_id = entry.message.tool_call_id
            caller = by_seq.get(seq) if isinstance(seq, int) else by_call_id.get(call_id)
            call = next((c for c in caller.unanswered_calls if c.id == call_id), None) if caller else None
            if caller is not None and call is not None:
                caller.unanswered_calls.remove(call)
                caller.answers.append(entry)
                continue
        exchange = Exchange(entry, unanswered_calls=list(entry.message.tool_calls))
        result.append(exchange)
        if exchange.unanswered_calls:
            by_seq[entry.seq] = exchange
            by_call_id.update((call.id, exchange) for call in exchange.unanswered_calls)
    return result


def list_visible_messages(entries: Iterable[Entry]) -> list[Message]:
    """Return the messages that may be sent to a model."""
    return [
        entry.message
        for exchange in group_exchanges(entries)
        if exchange.is_complete
        for entry in exchange.entries
    ]


def estimate_tokens(messages: Iterable[Message]) -> int:
    """Estimate the tokens of ``messages``: a quarter of each one's characters, plus 4."""
    return sum(math.ceil(_count_characters(message) / 4) + 4 for message in messages)


def count_tokens(items: Iterable[Exchange]) -> int:
    """Estimate the tokens of exchanges, including incomplete ones."""
    return estimate_tokens(entry.message for item in items for entry in item.entries)


def find_first_kept(items: Sequence[Exchange], *, max_tokens: int, max_entries: int | None) -> int:
    """
    Return the index of the first exchange to keep, so that as many of the newest as possible fit.

    The newest is always kept, as are unanswered calls with all that follows them.
    """
    first_kept = len(items)
    tokens = entries = 0
    unanswered_position = _find_unanswered_position(items)
    while first_kept > 0:
        item = items[first_kept - 1]
        tokens += count_tokens([item])
        entries += len(item.entries)
        has_room = tokens <= max_tokens and (max_entries is None or entries <= max_entries)
        if (
            not has_room
            and first_kept < len(items)
            and (unanswered_position is None or first_kept <= unanswered_position)
        ):
            break
        first_kept -= 1
    return first_kept


def clip_entries(entries: Sequence[Entry], max_tokens: int) -> list[Entry]:
    """Clip the longest texts of ``entries`` until all have at most ``max_tokens``, if possible."""
    result = list(entries)
    max_length = max((_get_longest_length(entry.message) for entry in result), default=0)
    while estimate_tokens(entry.message for entry in result) > max_tokens and max_length > _MIN_LENGTH:
        max_length = max(max_length * 3 // 4, _MIN_LENGTH)
        result = [replace(entry, message=_clip_message(entry.message, max_length)) for entry in entries]
    return result


def clip(text: str, length: int) -> str:
    """Clip ``text`` to ``length`` characters, with a marker at the end."""
    return text if len(text) <= length else text[: max(length - len(_CLIP_MARK), 0)] + _CLIP_MARK


def _find_unanswered_position(items: Sequence[Exchange]) -> int | None:
    """Return the position of the newest assistant's entry, if it has unanswered calls."""
    for position in range(len(items) - 1, -1, -1):
        if items[position].head.kind is EntryKind.ASSISTANT:
            return position if items[position].unanswered_calls else None
    return None


def _count_characters(message: Message) -> int:
    return len(message.content) + sum(len(call.name) + len(call.arguments) for call in message.tool_calls)


def _get_longest_length(message: Message) -> int:
    return max(len(message.content), *(len(call.arguments) for call in message.tool_calls), 0)


def _clip_message(message: Message, length: int) -> Message:
    calls = tuple(replace(call, arguments=_clip_json(call.arguments, length)) for call in message.tool_calls)
    return replace(message, content=clip(message.content, length), tool_calls=calls)


def _clip_json(arguments: str, length: int) -> str:
    """Clip arguments to a valid JSON object: providers reject anything else."""
    if len(arguments) <= length:
        return arguments
    row: dict[str, Any] = {"clipped": arguments[: max((length - 16) // 2, 0)]}
    # Escaping quotes takes extra room.
    text = json.dumps(row, ensure_ascii=False)
    return text if len(text) <= length else "{}"
