"""What a graph is made of, as data: nodes, the edges between them, and the entry points that start them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from queenright.runtime.events import EventType

# Ids become folder names.
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]

# Of an edge: the ids of two nodes and a little more; never a folder name.
EdgeIdentifier = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,219})?$")]

NodeType = Literal["event_loop", "function", "router"]
EdgeWhen = Literal["success", "failure", "always", "expression", "route"]
TriggerType = Literal["manual", "timer", "event"]
IsolationLevel = Literal["isolated", "shared", "per_run"]
ConversationMode = Literal["continuous", "fresh"]


class Spec(BaseModel):
    """A value that is checked once, when it is made, and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NodeSpec(Spec):
    """
    A node: a model in a loop with tools, a function, or a router that chooses where to go on.

    What the fields must be together is checked by the graph that the node is in.
    """

    id: Identifier
    description: str = ""
    node_type: NodeType = "event_loop"
    system_prompt: str = ""
    """What the model is told it is: for an ``event_loop``, and for a router without a function."""
    function: str = ""
    """The name of a registered function: for a ``function`` node; a router may have one, too."""
    routes: Mapping[str, str] = Field(default_factory=dict)
    """Of a router: the name of each route, and in words when to take it."""
    tools: tuple[str, ...] = ()
    final_tools: tuple[str, ...] = ()
    """Those of ``tools`` that end the visit, whatever outputs are missing: what they did is its result."""
    input_keys: tuple[Identifier, ...] = ()
    """Keys of the memory that the node is given."""
    output_keys: tuple[Identifier, ...] = ()
    """What the node must set to end; without any, an answer in words ends it."""
    nullable_output_keys: tuple[Identifier, ...] = ()
    """Those of ``output_keys`` that need not be set."""
    model: str = ""
    """The name of a model of its own; empty is the graph's."""
    client_facing: bool = False
    """Talks with a user: what it says is shown, and it waits for input."""
    conversation_judge: str = ""
    """
    Who says whether the node may end. Empty: the outputs are set, or it answered in words. ``llm``: the
    model, by ``success_criteria``. Anything else is the name of a registered judge.
    """
    success_criteria: str = ""
    max_turns: int = Field(default=50, ge=1)
    max_retries: int | None = Field(default=None, ge=0)
    """
    RETRY verdicts allowed in one visit; one more ends it as incomplete. None: as many as the node's guard
    allows, and 3 for a node without one.
    """
    max_node_visits: int = Field(default=1000, ge=0)
    """Visits allowed in one execution; 0 is no limit."""
    model_timeout_seconds: float = Field(default=60, gt=0)
    model_attempts: int = Field(default=5, ge=1)
    """Calls of the model in one turn, where the failure before was a passing one."""
    tool_timeout_seconds: float = Field(default=120, gt=0)
    """For tools that declare none."""
    function_timeout_seconds: float = Field(default=600, gt=0)
    """For the function of a function node or a router."""
    max_context_tokens: int = Field(default=15_000, ge=200)
    """What is kept of a conversation, in tokens, beside the system prompt."""
    max_messages: int | None = Field(default=None, ge=2)
    """The same in messages; None is no limit."""


class EdgeSpec(Spec):
    """From one node to the next: when it is taken, and what it carries over."""

    id: EdgeIdentifier = ""
    """Where none is given, the graph names the edge ``source-target``."""
    source: str
    target: str
    when: EdgeWhen = "success"
    expression: str = ""
    """Of ``expression``: a condition over the memory (``queenright.runtime.graphs.conditions``)."""
    route: str = ""
    """Of ``route``: the router's route that this edge is."""
    priority: int = 0
    """Edges of one node are looked at from the highest down."""
    input_mapping: Mapping[str, str] = Field(default_factory=dict)
    """The target's input key, and the memory key it is taken from."""


class EntryPointSpec(Spec):
    """What starts a node: a call, a clock, or events."""

    id: Identifier
    node_id: str
    trigger_type: TriggerType = "manual"
    interval_seconds: float | None = Field(default=None, gt=0)
    cron: str = ""
    """Of a timer, in place of the interval: minute, hour, day of month, month, day of week."""
    timezone: str = "UTC"
    """The zone that ``cron`` speaks of, such as ``Europe/Vienna``."""
    event_types: frozenset[EventType] = frozenset()
    filter_graph: str | None = None
    filter_stream: str | None = None
    filter_node: str | None = None
    filter_agent: str | None = None
    exclude_own_graph: bool = True
    """Events that this graph emitted do not start it."""
    isolation_level: IsolationLevel = "per_run"
    """
    ``isolated``: one session of its own for all runs, kept on disk. ``shared``: the session of the event
    that starts it, else the one that the primary graph is in. ``per_run``: a new one for every run. Where
    none is given, a manual entry point is ``per_run``, a timer's or an event's ``isolated``.
    """
    conversation_mode: ConversationMode = "continuous"
    """
    ``continuous``: a run sees what was said in the runs before it in its session, and nodes that follow
    each other talk in one thread. ``fresh``: each visit starts empty.
    """
    max_concurrent: int = Field(default=1, ge=1)
    """Runs at one time; more than one only where each has its own session."""
    max_waiting: int = Field(default=1000, ge=1)
    """Runs that wait for their turn, in this process's memory; what somebody asks for beyond is refused."""

    @model_validator(mode="before")
    @classmethod
    def _isolated_by_trigger(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("isolation_level") is None:
            manual = given.get("trigger_type", "manual") == "manual"
            return {**given, "isolation_level": "per_run" if manual else "isolated"}
        return given
