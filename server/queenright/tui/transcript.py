"""What was said with an agent before one opened a talk: from its messages, as the service keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from queenright.tui.values import Before, Row, Said
from queenright.tui.words import clipped

_ASKS: Final = "ask_user"
"""The tool with which a node asks its user."""
_BEGAN: Final = 200
"""Characters of what a run began with."""


def before(messages: Iterable[Row], nodes: Sequence[Row], me: str) -> Before:
    """
    Return what was said in a session.

    Args:
        messages: Rows of ``GET /api/agents/{agent_id}/sessions/{session_id}/messages``.
        nodes: Rows of the nodes of its graph.
        me: What people are called who are not named there.
    """
    rows = sorted(messages, key=lambda row: (row["at"], row["seq"]))
    speaks = [str(node["node_id"]) for node in nodes if node["client_facing"]]
    said = [one for row in rows for one in _said(row, speaks[0] if len(speaks) == 1 else "", me)]
    through = max((row["at"] for row in rows), default=0.0)
    waits = [str(node["node_id"]) for node in nodes if node["waiting_for_user"]]
    if waits:
        said.append(Said(by="", text=f"{', '.join(waits)} waits for your answer", at=through, mine=False))
    return Before(said=tuple(said), through=through)


def _said(row: Row, speaker: str, me: str) -> Iterable[Said]:
    text, at = str(row["text"]).strip(), row["at"]
    match row["kind"]:
        case "input":
            yield Said(by="", text=f"a run began with {clipped(text, _BEGAN)}", at=at, mine=False)
        case "user" if text:
            yield Said(by=me, text=text, at=at, mine=True)
        case "assistant":
            questions = [_question(call) for call in row["tool_calls"] if call["name"] == _ASKS]
            words = "\n".join(one for one in (text, *questions) if one)
            if words:
                yield Said(by=speaker or str(row["conversation"]), text=words, at=at, mine=False)


def _question(call: Row) -> str:
    try:
        return str(json.loads(call["arguments"])["question"])
    except (ValueError, KeyError, TypeError):
        return str(call["arguments"])
