"""Filters of events on the bus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from queenright.runtime.events import AgentEvent, EventType

Where = tuple[tuple[str, str], ...]
"""Field names of ``AgentEvent`` and their required values."""


class Filters(TypedDict, total=False):
    """
    Conditions on the origin of events; one that is None or left out matches everything.

    Node ids repeat between graphs: set ``filter_graph`` with ``filter_node``.
    """

    filter_graph: str | None
    filter_stream: str | None
    filter_node: str | None
    filter_agent: str | None


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Filter of events: all conditions must match; no types match every type."""

    types: frozenset[EventType] | None
    filters: Filters

    @property
    def where(self) -> Where:
        """The conditions other than the types, by field of ``AgentEvent``."""
        return build_where(self.filters)

    def __str__(self) -> str:
        """Describe the filter for messages: ``step_started or step_completed with node_id 'judge'``."""
        types = "any event" if self.types is None else " or ".join(sorted(self.types)) or "no event"
        fields = " and ".join(f"{field} {value!r}" for field, value in self.where)
        return f"{types} with {fields}" if fields else types


def build_where(filters: Filters) -> Where:
    """Return the conditions of filters, by field of ``AgentEvent``."""
    fields = ((f"{name.removeprefix('filter_')}_id", value) for name, value in filters.items())
    return tuple((field, value) for field, value in fields if isinstance(value, str))


def matches(event: AgentEvent, where: Where) -> bool:
    """Return whether every field has its required value."""
    return all(getattr(event, name) == value for name, value in where)
