"""What is done about a worker that has reached a limit of what may be spent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from queenright.health.findings import WorkerKey
from queenright.health.interventions.approvals import Approvals
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.interventions.record import Outcome
from queenright.health.interventions.service import AgentNotFoundError, InterventionService
from queenright.health.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.spending import limits_reached
from queenright.health.store import StoreError
from queenright.health.tickets import EscalationTicket

_log = logging.getLogger(__name__)

BY: Final = "spending limit"
_AGAIN: Final = 600.0
"""Seconds until a brake that was refused, or did not reach the worker, is tried again, if it spends on."""
_DONE: Final = frozenset({Outcome.DONE, Outcome.QUEUED, Outcome.DRY_RUN})
_NUDGE: Final = (
    "A spending limit is reached: {reached}. Save what you have, say what is left to do, and stop, "
    "unless your user tells you to go on."
)


class SpendingBrake:
    """
    Brakes each worker once for each limit that it reaches, when it spends something.

    An operator who has said no is asked again after ``intervention.termination.approval_timeout_seconds``, if
    the worker spends on. What was done is not remembered over a restart: a nudge may then be repeated.

    Args:
        settings: The limits, the brake, and whether it is only written down.
        monitor: Knows what was spent.
        interventions: Tells or stops a worker.
        approvals: Asks an operator.
        ticket_of: Returns the open ticket of a worker, if it has one: an operator is asked on a ticket.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        settings: HealthSettings,
        *,
        monitor: HealthMonitor,
        interventions: InterventionService,
        approvals: Approvals,
        ticket_of: Callable[[str, str], EscalationTicket | None],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._monitor = monitor
        self._interventions = interventions
        self._approvals = approvals
        self._ticket_of = ticket_of
        self._clock = clock
        self._braked: dict[WorkerKey, set[str]] = {}
        self._not_before: dict[WorkerKey, float] = {}
        self._running: set[asyncio.Task[None]] = set()

    def consider(self, agent_id: str, session_id: str) -> None:
        """Brake a worker that has just spent something, or got a ticket, if it has reached a limit."""
        if not self._settings.spending.is_on:
            return
        key, now = (agent_id, session_id), self._clock()
        worker = self._monitor.get(*key)
        if worker is None or worker.vitals.ended or now < self._not_before.get(key, 0.0):
            return
        reached = limits_reached(worker.vitals, self._settings, now)
        new = reached.keys() - self._braked.get(key, set())
        if not new:
            return
        if self._settings.spending.brake == "approval" and self._ticket_of(*key) is None:
            return  # its ticket is being written, and comes by here
        self._not_before[key] = now + _AGAIN
        said = "; ".join(reached[one] for one in sorted(new))
        task = asyncio.create_task(self._brake(key, new, said), name="spending-brake")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def settled(self) -> None:
        """Wait for the brakes that are under way."""
        await asyncio.gather(*self._running)

    async def _brake(self, key: WorkerKey, limits: set[str], said: str) -> None:
        try:
            is_done = await self._act(*key, said)
        except (ActionRefusedError, AgentNotFoundError, StoreError) as error:
            _log.info("no brake for %r, session %r, though %s: %s", *key, said, error)
            return
        if is_done:
            self._braked.setdefault(key, set()).update(limits)

    async def _act(self, agent_id: str, session_id: str, said: str) -> bool:
        """Brake; return whether that is done for good. To ask is not: who asks twice is refused."""
        spending, how = self._settings.spending, self._interventions
        given: dict[str, Any] = {"session_id": session_id, "by": BY, "dry": spending.dry_run}
        if spending.brake == "nudge":
            one = await how.nudge(agent_id, _NUDGE.format(reached=said), **given)
        elif spending.brake == "stop" or spending.dry_run:
            what = "" if spending.brake == "stop" else "an operator would be asked whether to stop it: "
            one = await how.terminate(agent_id, f"{what}{said}", **given)
        else:
            worker, ticket = self._monitor.get(agent_id, session_id), self._ticket_of(agent_id, session_id)
            if worker is not None and ticket is not None:
                await self._approvals.request(worker, ticket_id=ticket.ticket_id, reason=said, by=BY)
            return False
        return one.outcome in _DONE
