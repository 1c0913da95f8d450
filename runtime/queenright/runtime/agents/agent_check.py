"""Agent descriptions and checks that start nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from queenright.instrumentation.errors import InvalidValueError
from queenright.runtime.agents.agent_parts import AgentParts
from queenright.runtime.graphs.graph import NodeSpec


class InvalidAgentError(InvalidValueError):
    """Raised when an agent cannot be started; lists every reason."""

    def __init__(self, name: str, errors: tuple[str, ...]) -> None:
        super().__init__("\n  ".join((f"The agent {name!r} cannot be started:", *errors)))
        self.errors = errors


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    """Description of an agent, for display."""

    name: str
    version: str
    description: str
    path: Path
    goal: str
    nodes: tuple[str, ...]
    client_facing: tuple[str, ...]
    """Nodes that talk to a user."""
    entry_points: tuple[str, ...]
    tools: tuple[str, ...]
    """The agent's own tools; tools of MCP servers are known only after start."""
    mcp_servers: tuple[str, ...]
    models: tuple[str, ...]
    credentials: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """Errors that prevent an agent from starting, and warnings."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the agent can be started."""
        return not self.errors


def find_unknown_names(parts: AgentParts, offered_names: Collection[str] = ()) -> list[str]:
    """Return errors for functions, judges and tools that a graph names and its folder does not define."""
    errors: list[str] = []
    tools = {tool.name: tool for tool in parts.tools}
    for node in parts.spec.graph.nodes:
        for kind, names, available in (
            ("function", (node.function,), parts.functions),
            ("judge", (_get_judge_name(node),), parts.judges),
            ("tool", node.tools, tools),
        ):
            for name in names:
                # An MCP server may provide the tool; that is known only when it is connected.
                may_be_provided = kind == "tool" and (parts.mcp_servers or name in offered_names)
                if name and name not in available and not may_be_provided:
                    names_text = ", ".join(available) or "none"
                    errors.append(
                        f"node {node.id!r}: {kind} {name!r} is not in {kind}s.py; defined there: {names_text}"
                    )
    return errors


def needs_model(node: NodeSpec) -> bool:
    """Return whether a node calls a model."""
    return not node.function


def _get_judge_name(node: NodeSpec) -> str:
    return node.conversation_judge if node.conversation_judge != "llm" else ""
