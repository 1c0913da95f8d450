"""
A process of a cluster. It accepts telemetry, answers requests, and owns its share of the partitions.

The owner of a partition runs its service. Every process publishes telemetry to the streams of the partitions,
and forwards other requests to their owners.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from importlib.metadata import version
from socket import gethostname
from typing import Final

from prometheus_client import CollectorRegistry

from queenright import api
from queenright.health.cluster.cluster_lease import (
    LEASE_SECONDS,
    ClusterLease,
    LeaseError,
    Member,
    MemberState,
    View,
)
from queenright.health.cluster.shared_secrets import LOGIN_KEY
from queenright.health.cluster.switch_state import SwitchState
from queenright.health.store.engines import parse_address
from queenright.health.store.postgres import disconnect_databases
from queenright.instrumentation import names
from queenright.instrumentation.families import counter
from queenright.instrumentation.identity import new_id
from queenright.server.cluster.assignment import (
    assign_partitions,
    find_candidates,
    find_partition_count,
    is_oldest_member,
)
from queenright.server.cluster.faults import describe_clock, find_faults, format_partitions
from queenright.server.cluster.fleet import ClusterFleet
from queenright.server.cluster.front import ClusterFront
from queenright.server.cluster.local import create_local_app
from queenright.server.cluster.metrics import ClusterMetrics, collect_process, merge_families
from queenright.server.cluster.partition import Partition, find_start
from queenright.server.cluster.proxy import Proxy
from queenright.server.cluster.settings_hash import hash_settings
from queenright.server.cluster.stream import NatsConnection, StreamUnavailableError
from queenright.server.console.templates import render_error
from queenright.server.metrics.metrics import Exposition
from queenright.server.middleware.guarded_app import build_guarded_app
from queenright.server.ops.background_tasks import BackgroundTasks, Work
from queenright.server.ops.folders import require_usable_storage
from queenright.server.ops.settings_files import check_files
from queenright.server.otlp.forward import run_forwarder
from queenright.server.otlp.otlp_guard import OtlpGuard
from queenright.server.otlp.receiver import OtlpReceiver
from queenright.server.ports import Ports, bind_ports
from queenright.server.reload import watch_reloadable
from queenright.server.service import Service
from queenright.server.settings import Settings
from queenright.server.telemetry.intake import Intake
from queenright.server.webhooks.hooks import count_denied, route_hooks

_log = logging.getLogger(__name__)

_REFRESH_SECONDS: Final = 1.0
"""Seconds between refreshes of the view of the cluster."""
_EVICTION_REFRESH_SECONDS: Final = 0.1
"""Seconds until a refresh after an owner's session was ended, because its partition will soon be free."""
_UNREACHABLE_SECONDS: Final = 3.0
"""
Seconds after which a process hands over its partitions if only this process cannot reach NATS.

After a restart of NATS, all processes reconnect within two or three seconds.
"""
_STOP_SECONDS: Final = 10.0
"""Seconds between checks, during a stop, that the database still answers."""
_DRAIN_SECONDS: Final = 20.0
"""Seconds after which a stop closes the database connections. Deployments allow 60 seconds to stop."""
_MAX_STARTING: Final = 4
"""Maximum number of partitions that start at the same time."""
_MOVING_SECONDS: Final = 30.0
"""Maximum seconds that an unwatched partition delays the next hand-over. It may be unable to start."""
_FAILED_SECONDS: Final = 60.0
"""
Seconds for which a process that failed to run a partition gets no further partitions.

They double, up to an hour, each time another process can run the partition.
"""
_MAX_FAILED_SECONDS: Final = 3600.0


class ClusterMember:
    """
    One process of a cluster. Create it with `run_cluster_member`.

    Attributes:
        ports: Its ports.
        partitions: All partitions, by number.
        front: Its ASGI apps.
        registry: The metrics of the process, without those of the partitions that it owns.
        fleet: The shared state of all partitions; None if there is only one.
        tasks: Groups of its background tasks.
    """

    def __init__(self, ports: Ports, nats: NatsConnection, lease: ClusterLease, proxy: Proxy) -> None:
        self.ports = ports
        self.tasks: list[BackgroundTasks] = []
        self._nats = nats
        self._lease = lease
        self._view: View | None = None
        self._faults = {"database": "the database has not answered yet"}
        """The faults of this process, by cause."""
        self._clock_fault = ""
        self._is_stopping = False
        self._has_evicted = False
        self._is_counted: bool | None = None
        """Whether this process has the cluster's number of partitions; None until the first refresh."""
        self._settings_hash = hash_settings(ports.settings)
        self._has_login_key = False
        self._failures = 0
        self._failed_partitions: set[int] = set()
        """Partitions that this process failed to run and that no other process has run since."""
        self._failed_until = float("-inf")
        starting = asyncio.Semaphore(_MAX_STARTING)
        self.fleet = ClusterFleet(lease) if len(nats.streams) > 1 else None
        self.partitions = [
            Partition(
                number,
                ports=ports,
                stream=stream,
                lease=lease,
                starting=starting,
                fleet=None if self.fleet is None else self.fleet.get_partition_state(number),
            )
            for number, stream in enumerate(nats.streams)
        ]
        self.registry = CollectorRegistry()
        self._metrics = ClusterMetrics(partitions=self.partitions)
        self.registry.register(self._metrics)
        self._exposition = Exposition(
            partial(collect_process, self.registry, self.partitions), merge_families
        )
        bind_address = ports.api.getsockname()[0]
        self.front = ClusterFront(
            self.partitions,
            proxy=proxy,
            local=create_local_app(self, access=ports.access, bind_address=bind_address),
            access=ports.access,
            is_exposed=ports.is_exposed,
            guard=partial(
                build_guarded_app, state={}, access=ports.access, bind_address=bind_address, page=render_error
            ),
        )

    @property
    def member(self) -> Member:
        """This process."""
        return self._lease.member

    def list_services(self) -> list[Service]:
        """Return the services of the partitions that this process owns."""
        return [partition.service for partition in self.partitions if partition.service is not None]

    def list_faults(self) -> list[str]:
        """Return the faults of this process, as sentences."""
        reasons = [f"{name} has stopped" for tasks in self.tasks for name in tasks.list_stopped()]
        reasons += self._faults.values()
        refusing_partitions = self._list_refusing_partitions()
        if len(refusing_partitions) == len(self.partitions):
            reasons.append("NATS cannot take telemetry")
        if "number" in self._faults:
            return reasons  # The partitions of this process are not those of the cluster.
        unwatched_partitions = [
            partition.number
            for partition in self.partitions
            if partition.service is None and partition.owner is None
        ]
        if len(unwatched_partitions) == len(self.partitions):
            reasons.append("no process of the cluster watches the workers")
        elif unwatched_partitions:
            reasons.append(
                f"no process of the cluster watches the workers of {format_partitions(unwatched_partitions)}"
            )
        return reasons

    def _list_refusing_partitions(self) -> list[int]:
        """Return the partitions whose streams accept no messages."""
        return [stream.partition for stream in self._nats.streams if not stream.is_accepting]

    def list_stream_faults(self) -> list[str]:
        """Return faults of streams that accept no messages while others do. They do not affect readiness."""
        refusing_partitions = self._list_refusing_partitions()
        if not refusing_partitions or len(refusing_partitions) == len(self.partitions):
            return []
        streams = format_partitions(refusing_partitions)
        return [f"NATS cannot take telemetry of {streams}: the stream is full, or has no majority of servers"]

    def ready(self) -> list[str]:
        """Return the reasons why this process is not ready, as sentences."""
        reasons = [reason for service in self.list_services() for reason in service.ready()]
        return [*dict.fromkeys(reasons + self.list_faults())]

    async def render_metrics(self, content_type: str) -> bytes:
        """Return the exposition of the metrics of this process and of the partitions that it owns."""
        return await self._exposition.render(content_type)

    async def status(self) -> api.ClusterStatus:
        """Return the cluster as this process sees it."""
        await self.refresh_view()
        faults, view = self.list_faults() + self.list_stream_faults(), self._view
        if view is not None:
            faults += find_faults(view, self.member.member_id)
        backlogs = await asyncio.gather(*(self._read_backlog(partition) for partition in self.partitions))
        known_backlogs = [backlog for backlog in backlogs if backlog is not None]
        owners = [
            owner.member_id if view is not None and (owner := view.find_owner(number)) is not None else None
            for number in range(len(self.partitions))
        ]
        return api.ClusterStatus(
            answered_by=self.member.member_id,
            members=[
                api.ClusterMember(
                    member_id=member_view.member.member_id,
                    url=member_view.member.api_url,
                    version=member_view.member.version,
                    is_owner=member_view.member.member_id in owners,
                    uptime_seconds=member_view.uptime_seconds,
                    unseen_seconds=member_view.unseen_seconds,
                )
                for member_view in (view.members if view is not None else ())
            ],
            partitions=[
                api.ClusterPartition(number=number, owner=owner, backlog=backlog)
                for number, (owner, backlog) in enumerate(zip(owners, backlogs, strict=True))
            ],
            backlog=api.Backlog(
                messages=sum(backlog.messages for backlog in known_backlogs),
                bytes=sum(backlog.bytes for backlog in known_backlogs),
            )
            if known_backlogs
            else None,
            faults=faults,
        )

    async def emergency_stop(self) -> SwitchState:
        """Return the emergency stop. Call this only for a fleet with several partitions."""
        assert self.fleet is not None
        try:
            return await self.fleet.read_emergency_stop()
        except LeaseError:
            return self.fleet.emergency_stop

    async def set_emergency_stop(self, on: bool, *, by: str, reason: str) -> SwitchState:
        """
        Stop the actions of a fleet with several partitions, or release the stop.

        Raises:
            StoreError: Writing failed; see `ClusterFleet.set_emergency_stop`.
        """
        assert self.fleet is not None
        return await self.fleet.set_emergency_stop(on, by=by, reason=reason)

    async def _read_backlog(self, partition: Partition) -> api.Backlog | None:
        try:
            state = await partition.stream.state()
        except StreamUnavailableError:
            return None
        return api.Backlog(messages=state.messages, bytes=state.bytes)

    async def run(self) -> None:
        """Refresh the view, and claim and hand over partitions, until cancelled."""
        while True:
            view = None
            try:
                if (view := await self.refresh_view()) is not None:
                    self._balance_partitions(view, time.monotonic())
                await self._share_fleet_state()
            except Exception:
                # Without refreshes, the process would never own or release a partition again.
                _log.exception("the refresh of the cluster has failed")
            await asyncio.sleep(
                _EVICTION_REFRESH_SECONDS if self._has_evicted else compute_refresh_pause(view)
            )

    async def stop(self) -> None:
        """Hand over the partitions. Abandon them if the database does not answer in time."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        self._is_stopping = True
        # Do this first, so that other members assign no partitions to this process.
        view = await self.refresh_view()
        for partition in self.partitions:
            partition.hand_over()
        pending = {asyncio.create_task(partition.wait_released()) for partition in self.partitions}
        while pending:
            if view is None or time.monotonic() >= deadline:
                # Otherwise, threads would wait for the database forever. The stream still has their messages.
                disconnect_databases()
            _, pending = await asyncio.wait(pending, timeout=_STOP_SECONDS)
            if pending:
                view = await self.refresh_view()
        if self.fleet is not None:
            await self.fleet.close()

    async def refresh_view(self) -> View | None:
        """Report that this process runs. Return the view; None if the database cannot be reached."""
        self._metrics.is_stream_available = any(stream.is_accepting for stream in self._nats.streams)
        self._has_evicted = False
        try:
            view = await self._lease.read_cluster(self._make_member_state())
            if self._is_counted is None:
                self._is_counted = is_oldest_member(view, self.member.member_id)
                view = await self._lease.read_cluster(self._make_member_state())
            for partition, partition_view in zip(self.partitions, view.partitions, strict=True):
                may_evict = (
                    partition_view.has_expired and not partition_view.is_vacant and not partition.is_claimed
                )
                if may_evict and await self._lease.evict_expired_owner(partition.number):
                    self._has_evicted = True
                    _log.warning("an owner has not renewed its lease in time; its session was ended")
            if not self._has_login_key and (key := await self._lease.read_secret(LOGIN_KEY)) is not None:
                self.ports.access.sessions.key, self._has_login_key = key, True
        except LeaseError as error:
            self._set_fault("database", f"the database cannot be reached: {str(error).splitlines()[0]}")
            return None
        self._set_fault("database", None)
        self._view = view
        self._metrics.members = len(view.alive)
        now = time.monotonic()
        for partition in self.partitions:
            partition.follow(view, now)
        self._check_partition_count(find_partition_count(view, self.member.partitions))
        self._record_failures(view, now)
        self._check_clock()
        return view

    def _make_member_state(self) -> MemberState:
        return MemberState(
            can_publish=self._nats.is_available and not self._is_stopping,
            is_stopping=self._is_stopping,
            is_counted=bool(self._is_counted),
            serving=frozenset(
                partition.number for partition in self.partitions if partition.apps is not None
            ),
            has_failed="failure" in self._faults,
            settings=self._settings_hash,
            clock_offset=round(self._lease.clock_offset, 3),
        )

    async def watch_settings(self) -> None:
        """Update the settings hash when the file changes, because later takeovers use the new settings."""
        async for settings in watch_reloadable(self.ports.settings):
            self._settings_hash = hash_settings(settings)

    async def _share_fleet_state(self) -> None:
        """Exchange the fleet's shared state with the owners of the other partitions."""
        if self.fleet is None:
            return
        owned_services = [
            owned_service
            for partition in self.partitions
            if (owned_service := partition.owned_service) is not None
        ]
        fault = None
        try:
            await self.fleet.exchange_values(owned_services)
        except LeaseError as error:
            fault = f"storms and limits apply to each partition separately: {str(error).splitlines()[0]}"
        self._set_fault("fleet", fault)

    def _balance_partitions(self, view: View, now: float) -> None:
        """Claim and hand over partitions, so that each member owns its share."""
        if self._is_stopping:
            return
        own_id = self.member.member_id
        count = find_partition_count(view, self.member.partitions)
        candidates = find_candidates(view, count)
        if not candidates and count == self.member.partitions:
            candidates = {own_id}
        failed_members = {each.member.member_id for each in view.members if each.state.has_failed}
        owners = assign_partitions([each.owner_id for each in view.partitions], candidates, failed_members)
        if own_id in candidates:
            for partition, wanted_owner in zip(self.partitions, owners, strict=True):
                started_at = partition.vacant_since
                # A member may be unable to run the partitions assigned to it.
                if started_at is not None and (wanted_owner == own_id or now - started_at > LEASE_SECONDS):
                    partition.claim()
        for partition, wanted_owner in zip(self.partitions, owners, strict=True):
            is_surplus = partition.is_claimed and wanted_owner != own_id
            partition.surplus_since = find_start(partition.surplus_since, is_surplus, now)
        surplus_seconds = LEASE_SECONDS if own_id in candidates else _UNREACHABLE_SECONDS
        surplus_partitions = [
            partition
            for partition in self.partitions
            if (started_at := partition.surplus_since) is not None
            and now - started_at > surplus_seconds
            and not partition.is_ending
        ]
        if own_id not in candidates:
            if surplus_partitions:
                _log.error("this process cannot watch workers now; others take over")
            for partition in surplus_partitions:
                partition.hand_over()
        elif surplus_partitions and not self._is_moving(now):
            # Hand over one partition at a time: its workers are not watched until the next owner is ready.
            _log.info("handing over partition %d to balance the load", surplus_partitions[0].number)
            surplus_partitions[0].hand_over()

    def _is_moving(self, now: float) -> bool:
        """Return whether a partition is between two owners, so that its workers are not watched yet."""
        return any(
            partition.is_ending
            or (partition.unserved_since is not None and now - partition.unserved_since < _MOVING_SECONDS)
            for partition in self.partitions
        )

    def _record_failures(self, view: View, now: float) -> None:
        """Record which partitions this process could not run, and whether another process can run them."""
        for partition in self.partitions:
            failure, partition.failure = partition.failure, None
            if failure is not None:
                self._failed_partitions.add(partition.number)
                self._failed_until = max(self._failed_until, now + _FAILED_SECONDS)
                partition_name = format_partitions([partition.number])
                self._faults["failure"] = f"this process could not watch {partition_name}: {failure}"
            elif partition.number in self._failed_partitions and view.is_served(partition.number):
                self._failed_partitions.discard(partition.number)
                self._failed_until = now
                if partition.apps is None:
                    self._failed_until += min(_FAILED_SECONDS * 2**self._failures, _MAX_FAILED_SECONDS)
                    self._failures += 1
        if now >= self._failed_until:
            self._faults.pop("failure", None)
            if any(partition.apps is not None for partition in self.partitions):
                self._failures = 0

    def _check_partition_count(self, count: int) -> None:
        fault, own_count = None, self.member.partitions
        self._is_counted = count == own_count
        if count != own_count:
            fault = (
                f"cluster.partitions is {own_count} here, but the cluster has {count}; this process owns no "
                f"partition and accepts no telemetry until it is restarted with {count}"
            )
            if count < own_count:
                fault += f", or until all processes are stopped, and then started with {own_count}"
        # Otherwise this process could publish to streams that have no reader.
        self.front.refusal = fault
        self._set_fault("number", fault)

    def _check_clock(self) -> None:
        fault = describe_clock(self._lease.clock_offset)
        if fault and not self._clock_fault:
            _log.warning("%s", fault)
        self._clock_fault = fault

    def _set_fault(self, cause: str, fault: str | None) -> None:
        if fault is None:
            self._faults.pop(cause, None)
        elif fault != self._faults.get(cause):
            self._faults[cause] = fault
            _log.error("%s", fault)


def compute_refresh_pause(view: View | None) -> float:
    """Return the seconds until the next refresh of the view: sooner if a lease expires."""
    if view is None:
        return _REFRESH_SECONDS
    return max(_EVICTION_REFRESH_SECONDS, min(view.expires_in, _REFRESH_SECONDS))


@contextlib.asynccontextmanager
async def run_cluster_member(settings: Settings) -> AsyncIterator[ClusterMember]:
    """
    Run a process of a cluster. It opens its ports at once, and claims partitions without an owner.

    Raises:
        PortInUseError: A port is taken.
        InvalidTokensError: A token is required, but no token is live.
        QueenrightError: A file that a setting names, or the storage folder, cannot be used.
    """
    cluster = settings.cluster
    assert cluster.nats is not None
    check_files(settings)
    require_usable_storage(settings.storage)
    async with contextlib.AsyncExitStack() as stack:
        ports = stack.enter_context(bind_ports(settings))
        nats = NatsConnection(
            cluster.nats,
            partitions=cluster.partitions,
            replicas=cluster.replicas,
            max_bytes=cluster.max_backlog_bytes,
        )
        connection_tasks = await stack.enter_async_context(_run_tasks({"nats-connection": nats.run}))
        lease = ClusterLease(
            parse_address(settings.database_url),
            Member(
                member_id=new_id(),
                host=cluster.host or gethostname(),
                api_port=ports.api.getsockname()[1],
                otlp_port=ports.otlp.getsockname()[1],
                version=version("queenright"),
                partitions=cluster.partitions,
            ),
        )
        stack.push_async_callback(_leave_cluster, lease)
        proxy = Proxy()
        stack.push_async_callback(proxy.aclose)
        member = ClusterMember(ports, nats, lease, proxy)
        member.tasks.append(connection_tasks)
        unused_registry = CollectorRegistry()  # Never exported: the owner counts spans and unused records.
        intake = Intake(member.registry, unused_registry=unused_registry)
        receiver = OtlpReceiver(
            _refuse_ingest,
            registry=unused_registry,
            intake=intake,
            forwarder=await stack.enter_async_context(
                run_forwarder(
                    settings.otlp.forward, lambda: counter(names.TELEMETRY_DROPPED, member.registry)
                )
            ),
            publish=member.front.publish,
        )
        guarded_app = OtlpGuard(
            route_hooks(receiver, member.front.hooks),
            access=ports.access,
            bind_address=ports.otlp.getsockname()[0],
            on_denied=partial(count_denied, intake, counter(names.HOOK_CALLS, member.registry), time.time),
        )
        # The process must know the cluster's number of partitions before it accepts telemetry.
        await member.refresh_view()
        await stack.enter_async_context(
            ports.serve(guarded_app, member.front.api, receiver.count_grpc_refusal)
        )
        work = {"cluster-view": member.run, "settings-file": member.watch_settings}
        member.tasks.append(await stack.enter_async_context(_run_tasks(work)))
        stack.push_async_callback(member.stop)
        yield member


async def _leave_cluster(lease: ClusterLease) -> None:
    with contextlib.suppress(LeaseError):
        await lease.leave()


async def _refuse_ingest(events: object) -> None:
    raise AssertionError("a member publishes telemetry")


@contextlib.asynccontextmanager
async def _run_tasks(work: Mapping[str, Work]) -> AsyncIterator[BackgroundTasks]:
    tasks = BackgroundTasks()
    await tasks.start(work)
    try:
        yield tasks
    finally:
        await tasks.stop()
