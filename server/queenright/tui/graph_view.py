"""A graph and a session's memory as lines of text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queenright.tui.formatting import clip
from queenright.tui.models import Row

_MAX_VALUE: Final = 300
"""Maximum characters of a value."""
_WHEN: Final = {"success": "", "always": " always", "failure": " on failure"}


def graph_lines(nodes: Sequence[Row]) -> list[str]:
    """
    Return one line per node, with its state and the targets of its edges.

    Args:
        nodes: Rows of ``GET /api/agents/{agent_id}/graphs/{graph_id}/nodes/{node_id}``, in the graph's order.
    """
    width = max((len(str(node["node_id"])) for node in nodes), default=0)
    lines = []
    for node in nodes:
        state = _state(node)
        edges = ", ".join(map(_edge, node["edges_out"]))
        line = f"{_SYMBOLS[state]} {node['node_id']:<{width}}  {state}"
        lines.append(f"{line:<{width + 24}}{f'→ {edges}' if edges else ''}".rstrip())
    return lines


def memory_lines(memory: Mapping[str, Any]) -> list[str]:
    """Return one line per key of a session's memory; long values are truncated."""
    width = max(map(len, memory), default=0)
    return [
        f"{key:<{width}}  {clip(json.dumps(value, ensure_ascii=False, default=str), _MAX_VALUE)}"
        for key, value in memory.items()
    ]


_SYMBOLS: Final = {"waiting for input": "?", "working": "▶", "idle": "○"}


def _state(node: Row) -> str:
    if node["waiting_for_user"]:
        return "waiting for input"
    return "working" if node["running"] else "idle"


def _edge(edge: Row) -> str:
    when = edge["when"]
    condition = _WHEN.get(when, f" if {clip(str(edge['expression'] or edge['route']), 40)}")
    return f"{edge['target']}{condition}"
