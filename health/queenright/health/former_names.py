"""
Former names of workers, from the event log.

A rename is two events with the new names: one under the old names, and one under the new ones, which also has
the old ones. The log keeps each event under the names of its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Select, bindparam, select

from queenright.health.findings import WorkerKey
from queenright.health.tables import EVENTS
from queenright.runtime.events import EventType

_MOST: Final = 100
"""The maximum number of renames that are read, the newest first."""

_OF_AGENT: Final = (
    select(EVENTS.c.data)
    .where(EVENTS.c.agent_id == bindparam("agent"), EVENTS.c.type == EventType.AGENT_RENAMED.value)
    .order_by(EVENTS.c.seq.desc())
    .limit(_MOST)
)
_OF_SESSION: Final = _OF_AGENT.where(EVENTS.c.session_id == bindparam("session"))


def find_current_name(conn: Connection, agent_id: str, session_id: str | None = None) -> WorkerKey | None:
    """
    Return the current agent and session of a renamed worker, or None if it was not renamed.

    Without a session: of the agent's worker that was renamed last.
    """
    found: WorkerKey | None = None
    seen: set[WorkerKey] = set()
    while True:
        renames = _renames(conn, agent_id, session_id)
        new = next((_key(data, "") for data in renames if "former_agent_id" not in data), None)
        if new is None or new in seen:
            return found
        seen.add(new)
        found = agent_id, session_id = new


def all_names(conn: Connection, agent_id: str, session_id: str) -> list[WorkerKey]:
    """Return the agent and session of a worker, then its former ones."""
    names = [(agent_id, session_id)]
    for key in names:
        names += [one for one in _former(conn, *key) if one not in names]
        if len(names) > _MOST:
            break
    return names


def former_names(conn: Connection, agent_id: str) -> set[WorkerKey]:
    """Return former names of an agent's workers: agent and session."""
    return set(_former(conn, agent_id, None))


def _former(conn: Connection, agent_id: str, session_id: str | None) -> Iterator[WorkerKey]:
    renames = _renames(conn, agent_id, session_id)
    return (_key(data, "former_") for data in renames if "former_agent_id" in data)


def _renames(conn: Connection, agent_id: str, session_id: str | None) -> list[dict[str, Any]]:
    query: Select[Any] = _OF_AGENT if session_id is None else _OF_SESSION
    parameters = {"agent": agent_id} if session_id is None else {"agent": agent_id, "session": session_id}
    return [orjson.loads(data) for data in conn.execute(query, parameters).scalars()]


def _key(data: dict[str, Any], prefix: str) -> WorkerKey:
    return str(data[f"{prefix}agent_id"]), str(data[f"{prefix}session_id"])
