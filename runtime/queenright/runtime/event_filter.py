"""Filters of events on the bus."""

from __future__ import annotations

from dataclasses import dataclass

from queenright.runtime.events import AgentEvent, EventType

Where = tuple[tuple[str, str], ...]
"""Field names of ``AgentEvent`` and their required values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Filter of events: all conditions must match; a field that is None matches everything."""

    types: frozenset[EventType] | None = None
    graph: str | None = None
    stream: str | None = None
    node: str | None = None
    agent: str | None = None

    @property
    def where(self) -> Where:
        """The conditions other than the types, by field of ``AgentEvent``."""
        fields = {
            "graph_id": self.graph,
            "stream_id": self.stream,
            "node_id": self.node,
            "agent_id": self.agent,
        }
        return tuple((field, value) for field, value in fields.items() if value is not None)

    def __str__(self) -> str:
        """Describe the filter for messages: ``step_started or step_completed with node_id 'judge'``."""
        types = "any event" if self.types is None else " or ".join(sorted(self.types)) or "no event"
        fields = " and ".join(f"{field} {value!r}" for field, value in self.where)
        return f"{types} with {fields}" if fields else types


def matches(event: AgentEvent, where: Where) -> bool:
    """Return whether every field has its required value."""
    return all(getattr(event, name) == value for name, value in where)
