"""State that all screens share: the service, the fleet, notices, the clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from queenright.api.events import Event
from queenright.tui.fleet_state import FleetState
from queenright.tui.gateway import ServiceGateway
from queenright.tui.notices import NoticeList

_CACHE_SIZE: Final = 2_000


class RunOwnership:
    """
    Tells which runs belong to an agent. Asks the service once per run.

    Args:
        has_run: Returns whether a loaded agent has the run with an id.
    """

    def __init__(self, has_run: Callable[[str, str], Awaitable[bool]]) -> None:
        self._has_run = has_run
        self._ownership: dict[tuple[str, str], bool] = {}

    async def is_run_of(self, event: Event, agent_id: str) -> bool:
        """
        Return whether an event is from a run of this agent, in any of its graphs.

        Raises:
            QueenrightError: The service does not answer.
        """
        if not event.execution_id:
            return False
        key = (agent_id, event.execution_id)
        if key not in self._ownership:
            self._ownership[key] = await self._has_run(*key)
            while len(self._ownership) > _CACHE_SIZE:
                del self._ownership[next(iter(self._ownership))]
        return self._ownership[key]


_STATUS_SECONDS: Final = 10.0
"""Seconds that a status message is shown."""


@dataclass(slots=True)
class AppState:
    """
    State shared by all screens.

    Attributes:
        gateway: The service.
        clock: Returns seconds since the epoch.
        fleet: State of the fleet.
        notices: Current notices.
        outage: Why the service is unreachable; empty if it answers.
        has_connected: Whether the service has answered once.
        may_act: Whether the operator may act on workers and tickets.
        chatted_agents: Agents with an open or earlier conversation.
        run_ownership: Tells which agent a run belongs to.
    """

    gateway: ServiceGateway
    clock: Callable[[], float]
    fleet: FleetState = field(default_factory=FleetState)
    notices: NoticeList = field(default_factory=NoticeList)
    outage: str = ""
    has_connected: bool = False
    may_act: bool = True
    chatted_agents: set[str] = field(default_factory=set)
    run_ownership: RunOwnership = field(init=False)
    _status: tuple[str, str] = ("", "")
    _status_until: float = 0.0

    def __post_init__(self) -> None:
        self.run_ownership = RunOwnership(self.gateway.has_run)

    def set_status(self, kind: str, text: str) -> None:
        """Show a status message for a while; ``kind`` is a key of ``styles``."""
        self._status, self._status_until = (kind, text), self.clock() + _STATUS_SECONDS

    @property
    def status(self) -> tuple[str, str]:
        """Kind and text of the current status message."""
        return self._status if self.clock() < self._status_until else ("", "")


def add_notice_for(event: Event, notices: NoticeList) -> int | None:
    """Add the notice for an event; return its number, None if the event needs none."""
    if event.type != "queen_intervention_requested":
        return None
    data = event.data
    note = " (not triaged)" if data.get("untriaged") else ""
    return notices.add(
        str(data["severity"]),
        f"{str(data['severity']).upper()} {event.agent_id or 'ticket'}{note}",
        str(data["analysis"]),
        ticket_id=str(data["ticket_id"]),
        agent_id=event.agent_id,
    ).number
