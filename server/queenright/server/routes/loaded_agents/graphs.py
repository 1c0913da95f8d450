"""Routes for graphs of loaded agents: nodes, goals, and the graph that receives user input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Response
from pydantic import Field

from queenright.api import loaded_agents as api
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.storage.runtime_logger import RuntimeLogger
from queenright.server.agents.manager import AgentSlot
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.loaded_agents.operator_log import OperatorLogDep
from queenright.server.routes.loaded_agents.requests import (
    PREFIX,
    TAG,
    GraphId,
    GraphQuery,
    NodeDep,
    ReadableGraphDep,
    ReadableSlotDep,
    SlotDep,
    find_goal,
    find_graph,
    run_on_disk,
    select_runtime,
)
from queenright.server.routes.loaded_agents.rows import (
    iter_streams,
    make_graph_row,
    make_node_detail,
    make_node_row,
)
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, Limit, build_page, decode_cursor
from queenright.server.routes.params import AgentId, Body, By

# The longest paths come first, because an agent's name may contain slashes.
router = APIRouter(prefix=PREFIX, tags=[TAG])

_MAX_SESSIONS: Final = 20
_MAX_VISITS: Final = 1000


class AddGraph(Body):
    """The agent to load as a further graph. Its code runs inside the service."""

    path: Annotated[
        str,
        Field(
            min_length=1,
            max_length=4096,
            description="The agent's folder, below one of `agents.roots`.",
            examples=["log_digest"],
        ),
    ]
    graph_id: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$",
            description="The id of the graph; by default the agent's name.",
        ),
    ] = None
    model: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    by: By = "operator"


class SwitchGraph(Body):
    """The graph that will receive user input."""

    graph_id: Annotated[str, Field(min_length=1, max_length=200, examples=["docs_checker"])]


@dataclass(frozen=True, slots=True)
class _Visit:
    """A visit of a node: its outcome, or ``running``, and the number of each verdict."""

    outcome: str
    verdicts: Counter[str]


@router.get("/graphs/{graph_id}/nodes/{node_id}/criteria", **operation(errors=(404, 409)))
async def get_node_criteria(
    slot: ReadableSlotDep, graph: ReadableGraphDep, node: NodeDep
) -> api.NodeCriteria:
    """Return the criteria for a node to end, the judge that decides, and the latest verdicts."""
    ended_visits = await run_on_disk(slot.runtime, lambda: _read_visits(slot, graph.id, node.id))
    return _list_criteria(slot, graph.id, node, _list_running_visits(slot, graph.id, node.id) + ended_visits)


@router.get("/graphs/{graph_id}/nodes/{node_id}", **operation(errors=(404,)))
async def get_node(slot: ReadableSlotDep, graph: ReadableGraphDep, node: NodeDep) -> api.NodeDetail:
    """Return a node: its prompt, its tools, and its edges."""
    return make_node_detail(slot, graph, node)


@router.get("/graphs/{graph_id}/nodes", **operation(errors=(404,)))
async def list_nodes(
    slot: ReadableSlotDep, graph: ReadableGraphDep, limit: Limit = 100, cursor: Cursor = None
) -> api.NodePage:
    """List the nodes of a graph, in the graph's order."""
    # A graph does not change while it is loaded, so a position stays valid.
    (after,) = decode_cursor(cursor, "nodes", int) or (0,)
    return await build_page(
        api.NodePage,
        "nodes",
        list(enumerate(graph.nodes, start=1))[max(after, 0) :],
        limit,
        row=lambda node: make_node_row(slot, graph, node[1]),
        position=lambda node: (node[0],),
    )


@router.get("/graphs", **operation(errors=(404,)))
async def list_graphs(
    service: ServiceDep, slot: SlotDep, limit: Limit = 100, cursor: Cursor = None
) -> api.GraphPage:
    """List the graphs of a loaded agent by id: its own, added graphs, and those of the judge and queen."""
    (after,) = decode_cursor(cursor, "graphs", str) or ("",)
    graph_ids = sorted({*slot.runtime.list_graphs(), *service.runtime.list_graphs()})
    return await build_page(
        api.GraphPage,
        "graphs",
        [name for name in graph_ids if name > after],
        limit,
        row=lambda name: make_graph_row(select_runtime(name, slot, service.runtime), name),
        position=lambda name: (name,),
        active_graph_id=slot.runtime.active_graph_id,
    )


@router.post(
    "/graphs",
    **operation(
        status=201,
        errors={
            404: "The agent is not loaded here.",
            409: "It has a graph of this id already.",
            422: "There is no such agent below the roots, or it is invalid; `title` has every reason.",
            503: "Loading the agent timed out.",
        },
    ),
)
async def add_graph(
    service: ServiceDep, log: OperatorLogDep, agent_id: AgentId, body: AddGraph, response: Response
) -> api.GraphRow:
    """Load another agent as an additional graph of this one. It shares the bus, but has separate sessions."""
    agents = service.agents
    graph_id = await agents.add_graph(agent_id, body.path, graph_id=body.graph_id, model=body.model)
    await log.write("add_graph", agent_id, by=body.by, graph_id=graph_id, detail=body.path)
    response.headers["Location"] = f"/api/agents/{agent_id}/graphs/{graph_id}"
    return make_graph_row(agents.get(agent_id), graph_id)


@router.delete(
    "/graphs/{graph_id}",
    **operation(
        status=204,
        errors={
            404: "There is no graph with this id.",
            409: "It is the agent's own graph, which cannot be removed.",
        },
        description="The graph is unloaded.",
    ),
)
async def remove_graph(service: ServiceDep, log: OperatorLogDep, slot: SlotDep, graph_id: GraphId) -> None:
    """Unload an added graph. Its runs are paused; its sessions stay on disk."""
    find_graph(slot, graph_id)
    await service.agents.remove_graph(slot.id, graph_id)
    await log.write("remove_graph", slot.id, graph_id=graph_id)


@router.get("/active-graph", **operation(errors=(404,)))
async def get_active_graph(slot: SlotDep) -> api.ActiveGraph:
    """Return the graph that receives user input."""
    return api.ActiveGraph(graph_id=slot.runtime.active_graph_id)


@router.put("/active-graph", **operation(errors=(404,)))
async def set_active_graph(log: OperatorLogDep, slot: SlotDep, body: SwitchGraph) -> api.ActiveGraph:
    """Send user input to another graph."""
    graph_id = slot.runtime.active_graph_id = find_graph(slot, body.graph_id).id
    await log.write("switch_graph", slot.id, graph_id=graph_id)
    return api.ActiveGraph(graph_id=graph_id)


@router.get("/goal-progress", **operation(errors=(404,)))
async def get_goal_progress(slot: SlotDep, graph_id: GraphQuery = None) -> api.GoalState:
    """Return the goal of a graph, by default the active one, and the progress of its newest run."""
    graph = find_graph(slot, graph_id)
    goal, progress = find_goal(slot, graph.id), slot.runtime.get_goal_progress(graph.id)
    return api.GoalState(
        agent_id=slot.id,
        graph_id=graph.id,
        goal_id=None if goal is None else goal.id,
        name="" if goal is None else goal.name,
        description="" if goal is None else goal.description,
        criteria=_list_goal_criteria(slot, graph.id),
        progress=None if progress is None else api.Progress.of(progress),
    )


# -- criteria ---------------------------------------------------------------------------------------


def _read_visits(slot: AgentSlot, graph_id: str, node_id: str) -> list[_Visit]:
    """Return the newest visits of a node, from the newest sessions. Blocks."""
    store = slot.runtime.session_store(graph_id)
    visits: list[_Visit] = []
    for state in islice(store.list_sessions(), _MAX_SESSIONS):
        logger = RuntimeLogger(store.open(state.session_id), store.base / "runtime_logs")
        visits += map(_read_visit, reversed(logger.read_visits(node_id, _MAX_VISITS - len(visits))))
        if len(visits) >= _MAX_VISITS:
            break
    return visits


def _read_visit(row: Mapping[str, Any]) -> _Visit:
    """Convert a logged row to a visit. Invalid fields are omitted."""
    counts = row.get("verdicts")
    verdicts = counts.items() if isinstance(counts, dict) else ()
    return _Visit(
        outcome=str(row.get("outcome")),
        verdicts=Counter({str(verdict): count for verdict, count in verdicts if isinstance(count, int)}),
    )


def _list_running_visits(slot: AgentSlot, graph_id: str, node_id: str) -> list[_Visit]:
    """Return the running visits of a node."""
    return [
        _Visit("running", Counter(node.cursor.verdicts))
        for _, stream in iter_streams(slot, graph_id)
        for _, name, node in stream.nodes()
        if name == node_id
    ]


def _list_criteria(
    slot: AgentSlot, graph_id: str, node: NodeSpec, visits: Sequence[_Visit]
) -> api.NodeCriteria:
    verdicts: Counter[str] = Counter()
    for visit in visits:
        verdicts.update(visit.verdicts)
    return api.NodeCriteria(
        graph_id=graph_id,
        node_id=node.id,
        judge=node.conversation_judge or "outputs",
        success_criteria=node.success_criteria,
        output_keys=list(node.output_keys),
        nullable_output_keys=list(node.nullable_output_keys),
        max_retries=node.max_retries,
        goal_criteria=[
            criterion
            for criterion in _list_goal_criteria(slot, graph_id)
            if any(_is_name_used(criterion.expression, key) for key in node.output_keys)
        ],
        visits=len(visits),
        outcomes=dict(Counter(visit.outcome for visit in visits)),
        verdicts=dict(verdicts),
    )


def _is_name_used(expression: str, name: str) -> bool:
    words = "".join(
        character if character.isalnum() or character == "_" else " " for character in expression
    ).split()
    return name in words


def _list_goal_criteria(slot: AgentSlot, graph_id: str) -> list[api.GoalCriterion]:
    """Return the criteria of a graph's goal, with their state in its newest run."""
    goal = find_goal(slot, graph_id)
    if goal is None:
        return []
    progress = slot.runtime.get_goal_progress(graph_id)
    states = {} if progress is None else progress.criteria
    return [
        api.GoalCriterion.of(criterion, state=states.get(criterion.id, "unknown"))
        for criterion in goal.success_criteria
    ]
