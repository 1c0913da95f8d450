"""The stored transcript of a session, from the messages that the service keeps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from queenright.api.loaded import MessageRow, NodeRow, ToolUse
from queenright.tui.formatting import clip
from queenright.tui.models import ChatEntry, Transcript

_ASK_TOOL: Final = "ask_user"
"""Tool with which a node asks the user."""
_MAX_INPUT: Final = 200
"""Maximum characters of a run's input."""


def build_transcript(messages: Iterable[MessageRow], nodes: Sequence[NodeRow], me: str) -> Transcript:
    """
    Return the transcript of a session.

    Args:
        messages: Messages of the session.
        nodes: Nodes of its graph.
        me: Name of the user, which the messages do not contain.
    """
    rows = sorted(messages, key=lambda row: (row.at, row.seq))
    speakers = [node.node_id for node in nodes if node.client_facing]
    entries = [
        entry for row in rows for entry in _entries(row, speakers[0] if len(speakers) == 1 else "", me)
    ]
    until = max((row.at for row in rows), default=0.0)
    waiting = [node.node_id for node in nodes if node.waiting_for_user]
    if waiting:
        entries.append(
            ChatEntry(by="", text=f"{', '.join(waiting)} waits for your answer", at=until, is_own=False)
        )
    return Transcript(entries=tuple(entries), until=until)


def _entries(row: MessageRow, speaker: str, me: str) -> Iterable[ChatEntry]:
    text, at = row.text.strip(), row.at
    match row.kind:
        case "input":
            yield ChatEntry(by="", text=f"run started with {clip(text, _MAX_INPUT)}", at=at, is_own=False)
        case "user" if text:
            yield ChatEntry(by=me, text=text, at=at, is_own=True)
        case "assistant":
            questions = [_question(call) for call in row.tool_calls if call.name == _ASK_TOOL]
            content = "\n".join(part for part in (text, *questions) if part)
            if content:
                yield ChatEntry(by=speaker or row.conversation, text=content, at=at, is_own=False)


def _question(call: ToolUse) -> str:
    try:
        return str(json.loads(call.arguments)["question"])
    except (ValueError, KeyError, TypeError):
        return call.arguments
