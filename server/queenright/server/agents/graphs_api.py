"""The graphs of loaded agents over HTTP: what they are made of, and which of them a user talks with."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import Field

from queenright.api import loaded as api
from queenright.instrumentation.redaction import redact
from queenright.runtime.graphs.graph import GraphSpec, NodeSpec
from queenright.runtime.storage.runtime_logger import RuntimeLogger
from queenright.server.access.caller import who
from queenright.server.agents.manager import AgentSlot
from queenright.server.agents.operator_log import log_operator_action
from queenright.server.agents.requests import GraphId, NodeId, goal_of, graph_of, node_of, on_disk, seen_in
from queenright.server.agents.rows import graph_row, node_detail, node_row, streams_of
from queenright.server.routes.openapi import operation, to
from queenright.server.routes.pagination import Cursor, Limit, page, place_of
from queenright.server.routes.params import AgentId, Body, By
from queenright.server.service import Service

_log = logging.getLogger(__name__)

_SESSIONS: Final = 20
_VISITS: Final = 1000


class AddGraph(Body):
    """Which agent is to run beside the loaded one. Its code runs inside the service."""

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
            description="What the graph is called here; the agent's own name without.",
        ),
    ] = None
    model: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    by: By = "operator"


class Switch(Body):
    """Which graph is to receive what a user says."""

    graph_id: Annotated[str, Field(min_length=1, max_length=200, examples=["docs_checker"])]


def graph_routes(service: Service) -> APIRouter:
    """Return the routes; the longest first, as an agent's name may hold anything."""
    router = APIRouter()
    _nodes(router, service)
    _graphs(router, service)
    return router


def _nodes(router: APIRouter, service: Service) -> None:
    agents = service.agents

    @router.get(
        "/api/agents/{agent_id:agent}/graphs/{graph_id}/nodes/{node_id}/criteria",
        **operation("get_node_criteria", api.NodeCriteria, errors=(404, 409)),
    )
    async def criteria(agent_id: AgentId, graph_id: GraphId, node_id: NodeId) -> api.NodeCriteria:
        """What a node must do to end, who judges that, and how it was judged lately."""
        slot = seen_in(service, agents.get(agent_id), graph_id)
        node = node_of(graph_of(slot, graph_id), node_id)
        ended = await on_disk(slot.runtime, lambda: _visits(slot, graph_id, node_id))
        return _criteria(slot, graph_id, node, _running_visits(slot, graph_id, node_id) + ended)

    @router.get(
        "/api/agents/{agent_id:agent}/graphs/{graph_id}/nodes/{node_id}",
        **operation("get_node", api.NodeDetail, errors=(404,)),
    )
    async def node(agent_id: AgentId, graph_id: GraphId, node_id: NodeId) -> api.NodeDetail:
        """One node: what it is told, what it may use, where it goes on."""
        slot = seen_in(service, agents.get(agent_id), graph_id)
        graph = graph_of(slot, graph_id)
        return node_detail(slot, graph, node_of(graph, node_id))

    @router.get(
        "/api/agents/{agent_id:agent}/graphs/{graph_id}/nodes",
        **operation(
            "list_nodes",
            api.NodePage,
            errors=(404,),
            links={
                name: to(name, agent_id="path.agent_id", graph_id="path.graph_id", node_id="nodes/0/node_id")
                for name in ("get_node", "get_node_criteria", "list_node_logs")
            },
        ),
    )
    async def nodes(
        agent_id: AgentId, graph_id: GraphId, limit: Limit = 100, cursor: Cursor = None
    ) -> api.NodePage:
        """The nodes of a graph, in its order."""
        slot = seen_in(service, agents.get(agent_id), graph_id)
        graph = graph_of(slot, graph_id)
        # A graph never changes while it is loaded, so that a place in it stays one.
        (after,) = place_of(cursor, "nodes", int) or (0,)
        found = list(enumerate(graph.nodes, start=1))[max(after, 0) :]
        return await page(
            api.NodePage,
            "nodes",
            found,
            limit,
            row=lambda one: node_row(slot, graph, one[1]),
            place=lambda one: (one[0],),
        )


def _graphs(router: APIRouter, service: Service) -> None:
    agents = service.agents

    @router.get(
        "/api/agents/{agent_id:agent}/graphs",
        **operation(
            "list_graphs",
            api.GraphPage,
            errors=(404,),
            links={
                name: to(name, agent_id="path.agent_id", graph_id="graphs/0/graph_id")
                for name in ("list_nodes", "list_graph_sessions")
            },
        ),
    )
    async def graphs(agent_id: AgentId, limit: Limit = 100, cursor: Cursor = None) -> api.GraphPage:
        """The graphs of a loaded agent, by id: its own, those beside it, and judge and queen."""
        slot = agents.get(agent_id)
        (after,) = place_of(cursor, "graphs", str) or ("",)
        return await page(
            api.GraphPage,
            "graphs",
            [
                one
                for one in sorted({*slot.runtime.list_graphs(), *service.runtime.list_graphs()})
                if one > after
            ],
            limit,
            row=lambda one: graph_row(seen_in(service, slot, one), one),
            place=lambda one: (one,),
            active_graph_id=slot.runtime.active_graph_id,
        )

    @router.post(
        "/api/agents/{agent_id:agent}/graphs",
        **operation(
            "add_graph",
            api.GraphRow,
            status=201,
            errors={
                404: "The agent is not loaded here.",
                409: "It has a graph of this id already.",
                422: "There is no such agent below the roots, or it cannot work; every reason is named.",
                503: "Its code does not come to an end.",
            },
            links={
                name: to(name, agent_id="path.agent_id", graph_id="graph_id")
                for name in ("list_nodes", "list_graph_sessions", "remove_graph")
            },
        ),
    )
    async def add(agent_id: AgentId, body: AddGraph, request: Request, response: Response) -> api.GraphRow:
        """Load another agent as one more graph of this one: on its bus, with sessions of its own."""
        name = await agents.add_graph(agent_id, body.path, graph_id=body.graph_id, model=body.model)
        await log_operator_action(
            service, request, "add_graph", agent_id, by=body.by, graph_id=name, detail=body.path
        )
        _log.info("graph %r was added to %r by %s", name, agent_id, redact(who(request, body.by), 200))
        response.headers["Location"] = f"/api/agents/{agent_id}/graphs/{name}"
        return graph_row(agents.get(agent_id), name)

    @router.delete(
        "/api/agents/{agent_id:agent}/graphs/{graph_id}",
        **operation(
            "remove_graph",
            None,
            status=204,
            errors={404: "There is none of this id.", 409: "It is the agent's own graph, which stays."},
            description="It is unloaded.",
        ),
    )
    async def remove(request: Request, agent_id: AgentId, graph_id: GraphId) -> Response:
        """Unload a graph that runs beside an agent's own: its runs are paused, its sessions stay on disk."""
        graph_of(agents.get(agent_id), graph_id)
        await agents.remove_graph(agent_id, graph_id)
        await log_operator_action(service, request, "remove_graph", agent_id, graph_id=graph_id)
        return Response(status_code=204)

    @router.get(
        "/api/agents/{agent_id:agent}/active-graph",
        **operation("get_active_graph", api.ActiveGraph, errors=(404,)),
    )
    async def active(agent_id: AgentId) -> api.ActiveGraph:
        """The graph that receives what a user says."""
        return api.ActiveGraph(graph_id=agents.get(agent_id).runtime.active_graph_id)

    @router.put(
        "/api/agents/{agent_id:agent}/active-graph",
        **operation("set_active_graph", api.ActiveGraph, errors=(404,)),
    )
    async def switch(request: Request, agent_id: AgentId, body: Switch) -> api.ActiveGraph:
        """Let what a user says go to another graph."""
        slot = agents.get(agent_id)
        slot.runtime.active_graph_id = graph_of(slot, body.graph_id).id
        await log_operator_action(
            service, request, "switch_graph", agent_id, graph_id=slot.runtime.active_graph_id
        )
        return api.ActiveGraph(graph_id=slot.runtime.active_graph_id)


# -- criteria ---------------------------------------------------------------------------------------


def _visits(slot: AgentSlot, graph_id: str, node_id: str) -> list[dict[str, Any]]:
    """Return the newest visits of a node, of the newest sessions. Blocks."""
    store = slot.runtime.session_store(graph_id)
    found: list[dict[str, Any]] = []
    for state in islice(store.list_sessions(), _SESSIONS):
        logger = RuntimeLogger(store.open(state.session_id), store.base / "runtime_logs")
        found += reversed(logger.details(node_id, _VISITS - len(found)))
        if len(found) >= _VISITS:
            break
    return found


def _running_visits(slot: AgentSlot, graph_id: str, node_id: str) -> list[dict[str, Any]]:
    """Return the visits of a node that go on, as those are logged that ended."""
    return [
        {"outcome": "running", "verdicts": dict(Counter(node.cursor.verdicts))}
        for _, stream in streams_of(slot, graph_id)
        for _, name, node in stream.nodes()
        if name == node_id
    ]


def _criteria(
    slot: AgentSlot, graph_id: str, node: NodeSpec, visits: list[dict[str, Any]]
) -> api.NodeCriteria:
    verdicts: Counter[str] = Counter()
    for row in visits:
        given = row.get("verdicts")
        for verdict, count in given.items() if isinstance(given, dict) else ():
            verdicts[str(verdict)] += count if isinstance(count, int) else 0
    return api.NodeCriteria(
        graph_id=graph_id,
        node_id=node.id,
        judge=node.conversation_judge or "outputs",
        success_criteria=node.success_criteria,
        output_keys=list(node.output_keys),
        nullable_output_keys=list(node.nullable_output_keys),
        max_retries=node.max_retries,
        goal_criteria=[
            one
            for one in goal_criteria(slot, graph_id)
            if any(_speaks_of(one.expression, key) for key in node.output_keys)
        ],
        visits=len(visits),
        outcomes=dict(Counter(str(row.get("outcome")) for row in visits)),
        verdicts=dict(verdicts),
    )


def _speaks_of(expression: str, key: str) -> bool:
    words = "".join(c if c.isalnum() or c == "_" else " " for c in expression).split()
    return key in words


def goal_criteria(slot: AgentSlot, graph_id: str) -> list[api.GoalCriterion]:
    """Return what a graph's goal asks for, with how that stands in its newest run."""
    goal = goal_of(slot, graph_id)
    if goal is None:
        return []
    progress = slot.runtime.get_goal_progress(graph_id)
    states = {} if progress is None else progress.criteria
    return [
        api.GoalCriterion(
            id=one.id,
            description=one.description,
            expression=one.expression,
            weight=one.weight,
            state=states.get(one.id, "unknown"),
        )
        for one in goal.success_criteria
    ]


def goal_state(slot: AgentSlot, graph: GraphSpec) -> api.GoalState:
    """Return a graph's goal, and how far its newest run has come."""
    goal, progress = goal_of(slot, graph.id), slot.runtime.get_goal_progress(graph.id)
    return api.GoalState(
        agent_id=slot.id,
        graph_id=graph.id,
        goal_id=None if goal is None else goal.id,
        name="" if goal is None else goal.name,
        description="" if goal is None else goal.description,
        criteria=goal_criteria(slot, graph.id),
        progress=None
        if progress is None
        else api.Progress(
            goal_id=progress.goal_id,
            fraction=progress.fraction,
            criteria=dict(progress.criteria),
            violated=list(progress.violated),
            achieved=progress.achieved,
        ),
    )
