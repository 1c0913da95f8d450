"""The list of workers, their health and their history."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from queenright import api
from queenright.api import terms
from queenright.health.detection.health_state import HealthState
from queenright.health.monitoring_service import AgentNotFoundError
from queenright.server.routes.dependencies import HealthDep, ServiceDep
from queenright.server.routes.loaded_agents.rows import make_slot_row
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, InvalidCursorError, Limit, build_page, decode_cursor
from queenright.server.routes.params import (
    AgentId,
    AgentQuery,
    SessionQuery,
    allow_word,
    allow_words,
    split_words,
)
from queenright.server.views.fleet_list import FleetQuery, Position, find_sessions
from queenright.server.views.worker_rows import make_agent_health_row, make_agent_row

router = APIRouter(prefix="/api", tags=["health"])

_MAX_HISTORY_SECONDS = 366 * 86_400.0
_LISTED_STATES = ", ".join(terms.list_values(terms.ListedState))
_ACTIVITIES = ", ".join(terms.list_values(terms.Activity))


@router.get("/agents")
async def list_agents(
    service: ServiceDep,
    agent_id: AgentQuery = None,
    state: Annotated[HealthState | None, Query(description="Only workers in this state.")] = None,
    search: Annotated[
        str,
        Query(
            max_length=200,
            description="Only sessions with this text in the name of the agent, the session, the task, the "
            "owner, the repository, the reason or the question; case does not matter.",
        ),
    ] = "",
    health: Annotated[
        str,
        Query(
            description=f"Only these values, separated by commas: {_LISTED_STATES}.",
            examples=["failing,stuck"],
        ),
        allow_words(terms.ListedState),
    ] = "",
    activity: Annotated[
        str,
        Query(
            description=f"Only these values, separated by commas: {_ACTIVITIES}.", examples=["waiting,paused"]
        ),
        allow_words(terms.Activity),
    ] = "",
    owner: Annotated[str, Query(max_length=256, description="Only sessions of this owner.")] = "",
    repository: Annotated[str, Query(max_length=256, description="Only sessions in this repository.")] = "",
    sort: Annotated[
        terms.AgentSort,
        Query(
            description="`attention`: worst health first, then longest time without progress. `agent`: by "
            "name. `activity`: by activity. `progress`: longest time without progress first. `tokens`, "
            "`cost`: lowest first. A leading `-` reverses the order."
        ),
        allow_word(terms.AgentSort),
    ] = "attention",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> api.AgentsPage:
    """
    List sessions of workers with state and vital signs, and count those that match.

    A session whose position changes while pages are read may be listed twice or not at all. Sort by `agent`
    to avoid this.
    """
    sessions = await find_sessions(
        service,
        FleetQuery(
            search=search,
            agent_id=agent_id,
            state=state,
            health=split_words(health),
            activity=split_words(activity),
            owner=owner,
            repository=repository,
            sort=sort,
        ),
        limit=limit + 1,
        after=_decode_cursor(cursor, sort),
    )
    return await build_page(
        api.AgentsPage,
        "agents",
        sessions.page,
        limit,
        row=lambda worker: make_agent_row(service, worker[1]),
        position=lambda key: (sort, *key[0]),
        descending=sort.startswith("-"),
        loaded=[make_slot_row(slot) for slot in service.agents.slots.values()],
        total=sessions.total,
        counts=sessions.counts,
    )


def _decode_cursor(cursor: str | None, sort: str) -> Position | None:
    """Return the position in a cursor. Raises ``InvalidCursorError`` if its list is sorted differently."""
    position = decode_cursor(cursor, "agents", str, float, float, str, str)
    if position is None:
        return None
    if position[0] != sort:
        raise InvalidCursorError(cursor or "", f"agents by {sort}")
    _, first_key, second_key, agent_id, session_id = position
    return first_key, second_key, agent_id, session_id


# Before the route of one worker, because this path is the health of all workers.
@router.get("/agents/health")
async def list_agent_health(
    service: ServiceDep, limit: Limit = 100, cursor: Cursor = None
) -> api.AgentHealthPage:
    """List the health of workers by name, with a row for each session: signals, metrics, circuit breakers."""
    health = service.health
    after = decode_cursor(cursor, "agents", str, str)
    # A worker that is removed while the health of others is computed stays in this page.
    workers = {worker.key: worker for worker in health.workers(limit=limit + 1, after=after)}
    return await build_page(
        api.AgentHealthPage,
        "agents",
        await health.get_all_agent_health(limit=limit + 1, after=after),
        limit,
        row=lambda row: make_agent_health_row(service, workers[row.agent_id, row.session_id], row),
        position=lambda row: (row.agent_id, row.session_id),
    )


@router.get("/agents/{agent_id:agent}/health", **operation(errors=(404,)))
async def get_agent_health(
    service: ServiceDep, agent_id: AgentId, session_id: SessionQuery = None
) -> api.AgentHealth:
    """Return the health of a worker: its state with the signals behind it, metrics and circuit breakers."""
    worker = service.monitor.get(agent_id, session_id)
    if worker is None:
        raise AgentNotFoundError(agent_id, session_id)
    health = service.health.health_of(worker)
    return make_agent_health_row(service, worker, health)


@router.get("/agents/{agent_id:agent}/history")
async def get_agent_history(
    health: HealthDep,
    agent_id: AgentId,
    seconds: Annotated[
        float, Query(gt=0, le=_MAX_HISTORY_SECONDS, allow_inf_nan=False, description="Length of the history.")
    ] = 86_400.0,
    limit: Limit = 1000,
    cursor: Cursor = None,
) -> api.HistoryPage:
    """
    List the history of a worker in the last ``seconds``: states, interventions, recoveries, breakers.

    The page has the newest entries, oldest first; ``next`` leads to earlier ones.
    """
    (before,) = decode_cursor(cursor, "history", int) or (None,)
    events = await health.get_health_history(agent_id, seconds, limit=limit + 1, before=before)
    return await build_page(
        api.HistoryPage,
        "history",
        events[::-1],
        limit,
        row=api.HistoryRow.of,
        position=lambda event: (event.seq,),
        rank=lambda event: (event.time, event.seq),
        descending=True,
        backwards=True,
    )
