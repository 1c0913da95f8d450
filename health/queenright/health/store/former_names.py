"""
Former names of workers, from the event log.

A rename is two events that contain the new names: one logged under the old names, and one under the new
names, which also contains the old names. Earlier events stay under their old names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Select, bindparam, select

from queenright.health.findings import WorkerKey
from queenright.health.store.tables import EVENTS
from queenright.runtime.events import EventType

_MAX_RENAMES: Final = 100
"""The maximum number of renames to read, newest first."""

_AGENT_QUERY: Final = (
    select(EVENTS.c.seq, EVENTS.c.data)
    .where(
        EVENTS.c.agent_id == bindparam("agent"),
        EVENTS.c.type == EventType.AGENT_RENAMED.value,
        EVENTS.c.seq > bindparam("after"),
    )
    .order_by(EVENTS.c.seq.desc())
    .limit(_MAX_RENAMES)
)
_SESSION_QUERY: Final = _AGENT_QUERY.where(EVENTS.c.session_id == bindparam("session"))


def find_current_name(conn: Connection, agent_id: str, session_id: str | None = None) -> WorkerKey | None:
    """
    Return the current agent and session of a renamed worker, or None if it was not renamed.

    Without a session, the agent's worker that was renamed last is meant.
    """
    current: WorkerKey | None = None
    seq = 0
    while True:
        # A rename before the last one concerned another worker with the same name.
        renames = _read_renames(conn, *(current or (agent_id, session_id)), after=seq)
        next_rename = next((rename for rename in renames if "former_agent_id" not in rename[1]), None)
        if next_rename is None:
            return None if current == (agent_id, session_id) else current
        seq, current = next_rename[0], _get_key(next_rename[1], "")


def all_names(conn: Connection, agent_id: str, session_id: str) -> list[WorkerKey]:
    """Return the agent and session of a worker, then its former agents and sessions."""
    names = [(agent_id, session_id)]
    for key in names:
        names += [name for name in _list_former(conn, *key) if name not in names]
        if len(names) > _MAX_RENAMES:
            break
    return names


def former_names(conn: Connection, agent_id: str) -> set[WorkerKey]:
    """Return the former agents and sessions of an agent's workers."""
    return set(_list_former(conn, agent_id, None))


def _list_former(conn: Connection, agent_id: str, session_id: str | None) -> Iterator[WorkerKey]:
    renames = _read_renames(conn, agent_id, session_id)
    return (_get_key(data, "former_") for _, data in renames if "former_agent_id" in data)


def _read_renames(
    conn: Connection, agent_id: str, session_id: str | None, *, after: int = 0
) -> list[tuple[int, dict[str, Any]]]:
    """Return the renames from or to a name, with their sequence numbers, newest first."""
    query: Select[Any] = _AGENT_QUERY if session_id is None else _SESSION_QUERY
    parameters: dict[str, Any] = {"agent": agent_id, "after": after}
    if session_id is not None:
        parameters["session"] = session_id
    return [(seq, orjson.loads(data)) for seq, data in conn.execute(query, parameters)]


def _get_key(data: dict[str, Any], prefix: str) -> WorkerKey:
    return str(data[f"{prefix}agent_id"]), str(data[f"{prefix}session_id"])
