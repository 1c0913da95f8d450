"""A loaded agent."""

from __future__ import annotations

from queenright.api.base_model import ApiModel


class AgentSlot(ApiModel):
    """A loaded agent. Times are in seconds since the epoch, UTC."""

    agent_id: str
    """Its name, which is also the name of its worker."""
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
