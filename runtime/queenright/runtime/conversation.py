"""
A conversation on disk: one file a message, bounded.

Files are written aside and renamed, so that one is either whole or not there. They are not synced: a
conversation is the memory of trends, tickets are kept elsewhere, and a check must stay cheap. What a power
failure tore is left out when the conversation is read again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from queenright.runtime.model import Message

_log = logging.getLogger(__name__)

_CLIPPED: Final = "\n[… clipped]"


class Conversation:
    """
    The messages of one node in one session.

    Args:
        directory: Where the files are; made if it is not there.
        max_messages: What ``compact`` keeps at most.
        max_characters: The same in characters; also the most that one message may have.
    """

    def __init__(self, directory: Path, *, max_messages: int, max_characters: int) -> None:
        self._directory = directory
        self._max_messages = max_messages
        self._max_characters = max_characters
        directory.mkdir(parents=True, exist_ok=True)
        self._entries = _whole(_read(directory))
        self._next = max((int(p.stem) for p in _files(directory)), default=0) + 1

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def messages(self) -> list[Message]:
        """What was said, oldest first."""
        return [message for _, message in self._entries]

    def append(self, message: Message) -> None:
        """Add a message and write it to disk; one longer than ``max_characters`` is clipped."""
        if len(message.content) > self._max_characters:
            message = Message(
                role=message.role,
                content=message.content[: self._max_characters - len(_CLIPPED)] + _CLIPPED,
                tool_calls=message.tool_calls,
                tool_call_id=message.tool_call_id,
            )
        path = self._directory / f"{self._next:010d}.json"
        aside = path.with_suffix(".tmp")
        aside.write_text(json.dumps(message.to_dict(), ensure_ascii=False), encoding="utf-8")
        os.replace(aside, path)
        self._entries.append((path, message))
        self._next += 1

    def compact(self) -> int:
        """
        Forget the oldest messages if there are too many, and return how many were forgotten.

        Goes down to half the limit, so that it happens seldom; the newest are kept, and a tool's
        answer is never kept without its call.
        """
        if (
            len(self._entries) <= self._max_messages
            and self._characters(self._entries) <= self._max_characters
        ):
            return 0
        kept = self._entries[-max(self._max_messages // 2, 1) :]
        while len(kept) > 1 and self._characters(kept) > self._max_characters // 2:
            kept = kept[1:]
        return self._keep(_whole(kept))

    def clear(self) -> None:
        """Forget everything."""
        self._keep([])

    def _keep(self, kept: list[tuple[Path, Message]]) -> int:
        staying = {path for path, _ in kept}
        for path in _files(self._directory):
            if path not in staying:
                path.unlink(missing_ok=True)
        forgotten = len(self._entries) - len(kept)
        self._entries = kept
        return forgotten

    @staticmethod
    def _characters(entries: Iterable[tuple[Path, Message]]) -> int:
        return sum(len(m.content) + sum(len(c.arguments) for c in m.tool_calls) for _, m in entries)


def _files(directory: Path) -> list[Path]:
    return sorted(p for p in directory.glob("*.json") if p.stem.isdecimal())


def _read(directory: Path) -> list[tuple[Path, Message]]:
    entries = []
    for path in _files(directory):
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(row, dict):
                raise ValueError("not an object")
            entries.append((path, Message.from_dict(row)))
        except (OSError, ValueError) as error:
            _log.warning("left out an unreadable message of a conversation, %s: %s", path.name, error)
    return entries


def _whole(entries: Sequence[tuple[Path, Message]]) -> list[tuple[Path, Message]]:
    """Leave out tool calls without all their answers, and answers without their call: models refuse both."""
    kept: list[tuple[Path, Message]] = []
    position = 0
    while position < len(entries):
        _, message = entries[position]
        end = position + 1
        while end < len(entries) and entries[end][1].role == "tool":
            end += 1
        asked = {call.id for call in message.tool_calls}
        answered = {answer.tool_call_id for _, answer in entries[position + 1 : end]}
        if message.role != "tool" and asked == answered:
            kept.extend(entries[position:end])
        position = end
    return kept
