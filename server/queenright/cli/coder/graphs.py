"""Graphs of the coder, which talks with the user, and of the guardian, which handles failed agents."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import Final

from queenright.runtime.events import EventType
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec, NodeSpec

CODER: Final = "coder"
GUARDIAN: Final = "guardian"

# Files are long, and a file must still be in the context when it is edited.
_CONTEXT_TOKENS: Final = 60_000


def coder_graph(tools: Iterable[str]) -> GraphSpec:
    """Return the graph of the coder, which talks with the user in one session, run after run."""
    node = NodeSpec(
        id="code",
        description="Builds agents with the user.",
        system_prompt=_prompt("code.md"),
        tools=tuple(tools),
        input_keys=("message",),
        client_facing=True,
        max_turns=1000,
        max_context_tokens=_CONTEXT_TOKENS,
        model_timeout_seconds=300,
    )
    return GraphSpec(id=CODER, nodes=(node,), entry_points=(EntryPointSpec(id="talk", node_id=node.id),))


def guardian_graph(tools: Iterable[str]) -> GraphSpec:
    """Return the guardian's graph, which starts when a run of another graph fails."""
    node = NodeSpec(
        id="guard",
        description="Handles failed agents.",
        system_prompt=_prompt("guard.md"),
        tools=tuple(tools),
        input_keys=("event",),
        output_keys=("decision",),
        client_facing=True,
        max_context_tokens=_CONTEXT_TOKENS,
        model_timeout_seconds=300,
    )
    failed = EntryPointSpec(
        id="failed",
        node_id=node.id,
        trigger_type="event",
        event_types=frozenset({EventType.EXECUTION_FAILED}),
        isolation_level="shared",
        conversation_mode="fresh",
    )
    return GraphSpec(id=GUARDIAN, nodes=(node,), entry_points=(failed,))


def _prompt(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
