"""Preconditions of actions: the worker must still be the one that the caller saw."""

from __future__ import annotations

from fastapi import HTTPException

from queenright.health.interventions.target import Target
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.instrumentation.redaction import redact
from queenright.server.routes.params import ExpectedWorker
from queenright.server.service import Service


def require_known_worker(service: Service, agent_id: str, session_id: str) -> WorkerHealth:
    """
    Return a worker of this partition. The gateway uses this to find the partition of a worker.

    Args:
        session_id: The session; "" for the newest session of the agent.

    Raises:
        HTTPException: 404 if the worker is unknown here.
    """
    worker = service.monitor.get(agent_id, session_id or None)
    if worker is None:
        raise HTTPException(404, f"there is no worker {redact(agent_id, 200)!r} in this partition")
    return worker


def require_unchanged_worker(service: Service, expected_worker: ExpectedWorker, target: Target) -> None:
    """
    Refuse an action if the session or the process has changed since the caller saw the worker.

    Args:
        target: The worker that the action is recorded for.

    Raises:
        HTTPException: 409 if it is a different session or process.
    """
    if expected_worker.session_id is not None and expected_worker.session_id != target.session_id:
        raise HTTPException(
            409,
            f"the action is for session {target.session_id!r} of {target.agent_id!r}, "
            f"not {expected_worker.session_id!r}; reload and try again",
        )
    worker = service.monitor.find(*target.key)
    current = target.incarnation_id if worker is None else worker.vitals.incarnation_id
    if expected_worker.incarnation_id is not None and expected_worker.incarnation_id != current:
        raise HTTPException(
            409,
            f"{target.agent_id!r} was restarted in the meantime (incarnation {current!r}, not "
            f"{expected_worker.incarnation_id!r}); reload and try again",
        )


def require_unchanged_run(
    service: Service, agent_id: str, session_id: str | None, incarnation_id: str | None
) -> None:
    """Refuse an action on a run of a loaded agent like ``require_unchanged_worker``."""
    worker = service.monitor.get(agent_id, session_id)
    if worker is not None:
        require_unchanged_worker(
            service, ExpectedWorker(incarnation_id=incarnation_id), Target.of(worker.vitals)
        )


async def require_unchanged_ticket(service: Service, expected_worker: ExpectedWorker, ticket_id: str) -> None:
    """Refuse an action on a ticket like ``require_unchanged_worker``. The action handles unknown tickets."""
    if expected_worker.session_id is None and expected_worker.incarnation_id is None:
        return
    ticket = await service.tickets.find(ticket_id)
    if ticket is not None:
        target = Target(
            agent_id=ticket.agent_id,
            session_id=ticket.session_id,
            incarnation_id=ticket.incarnation_id,
        )
        require_unchanged_worker(service, expected_worker, target)
