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

_NEXT_STORM_ID: Final = "next_storm"
"""The id of the next storm, agreed in advance so that services that detect it together use the same id."""
_WORSE_PREFIX: Final = "worse/"
"""Prefix of the value with a partition's workers that recently got worse, and its storm."""
_FAILING_PREFIX: Final = "failing/"
"""Prefix of the value with a partition's workers whose failure may have a shared cause."""
_SPENT_PREFIX: Final = "spent/"
"""Prefix of the value with an agent's daily spending in a partition."""
_MAX_WORSE_WORKERS: Final = 500
"""Maximum workers that a partition shares; the newest are shared. Far more than any storm threshold."""
_STOP_NOT_SAVED: Final = (
    "the database cannot be reached; the stop applies in this process now, and in the others once the "
    "database can be reached"
)
_RELEASE_NOT_SAVED: Final = "the database cannot be reached; the stop was not released, try again"


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

    def record(self, partition: int, agent_id: str, day: int, dollars: float) -> None:
        """Record the current spending of an agent in a partition."""
        if day > self._day:
            self._day = day
            self._by_agent.clear()
            self._by_partition.clear()
        if day == self._day:
            agent_spending = self._by_agent.setdefault(agent_id, {})
            change = dollars - agent_spending.get(partition, 0.0)
            agent_spending[partition] = dollars
            self._by_partition[partition] = self._by_partition.get(partition, 0.0) + change

    def sum_outside(self, partition: int, agent_id: str, day: int) -> tuple[float, float]:
        """Return a day's spending in the other partitions: that of an agent, and that of all agents."""
        if day != self._day:
            return 0.0, 0.0
        agent_spending, total_spending = self._by_agent.get(agent_id, {}), self._by_partition
        return (
            sum(agent_spending.values()) - agent_spending.get(partition, 0.0),
            sum(total_spending.values()) - total_spending.get(partition, 0.0),
        )


class ClusterFleet:
    """
    The shared state of the fleet in one process. An instance belongs to one event loop.

    Args:
        lease: The process's connection to the cluster's database.
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
        self._stop_lock = asyncio.Lock()
        self._recorded_ids: set[str] = set()
        """Ids of the emergency-stop events that this process has recorded."""
        self._services: dict[int, Service] = {}
        """The services that have received the shared values, by partition."""
        self._known_values: dict[str, Any] = {}
        self._changed_names: set[str] = set()
        """Names of changed values that the services have not received yet."""
        self._written_values: dict[str, Any] = {}
        """The values that this process wrote last, by name."""
        self._spending = SharedSpending()
        self._cleaned_day = 0
        self._tasks = TaskSet()

    def get_partition_state(self, number: int) -> FleetState:
        """Return the shared state for the service of a partition."""
        return _PartitionState(self, number)

    async def close(self) -> None:
        """Cancel running tasks."""
        await self._tasks.cancel()

    # -- exchange every second -----------------------------------------------------------------------

    async def exchange_values(self, owned: Sequence[OwnedService]) -> None:
        """
        Write the values of these services, and pass the values of other services to them.

        Raises:
            LeaseError: The database cannot be reached.
        """
        if not self._values.is_available:
            await self._read_values()
            if not self._values.is_available:
                return
        if self._unwritten_stop is not None and not self._stop_lock.locked():
            async with self._stop_lock:
                await self._write_stop(self._unwritten_stop)
        new_services = [each for each in owned if self._services.get(each.partition) is not each.service]
        if new_services:
            # Read the last values of the former owners before they are overwritten.
            await self._read_values()
            for each in new_services:
                each.service.interventions.inherit_storm(self._collect_storm(each.partition))
        for each in owned:
            await self._write_values(each)
        await self._read_values()
        state = await self._stop.read()
        if self._unwritten_stop is None and state != self.emergency_stop:
            self._apply_stop(state)
        # Reset only now. If the database fails above, the next exchange passes the values to the services.
        changed_names, self._changed_names = self._changed_names, set()
        for partition, _, service in owned:
            is_new = self._services.get(partition) is not service
            self._apply_values(partition, service, self._known_values.keys() if is_new else changed_names)
        self._services = {each.partition: each.service for each in owned}
        rows = [
            row for row in self._known_values.get(UNRECORDED) or () if row["id"] not in self._recorded_ids
        ]
        if rows and (first_service := self._services.get(0)) is not None:
            self._start_in_background(self._record_stop_events(first_service, rows))

    async def _read_values(self) -> None:
        values = await self._values.read()
        changed_values = {
            name: value for name, value in values.items() if self._known_values.get(name) != value
        }
        for name, value in changed_values.items():
            if name.startswith(_SPENT_PREFIX):
                partition, _, agent_id = name.removeprefix(_SPENT_PREFIX).partition("/")
                self._spending.record(int(partition), agent_id, *value)
            else:
                self._known_values[name] = value
        if self._values.is_available and self._known_values.get(_NEXT_STORM_ID) is None:
            self._known_values[_NEXT_STORM_ID] = await self._values.update(
                _NEXT_STORM_ID, lambda value: value or new_id()
            )
        self._changed_names |= changed_values.keys()

    async def _write_values(self, owned: OwnedService) -> None:
        partition, token, service = owned
        worse_workers = service.interventions.list_worse()[-_MAX_WORSE_WORKERS:]
        storm = service.remediation.storm.current
        shares: dict[str, Any] = {
            f"{_WORSE_PREFIX}{partition}": {"storm": storm, "workers": worse_workers}
            if worse_workers or storm
            else None,
            f"{_FAILING_PREFIX}{partition}": service.tickets.list_failing() or None,
        }
        if self._services.get(partition) is not service:
            for name in shares:
                self._written_values[name] = self._known_values.get(name)
        values = {name: value for name, value in shares.items() if value != self._written_values.get(name)}
        day, sums = service.monitor.today.take_changed()
        values |= {f"{_SPENT_PREFIX}{partition}/{agent}": (day, dollars) for agent, dollars in sums.items()}
        if not values:
            return
        try:
            await self._values.write(values, partition=partition, token=token)
        except LeaseError:
            service.monitor.today.changes |= sums.keys()
            raise
        self._written_values |= {name: value for name, value in values.items() if name in shares}
        if storm is not None and storm[0] == self._known_values.get(_NEXT_STORM_ID):
            self._known_values[_NEXT_STORM_ID] = await self._values.update(
                _NEXT_STORM_ID, partial(_replace_storm_id, storm[0])
            )
        if partition == 0 and (today := int(self._clock() // DAY)) != self._cleaned_day:
            self._cleaned_day = today
            await self._values.remove_old(_SPENT_PREFIX)

    def _apply_values(self, partition: int, service: Service, names: Iterable[str]) -> None:
        for name in names:
            if name == SHARED_ACTIONS:
                service.interventions.budget.replace(self._known_values[name] or ())
            elif name == SHARED_SPENDING:
                service.judging.budget.replace_spending(self._known_values[name])
            elif (
                name.startswith(_FAILING_PREFIX)
                and name != f"{_FAILING_PREFIX}{partition}"
                and self._known_values[name]
            ):
                causes = {failure.partition("\n")[0] for failure in self._known_values[name]}
                self._start_in_background(service.tickets.join_causes(causes))
        service.interventions.follow_emergency_stop(self.emergency_stop)
        self._join_storm(partition, service)

    def _join_storm(self, partition: int, service: Service) -> None:
        service.interventions.join_storm(*self._list_worse_outside(partition))
        watch = service.remediation.storm
        if watch.current is not None:
            # Tickets that were opened or judged before the storm was detected must join it too.
            self._start_in_background(service.tickets.join_storm(watch.storm_of))

    def _list_worse_outside(
        self, partition: int | None
    ) -> tuple[list[WorseWorker], tuple[str, float] | None]:
        """Return the workers of other partitions that recently got worse, and their oldest storm."""
        own_name = f"{_WORSE_PREFIX}{partition}"
        return _extract_worse_and_storm(
            (
                value
                for name, value in self._known_values.items()
                if name.startswith(_WORSE_PREFIX) and name != own_name
            ),
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
        async with self._stop_lock:
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

    async def _record_stop_events(self, service: Service, rows: list[dict[str, Any]]) -> None:
        ids = {row["id"] for row in rows}
        self._recorded_ids |= ids
        try:
            await service.remediation.stop_switch.record(unrecorded_events(rows))
        except StoreError:
            self._recorded_ids -= ids
            raise
        await self._values.update(
            UNRECORDED, lambda rows: [row for row in rows or () if row["id"] not in ids]
        )

    # -- for the services ---------------------------------------------------------------------------

    async def read_storm(self, partition: int) -> SharedStorm:
        """
        Return the storm of the fleet, for a service that starts.

        Raises:
            LeaseError: The database cannot be reached.
        """
        await self._read_values()
        return self._collect_storm(partition)

    def _collect_storm(self, partition: int) -> SharedStorm:
        own_workers, own_storm = _extract_worse_and_storm(
            [self._known_values.get(f"{_WORSE_PREFIX}{partition}")], self._clock()
        )
        other_workers, other_storm = self._list_worse_outside(partition)
        return SharedStorm(
            own_workers, other_workers, _find_oldest_storm(filter(None, (own_storm, other_storm)))
        )

    def get_storm_id(self, partition: int) -> str:
        """Return the id of a storm that begins now: that of the other partitions if they have one."""
        # Until the first exchange, the values of the former owner also count.
        _, storm = self._list_worse_outside(partition if partition in self._services else None)
        return storm[0] if storm is not None else str(self._known_values.get(_NEXT_STORM_ID) or new_id())

    def sum_spent_outside(self, partition: int, agent_id: str, day: int) -> tuple[float, float]:
        """See `SharedSpending.sum_outside`."""
        return self._spending.sum_outside(partition, agent_id, day)

    def list_failing_outside(self, partition: int) -> dict[str, set[WorkerKey]]:
        """Return the workers of the other partitions, by failure."""
        workers_by_failure: dict[str, set[WorkerKey]] = {}
        for name, value in self._known_values.items():
            if value and name.startswith(_FAILING_PREFIX) and name != f"{_FAILING_PREFIX}{partition}":
                for failure, keys in value.items():
                    workers_by_failure.setdefault(failure, set()).update(
                        (agent, session) for agent, session in keys
                    )
        return workers_by_failure

    async def update(self, name: str, change: Change) -> Any:
        """See `SharedValues.update`."""
        if self._values.is_available:
            self._known_values[name] = await self._values.update(name, change)
        else:
            # The first owner with this version creates the table. Until then, processes share nothing.
            self._known_values[name] = change(self._known_values.get(name))
        return self._known_values[name]

    def _start_in_background(self, work: Awaitable[None]) -> None:
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
        return await _raise_as_store_error(self._cluster.read_storm(self._partition))

    async def read_emergency_stop(self) -> SwitchState:
        return await _raise_as_store_error(self._cluster.read_emergency_stop())

    async def update(self, name: str, change: Change) -> Any:
        return await _raise_as_store_error(self._cluster.update(name, change))


def _extract_worse_and_storm(
    values: Iterable[Any], now: float
) -> tuple[list[WorseWorker], tuple[str, float] | None]:
    """Return the workers that recently got worse, and the oldest storm, from the values of partitions."""
    worse_workers, storms = list[WorseWorker](), list[tuple[str, float]]()
    for value in filter(None, values):
        workers = [WorseWorker(*row) for row in value["workers"]]
        recent_workers = [worker for worker in workers if now - worker.at < QUIET_SECONDS]
        worse_workers += recent_workers
        if recent_workers and value["storm"] is not None:
            storm_id, started_at = value["storm"]
            storms.append((storm_id, started_at))
    return worse_workers, _find_oldest_storm(storms)


def _find_oldest_storm(storms: Iterable[tuple[str, float]]) -> tuple[str, float] | None:
    return min(storms, key=itemgetter(1), default=None)


def _replace_storm_id(used_id: str, current_id: str | None) -> str | None:
    """Return a new id for the next storm if its id has been used."""
    return new_id() if current_id == used_id else current_id


async def _raise_as_store_error(work: Awaitable[T]) -> T:
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
