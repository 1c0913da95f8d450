"""The parts of a graph as data: nodes, edges, and the entry points that start nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from queenright.runtime.events import EventType

# Ids become folder names.
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]

# Made of the ids of two nodes and a suffix; never a folder name.
EdgeIdentifier = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,219})?$")]

NodeType = Literal["event_loop", "function", "router"]
EdgeWhen = Literal["success", "failure", "always", "expression", "route"]
TriggerType = Literal["manual", "timer", "event"]
IsolationLevel = Literal["isolated", "shared", "per_run"]
ConversationMode = Literal["continuous", "fresh"]


class Spec(BaseModel):
    """An immutable value that is validated on construction."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NodeSpec(Spec):
    """
    A node: a model in a loop with tools, a function, or a router that chooses a route.

    The graph that contains the node validates the combination of fields.
    """

    id: Identifier
    description: str = ""
    node_type: NodeType = "event_loop"
    system_prompt: str = ""
    """Instructions for the model of an ``event_loop``, or of a router without a function."""
    function: str = ""
    """Name of a registered function; for a ``function`` node, optionally for a router."""
    routes: Mapping[str, str] = Field(default_factory=dict)
    """Routes of a router: the name of each route, and a description of when to take it."""
    tools: tuple[str, ...] = ()
    final_tools: tuple[str, ...] = ()
    """Tools out of ``tools`` that end the visit even if outputs are missing: their effect is its result."""
    input_keys: tuple[Identifier, ...] = ()
    """Memory keys passed to the node."""
    output_keys: tuple[Identifier, ...] = ()
    """Outputs the node must set to end; without any, an answer in words ends it."""
    nullable_output_keys: tuple[Identifier, ...] = ()
    """Keys of ``output_keys`` that need not be set."""
    model: str = ""
    """Name of the node's own model; empty uses the graph's."""
    client_facing: bool = False
    """Whether it talks to a user: its text is shown, and it waits for input."""
    conversation_judge: str = ""
    """
    The judge that decides whether the node may end. Empty: the outputs are set, or it answered in words.
    ``llm``: the model, by ``success_criteria``. Otherwise the name of a registered judge.
    """
    success_criteria: str = ""
    max_turns: int = Field(default=50, ge=1)
    max_retries: int | None = Field(default=None, ge=0)
    """
    RETRY verdicts allowed in one visit; one more ends it as incomplete. None: as many as the node's guard
    allows, or 3 without a guard.
    """
    max_node_visits: int = Field(default=1000, ge=0)
    """Visits allowed in one execution; 0 is unlimited."""
    model_timeout_seconds: float = Field(default=60, gt=0)
    model_attempts: int = Field(default=5, ge=1)
    """Maximum calls of the model in one turn; only transient failures are retried."""
    tool_timeout_seconds: float = Field(default=120, gt=0)
    """Default for tools that declare none."""
    function_timeout_seconds: float = Field(default=600, gt=0)
    """Time limit of the function of a function node or a router."""
    max_context_tokens: int = Field(default=15_000, ge=200)
    """Maximum tokens of the conversation, excluding the system prompt."""
    max_messages: int | None = Field(default=None, ge=2)
    """Maximum messages of the conversation; None is unlimited."""


class EdgeSpec(Spec):
    """An edge between two nodes: when it is taken, and the input it passes on."""

    id: EdgeIdentifier = ""
    """Defaults to ``source-target``."""
    source: str
    target: str
    when: EdgeWhen = "success"
    expression: str = ""
    """For ``when="expression"``: a condition over the memory (``queenright.runtime.graphs.conditions``)."""
    route: str = ""
    """For ``when="route"``: the name of the router's route."""
    priority: int = 0
    """Edges of one node are evaluated by descending priority."""
    input_mapping: Mapping[str, str] = Field(default_factory=dict)
    """Input keys of the target, each with the memory key of its value."""


class EntryPointSpec(Spec):
    """What starts a node: a call, a timer, or events."""

    id: Identifier
    node_id: str
    trigger_type: TriggerType = "manual"
    interval_seconds: float | None = Field(default=None, gt=0)
    cron: str = ""
    """For a timer, instead of an interval: minute, hour, day of month, month, day of week."""
    timezone: str = "UTC"
    """Time zone of ``cron``, such as ``Europe/Vienna``."""
    event_types: frozenset[EventType] = frozenset()
    filter_graph: str | None = None
    filter_stream: str | None = None
    filter_node: str | None = None
    filter_agent: str | None = None
    exclude_own_graph: bool = True
    """Whether to ignore events that this graph emitted."""
    isolation_level: IsolationLevel = "per_run"
    """
    ``isolated``: one persistent session for all runs. ``shared``: the session of the triggering event, else
    the primary graph's current one. ``per_run``: a new session for every run. Defaults to ``per_run`` for
    manual entry points, and to ``isolated`` for timers and events.
    """
    conversation_mode: ConversationMode = "continuous"
    """
    ``continuous``: a run sees the conversation of earlier runs in its session, and consecutive nodes share
    one thread. ``fresh``: each visit starts with an empty conversation.
    """
    max_concurrent: int = Field(default=1, ge=1)
    """Maximum concurrent runs; more than one requires ``per_run`` sessions."""
    max_waiting: int = Field(default=1000, ge=1)
    """Maximum queued runs, kept in memory; further requests are rejected."""

    @model_validator(mode="before")
    @classmethod
    def _default_isolation_level(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("isolation_level") is None:
            is_manual = value.get("trigger_type", "manual") == "manual"
            return {**value, "isolation_level": "per_run" if is_manual else "isolated"}
        return value
