"""The list of sessions: filters, order, and counts per facet."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from queenright import api
from queenright.api import terms
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import WorkerKey
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.server.service import Service
from queenright.server.views.worker_rows import describe_activity, describe_reason

WORST_FIRST: Final = (*map(HealthState, terms.WORST_FIRST), HealthState.TERMINATED)
_ENDED: Final = "ended"
_HEALTH: Final = terms.list_values(terms.ListedState)
_ACTIVITY: Final = terms.list_values(terms.Activity)
_HEALTH_RANK: Final = {name: rank for rank, name in enumerate(_HEALTH)}
_ACTIVITY_RANK: Final = {name: rank for rank, name in enumerate((*_ACTIVITY, ""))}
_MAX_COUNTED_NAMES: Final = 50
"""Maximum owners and repositories that are counted; the most frequent ones are."""
_CHUNK_SIZE: Final = 1_000
"""Workers to read before other requests may run: about 2 ms."""

Position = tuple[float, float, str, str]
"""The position of a session in the list: two sort keys, then agent and session."""


class Facets(NamedTuple):
    """The values of a session by which sessions are grouped and counted."""

    health: str
    activity: str
    owner: str
    repository: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQuery:
    """The filters and the order of a list of sessions. An empty filter allows all."""

    search: str = ""
    """Text in the agent's name, session, task, owner, repository, reason or question."""
    agent_id: str | None = None
    state: HealthState | None = None
    health: Collection[str] = ()
    activity: Collection[str] = ()
    owner: str = ""
    repository: str = ""
    sort: str = "attention"
    """``attention``, ``agent``, ``activity``, ``progress``, ``tokens`` or ``cost``; ``-`` reverses it."""

    @property
    def allows_all(self) -> bool:
        """Whether there are no filters except facets."""
        return not self.search and self.agent_id is None and self.state is None

    def allows(self, worker: WorkerHealth) -> bool:
        """Return whether a worker passes the filters other than facets."""
        vitals = worker.vitals
        if self.agent_id is not None and vitals.agent_id != self.agent_id:
            return False
        if self.state is not None and (worker.fleet_state or worker.state) is not self.state:
            return False
        if not self.search:
            return True
        wanted = self.search.casefold()
        return any(wanted in text.casefold() for text in _list_texts(worker))

    def refused_by(self, facets: Facets) -> list[str]:
        """Return the names of the facets that a session does not pass."""
        wanted = (
            self.health,
            self.activity,
            (self.owner,) if self.owner else (),
            (self.repository,) if self.repository else (),
        )
        pairs = zip(Facets._fields, facets, wanted, strict=True)
        return [
            name for name, value, allowed_values in pairs if allowed_values and value not in allowed_values
        ]


@dataclass(frozen=True, slots=True)
class FoundSessions:
    """Sessions that match a query: one page, and the total."""

    page: list[tuple[Position, WorkerHealth]]
    total: int
    counts: api.AgentCounts


async def find_sessions(
    service: Service, query: FleetQuery, *, limit: int, after: Position | None = None
) -> FoundSessions:
    """Return the first ``limit`` sessions of a query, or those after a position. Yields to other work."""
    groups: dict[tuple[str, str, str, str], list[WorkerHealth]] = defaultdict(list)
    unresolved_keys = list_unresolved_sessions(service)
    allows = None if query.allows_all else query.allows
    for number, worker in enumerate(list(service.monitor.workers()), start=1):
        if allows is None or allows(worker):
            groups[_read_facets(worker, unresolved_keys)].append(worker)
        if number % _CHUNK_SIZE == 0:
            await asyncio.sleep(0)
    counts: dict[str, Counter[str]] = {name: Counter() for name in Facets._fields}
    matching: list[tuple[Position, WorkerHealth]] = []
    for values, workers in groups.items():
        facets = Facets(*values)
        refusing_filters = query.refused_by(facets)
        # A facet counts the sessions that pass the other filters, which each of its values would show.
        for name in (
            refusing_filters if len(refusing_filters) == 1 else () if refusing_filters else Facets._fields
        ):
            counts[name][getattr(facets, name)] += len(workers)
        if not refusing_filters:
            matching += _position_workers(workers, facets, query.sort.removeprefix("-"))
    total = len(matching)
    is_reversed = query.sort.startswith("-")
    if after is not None:
        matching = [
            worker for worker in matching if (worker[0] < after if is_reversed else worker[0] > after)
        ]
    # No two positions are equal, so the workers themselves are never compared.
    first = heapq.nlargest if is_reversed else heapq.nsmallest
    return FoundSessions(first(limit, matching), total, _counts(counts))


def _list_texts(worker: WorkerHealth) -> Iterator[str]:
    v = worker.vitals
    yield from (v.agent_id, v.session_id, v.task_id, v.owner, v.repository, v.question)
    yield describe_reason(worker)


def _read_facets(worker: WorkerHealth, unresolved_keys: Collection[WorkerKey]) -> tuple[str, str, str, str]:
    vitals = worker.vitals
    standing = get_listed_state(worker, unresolved_keys)
    return (
        _ENDED if standing in (None, HealthState.TERMINATED) else standing.value,
        describe_activity(vitals)[0],
        vitals.owner,
        vitals.repository,
    )


def _position_workers(
    workers: Iterable[WorkerHealth], facets: Facets, order: str
) -> Iterator[tuple[Position, WorkerHealth]]:
    """Yield workers of one group with their positions."""
    first = second = 0.0
    is_ended = facets.health == _ENDED
    for worker in workers:
        vitals = worker.vitals
        if order == "attention":
            first = _HEALTH_RANK[facets.health]
            # Of ended sessions, the last one comes first.
            second = -(vitals.ended_at or 0.0) if is_ended else vitals.last_progress or vitals.started_at
        elif order == "activity":
            first = _ACTIVITY_RANK[facets.activity]
        elif order == "progress":
            first = vitals.last_progress or vitals.started_at
        elif order == "tokens":
            first = vitals.tokens
        elif order == "cost":
            first = -1.0 if vitals.cost_usd is None else vitals.cost_usd
        yield (first, second, vitals.agent_id, vitals.session_id), worker


def _counts(counts: Mapping[str, Counter[str]]) -> api.AgentCounts:
    names = {name: {key: n for key, n in counted.items() if key} for name, counted in counts.items()}
    return api.AgentCounts(
        health={name: counts["health"][name] for name in _HEALTH},
        activity={name: counts["activity"][name] for name in _ACTIVITY},
        owner=_most_frequent(names["owner"]),
        repository=_most_frequent(names["repository"]),
    )


def _most_frequent(counted: Mapping[str, int]) -> dict[str, int]:
    return dict(
        heapq.nsmallest(_MAX_COUNTED_NAMES, counted.items(), key=lambda counted: (-counted[1], counted[0]))
    )


def list_unresolved_sessions(service: Service) -> set[WorkerKey]:
    """Return the keys (agent and session) of sessions with an open ticket or an active recovery."""
    recoveries = (recovery for recovery in service.recoveries.latest if recovery.ended_at is None)
    return service.tickets.open_sessions() | {
        (recovery.agent_id, recovery.session_id) for recovery in recoveries
    }


def get_listed_state(worker: WorkerHealth, unresolved_keys: Collection[WorkerKey]) -> HealthState | None:
    """
    Return the state under which a worker is listed; None once its session is over.

    An ended session is listed as failing while an operator must act, that is, while it is in
    ``unresolved_keys``.
    """
    if worker.fleet_state is not None:
        return worker.fleet_state
    return HealthState.FAILING if worker.key in unresolved_keys else None
