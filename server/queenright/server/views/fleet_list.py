"""List sessions with filters, an order, and counts per facet."""

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
_HEALTH_VALUES: Final = terms.list_values(terms.ListedState)
_ACTIVITY_VALUES: Final = terms.list_values(terms.Activity)
_HEALTH_RANK: Final = {name: rank for rank, name in enumerate(_HEALTH_VALUES)}
_ACTIVITY_RANK: Final = {name: rank for rank, name in enumerate((*_ACTIVITY_VALUES, ""))}
_MAX_COUNTED_NAMES: Final = 50
"""Maximum owners and repositories in the counts; the most frequent are kept."""
_CHUNK_SIZE: Final = 1_000
"""Workers to read before other requests may run, which takes about 2 ms."""

Position = tuple[float, float, str, str]
"""The position of a session in the list: two sort keys, then agent and session."""


class Facets(NamedTuple):
    """The values by which sessions are grouped and counted."""

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
        """Whether only facets filter the sessions."""
        return not self.search and self.agent_id is None and self.state is None

    def allows(self, worker: WorkerHealth) -> bool:
        """Return whether a worker passes all filters except facets."""
        vitals = worker.vitals
        if self.agent_id is not None and vitals.agent_id != self.agent_id:
            return False
        if self.state is not None and (worker.fleet_state or worker.state) is not self.state:
            return False
        if not self.search:
            return True
        search_text = self.search.casefold()
        return any(search_text in text.casefold() for text in _list_texts(worker))

    def list_failed_facets(self, facets: Facets) -> list[str]:
        """Return the names of the facets whose filter a session does not pass."""
        allowed_by_facet = (
            self.health,
            self.activity,
            (self.owner,) if self.owner else (),
            (self.repository,) if self.repository else (),
        )
        pairs = zip(Facets._fields, facets, allowed_by_facet, strict=True)
        return [
            name for name, value, allowed_values in pairs if allowed_values and value not in allowed_values
        ]


@dataclass(frozen=True, slots=True)
class SessionSearchResult:
    """A page of the sessions that match a query, their total number, and counts per facet."""

    page: list[tuple[Position, WorkerHealth]]
    total: int
    counts: api.AgentCounts


async def find_sessions(
    service: Service, query: FleetQuery, *, limit: int, after: Position | None = None
) -> SessionSearchResult:
    """Return the first ``limit`` sessions of a query, or those after a position."""
    groups: dict[tuple[str, str, str, str], list[WorkerHealth]] = defaultdict(list)
    unresolved_keys = list_unresolved_sessions(service)
    allows = None if query.allows_all else query.allows
    for number, worker in enumerate(list(service.monitor.workers()), start=1):
        if allows is None or allows(worker):
            groups[_read_facets(worker, unresolved_keys)].append(worker)
        if number % _CHUNK_SIZE == 0:
            await asyncio.sleep(0)
    counts: dict[str, Counter[str]] = {name: Counter() for name in Facets._fields}
    matches: list[tuple[Position, WorkerHealth]] = []
    for values, workers in groups.items():
        facets = Facets(*values)
        refusing_filters = query.list_failed_facets(facets)
        # A facet counts the sessions that pass all other filters: the number that each value would show.
        for name in (
            refusing_filters if len(refusing_filters) == 1 else () if refusing_filters else Facets._fields
        ):
            counts[name][getattr(facets, name)] += len(workers)
        if not refusing_filters:
            matches += _position_workers(workers, facets, query.sort.removeprefix("-"))
    total = len(matches)
    is_reversed = query.sort.startswith("-")
    if after is not None:
        matches = [worker for worker in matches if (worker[0] < after if is_reversed else worker[0] > after)]
    # No two positions are equal, so the workers themselves are never compared.
    select_first = heapq.nlargest if is_reversed else heapq.nsmallest
    return SessionSearchResult(select_first(limit, matches), total, _make_counts(counts))


def _list_texts(worker: WorkerHealth) -> Iterator[str]:
    vitals = worker.vitals
    yield from (
        vitals.agent_id,
        vitals.session_id,
        vitals.task_id,
        vitals.owner,
        vitals.repository,
        vitals.question,
    )
    yield describe_reason(worker)


def _read_facets(worker: WorkerHealth, unresolved_keys: Collection[WorkerKey]) -> tuple[str, str, str, str]:
    vitals = worker.vitals
    listed_state = get_listed_state(worker, unresolved_keys)
    return (
        _ENDED if listed_state in (None, HealthState.TERMINATED) else listed_state.value,
        describe_activity(vitals)[0],
        vitals.owner,
        vitals.repository,
    )


def _position_workers(
    workers: Iterable[WorkerHealth], facets: Facets, order: str
) -> Iterator[tuple[Position, WorkerHealth]]:
    """Yield the workers of a group with their positions."""
    first_key = second_key = 0.0
    is_ended = facets.health == _ENDED
    for worker in workers:
        vitals = worker.vitals
        if order == "attention":
            first_key = _HEALTH_RANK[facets.health]
            # Ended sessions are sorted by their end, latest first.
            second_key = -(vitals.ended_at or 0.0) if is_ended else vitals.last_progress or vitals.started_at
        elif order == "activity":
            first_key = _ACTIVITY_RANK[facets.activity]
        elif order == "progress":
            first_key = vitals.last_progress or vitals.started_at
        elif order == "tokens":
            first_key = vitals.tokens
        elif order == "cost":
            first_key = -1.0 if vitals.cost_usd is None else vitals.cost_usd
        yield (first_key, second_key, vitals.agent_id, vitals.session_id), worker


def _make_counts(counts: Mapping[str, Counter[str]]) -> api.AgentCounts:
    known_counts = {name: {key: n for key, n in counted.items() if key} for name, counted in counts.items()}
    return api.AgentCounts(
        health={name: counts["health"][name] for name in _HEALTH_VALUES},
        activity={name: counts["activity"][name] for name in _ACTIVITY_VALUES},
        owner=_select_most_frequent(known_counts["owner"]),
        repository=_select_most_frequent(known_counts["repository"]),
    )


def _select_most_frequent(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(heapq.nsmallest(_MAX_COUNTED_NAMES, counts.items(), key=lambda item: (-item[1], item[0])))


def list_unresolved_sessions(service: Service) -> set[WorkerKey]:
    """Return the keys (agent and session) of sessions with an open ticket or an active recovery."""
    recoveries = (recovery for recovery in service.recoveries.latest if recovery.ended_at is None)
    return service.tickets.open_sessions() | {
        (recovery.agent_id, recovery.session_id) for recovery in recoveries
    }


def get_listed_state(worker: WorkerHealth, unresolved_keys: Collection[WorkerKey]) -> HealthState | None:
    """
    Return the state that a worker is listed with; None once its session is over.

    An ended session is listed as failing while an operator must act, that is, while it is in
    ``unresolved_keys``.
    """
    if worker.fleet_state is not None:
        return worker.fleet_state
    return HealthState.FAILING if worker.key in unresolved_keys else None
