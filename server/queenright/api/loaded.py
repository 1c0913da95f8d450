"""Agents that run inside the service: graphs, runs, sessions and logs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict

from queenright.api.agents import AgentRow
from queenright.api.slots import AgentSlot as AgentSlot
from queenright.api.wire import NOW, Wire, Words, example_of, shown

NodeType = Annotated[str, Words("event_loop", "function", "router")]
EdgeWhen = Annotated[str, Words("success", "failure", "always", "expression", "route")]
TriggerType = Annotated[str, Words("manual", "timer", "event")]
IsolationLevel = Annotated[str, Words("isolated", "shared", "per_run")]
ConversationMode = Annotated[str, Words("continuous", "fresh")]
RunStatus = Annotated[
    str, Words("active", "paused", "completed", "failed", "cancelled", "terminated", "unknown")
]
CriterionState = Annotated[str, Words("met", "unmet", "unknown")]
LogLevel = Annotated[str, Words("executions", "visits", "steps")]
NodeLogLevel = Annotated[str, Words("visits", "steps")]
EntryKind = Annotated[str, Words("input", "user", "feedback", "assistant", "tool", "summary")]
CheckpointReason = Annotated[str, Words("node", "pause", "terminate")]

_SESSION = "session_20260101_000000_a30df858"
_RUN = "01jh2q3v7d4m9x5c8k6w0t1e2f"
_CHECKPOINT = "0000000003-5f2c9a"


def _example(**fields: Any) -> ConfigDict:
    return shown(fields)


# -- loaded agents ----------------------------------------------------------------------------------


class AgentDetail(Wire):
    """An agent: what is loaded, if it is loaded here, and the sessions of the worker of this name."""

    agent_id: str
    loaded: AgentSlot | None
    """Null: it is not loaded here."""
    sessions: list[AgentRow]

    model_config = _example(agent_id="docs_checker", loaded=example_of(AgentSlot), sessions=[])


class DiscoveredAgent(Wire):
    """An agent in a folder below the roots. Its code was not run."""

    path: str
    """Its folder, for `POST /api/agents`."""
    name: str
    """Its name; the folder's name if only its code defines it."""
    version: str
    description: str
    loaded: bool
    problem: str | None
    """Why it cannot be loaded, as far as is known without running its code."""

    model_config = _example(
        path="/srv/agents/docs_checker",
        name="docs_checker",
        version="0",
        description="Finds broken links in a folder of Markdown.",
        loaded=False,
        problem=None,
    )


class DiscoveredPage(Wire):
    """The agents that can be loaded, by path, and the roots."""

    roots: list[str]
    agents: list[DiscoveredAgent]
    next: str | None

    model_config = _example(
        roots=["/srv/agents"],
        agents=[
            {
                "path": "/srv/agents/docs_checker",
                "name": "docs_checker",
                "version": "0",
                "description": "Finds broken links in a folder of Markdown.",
                "loaded": False,
                "problem": None,
            }
        ],
        next=None,
    )


class RunTotals(Wire):
    """Totals of runs; cost in dollars."""

    executions: int
    statuses: dict[str, int]
    """Runs by final status."""
    steps: int
    input_tokens: int
    output_tokens: int
    cost: float

    model_config = _example(
        executions=3, statuses={"completed": 3}, steps=21, input_tokens=9000, output_tokens=800, cost=0.04
    )


class AgentStats(Wire):
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

    model_config = _example(
        agent_id="docs_checker",
        loaded_at=NOW,
        uptime_seconds=60.0,
        running=1,
        queued=0,
        waiting_for_user=0,
        ticks_skipped=0,
        sessions=3,
        totals={
            "executions": 2,
            "statuses": {"completed": 2},
            "steps": 14,
            "input_tokens": 6000,
            "output_tokens": 500,
            "cost": 0.03,
        },
    )


# -- graphs -----------------------------------------------------------------------------------------


class EntryPoint(Wire):
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

    model_config = _example(
        graph_id="docs_checker",
        entry_point_id="check",
        node_id="list_pages",
        trigger_type="manual",
        interval_seconds=None,
        cron="",
        timezone="UTC",
        event_types=[],
        isolation_level="per_run",
        conversation_mode="continuous",
        max_concurrent=1,
        running=0,
        queued=0,
        ticks_skipped=0,
    )


class EntryPointPage(Wire):
    """Entry points, by graph and id."""

    entry_points: list[EntryPoint]
    next: str | None

    model_config = _example(entry_points=[], next=None)


class GraphRow(Wire):
    """A graph of a loaded agent."""

    graph_id: str
    primary: bool
    """It is the agent's own graph."""
    active: bool
    """It receives user input."""
    of_service: bool
    """It is the judge or the queen, which belong to the service and can only be read."""
    agent_id: str
    """The worker's name: an added agent is a worker of its own; empty: none."""
    description: str
    path: str
    """The folder from which it was loaded; empty: none."""
    nodes: list[str]
    entry_points: list[str]

    model_config = _example(
        graph_id="docs_checker",
        primary=True,
        active=True,
        of_service=False,
        agent_id="docs_checker",
        description="",
        path="/srv/agents/docs_checker",
        nodes=["list_pages", "write_report"],
        entry_points=["check"],
    )


class GraphPage(Wire):
    """The graphs of a loaded agent, by id."""

    active_graph_id: str
    graphs: list[GraphRow]
    next: str | None

    model_config = _example(active_graph_id="docs_checker", graphs=[], next=None)


class ActiveGraph(Wire):
    """The graph that receives user input."""

    graph_id: str

    model_config = _example(graph_id="docs_checker")


class Edge(Wire):
    """An edge between two nodes, and its condition."""

    edge_id: str
    source: str
    target: str
    when: EdgeWhen
    expression: str
    route: str
    priority: int

    model_config = _example(
        edge_id="list_pages-write_report",
        source="list_pages",
        target="write_report",
        when="success",
        expression="",
        route="",
        priority=0,
    )


_NODE: dict[str, Any] = {
    "node_id": "write_report",
    "description": "",
    "node_type": "event_loop",
    "client_facing": False,
    "tools": ["read_lines", "write_report"],
    "input_keys": ["broken_links"],
    "output_keys": ["report"],
    "running": 1,
    "waiting_for_user": 0,
}


class NodeRow(Wire):
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
    """Those that wait for a user."""

    model_config = _example(**_NODE)


class NodePage(Wire):
    """The nodes of a graph, in its order."""

    nodes: list[NodeRow]
    next: str | None

    model_config = _example(nodes=[_NODE], next=None)


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
    edges_in: list[Edge]
    edges_out: list[Edge]
    entry_points: list[str]
    """Entry points that start at this node."""

    model_config = _example(
        **_NODE,
        graph_id="docs_checker",
        system_prompt="You report on faults in documentation.",
        function="",
        routes={},
        final_tools=[],
        nullable_output_keys=[],
        model="",
        conversation_judge="",
        success_criteria="",
        max_turns=12,
        max_retries=None,
        max_node_visits=1000,
        edges_in=[],
        edges_out=[],
        entry_points=[],
    )


class GoalCriterion(Wire):
    """A criterion of a goal."""

    id: str
    description: str
    expression: str
    weight: float
    state: CriterionState
    """``unknown`` before a run."""

    model_config = _example(
        id="reported", description="There is a report.", expression="report != ''", weight=1.0, state="met"
    )


class NodeCriteria(Wire):
    """What a node must do to end, which judge decides, and the latest verdicts."""

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

    model_config = _example(
        graph_id="docs_checker",
        node_id="write_report",
        judge="outputs",
        success_criteria="",
        output_keys=["report"],
        nullable_output_keys=[],
        max_retries=None,
        goal_criteria=[],
        visits=2,
        outcomes={"done": 2},
        verdicts={"ACCEPT": 2, "CONTINUE": 2},
    )


class Progress(Wire):
    """Progress of a run towards its goal."""

    goal_id: str
    fraction: float
    """Weight of the met criteria divided by the total weight: 0 to 1."""
    criteria: dict[str, CriterionState]
    violated: list[str]
    """Violated constraints, hard ones first."""
    achieved: bool

    model_config = _example(
        goal_id="docs_that_hold", fraction=0.5, criteria={"reported": "met"}, violated=[], achieved=False
    )


class GoalState(Wire):
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

    model_config = _example(
        agent_id="docs_checker",
        graph_id="docs_checker",
        goal_id="docs_that_hold",
        name="",
        description="Every link works.",
        criteria=[],
        progress=None,
    )


# -- execution control ------------------------------------------------------------------------------


class Started(Wire):
    """A run that was started or resumed."""

    status: Annotated[str, Words("started", "queued", "resumed", "restored", "replayed")]
    """`queued`: it waits; `get_execution` returns its later state."""
    execution_id: str
    graph_id: str
    entry_point_id: str
    session_id: str | None
    """Null: it gets its session when it starts; see `get_execution`."""

    model_config = _example(
        status="started",
        execution_id=_RUN,
        graph_id="docs_checker",
        entry_point_id="check",
        session_id=None,
    )


class Injected(Wire):
    """A node received a user's message; it is durable."""

    status: Annotated[str, Words("injected")]
    node_id: str
    graph_id: str
    session_id: str

    model_config = _example(status="injected", node_id="talk", graph_id="helper", session_id=_SESSION)


class Stopped(Wire):
    """Runs that were paused; they can be resumed."""

    status: Annotated[str, Words("stopped")]
    executions: list[str]

    model_config = _example(status="stopped", executions=[_RUN])


class ExecutionRow(Wire):
    """A run: its state or its result."""

    execution_id: str
    graph_id: str
    session_id: str | None
    status: Annotated[
        str, Words("queued", "active", "paused", "completed", "failed", "cancelled", "terminated", "unknown")
    ]
    outputs: dict[str, Any]
    error: str
    error_type: str
    path: list[str]
    """Ids of the completed nodes, in order."""
    checkpoint_id: str | None
    """The checkpoint that was saved when it stopped."""

    model_config = _example(
        execution_id=_RUN,
        graph_id="docs_checker",
        session_id=_SESSION,
        status="completed",
        outputs={"report": "report.md"},
        error="",
        error_type="",
        path=["list_pages", "write_report"],
        checkpoint_id=None,
    )


# -- sessions ---------------------------------------------------------------------------------------


_SESSION_ROW: dict[str, Any] = {
    "session_id": _SESSION,
    "graph_id": "docs_checker",
    "entry_point_id": "check",
    "status": "completed",
    "created_at": NOW,
    "updated_at": NOW + 9,
    "executions": 1,
    "error": "",
    "interrupted": False,
}


class SessionRow(Wire):
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
    """It is `active`, but its process was killed; `resume_agent` resumes it."""

    model_config = _example(**_SESSION_ROW)


class SessionPage(Wire):
    """Sessions, newest first."""

    sessions: list[SessionRow]
    unreadable: int
    """Sessions that cannot be read; the service's log has the reason."""
    next: str | None

    model_config = _example(sessions=[_SESSION_ROW], unreadable=0, next=None)


class SessionRun(Wire):
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

    model_config = _example(
        execution_id=_RUN,
        graph_id="docs_checker",
        entry_point_id="check",
        status="completed",
        started_at=NOW,
        updated_at=NOW + 9,
        ended_at=NOW + 9,
        path=["list_pages", "write_report"],
        pending=[],
        visits={"list_pages": 1, "write_report": 1},
        outputs={"report": "report.md"},
        error="",
        error_type="",
        steps=2,
        input_tokens=900,
        output_tokens=80,
        cost=0.01,
        goal_progress=1.0,
    )


class SessionDetail(SessionRow):
    """A session with its memory; secrets in it are masked."""

    memory: dict[str, Any]
    runs: list[SessionRun]

    model_config = _example(**_SESSION_ROW, memory={"report": "report.md"}, runs=[])


_CHECKPOINT_ROW: dict[str, Any] = {
    "checkpoint_id": _CHECKPOINT,
    "valid": True,
    "problem": "",
    "created_at": NOW + 5,
    "execution_id": _RUN,
    "graph_id": "docs_checker",
    "node_id": "list_pages",
    "reason": "node",
    "pending": ["write_report"],
}


class CheckpointRow(Wire):
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

    model_config = _example(**_CHECKPOINT_ROW)


class CheckpointPage(Wire):
    """Checkpoints of a session, newest first."""

    checkpoints: list[CheckpointRow]
    next: str | None

    model_config = _example(checkpoints=[_CHECKPOINT_ROW], next=None)


class ToolUse(Wire):
    """A tool call of the model."""

    id: str
    name: str
    arguments: str

    model_config = _example(id="call_1", name="read_lines", arguments='{"page": 1}')


_MESSAGE: dict[str, Any] = {
    "conversation": "talk",
    "seq": 2,
    "at": NOW,
    "kind": "user",
    "role": "user",
    "text": "Hello!",
    "tool_calls": [],
    "tool_call_id": "",
}


class MessageRow(Wire):
    """A message of a session; secrets are masked."""

    conversation: str
    """The node of the conversation; consecutive nodes may share one."""
    seq: int
    at: float
    kind: EntryKind
    role: Annotated[str, Words("user", "assistant", "tool")]
    text: str
    """The last 20,000 characters."""
    tool_calls: list[ToolUse]
    tool_call_id: str
    """Of a tool's result: the id of the call."""

    model_config = _example(**_MESSAGE)


class MessagePage(Wire):
    """The newest messages, oldest first; ``next`` leads to earlier ones."""

    messages: list[MessageRow]
    next: str | None

    model_config = _example(messages=[_MESSAGE], next=None)


class LogPage(Wire):
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

    model_config = _example(
        level="visits",
        session_id=_SESSION,
        rows=[{"execution_id": _RUN, "node_id": "write_report", "visit": 1, "outcome": "done"}],
        next=None,
    )
