"""Record operators' actions on loaded agents in the event log."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import Depends, Request

from queenright.api.loaded_agents import Injected, Started
from queenright.health.store.store import StoreError
from queenright.instrumentation.redaction import redact
from queenright.server.access.caller import DEFAULT_NAME, get_person_name
from queenright.server.agents.operations import Action, make_operation_event
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.service import Service

_log = logging.getLogger(__name__)


class OperatorLog:
    """
    Records the actions of one request.

    Args:
        service: Runs the agents.
        request: The request; its token identifies the operator.
    """

    def __init__(self, service: Service, request: Request) -> None:
        self._service = service
        self._request = request

    async def write(
        self,
        action: Action,
        agent_id: str,
        *,
        by: str = DEFAULT_NAME,
        graph_id: str = "",
        session_id: str | None = None,
        execution_id: str = "",
        detail: str = "",
    ) -> None:
        """
        Record a completed action on an agent.

        If the event log cannot be written, the failure is logged, and the action is not undone.

        Args:
            action: The action.
            agent_id: The agent.
            by: The name that the caller gave.
            graph_id: The graph, if the action is on one.
            session_id: The session, if it is known.
            execution_id: The run that was started or resumed.
            detail: Details, such as a folder, a checkpoint, or the runs that were stopped.
        """
        event = make_operation_event(
            action,
            agent_id,
            at=self._service.clock(),
            by=get_person_name(self._request, by),
            graph_id=graph_id,
            session_id=session_id,
            execution_id=execution_id,
            detail=detail,
        )
        name = event.data["by"]
        _log.info("agent %r: %s by %s", redact(agent_id, 200), action, name)
        try:
            await self._service.bus.publish(event)
        except StoreError as error:
            _log.error(
                "cannot record in the event log that %s performed %s on agent %r: %s",
                name,
                action,
                redact(agent_id, 200),
                redact(str(error)),
            )

    async def write_result(
        self, action: Action, agent_id: str, result: Started | Injected, detail: str
    ) -> None:
        """Record an action that started a run or sent input to one."""
        await self.write(
            action,
            agent_id,
            graph_id=result.graph_id,
            session_id=result.session_id,
            execution_id=result.execution_id if isinstance(result, Started) else "",
            detail=detail,
        )


async def get_operator_log(service: ServiceDep, request: Request) -> OperatorLog:
    """Return the log of the operator who sent the request."""
    return OperatorLog(service, request)


OperatorLogDep = Annotated[OperatorLog, Depends(get_operator_log)]
