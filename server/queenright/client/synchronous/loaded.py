"""Agents that run inside the service: loading them, talking with them, and what they did."""

from __future__ import annotations

from collections.abc import Sequence

from queenright.api.loaded import AgentSlot
from queenright.client.address import path
from queenright.client.answers import body
from queenright.client.synchronous.group import Group


class LoadedAgents(Group):
    """What can be asked of a worker that runs inside the service."""

    def load(self, folder: str, *, model: str | None = None) -> AgentSlot:
        """Load an agent from its folder, as the service sees it."""
        return self._ask.acted(AgentSlot, "/api/agents", body(path=folder, model=model))

    def unload(self, agent_id: str) -> None:
        """Unload one; its runs are paused."""
        self._ask.act(path("api", "agents", agent_id), method="DELETE")

    def loaded(self) -> Sequence[AgentSlot]:
        """Return the agents that are loaded."""
        from queenright.client.answers import parsed

        found = self._ask.get("/api/agents", limit=1)
        return [parsed(AgentSlot, one) for one in found.get("loaded", [])]
