"""What an agent is, to be shown, and what keeps it from working. Values, and checks that start nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.agents.agent_parts import AgentParts
from queenright.runtime.graphs.graph import NodeSpec


class InvalidAgentError(QueenrightError):
    """Raised when an agent is to be started that cannot work; every reason is named."""

    def __init__(self, name: str, errors: tuple[str, ...]) -> None:
        super().__init__("\n  ".join((f"The agent {name!r} cannot be started:", *errors)))
        self.errors = errors


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    """What an agent is, to be shown."""

    name: str
    version: str
    description: str
    path: Path
    goal: str
    nodes: tuple[str, ...]
    client_facing: tuple[str, ...]
    """Those of the nodes that talk with a user."""
    entry_points: tuple[str, ...]
    tools: tuple[str, ...]
    """Its own; those of MCP servers are known once it is started."""
    mcp_servers: tuple[str, ...]
    models: tuple[str, ...]
    credentials: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """What keeps an agent from working, and what may."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it can be started."""
        return not self.errors


def unknown_names(parts: AgentParts, offered: Collection[str] = ()) -> list[str]:
    """
    Return what is wrong with the names in a graph: functions, judges and tools that its folder has not.

    Args:
        parts: The agent.
        offered: Names of tools that it is given.
    """
    errors: list[str] = []
    tools = {tool.name: tool for tool in parts.tools}
    for node in parts.spec.graph.nodes:
        for what, wanted, given in (
            ("function", (node.function,), parts.functions),
            ("judge", (_judge_of(node),), parts.judges),
            ("tool", node.tools, tools),
        ):
            for name in wanted:
                # A tool that is not here may be an MCP server's: that is known when it is connected.
                elsewhere = what == "tool" and (parts.mcp_servers or name in offered)
                if name and name not in given and not elsewhere:
                    have = ", ".join(given) or "none"
                    errors.append(
                        f"node {node.id!r}: {what} {name!r} is not in {what}s.py; there are: {have}"
                    )
    return errors


def thinks(node: NodeSpec) -> bool:
    """Whether a node needs a model."""
    return not node.function


def _judge_of(node: NodeSpec) -> str:
    return node.conversation_judge if node.conversation_judge != "llm" else ""
