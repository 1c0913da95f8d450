"""Graphs as data: nodes, and the entry points that start them. What is wrong with one is said by name."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from queenright.runtime.events import EventType

# Ids become folder names.
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeSpec(_Spec):
    """A node: a model in a loop with tools, until it sets its outputs."""

    id: Identifier
    system_prompt: str = Field(min_length=1)
    tools: tuple[str, ...] = ()
    output_keys: tuple[Identifier, ...] = ()
    """What the model must say with ``set_output`` to end; without any, an answer in words ends it."""
    max_turns: int = Field(default=10, ge=1)
    model_timeout_seconds: float = Field(default=60, gt=0)
    max_messages: int = Field(default=60, ge=2)
    """What is kept of a continuous conversation from one run to the next, beside the system prompt."""
    max_characters: int = Field(default=60_000, ge=1_000)


class EntryPointSpec(_Spec):
    """What starts a node: a call, a clock, or events."""

    id: Identifier
    node_id: Identifier
    trigger_type: Literal["manual", "timer", "event"] = "manual"
    interval_seconds: float | None = Field(default=None, gt=0)
    event_types: frozenset[EventType] = frozenset()
    exclude_own_graph: bool = True
    """Events that this graph emitted do not start it."""
    isolation_level: Literal["isolated"] = "isolated"
    """One session of its own for all runs, kept on disk."""
    conversation_mode: Literal["continuous", "fresh"] = "continuous"
    """Whether a run sees what was said in the runs before it."""

    @model_validator(mode="after")
    def _complete(self) -> EntryPointSpec:
        if self.trigger_type == "timer" and self.interval_seconds is None:
            raise ValueError(f"entry point {self.id!r}: a timer needs interval_seconds")
        if self.trigger_type != "timer" and self.interval_seconds is not None:
            raise ValueError(
                f"entry point {self.id!r}: interval_seconds is for timers, not {self.trigger_type}"
            )
        if self.trigger_type == "event" and not self.event_types:
            raise ValueError(f"entry point {self.id!r}: an event trigger needs event_types")
        if self.trigger_type != "event" and self.event_types:
            raise ValueError(f"entry point {self.id!r}: event_types is for events, not {self.trigger_type}")
        return self


class GraphSpec(_Spec):
    """A graph: its nodes and its entry points."""

    id: Identifier
    nodes: tuple[NodeSpec, ...] = Field(min_length=1)
    entry_points: tuple[EntryPointSpec, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> GraphSpec:
        node_ids = [node.id for node in self.nodes]
        for what, ids in (("node", node_ids), ("entry point", [e.id for e in self.entry_points])):
            twice = [i for i, count in Counter(ids).items() if count > 1]
            if twice:
                raise ValueError(f"graph {self.id!r}: {what} {twice[0]!r} is there twice")
        for entry in self.entry_points:
            if entry.node_id not in node_ids:
                have = ", ".join(node_ids)
                starts = f"entry point {entry.id!r} starts node {entry.node_id!r}"
                raise ValueError(f"graph {self.id!r}: {starts}; there are: {have}")
        return self

    def node(self, node_id: str) -> NodeSpec:
        """
        Return the node called ``node_id``.

        Raises:
            KeyError: There is none.
        """
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)
