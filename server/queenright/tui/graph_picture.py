"""A graph and a session's data as lines of text, for a talk in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queenright.tui.values import Row
from queenright.tui.words import clipped

_VALUE: Final = 300
"""Characters of a value that are shown."""
_WHEN: Final = {"success": "", "always": " always", "failure": " if it fails"}


def graph_lines(nodes: Sequence[Row]) -> list[str]:
    """
    Return a line a node: what it does now, and where its edges lead.

    Args:
        nodes: Rows of ``GET /api/agents/{agent_id}/graphs/{graph_id}/nodes/{node_id}``, in the graph's order.
    """
    width = max((len(str(node["node_id"])) for node in nodes), default=0)
    lines = []
    for node in nodes:
        state = _state(node)
        edges = ", ".join(map(_edge, node["edges_out"]))
        line = f"{_SIGN[state]} {node['node_id']:<{width}}  {state}"
        lines.append(f"{line:<{width + 24}}{f'→ {edges}' if edges else ''}".rstrip())
    return lines


def data_lines(memory: Mapping[str, Any]) -> list[str]:
    """Return a line a key of a session's memory; long values are cut."""
    width = max(map(len, memory), default=0)
    return [
        f"{key:<{width}}  {clipped(json.dumps(value, ensure_ascii=False, default=str), _VALUE)}"
        for key, value in memory.items()
    ]


_SIGN: Final = {"waiting for you": "?", "working": "▶", "idle": "○"}


def _state(node: Row) -> str:
    if node["waiting_for_user"]:
        return "waiting for you"
    return "working" if node["running"] else "idle"


def _edge(edge: Row) -> str:
    when = edge["when"]
    how = _WHEN.get(when, f" if {clipped(str(edge['expression'] or edge['route']), 40)}")
    return f"{edge['target']}{how}"
