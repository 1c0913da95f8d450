"""What loaded agents have on the disk: sessions, checkpoints, conversations, logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from queenright import api
from queenright.client.address import path
from queenright.client.synchronous.group import Group


class Sessions(Group):
    """What a loaded agent has on the disk; without ``graph_id`` that of its own graph."""

    def sessions(
        self,
        agent_id: str,
        *,
        graph_id: str | None = None,
        status: str | None = None,
        limit: int | None = None,
    ) -> Iterator[api.SessionRow]:
        """Yield sessions, newest first."""
        graph = () if graph_id is None else ("graphs", graph_id)
        where = path("api", "agents", agent_id, *graph, "sessions")
        return self._ask.every(api.SessionRow, where, "sessions", limit, status=status)

    def session(self, agent_id: str, session_id: str, *, graph_id: str | None = None) -> api.SessionDetail:
        """Return one session with its memory and its runs."""
        return self._ask.one(api.SessionDetail, _of(agent_id, session_id), graph_id=graph_id)

    def delete_session(self, agent_id: str, session_id: str, *, graph_id: str | None = None) -> None:
        """Delete one session, for good."""
        self._ask.act(_of(agent_id, session_id), method="DELETE", graph_id=graph_id)

    def checkpoints(
        self, agent_id: str, session_id: str, *, graph_id: str | None = None, limit: int | None = None
    ) -> Iterator[api.CheckpointRow]:
        """Yield the checkpoints of a session, newest first."""
        where = _of(agent_id, session_id, "checkpoints")
        return self._ask.every(api.CheckpointRow, where, "checkpoints", limit, graph_id=graph_id)

    def restore(
        self, agent_id: str, session_id: str, checkpoint_id: str, *, graph_id: str | None = None
    ) -> api.Started:
        """Go back to a checkpoint, and go on from there; what came after it is forgotten."""
        where = _of(agent_id, session_id, "checkpoints", checkpoint_id, "restore")
        return self._ask.acted(api.Started, where, graph_id=graph_id)

    def messages(
        self,
        agent_id: str,
        session_id: str,
        *,
        graph_id: str | None = None,
        conversation: str | None = None,
        limit: int | None = None,
    ) -> Iterator[api.MessageRow]:
        """
        Yield what was said in a session, as the service tells it: the newest page first, each oldest first.

        ``conversation``: only that of this node.
        """
        where = _of(agent_id, session_id, "messages")
        asked = {"graph_id": graph_id, "conversation": conversation}
        return self._ask.every(api.MessageRow, where, "messages", limit, **asked)

    def logs(
        self,
        agent_id: str,
        *,
        level: str | None = None,
        session_id: str | None = None,
        graph_id: str | None = None,
        limit: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield rows of the agent's logs, newest first: a row each run, each visit of a node or each step."""
        asked = {"level": level, "session_id": session_id, "graph_id": graph_id}
        return self._ask.rows(path("api", "agents", agent_id, "logs"), "rows", limit, **asked)

    def node_logs(
        self,
        agent_id: str,
        graph_id: str,
        node_id: str,
        *,
        level: str | None = None,
        session_id: str | None = None,
        limit: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield rows of the logs of one node, newest first: a row each visit, or each step."""
        where = path("api", "agents", agent_id, "graphs", graph_id, "nodes", node_id, "logs")
        return self._ask.rows(where, "rows", limit, level=level, session_id=session_id)


def _of(agent_id: str, session_id: str, *parts: str) -> str:
    return path("api", "agents", agent_id, "sessions", session_id, *parts)
