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
from queenright.health.store.tables import EVENTS
from queenright.runtime.events import EventType

_MOST: Final = 100
"""The maximum number of renames that are read, the newest first."""

_OF_AGENT: Final = (
    select(EVENTS.c.seq, EVENTS.c.data)
    .where(
        EVENTS.c.agent_id == bindparam("agent"),
        EVENTS.c.type == EventType.AGENT_RENAMED.value,
        EVENTS.c.seq > bindparam("after"),
    )
    .order_by(EVENTS.c.seq.desc())
    .limit(_MOST)
)
_OF_SESSION: Final = _OF_AGENT.where(EVENTS.c.session_id == bindparam("session"))


def find_current_name(conn: Connection, agent_id: str, session_id: str | None = None) -> WorkerKey | None:
    """
    Return the current agent and session of a renamed worker, or None if it was not renamed.

    Without a session: of the agent's worker that was renamed last.
    """
    current: WorkerKey | None = None
    seq = 0
    while True:
        # A rename before the last one concerned another worker with the same name.
        renames = _renames(conn, *(current or (agent_id, session_id)), after=seq)
        later = next((rename for rename in renames if "former_agent_id" not in rename[1]), None)
        if later is None:
            return None if current == (agent_id, session_id) else current
        seq, current = later[0], _key(later[1], "")


def all_names(conn: Connection, agent_id: str, session_id: str) -> list[WorkerKey]:
    """Return the current agent and session of a worker, then its former ones."""
    names = [(agent_id, session_id)]
    for key in names:
        names += [name for name in _former(conn, *key) if name not in names]
        if len(names) > _MOST:
            break
    return names


def former_names(conn: Connection, agent_id: str) -> set[WorkerKey]:
    """Return the former agents and sessions of an agent's workers."""
    return set(_former(conn, agent_id, None))


def _former(conn: Connection, agent_id: str, session_id: str | None) -> Iterator[WorkerKey]:
    renames = _renames(conn, agent_id, session_id)
    return (_key(data, "former_") for _, data in renames if "former_agent_id" in data)


def _renames(
    conn: Connection, agent_id: str, session_id: str | None, *, after: int = 0
) -> list[tuple[int, dict[str, Any]]]:
    """Return renames from or to a name with their sequence numbers, newest first."""
    query: Select[Any] = _OF_AGENT if session_id is None else _OF_SESSION
    parameters: dict[str, Any] = {"agent": agent_id, "after": after}
    if session_id is not None:
        parameters["session"] = session_id
    return [(seq, orjson.loads(data)) for seq, data in conn.execute(query, parameters)]


def _key(data: dict[str, Any], prefix: str) -> WorkerKey:
    return str(data[f"{prefix}agent_id"]), str(data[f"{prefix}session_id"])
