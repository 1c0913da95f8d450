"""Which agent a run belongs to: graph names are not unique across agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from queenright.api.events import Event

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
