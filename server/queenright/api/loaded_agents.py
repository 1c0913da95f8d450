"""Agents that run inside the service: graphs, runs, sessions and logs."""

from __future__ import annotations

from typing import Annotated, Any

from queenright.api.agent_slot import AgentSlot as AgentSlot
from queenright.api.agents import AgentRow
from queenright.api.base_model import ApiModel, KnownValues

NodeType = Annotated[str, KnownValues("event_loop", "function", "router")]
EdgeWhen = Annotated[str, KnownValues("success", "failure", "always", "expression", "route")]
TriggerType = Annotated[str, KnownValues("manual", "timer", "event")]
IsolationLevel = Annotated[str, KnownValues("isolated", "shared", "per_run")]
ConversationMode = Annotated[str, KnownValues("continuous", "fresh")]
RunStatus = Annotated[
    str, KnownValues("active", "paused", "completed", "failed", "cancelled", "terminated", "unknown")
]
CriterionState = Annotated[str, KnownValues("met", "unmet", "unknown")]
LogLevel = Annotated[str, KnownValues("executions", "visits", "steps")]
NodeLogLevel = Annotated[str, KnownValues("visits", "steps")]
EntryKind = Annotated[str, KnownValues("input", "user", "feedback", "assistant", "tool", "summary")]
CheckpointReason = Annotated[str, KnownValues("node", "pause", "terminate")]


# -- loaded agents ----------------------------------------------------------------------------------


class AgentDetail(ApiModel):
    """An agent, whether it is loaded here, and the sessions of the worker with its name."""

    agent_id: str
    loaded: AgentSlot | None
    """Null: it is not loaded here."""
    sessions: list[AgentRow]


class DiscoveredAgent(ApiModel):
    """An agent in a folder below the roots. Its code was not run."""

    path: str
    """Its folder, for `POST /api/agents`."""
    name: str
    """Its name; the folder's name if only its code defines it."""
    version: str
    description: str
    loaded: bool
    problem: str | None
    """Why it cannot be loaded, if that is known without running its code."""
    inputs: list[str]
    """What its entry points take, from its `agent.json`."""
    credentials: list[str]
    """Environment variables that it needs, from its `agent.json`."""
    missing: list[str]
    """Variables of the agent and its model that the service lacks; `A or B` if either is enough."""


class DiscoveredPage(ApiModel):
    """The agents that can be loaded, by path, and the roots."""

    roots: list[str]
    agents: list[DiscoveredAgent]
    next: str | None


class RunTotals(ApiModel):
    """Totals of runs; cost in dollars."""

    executions: int
    statuses: dict[str, int]
    """Runs by final status."""
    steps: int
    input_tokens: int
    output_tokens: int
    cost: float


class AgentStats(ApiModel):
    """Statistics of a loaded agent."""

    agent_id: str
    loaded_at: float
    uptime_seconds: float
    running: int
    """Active runs."""
    queued: int
    """Queued runs."""
    waiting_for_user: int
    """Nodes that wait for a user."""
    ticks_skipped: int
    """Timer ticks that were skipped because a run was active."""
    sessions: int
    """Sessions of its own graph on disk."""
    totals: RunTotals
    """Totals of the newest 10,000 ended runs of its own graph."""


# -- graphs -----------------------------------------------------------------------------------------


class EntryPoint(ApiModel):
    """An entry point of a graph: a call, a timer, or events that start a run."""

    graph_id: str
    entry_point_id: str
    node_id: str
    trigger_type: TriggerType
    interval_seconds: float | None
    cron: str
    timezone: str
    event_types: list[str]
    isolation_level: IsolationLevel
    conversation_mode: ConversationMode
    max_concurrent: int
    running: int
    queued: int
    ticks_skipped: int


class EntryPointPage(ApiModel):
    """Entry points, by graph and id."""

    entry_points: list[EntryPoint]
    next: str | None


class GraphRow(ApiModel):
    """A graph of a loaded agent."""

    graph_id: str
    primary: bool
    """Whether it is the agent's own graph."""
    active: bool
    """Whether it receives user input."""
    of_service: bool
    """Whether it is the judge or the queen, which belong to the service and can only be read."""
    agent_id: str
    """The worker's name: an added agent is a separate worker; empty: none."""
    description: str
    path: str
    """The folder from which it was loaded; empty: none."""
    nodes: list[str]
    entry_points: list[str]


class GraphPage(ApiModel):
    """The graphs of a loaded agent, by id."""

    active_graph_id: str
    graphs: list[GraphRow]
    next: str | None


class ActiveGraph(ApiModel):
    """The graph that receives user input."""

    graph_id: str


class Edge(ApiModel):
    """An edge between two nodes, and its condition."""

    edge_id: str
    source: str
    target: str
    when: EdgeWhen
    expression: str
    route: str
    priority: int


class NodeRow(ApiModel):
    """A node of a graph."""

    node_id: str
    description: str
    node_type: NodeType
    client_facing: bool
    tools: list[str]
    input_keys: list[str]
    output_keys: list[str]
    running: int
    """Runs that are in this node now."""
    waiting_for_user: int
    """Runs that wait for a user in this node."""


class NodePage(ApiModel):
    """The nodes of a graph, in its order."""

    nodes: list[NodeRow]
    next: str | None


class NodeDetail(NodeRow):
    """A node with all details."""

    graph_id: str
    system_prompt: str
    function: str
    routes: dict[str, str]
    final_tools: list[str]
    nullable_output_keys: list[str]
    model: str
    """Its own model; empty: the graph's."""
    conversation_judge: str
    success_criteria: str
    max_turns: int
    max_retries: int | None
    """Null: as many as the node's guard allows. Ignored if the guard limits visits."""
    max_node_visits: int
    input_schema: dict[str, Any]
    """JSON schema of the input of a run that starts here; a property without a type takes any value."""
    edges_in: list[Edge]
    edges_out: list[Edge]
    entry_points: list[str]
    """Entry points that start at this node."""


class GoalCriterion(ApiModel):
    """A criterion of a goal."""

    id: str
    description: str
    expression: str
    weight: float
    state: CriterionState
    """``unknown`` before a run."""


class NodeCriteria(ApiModel):
    """Success criteria of a node, the judge that decides, and the latest verdicts."""

    graph_id: str
    node_id: str
    judge: str
    """``outputs`` (all are set, or it answered in words), ``llm``, or the name of the agent's own judge."""
    success_criteria: str
    output_keys: list[str]
    nullable_output_keys: list[str]
    max_retries: int | None
    """Null: as many as the node's guard allows. Ignored if the guard limits visits."""
    goal_criteria: list[GoalCriterion]
    """Criteria of the graph's goal that use an output of this node."""
    visits: int
    """Counted visits: running ones, and those of the newest 20 sessions, at most 1000."""
    outcomes: dict[str, int]
    """Visits by outcome; `running` has not ended."""
    verdicts: dict[str, int]
    """Count of each verdict."""


class Progress(ApiModel):
    """Progress of a run towards its goal."""

    goal_id: str
    fraction: float
    """Weight of the met criteria divided by the total weight: 0 to 1."""
    criteria: dict[str, CriterionState]
    violated: list[str]
    """Violated constraints, hard ones first."""
    achieved: bool


class GoalState(ApiModel):
    """A graph's goal, and the progress of its newest run."""

    agent_id: str
    graph_id: str
    goal_id: str | None
    """Null: it has no goal."""
    name: str
    description: str
    criteria: list[GoalCriterion]
    progress: Progress | None
    """Null: no run since the agent was loaded, or no goal."""


# -- execution control ------------------------------------------------------------------------------


class Started(ApiModel):
    """A run that was started or resumed."""

    status: Annotated[str, KnownValues("started", "queued", "resumed", "restored", "replayed")]
    """`queued`: it waits; `get_execution` returns its later state."""
    execution_id: str
    graph_id: str
    entry_point_id: str
    session_id: str | None
    """Null: it is queued, and gets its session when it starts; see `get_execution`."""


class Injected(ApiModel):
    """A node received a user's message; it is durable."""

    status: Annotated[str, KnownValues("injected")]
    node_id: str
    graph_id: str
    session_id: str


class Stopped(ApiModel):
    """Runs that were paused; they can be resumed."""

    status: Annotated[str, KnownValues("stopped")]
    executions: list[str]


class ExecutionRow(ApiModel):
    """A run: its state or its result."""

    execution_id: str
    graph_id: str
    session_id: str | None
    status: Annotated[
        str,
        KnownValues(
            "queued", "active", "paused", "completed", "failed", "cancelled", "terminated", "unknown"
        ),
    ]
    outputs: dict[str, Any]
    error: str
    error_type: str
    path: list[str]
    """Ids of the completed nodes, in order."""
    checkpoint_id: str | None
    """The checkpoint that was saved when it stopped."""


# -- sessions ---------------------------------------------------------------------------------------


class SessionRow(ApiModel):
    """A session on disk. Times are in seconds since the epoch, UTC."""

    session_id: str
    graph_id: str
    entry_point_id: str
    status: RunStatus
    created_at: float
    updated_at: float
    executions: int
    """Entry points that ran in it."""
    error: str
    """Error of its newest run; empty: none."""
    interrupted: bool
    """Whether it is `active`, but its process was killed; `resume_agent` resumes it."""


class SessionPage(ApiModel):
    """Sessions, newest first."""

    sessions: list[SessionRow]
    unreadable: int
    """Sessions that cannot be read; the service's log has the reason."""
    next: str | None


class SessionRun(ApiModel):
    """The newest run of an entry point in a session; cost in dollars."""

    execution_id: str
    graph_id: str
    entry_point_id: str
    status: RunStatus
    started_at: float
    updated_at: float
    ended_at: float | None
    path: list[str]
    """Ids of the completed nodes in order, the newest 200."""
    pending: list[str]
    """Nodes that run, or will run next."""
    visits: dict[str, int]
    outputs: dict[str, Any]
    error: str
    error_type: str
    steps: int
    input_tokens: int
    output_tokens: int
    cost: float
    goal_progress: float | None


class SessionDetail(SessionRow):
    """A session with its memory; secrets in it are masked."""

    memory: dict[str, Any]
    runs: list[SessionRun]


class CheckpointRow(ApiModel):
    """A checkpoint of a run."""

    checkpoint_id: str
    valid: bool
    """Whether a run can be resumed from it."""
    problem: str
    """Why it is invalid; empty if it is valid."""
    created_at: float | None
    execution_id: str | None
    graph_id: str | None
    node_id: str | None
    """The node that had just completed; empty: none."""
    reason: CheckpointReason | None
    pending: list[str]
    """Nodes that would run next."""


class CheckpointPage(ApiModel):
    """Checkpoints of a session, newest first."""

    checkpoints: list[CheckpointRow]
    next: str | None


class ToolUse(ApiModel):
    """A tool call of the model."""

    id: str
    name: str
    arguments: str


class MessageRow(ApiModel):
    """A message of a session; secrets are masked."""

    conversation: str
    """The node of the conversation; consecutive nodes may share one."""
    seq: int
    at: float
    kind: EntryKind
    role: Annotated[str, KnownValues("user", "assistant", "tool")]
    text: str
    """The last 20,000 characters."""
    tool_calls: list[ToolUse]
    tool_call_id: str
    """For a tool result, the id of the call."""


class MessagePage(ApiModel):
    """The newest messages, oldest first; ``next`` leads to earlier ones."""

    messages: list[MessageRow]
    next: str | None


class LogPage(ApiModel):
    """
    Rows of a log, newest first.

    ``executions``: one row per ended run. ``visits``: one row per visit of a node. ``steps``: one row per
    model turn, as in the step log.
    """

    level: LogLevel
    session_id: str | None
    """The session; null: all sessions."""
    rows: list[dict[str, Any]]
    next: str | None
