"""Digest of the part of a conversation that is dropped: the task, and a line per message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from queenright.runtime.storage.entries import Entry, EntryKind

_TASK_HEADING: Final = "(Earlier messages were shortened.) The task was:\n"
_SINCE_HEADING: Final = "\nSince then:\n"
_MAX_LINE_LENGTH: Final = 200


def digest(entries: Sequence[Entry], *, limit: int) -> str:
    """
    Summarize ``entries``, oldest first, in at most ``limit`` characters.

    The newest task is kept if it fits, then the newest lines. From an earlier digest among the
    entries, its task is kept unless there is a newer one, and its lines.
    """
    task, lines = "", list[str]()
    for entry in entries:
        text = entry.message.content
        if entry.kind is EntryKind.SUMMARY:
            task, _, since = text.removeprefix(_TASK_HEADING).partition(_SINCE_HEADING)
            lines += since.splitlines()
        elif entry.kind is EntryKind.INPUT:
            if task:
                lines.append(_clip(f"- an earlier task: {task}", _MAX_LINE_LENGTH))
            task = text
        else:
            lines.append(_format_line(entry))
    head = _TASK_HEADING + _clip(
        task, max(limit // 2, limit - len(_TASK_HEADING + _SINCE_HEADING) - sum(len(x) + 1 for x in lines))
    )
    kept_lines: list[str] = []
    room = limit - len(head) - len(_SINCE_HEADING)
    for line in reversed(lines):
        room -= len(line) + 1
        if room < 0:
            break
        kept_lines.append(line)
    return (head + _SINCE_HEADING + "\n".join(reversed(kept_lines)) if kept_lines else head)[:limit]


def _format_line(entry: Entry) -> str:
    text = " ".join(entry.message.content.split())
    if entry.kind is EntryKind.ASSISTANT:
        calls = ", ".join(f"{call.name}({call.arguments[:60]})" for call in entry.message.tool_calls)
        parts = [f"said: {text}"] if text else []
        return _clip(
            "- you " + "; ".join([*parts, *([f"called {calls}"] if calls else [])]), _MAX_LINE_LENGTH
        )
    if entry.kind is EntryKind.TOOL:
        return _clip(f"- {entry.data.get('tool') or 'a tool'} answered: {text}", _MAX_LINE_LENGTH)
    author = "the user" if entry.kind is EntryKind.USER else "instruction"
    return _clip(f"- {author}: {text}", _MAX_LINE_LENGTH)


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"
