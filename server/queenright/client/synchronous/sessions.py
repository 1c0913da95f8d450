"""Stored data of loaded agents: sessions, checkpoints, messages, logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from queenright import api
from queenright.client.address import build_path
from queenright.client.synchronous.resource import Resource


class Sessions(Resource):
    """Stored data of a loaded agent; ``graph_id`` defaults to its own graph."""

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
        url_path = build_path("api", "agents", agent_id, *graph, "sessions")
        return self._transport.list_models(api.SessionRow, url_path, "sessions", limit, status=status)

    def session(self, agent_id: str, session_id: str, *, graph_id: str | None = None) -> api.SessionDetail:
        """Return a session with its memory and its runs."""
        return self._transport.get_model(
            api.SessionDetail, _session_path(agent_id, session_id), graph_id=graph_id
        )

    def delete_session(self, agent_id: str, session_id: str, *, graph_id: str | None = None) -> None:
        """Delete a session permanently."""
        self._transport.send(_session_path(agent_id, session_id), method="DELETE", graph_id=graph_id)

    def checkpoints(
        self, agent_id: str, session_id: str, *, graph_id: str | None = None, limit: int | None = None
    ) -> Iterator[api.CheckpointRow]:
        """Yield the checkpoints of a session, newest first."""
        url_path = _session_path(agent_id, session_id, "checkpoints")
        return self._transport.list_models(
            api.CheckpointRow, url_path, "checkpoints", limit, graph_id=graph_id
        )

    def restore(
        self, agent_id: str, session_id: str, checkpoint_id: str, *, graph_id: str | None = None
    ) -> api.Started:
        """Restore a checkpoint and continue from there; later progress is discarded."""
        url_path = _session_path(agent_id, session_id, "checkpoints", checkpoint_id, "restore")
        return self._transport.send_for_model(api.Started, url_path, graph_id=graph_id)

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
        Yield the messages of a session: the newest page first, oldest first within a page.

        ``conversation``: only messages of this node.
        """
        url_path = _session_path(agent_id, session_id, "messages")
        params = {"graph_id": graph_id, "conversation": conversation}
        return self._transport.list_models(api.MessageRow, url_path, "messages", limit, **params)

    def logs(
        self,
        agent_id: str,
        *,
        level: str | None = None,
        session_id: str | None = None,
        graph_id: str | None = None,
        limit: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield log rows of an agent, newest first: one per run, node visit or step, by ``level``."""
        params = {"level": level, "session_id": session_id, "graph_id": graph_id}
        return self._transport.list_rows(
            build_path("api", "agents", agent_id, "logs"), "rows", limit, **params
        )

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
        """Yield log rows of a node, newest first: one per visit or step, by ``level``."""
        url_path = build_path("api", "agents", agent_id, "graphs", graph_id, "nodes", node_id, "logs")
        return self._transport.list_rows(url_path, "rows", limit, level=level, session_id=session_id)


def _session_path(agent_id: str, session_id: str, *parts: str) -> str:
    return build_path("api", "agents", agent_id, "sessions", session_id, *parts)
