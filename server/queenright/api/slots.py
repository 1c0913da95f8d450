"""A loaded agent."""

from __future__ import annotations

from queenright.api.wire import NOW, Wire, shown


class AgentSlot(Wire):
    """A loaded agent. Times are in seconds since the epoch, UTC."""

    model_config = shown(
        {
            "agent_id": "docs_checker",
            "path": "/srv/agents/docs_checker",
            "version": "0",
            "description": "Finds broken links in a folder of Markdown.",
            "goal": "Every link leads somewhere.",
            "graph_id": "docs_checker",
            "active_graph_id": "docs_checker",
            "graphs": ["docs_checker"],
            "nodes": ["list_pages", "write_report"],
            "client_facing": [],
            "entry_points": ["check"],
            "default_entry_point": "check",
            "tools": ["read_lines", "write_report"],
            "mcp_servers": [],
            "models": ["scripted:replies.json"],
            "credentials": [],
            "warnings": [],
            "loaded_at": NOW,
        }
    )

    agent_id: str
    """Its name, as a worker too."""
    path: str
    """Its folder."""
    version: str
    description: str
    goal: str
    graph_id: str
    """Its own graph, the primary one."""
    active_graph_id: str
    """The graph that receives user input."""
    graphs: list[str]
    """Its own graph and the added ones."""
    nodes: list[str]
    client_facing: list[str]
    """Nodes that talk with a user."""
    entry_points: list[str]
    default_entry_point: str
    tools: list[str]
    mcp_servers: list[str]
    models: list[str]
    credentials: list[str]
    """Names of environment variables, without values."""
    warnings: list[str]
    """Problems that may keep it from working."""
    loaded_at: float
