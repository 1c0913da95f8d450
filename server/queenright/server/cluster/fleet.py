"""
State that all partitions of a cluster share: emergency stop, storms, and limits of actions and spending.

Every second, a process writes the values of its services and reads those of the others
(``queenright.health.cluster.shared_values``). Values that must be exact, such as limits, are decided in the
database.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from queenright.health.cluster.cluster_lease import ClusterLease, LeaseError
from queenright.health.cluster.fleet import Change, FleetState, SharedStorm, WorseWorker
from queenright.health.cluster.shared_values import SharedValues
from queenright.health.cluster.switch_state import SwitchState
from queenright.health.detection.spending import DAY
from queenright.health.findings import WorkerKey
from queenright.health.interventions.action_limits import SHARED_ACTIONS
from queenright.health.interventions.emergency_stop import new_state
from queenright.health.interventions.shared_stop import UNRECORDED, SharedStop, unrecorded_events
from queenright.health.interventions.storm import QUIET_SECONDS
from queenright.health.store.database import DatabaseUnavailableError
from queenright.health.store.store import StoreError
from queenright.instrumentation.identity import new_id
from queenright.judge.judging_budget import SHARED_SPENDING
from queenright.runtime.deadline import TaskSet
from queenright.runtime.events import Clock
from queenright.server.service import Service

T = TypeVar("T")

_log = logging.getLogger(__name__)

_STORM_ID: Final = "next_storm"
"""The id of the next storm, agreed in advance so that services that detect it at once use the same id."""
_WORSE: Final = "worse/"
"""Prefix of the value with a partition's workers that got worse, and its storm."""
_FAILING: Final = "failing/"
"""Prefix of the value with a partition's workers whose failure may have a shared cause."""
_SPENT: Final = "spent/"
"""Prefix of the value with an agent's daily spending in a partition."""
_MAX_WORSE: Final = 500
"""Maximum workers that a partition shares, newest first. Far above any number that starts a storm."""
_STOP_NOT_SAVED: Final = (
    "the database cannot be reached: the stop holds in this process, and in the others once the database can"
    " be reached"
)
_RELEASE_NOT_SAVED: Final = "the database cannot be reached; nothing is released, try again"


class OwnedService(NamedTuple):
    """A partition's service in this process."""

    partition: int
    token: str
    """The ``writer_token`` of its store."""
    service: Service


class SharedSpending:
    """Today's spending of all partitions, by agent."""

    def __init__(self) -> None:
        self._day = 0
        self._by_agent: dict[str, dict[int, float]] = {}
        self._by_partition: dict[int, float] = {}

    def note(self, partition: int, agent_id: str, day: int, dollars: float) -> None:
        """Record the current spending of an agent in a partition."""
        if day > self._day:
            self._day = day
            self._by_agent.clear()
            self._by_partition.clear()
        if day == self._day:
            spent = self._by_agent.setdefault(agent_id, {})
            change = dollars - spent.get(partition, 0.0)
            spent[partition] = dollars
            self._by_partition[partition] = self._by_partition.get(partition, 0.0) + change

    def sum_outside(self, partition: int, agent_id: str, day: int) -> tuple[float, float]:
        """Return a day's spending in the other partitions: that of an agent, and that of all agents."""
        if day != self._day:
            return 0.0, 0.0
        of_agent, of_all = self._by_agent.get(agent_id, {}), self._by_partition
        return (
            sum(of_agent.values()) - of_agent.get(partition, 0.0),
            sum(of_all.values()) - of_all.get(partition, 0.0),
        )


class ClusterFleet:
    """
    The shared state of the fleet in one process. Belongs to one event loop.

    Args:
        lease: The connection of the process.
        clock: Seconds since the epoch.

    Attributes:
        emergency_stop: The state of the emergency stop.
    """

    def __init__(self, lease: ClusterLease, *, clock: Clock = time.time) -> None:
        self._values = SharedValues(lease)
        self._stop = SharedStop(lease, self._values)
        self._clock = clock
        self.emergency_stop = SwitchState()
        self._unwritten_stop: SwitchState | None = None
        self._setting_stop = asyncio.Lock()
        self._recorded: set[str] = set()
        """The events of the emergency stop that this process has recorded."""
        self._services: dict[int, Service] = {}
        """The services that have the shared state, by partition."""
        self._known: dict[str, Any] = {}
        self._changed: set[str] = set()
        """Names of values that have not been passed to the services yet."""
        self._written: dict[str, Any] = {}
        """The last shared storm and workers in trouble of each service."""
        self._spent = SharedSpending()
        self._cleaned_day = 0
        self._tasks = TaskSet()

    def partition(self, number: int) -> FleetState:
        """Return the shared state for the service of a partition."""
        return _PartitionState(self, number)

    async def close(self) -> None:
        """Cancel running tasks."""
        await self._tasks.cancel()

    # -- exchange every second -----------------------------------------------------------------------

    async def exchange_values(self, owned: Sequence[OwnedService]) -> None:
        """
        Write the values of these services, and pass them those of the others.

        Raises:
            LeaseError: The database cannot be reached.
        """
        if not self._values.is_available:
            await self._read()
            if not self._values.is_available:
                return
        if self._unwritten_stop is not None and not self._setting_stop.locked():
            async with self._setting_stop:
                await self._write_stop(self._unwritten_stop)
        new = [one for one in owned if self._services.get(one.partition) is not one.service]
        if new:
            # These are the last values of the former owners.
            await self._read()
            for one in new:
                one.service.interventions.inherit_storm(self._shared_storm(one.partition))
        for one in owned:
            await self._write(one)
        await self._read()
        state = await self._stop.read()
        if self._unwritten_stop is None and state != self.emergency_stop:
            self._apply_stop(state)
        # Only now: if the database is away, the next exchange gives them to the services.
        changed_names, self._changed = self._changed, set()
        for partition, _, service in owned:
            is_new = self._services.get(partition) is not service
            self._apply_values(partition, service, self._known.keys() if is_new else changed_names)
        self._services = {one.partition: one.service for one in owned}
        rows = [row for row in self._known.get(UNRECORDED) or () if row["id"] not in self._recorded]
        if rows and (first := self._services.get(0)) is not None:
            self._in_background(self._record(first, rows))

    async def _read(self) -> None:
        found = await self._values.read()
        changed_values = {name: value for name, value in found.items() if self._known.get(name) != value}
        for name, value in changed_values.items():
            if name.startswith(_SPENT):
                partition, _, agent_id = name.removeprefix(_SPENT).partition("/")
                self._spent.note(int(partition), agent_id, *value)
            else:
                self._known[name] = value
        if self._values.is_available and self._known.get(_STORM_ID) is None:
            self._known[_STORM_ID] = await self._values.update(_STORM_ID, lambda value: value or new_id())
        self._changed |= changed_values.keys()

    async def _write(self, owned: OwnedService) -> None:
        partition, token, service = owned
        worse = service.interventions.list_worse()[-_MAX_WORSE:]
        storm = service.remediation.storm.current
        shares: dict[str, Any] = {
            f"{_WORSE}{partition}": {"storm": storm, "workers": worse} if worse or storm else None,
            f"{_FAILING}{partition}": service.tickets.list_failing() or None,
        }
        if self._services.get(partition) is not service:
            for name in shares:
                self._written[name] = self._known.get(name)
        values = {name: value for name, value in shares.items() if value != self._written.get(name)}
        day, sums = service.monitor.today.take_changed()
        values |= {f"{_SPENT}{partition}/{agent}": (day, dollars) for agent, dollars in sums.items()}
        if not values:
            return
        try:
            await self._values.write(values, partition=partition, token=token)
        except LeaseError:
            service.monitor.today.changes |= sums.keys()
            raise
        self._written |= {name: value for name, value in values.items() if name in shares}
        if storm is not None and storm[0] == self._known.get(_STORM_ID):
            self._known[_STORM_ID] = await self._values.update(_STORM_ID, partial(_next_storm_id, storm[0]))
        if partition == 0 and (today := int(self._clock() // DAY)) != self._cleaned_day:
            self._cleaned_day = today
            await self._values.remove_old(_SPENT)

    def _apply_values(self, partition: int, service: Service, names: Iterable[str]) -> None:
        for name in names:
            if name == SHARED_ACTIONS:
                service.interventions.budget.replace(self._known[name] or ())
            elif name == SHARED_SPENDING:
                service.judging.budget.replace_spending(self._known[name])
            elif name.startswith(_FAILING) and name != f"{_FAILING}{partition}" and self._known[name]:
                causes = {failure.partition("\n")[0] for failure in self._known[name]}
                self._in_background(service.tickets.join_causes(causes))
        service.interventions.follow_emergency_stop(self.emergency_stop)
        self._join_storm(partition, service)

    def _join_storm(self, partition: int, service: Service) -> None:
        service.interventions.join_storm(*self._list_worse_outside(partition))
        watch = service.remediation.storm
        if watch.current is not None:
            # These tickets were opened or judged before enough workers of the fleet were known.
            self._in_background(service.tickets.join_storm(watch.storm_of))

    def _list_worse_outside(
        self, partition: int | None
    ) -> tuple[list[WorseWorker], tuple[str, float] | None]:
        """Return the workers of other partitions that recently got worse, and their oldest storm."""
        own = f"{_WORSE}{partition}"
        return _extract_worse_and_storm(
            (value for name, value in self._known.items() if name.startswith(_WORSE) and name != own),
            self._clock(),
        )

    # -- the emergency stop -------------------------------------------------------------------------

    async def set_emergency_stop(self, on: bool, *, by: str, reason: str) -> SwitchState:
        """
        Stop the actions of the whole fleet, or release the stop.

        Raises:
            StoreError: Writing failed. A stop applies to the services of this process, and is written later.
        """
        state = new_state(on, by=by, reason=reason, now=self._clock())
        replaced_state = self._unwritten_stop
        if on:
            # Until this is written, the state in the database is outdated.
            self._unwritten_stop = state
            self._apply_stop(state)
        async with self._setting_stop:
            try:
                await self._write_stop(state, replaced_state)
            except LeaseError as error:
                raise StoreError(_STOP_NOT_SAVED if on else _RELEASE_NOT_SAVED) from error
        return self.emergency_stop

    async def _write_stop(self, state: SwitchState, replaced_state: SwitchState | None = None) -> None:
        written_state = await self._stop.set(state)
        if self._unwritten_stop in (None, state, replaced_state):
            self._unwritten_stop = None
            self._apply_stop(written_state)

    def _apply_stop(self, state: SwitchState) -> None:
        self.emergency_stop = state
        for service in self._services.values():
            service.interventions.follow_emergency_stop(state)

    async def read_emergency_stop(self) -> SwitchState:
        """
        Return the emergency stop from the database, or the change that is not written yet.

        Raises:
            LeaseError: The database cannot be reached.
        """
        return self._unwritten_stop or await self._stop.read()

    async def _record(self, service: Service, rows: list[dict[str, Any]]) -> None:
        ids = {row["id"] for row in rows}
        self._recorded |= ids
        try:
            await service.remediation.stop_switch.record(unrecorded_events(rows))
        except StoreError:
            self._recorded -= ids
            raise
        await self._values.update(
            UNRECORDED, lambda rows: [row for row in rows or () if row["id"] not in ids]
        )

    # -- for the services ---------------------------------------------------------------------------

    async def read_storm(self, partition: int) -> SharedStorm:
        """
        Return the storm that all services know, for a service that starts.

        Raises:
            LeaseError: The database cannot be reached.
        """
        await self._read()
        return self._shared_storm(partition)

    def _shared_storm(self, partition: int) -> SharedStorm:
        inherited, storm = _extract_worse_and_storm([self._known.get(f"{_WORSE}{partition}")], self._clock())
        elsewhere, other = self._list_worse_outside(partition)
        return SharedStorm(inherited, elsewhere, _find_oldest_storm(filter(None, (storm, other))))

    def get_storm_id(self, partition: int) -> str:
        """Return the id of a storm that begins now: that of the other partitions if they have one."""
        # Until the first exchange, the values of the former owner also count.
        _, storm = self._list_worse_outside(partition if partition in self._services else None)
        return storm[0] if storm is not None else str(self._known.get(_STORM_ID) or new_id())

    def sum_spent_outside(self, partition: int, agent_id: str, day: int) -> tuple[float, float]:
        """See `SharedSpending.sum_outside`."""
        return self._spent.sum_outside(partition, agent_id, day)

    def list_failing_outside(self, partition: int) -> dict[str, set[WorkerKey]]:
        """Return the workers of the other partitions, by failure."""
        found: dict[str, set[WorkerKey]] = {}
        for name, value in self._known.items():
            if value and name.startswith(_FAILING) and name != f"{_FAILING}{partition}":
                for failure, keys in value.items():
                    found.setdefault(failure, set()).update((agent, session) for agent, session in keys)
        return found

    async def update(self, name: str, change: Change) -> Any:
        """See `SharedValues.update`."""
        if self._values.is_available:
            self._known[name] = await self._values.update(name, change)
        else:
            # The first owner with this version creates the table. Until then, each process counts alone.
            self._known[name] = change(self._known.get(name))
        return self._known[name]

    def _in_background(self, work: Awaitable[None]) -> None:
        self._tasks.start(_log_failure(work))


class _PartitionState(FleetState):
    """The shared state for the service of a partition."""

    is_shared = True

    def __init__(self, cluster: ClusterFleet, partition: int) -> None:
        self._cluster = cluster
        self._partition = partition

    def new_storm_id(self) -> str:
        return self._cluster.get_storm_id(self._partition)

    def spent_elsewhere(self, agent_id: str, day: int) -> tuple[float, float]:
        return self._cluster.sum_spent_outside(self._partition, agent_id, day)

    def failing_elsewhere(self) -> dict[str, set[WorkerKey]]:
        return self._cluster.list_failing_outside(self._partition)

    async def read_storm(self) -> SharedStorm:
        return await _or_store_error(self._cluster.read_storm(self._partition))

    async def read_emergency_stop(self) -> SwitchState:
        return await _or_store_error(self._cluster.read_emergency_stop())

    async def update(self, name: str, change: Change) -> Any:
        return await _or_store_error(self._cluster.update(name, change))


def _extract_worse_and_storm(
    values: Iterable[Any], now: float
) -> tuple[list[WorseWorker], tuple[str, float] | None]:
    """Return the workers that recently got worse, and the oldest storm, from the values of partitions."""
    worse, storms = list[WorseWorker](), list[tuple[str, float]]()
    for value in filter(None, values):
        workers = [WorseWorker(*row) for row in value["workers"]]
        recent = [worker for worker in workers if now - worker.at < QUIET_SECONDS]
        worse += recent
        if recent and value["storm"] is not None:
            storm_id, began = value["storm"]
            storms.append((storm_id, began))
    return worse, _find_oldest_storm(storms)


def _find_oldest_storm(storms: Iterable[tuple[str, float]]) -> tuple[str, float] | None:
    return min(storms, key=itemgetter(1), default=None)


def _next_storm_id(used_id: str, following: str | None) -> str | None:
    """Return the id of the next storm after one has begun."""
    return new_id() if following == used_id else following


async def _or_store_error(work: Awaitable[T]) -> T:
    try:
        return await work
    except LeaseError as error:
        reason = str(error).partition("\n")[0]
        raise DatabaseUnavailableError(f"the database cannot be reached: {reason}") from error


async def _log_failure(work: Awaitable[None]) -> None:
    try:
        await work
    except (LeaseError, StoreError) as error:
        _log.warning("cannot share with the other partitions: %s", error)
