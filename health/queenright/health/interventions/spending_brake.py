"""The spending brake: acts on workers that have reached a spending limit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from queenright.health.detection.spending import find_reached_limits
from queenright.health.findings import WorkerKey
from queenright.health.interventions.approvals import Approvals
from queenright.health.interventions.intervention import InterventionOutcome
from queenright.health.interventions.intervention_service import AgentNotFoundError, InterventionService
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.store.store import StoreError
from queenright.health.tickets.ticket import EscalationTicket
from queenright.runtime.deadline import TaskSet

_log = logging.getLogger(__name__)

BY: Final = "spending limit"
_RETRY_SECONDS: Final = 600.0
"""The seconds until a failed brake is retried if the worker continues to spend."""
_SUCCESSES: Final = frozenset(
    {InterventionOutcome.DONE, InterventionOutcome.QUEUED, InterventionOutcome.DRY_RUN}
)
_NUDGE: Final = (
    "A spending limit is reached: {reached}. Save what you have, say what remains to be done, and stop, "
    "unless your user tells you to continue."
)


class SpendingBrake:
    """
    Applies the brake once per worker and limit, when the worker spends money.

    If an operator denies the termination and the worker continues to spend, the operator is asked again after
    half an hour. Brakes are not persisted, so a nudge may be repeated after a restart.

    Args:
        monitor: The known workers and their spending.
        interventions: Nudges or terminates a worker.
        find_open_ticket: Returns the worker's open ticket, which shows the request for approval, or None.
    """

    def __init__(
        self,
        settings: HealthSettings,
        *,
        monitor: HealthMonitor,
        interventions: InterventionService,
        approvals: Approvals,
        find_open_ticket: Callable[[str, str], EscalationTicket | None],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._monitor = monitor
        self._interventions = interventions
        self._approvals = approvals
        self._find_open_ticket = find_open_ticket
        self._clock = clock
        self._brakes: dict[WorkerKey, set[str]] = {}
        self._not_before: dict[WorkerKey, float] = {}
        self._tasks = TaskSet()

    def brake_if_limit_reached(self, agent_id: str, session_id: str) -> None:
        """Brake a worker that has just spent money or got a ticket, if it has reached a limit."""
        spending = self._settings.spending
        if spending.brake == "none" or not spending.is_on:
            return
        key, now = (agent_id, session_id), self._clock()
        worker = self._monitor.get(*key)
        if worker is None or worker.vitals.has_ended or now < self._not_before.get(key, 0.0):
            return
        limits_now = find_reached_limits(worker.vitals, self._settings, now)
        new_limits = limits_now.keys() - self._brakes.get(key, set())
        if not new_limits:
            return
        if spending.brake == "approval" and self._find_open_ticket(*key) is None:
            return  # this is called again when its ticket has been written
        self._not_before[key] = now + _RETRY_SECONDS
        limits = "; ".join(limits_now[limit_key] for limit_key in sorted(new_limits))
        self._tasks.start(self._brake(key, new_limits, limits))

    async def wait_until_idle(self) -> None:
        """Wait until all brakes in progress are done."""
        await self._tasks.wait()

    async def _brake(self, key: WorkerKey, limits: set[str], reason: str) -> None:
        try:
            is_done = await self._apply_brake(*key, reason)
        except (ActionRefusedError, AgentNotFoundError, StoreError) as error:
            _log.info("cannot hold %r, session %r, which spends too much (%s): %s", *key, reason, error)
            return
        if is_done:
            self._brakes.setdefault(key, set()).update(limits)

    async def _apply_brake(self, agent_id: str, session_id: str, reason: str) -> bool:
        """Apply the brake. Return whether it was carried out; a request for approval was not."""
        brake, service = self._settings.spending.brake, self._interventions
        if brake == "approval":
            worker = self._monitor.get(agent_id, session_id)
            ticket = self._find_open_ticket(agent_id, session_id)
            if worker is not None and ticket is not None:
                await self._approvals.request(worker, ticket_id=ticket.ticket_id, reason=reason, by=BY)
            return False
        if brake == "nudge":
            text = _NUDGE.format(reached=reason)
            intervention = await service.nudge(agent_id, text, session_id=session_id, by=BY)
        else:
            intervention = await service.terminate(agent_id, reason, session_id=session_id, by=BY)
        return intervention.outcome in _SUCCESSES
