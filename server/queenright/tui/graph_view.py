"""A graph and a session's memory as lines of text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queenright.api.loaded import Edge, NodeDetail
from queenright.tui.formatting import clip

_MAX_VALUE: Final = 300
"""Maximum characters of a value."""
_WHEN: Final = {"success": "", "always": " always", "failure": " on failure"}


def graph_lines(nodes: Sequence[NodeDetail]) -> list[str]:
    """Return one line per node, with its state and the targets of its edges."""
    width = max((len(node.node_id) for node in nodes), default=0)
    lines = []
    for node in nodes:
        state = _state(node)
        edges = ", ".join(map(_edge, node.edges_out))
        line = f"{_SYMBOLS[state]} {node.node_id:<{width}}  {state}"
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


def _state(node: NodeDetail) -> str:
    if node.waiting_for_user:
        return "waiting for input"
    return "working" if node.running else "idle"


def _edge(edge: Edge) -> str:
    condition = _WHEN.get(edge.when, f" if {clip(edge.expression or edge.route, 40)}")
    return f"{edge.target}{condition}"
