"""The timeline of a session, its replay with other thresholds, and its recording."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Query, Response
from pydantic import Field

from queenright import api
from queenright.health.detection.evaluation_thresholds import replace_thresholds
from queenright.health.detection.session_replay import REPLAYED_EVENTS
from queenright.health.monitoring_service import AgentNotFoundError
from queenright.health.store.former_names import find_current_name
from queenright.health.store.session_log import latest_session, read_session
from queenright.judge.evaluation import recorded_run
from queenright.runtime.events import AgentEvent
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Limit
from queenright.server.routes.params import AgentId, Body, SessionQuery
from queenright.server.service import Service
from queenright.server.views.session_evaluation import evaluate_session
from queenright.server.views.session_steps import add_open_work_to_page, read_starts, read_steps

router = APIRouter(prefix="/api", tags=["health"])

MAX_REPLAYED: Final = 5000
"""Maximum events of a session that are replayed for one request."""
MAX_RECORDED: Final = 20_000
"""Maximum events in one recording."""
_STEP_NOT_FOUND: Final = "There is no such worker, session or step."
_SESSION_NOT_FOUND: Final = "There is no such worker or session, or its events exceeded the retention time."
_REPLAY_EXECUTOR: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="replay")
"""Runs one replay at a time, because a replay uses the CPU that the event loop needs."""
_EXAMPLE: Final = {
    "kind": "event",
    "type": "step_completed",
    "t": 1769248740.0,
    "incarnation_id": "i1",
    "node_id": "",
    "data": {"index": 0},
}
_RECORDING_CONTENT: Final[dict[str, Any]] = {
    "application/x-ndjson": {
        "schema": {"type": "object", "description": "A recorded run; `docs/detection.md` has the format."},
        "example": {"dataset": "researcher", "run_id": "s1", "until": 1769248800.0, "steps": [_EXAMPLE]},
    }
}
_UNSAFE_FILENAME_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]+")


class SessionReplay(Body):
    """The session to replay, and the changed thresholds."""

    session_id: Annotated[
        str | None, Field(max_length=256, description="The worker's session; by default the newest.")
    ] = None
    settings: Annotated[
        dict[str, Annotated[float, Field(allow_inf_nan=False)]],
        Field(
            max_length=100,
            description="Thresholds by name, as in `settings` of the response; by default those in force.",
            examples=[{"health_monitoring.loops.repeats": 6}],
        ),
    ] = Field(default_factory=dict)


@router.get("/agents/{agent_id:agent}/steps", **operation(errors={404: _STEP_NOT_FOUND}))
async def list_session_steps(
    service: ServiceDep,
    agent_id: AgentId,
    session_id: SessionQuery = None,
    after: Annotated[
        str | None,
        Query(max_length=256, description="Only steps that ended after this position: `last` of a page."),
    ] = None,
    before: Annotated[
        str | None,
        Query(max_length=256, description="Only steps that ended before this position: `first` of a page."),
    ] = None,
    limit: Limit = 200,
) -> api.Steps:
    """
    List the timeline of a worker's session: turns, tool calls, waits, findings and tickets.

    By default, these are the newest steps, in order. `open` has work in progress, with the time at which it
    stalls.
    """
    session = await find_session(service, agent_id, session_id)
    steps, starts = await service.store.read(
        lambda conn: (
            read_steps(conn, agent_id, session, after=after, before=before, limit=limit),
            read_starts(conn, agent_id, session),
        )
    )
    worker = service.monitor.get(agent_id, session)
    if worker is None:
        if not steps.items and after is None and before is None:
            raise AgentNotFoundError(agent_id, session_id)
        return steps
    return add_open_work_to_page(steps, worker, service.monitor.settings, starts)


async def find_session(service: Service, agent_id: str, session_id: str | None) -> str:
    """
    Return the session of a request; by default the worker's newest.

    Raises:
        AgentNotFoundError: The worker is unknown, or has another name now.
    """
    worker = service.monitor.get(agent_id, session_id)
    if worker is not None:
        return worker.vitals.session_id
    session, current_name = await service.store.read(
        lambda conn: (
            session_id or latest_session(conn, agent_id),
            find_current_name(conn, agent_id, session_id),
        )
    )
    if session is None or current_name is not None:
        raise AgentNotFoundError(agent_id, session_id)
    return session


@router.post("/agents/{agent_id:agent}/evaluation", **operation(errors={404: _SESSION_NOT_FOUND}))
async def evaluate_agent_session(
    service: ServiceDep, agent_id: AgentId, body: SessionReplay
) -> api.Evaluation:
    """
    Replay a session through the detectors with other thresholds. Return their values and the findings.

    A replay stores nothing, and its findings have no effect.
    """
    in_force = service.monitor.settings
    settings = replace_thresholds(in_force, body.settings)
    session = await find_session(service, agent_id, body.session_id)
    events, until = await _read_session_events(service, agent_id, session, MAX_REPLAYED + 1)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(
        _REPLAY_EXECUTOR,
        lambda: evaluate_session(
            events[-MAX_REPLAYED:],
            settings,
            session_id=session,
            until=until,
            is_truncated=len(events) > MAX_REPLAYED,
        ),
    )


@router.get(
    "/agents/{agent_id:agent}/recording",
    response_class=Response,
    **operation(
        errors={404: _SESSION_NOT_FOUND},
        description="One line of JSON: a recorded run.",
        content=_RECORDING_CONTENT,
    ),
)
async def get_session_recording(
    service: ServiceDep, agent_id: AgentId, session_id: SessionQuery = None
) -> Response:
    """
    Return a session as a file that `queenright evaluate` reads.

    It has the events that the worker reported, without the content of calls. Of a long session, it has the
    newest events.
    """
    session = await find_session(service, agent_id, session_id)
    events, until = await _read_session_events(service, agent_id, session, MAX_RECORDED)
    run = recorded_run(events, agent_id=agent_id, session_id=session, until=until)
    line = await asyncio.to_thread(orjson.dumps, run, option=orjson.OPT_APPEND_NEWLINE)
    name = _UNSAFE_FILENAME_CHARACTERS.sub("-", f"{agent_id}-{session}")[:150]
    return Response(
        line,
        media_type="application/x-ndjson",
        headers={"Content-Disposition": f'attachment; filename="{name}.jsonl"'},
    )


async def _read_session_events(
    service: Service, agent_id: str, session_id: str, limit: int
) -> tuple[list[AgentEvent], float]:
    """
    Return the newest events of a session for a replay, and the end of its monitoring, in epoch seconds.

    Raises:
        AgentNotFoundError: The log has no events of the session.
    """
    logged_events = await service.store.read(
        lambda conn: read_session(conn, agent_id, session_id, types=REPLAYED_EVENTS, limit=limit)
    )
    if not logged_events:
        raise AgentNotFoundError(agent_id, session_id)
    events = [event for _, event in logged_events]
    worker = service.monitor.get(agent_id, session_id)
    if worker is None:
        return events, events[-1].time
    return events, worker.vitals.ended_at or service.clock()
