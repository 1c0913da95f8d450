"""The cost of a run since its trouble began, from the event log, which every process shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from sqlalchemy import Connection, bindparam, select

from queenright.health.former_names import all_names
from queenright.health.tables import EVENTS
from queenright.health.vital_facts import count_or_zero, parse_dollars
from queenright.runtime.events import EventType

_CALLS: Final = 2_000
"""The maximum number of an agent's model calls that are read, the newest first."""
_LAST: Final = (
    select(EVENTS.c.session_id, EVENTS.c.time, EVENTS.c.data)
    .where(EVENTS.c.agent_id == bindparam("agent"), EVENTS.c.type == EventType.LLM_CALL_COMPLETED.value)
    .order_by(EVENTS.c.seq.desc())
    .limit(_CALLS)
    .subquery()
)
_SINCE: Final = select(_LAST.c.data).where(
    _LAST.c.session_id == bindparam("session"), _LAST.c.time >= bindparam("since")
)


def spending_since(conn: Connection, agent_id: str, session_id: str, since: float) -> dict[str, Any]:
    """
    Return the cost of a run's model calls since a time, as fields of a ticket.

    ``spent_usd`` is None if no price is known; ``spent_unpriced_tokens`` are those of calls without a price.
    """
    return total_spending(
        orjson.loads(data)
        for agent, session in all_names(conn, agent_id, session_id)
        for data in conn.execute(_SINCE, {"agent": agent, "session": session, "since": since}).scalars()
    )


def total_spending(calls: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the cost of calls by their events' data; an amendment adds a price, not a call."""
    spent: float | None = None
    tokens = unpriced = 0
    for data in calls:
        cost = parse_dollars(data.get("cost_usd"))
        if cost is not None:
            spent = (spent or 0.0) + cost
        if data.get("amends"):
            unpriced -= count_or_zero(data.get("priced_tokens"))
            continue
        used = count_or_zero(data.get("input_tokens")) + count_or_zero(data.get("output_tokens"))
        tokens += used
        if cost is None:
            unpriced += used
    return {
        "spent_usd": spent,
        "spent_tokens": tokens,
        "spent_unpriced_tokens": min(max(unpriced, 0), tokens),
    }
