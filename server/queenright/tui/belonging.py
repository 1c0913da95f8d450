"""Whose run it is: agents that are loaded may have graphs of one name, and workers elsewhere may, too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from queenright.tui.values import Moment

_KNOWN: Final = 2_000


class Belonging:
    """
    Which runs are an agent's own. The service is asked once a run.

    Args:
        has_run: Whether an agent that is loaded has a run of this id.
    """

    def __init__(self, has_run: Callable[[str, str], Awaitable[bool]]) -> None:
        self._has_run = has_run
        self._known: dict[tuple[str, str], bool] = {}

    async def belongs(self, event: Moment, agent_id: str) -> bool:
        """
        Return whether an event is of a run of this agent, in whichever of its graphs.

        Raises:
            QueenrightError: the service does not say.
        """
        if not event.execution_id:
            return False
        key = (agent_id, event.execution_id)
        if key not in self._known:
            found = await self._has_run(*key)
            self._known[key] = found
            while len(self._known) > _KNOWN:
                del self._known[next(iter(self._known))]
        return self._known[key]
