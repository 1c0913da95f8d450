"""The coder and its guardian as graphs: one talks with a person, the other is called when an agent fails."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import Final

from queenright.runtime.events import EventType
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec, NodeSpec

CODER: Final = "coder"
GUARDIAN: Final = "guardian"

# Files are long, and what was read must be there when it is changed.
_CONTEXT_TOKENS: Final = 60_000


def coder_graph(tools: Iterable[str]) -> GraphSpec:
    """Return the coder: it talks with a person, run after run in one session."""
    node = NodeSpec(
        id="code",
        description="Builds agents with a person.",
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
    """Return the guardian: it wakes when a run of another graph fails, and shares the coder's session."""
    node = NodeSpec(
        id="guard",
        description="Sees to agents that failed.",
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
