"""
A partition of a cluster, in one process. Its service runs here while this process is the owner.

A partition is a complete service with its own database schema, telemetry stream and lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from queenright.health.cluster.cluster_lease import (
    RENEWAL_SECONDS,
    ClusterLease,
    LeaseError,
    LeaseLostError,
    Member,
    View,
)
from queenright.health.cluster.fleet import FleetState
from queenright.health.store.database import DatabaseInUseError, DatabaseUnavailableError
from queenright.health.store.store import Store, StoreError
from queenright.server.app import create_app
from queenright.server.cluster.consumer import StreamConsumer, UnknownCommitError
from queenright.server.cluster.fleet import OwnedService
from queenright.server.cluster.gateway.pages import RowOrderMiddleware
from queenright.server.cluster.hook_calls import HookCalls
from queenright.server.cluster.stream import StreamUnavailableError, TelemetryStream
from queenright.server.ports import Ports
from queenright.server.reload import read_reloadable
from queenright.server.service import Service
from queenright.server.serving import add_intake_tasks, end_streams, make_intake_apps, run_service
from queenright.server.settings import Settings

_log = logging.getLogger(__name__)

_CLAIM_TIMEOUT_SECONDS: Final = 2.0
"""Seconds to wait for the lock of an owner whose session has just ended."""
_BACKLOG_SECONDS: Final = 5.0
_LONGEST_PAUSE_SECONDS: Final = 32.0
"""Maximum seconds between attempts to start a partition without an owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerApps:
    """The apps of a partition's service, in the process that owns it."""

    api: ASGIApp
    hooks: ASGIApp


class Partition:
    """
    A partition, in one process.

    Args:
        number: Its number, from 0.
        ports: The ports of the process, with its settings.
        stream: The stream of its telemetry.
        lease: The leases of the process.
        starting: Limits the number of partitions that start at the same time.
        fleet: State shared with the other partitions; None if there is only one partition.

    Attributes:
        service: The service while this process is the owner, else None.
        apps: The apps of the service, while it serves.
        backlog: Messages in its stream; None while unknown, or if this process is not the owner.
        vacant_since: Monotonic time since which no process is the owner; None if one is.
        surplus_since: Monotonic time since which another process should own it instead of this one, else
            None.
        unserved_since: Monotonic time since which no process watches its workers; None if one does.
        failure: Why this process last failed to run it, except because the database was unavailable.
            The member resets it.
    """

    def __init__(
        self,
        number: int,
        *,
        ports: Ports,
        stream: TelemetryStream,
        lease: ClusterLease,
        starting: asyncio.Semaphore,
        fleet: FleetState | None = None,
    ) -> None:
        self.number = number
        self.stream = stream
        self.service: Service | None = None
        self.apps: OwnerApps | None = None
        self.backlog: int | None = None
        self.vacant_since: float | None = None
        self.surplus_since: float | None = None
        self.unserved_since: float | None = None
        self.failure: str | None = None
        self._failures = 0
        self._retry_at = float("-inf")
        self._ports = ports
        self._settings = make_partition_settings(ports.settings, number)
        self._lease = lease
        self._starting = starting
        self._fleet = fleet
        self._token: str | None = None
        self._own_task: asyncio.Task[None] | None = None
        self._is_handing_over = False
        self._loss_event = asyncio.Event()
        self._claim_event = asyncio.Event()
        self._owner: Member | None = None
        self.owner_changed = asyncio.Event()
        """Set when another process becomes the owner, and then replaced by a new event."""

    @property
    def owner(self) -> Member | None:
        """The owner if it is another process, else None."""
        return self._owner

    @owner.setter
    def owner(self, owner: Member | None) -> None:
        if owner != self._owner:
            self._owner = owner
            self.owner_changed.set()
            self.owner_changed = asyncio.Event()

    @property
    def registry(self) -> CollectorRegistry | None:
        """The registry of the service; None if this process is not the owner."""
        return None if self.service is None else self.service.registry

    @property
    def owned_service(self) -> OwnedService | None:
        """The service and its store's token; None if this process is not the owner."""
        if self.service is None or self._token is None:
            return None
        return OwnedService(self.number, self._token, self.service)

    @property
    def is_running(self) -> bool:
        """Whether this process owns, claims or releases the partition."""
        return self._own_task is not None and not self._own_task.done()

    @property
    def is_claimed(self) -> bool:
        """Whether this process has opened the store of the partition."""
        return self._token is not None

    @property
    def is_ending(self) -> bool:
        """Whether this process is releasing the partition."""
        return self.is_running and self._loss_event.is_set()

    def follow(self, view: View, now: float) -> None:
        """Update the owner, and the times since which no process owns or watches the partition."""
        owner = view.find_owner(self.number)
        is_own = owner is not None and owner.member_id == self._lease.member.member_id
        self.owner = None if is_own else owner
        self.vacant_since = find_start(self.vacant_since, view.partitions[self.number].is_vacant, now)
        self.unserved_since = find_start(self.unserved_since, not view.is_served(self.number), now)

    def claim(self) -> None:
        """Try to become the owner, unless this process is the owner or has just failed."""
        if not self.is_running and time.monotonic() >= self._retry_at:
            self._loss_event.clear()
            self._claim_event.clear()
            self._is_handing_over = False
            self._own_task = asyncio.create_task(self._run_as_owner(), name=f"partition-{self.number}")

    def hand_over(self) -> None:
        """Hand over to another process: stop serving, store received messages, and release the lease."""
        if self.is_running:
            self._is_handing_over = True
            self._loss_event.set()

    async def wait_released(self) -> None:
        """Wait until this process has released the partition."""
        if self._own_task is not None:
            await self._own_task

    async def _run_as_owner(self) -> None:
        """Run the service until the lease is lost or the partition is handed over."""
        has_failed = False
        failure: str | None = None
        try:
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(_cancel_task, asyncio.create_task(self._keep_lease()))
                async with self._starting:
                    if self._loss_event.is_set():
                        return
                    service = await stack.enter_async_context(self._run_service())
                    if not self._loss_event.is_set():
                        await self._serve(service, stack)
                await self._loss_event.wait()
        except DatabaseInUseError as error:
            _log.warning("not the owner%s: %s", self._suffix, error)
        except StoreError as error:
            _log.error("the service has failed%s: %s", self._suffix, error)
            has_failed = self.service is None
            # Without the database, all processes fail in the same way.
            failure = None if isinstance(error, DatabaseUnavailableError) else str(error)
        except Exception as error:
            # The next refresh detects that the partition has no owner.
            _log.exception("the service has failed%s", self._suffix)
            has_failed, failure = True, f"{type(error).__name__}: {error}"
        finally:
            if has_failed and not self._is_handing_over:
                self.failure = failure
                self._failures += 1
                self._retry_at = time.monotonic() + min(2.0**self._failures, _LONGEST_PAUSE_SECONDS)
            token, self._token = self._token, None
            self.service, self.apps, self.backlog = None, None, None
            if token is not None and self._is_handing_over:
                with contextlib.suppress(LeaseError):
                    await self._lease.release(self.number, token)

    @contextlib.asynccontextmanager
    async def _run_service(self) -> AsyncIterator[Service]:
        storage = self._settings.storage
        # `watch_reloadable` logs an invalid file once for all partitions of the process.
        settings, _ = await asyncio.to_thread(read_reloadable, self._settings)
        async with run_service(
            settings,
            self._ports.otlp_url,
            may_deliver=lambda: self._lease.is_valid(self.number),
            can_receive=lambda: self.stream.is_available,
            open_store=partial(self._open_store, asyncio.get_running_loop()),
            folder=storage / "partitions" / str(self.number) if self.number else storage,
            fleet=self._fleet,
        ) as service:
            yield service

    def _open_store(self, loop: asyncio.AbstractEventLoop, url: str) -> Store:
        """Open the store for writing, which makes this process the owner. Runs in a thread."""
        store = Store.open(
            url,
            busy_timeout=_CLAIM_TIMEOUT_SECONDS,
            member_id=self._lease.member.member_id,
            partition=self.number,
        )
        self._token = store.writer_token
        loop.call_soon_threadsafe(self._claim_event.set)
        return store

    async def _keep_lease(self) -> None:
        """Renew the lease until another process takes it. Then this process releases the partition."""
        try:
            await self._claim_event.wait()
            while self._token is not None:
                try:
                    await self._lease.renew(self.number, self._token)
                except LeaseLostError:
                    _log.error("another process of the cluster has taken over%s", self._suffix)
                    return
                except LeaseError as error:
                    _log.warning("cannot renew the lease: %s", str(error).splitlines()[0])
                await asyncio.sleep(RENEWAL_SECONDS)
        finally:
            self._loss_event.set()

    async def _serve(self, service: Service, stack: contextlib.AsyncExitStack) -> None:
        calls = HookCalls(self.stream, service.pipeline.ingest, service.clock)
        intake = await make_intake_apps(service, keeper=calls)
        app = create_app(service, bind_address=self._ports.api.getsockname()[0], access=self._ports.access)
        dropped_counter = service.metrics.telemetry_dropped.labels("stream")
        consumer = StreamConsumer(
            self.stream,
            store=service.store,
            receiver=intake.receiver,
            hooks=intake.hooks,
            ingest=service.pipeline.ingest,
            on_drop=lambda path: dropped_counter.inc(),
            clock=service.clock,
        )
        # Only one partition records changes of tokens.
        add_intake_tasks(service, intake, None if self.number else self._ports.access)
        service.tasks.add("telemetry-stream", partial(self._consume, consumer))
        service.tasks.add("backlog", self._watch_backlog)
        self._failures = 0
        self.service = service
        self.apps = OwnerApps(
            api=RowOrderMiddleware(app) if self._settings.cluster.partitions > 1 else app, hooks=intake.hooks
        )
        stack.callback(self._end_serving, service)
        _log.info("this process watches the workers now%s", self._suffix)

    async def _consume(self, consumer: StreamConsumer) -> None:
        """Read the stream. If that ends, release the partition; its state is rebuilt from the log."""
        try:
            await consumer.run()
        except UnknownCommitError:
            _log.warning(
                "events were stored, but the database's answer was lost; starting again from the log"
            )
        finally:
            self._loss_event.set()

    def _end_serving(self, service: Service) -> None:
        self.apps = None
        end_streams(service)

    async def _watch_backlog(self) -> None:
        while True:
            self.backlog = None
            with contextlib.suppress(StreamUnavailableError):
                self.backlog = (await self.stream.state()).messages
            await asyncio.sleep(_BACKLOG_SECONDS)

    @property
    def _suffix(self) -> str:
        """The partition, for messages; empty if there is only one."""
        return f" (partition {self.number})" if self._settings.cluster.partitions > 1 else ""


def find_start(since: float | None, holds: bool, now: float) -> float | None:
    """Return when a condition began: ``since``, or ``now`` if it has just begun; None if it does not hold."""
    if not holds:
        return None
    return now if since is None else since


def make_partition_settings(settings: Settings, partition: int) -> Settings:
    """Return the settings of a partition's service. Tasks that run once per fleet run in partition 0."""
    if not partition:
        return settings
    agents = settings.agents.model_copy(update={"load": ()})
    return settings.model_copy(update={"agents": agents, "step_logs": ()})


async def _cancel_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
