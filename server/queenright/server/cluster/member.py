"""
A process of a cluster: takes telemetry, passes requests on, and takes over when no process owns the workers.

The owner runs the service. The others only serve: what agents send goes to the telemetry stream, every other
request to the owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from importlib.metadata import version
from socket import gethostname
from typing import Any, Final

from prometheus_client import CollectorRegistry

from queenright import api
from queenright.health.cluster_lease import (
    LEASE_SECONDS,
    RENEWAL_SECONDS,
    ClusterLease,
    LeaseError,
    LeaseLostError,
    Member,
    View,
)
from queenright.health.engines import parse_address
from queenright.health.store import Store, StoreError
from queenright.instrumentation import names
from queenright.instrumentation.families import counter
from queenright.instrumentation.identity import new_id
from queenright.server.app import create_app
from queenright.server.build import require_usable_storage
from queenright.server.cluster.consumer import StreamConsumer, UnknownCommitError
from queenright.server.cluster.front import ClusterFront, OwnerApps
from queenright.server.cluster.metrics import ClusterMetrics
from queenright.server.cluster.proxy import Proxy
from queenright.server.cluster.standby import create_standby_app
from queenright.server.cluster.stream import StreamUnavailableError, TelemetryStream
from queenright.server.ops.settings_files import check_files
from queenright.server.otlp.forward import forwarding
from queenright.server.otlp.otlp_guard import OtlpGuard
from queenright.server.otlp.receiver import OtlpReceiver
from queenright.server.service import Service
from queenright.server.settings import Settings
from queenright.server.up import (
    Ports,
    add_intake_tasks,
    bind_ports,
    end_streams,
    make_intake_apps,
    run_service,
)
from queenright.server.webhooks.hooks import with_hooks

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the cluster."""
_CLAIM_SECONDS: Final = 2.0
"""How long to wait for the lock of an owner whose session has just ended."""


class ClusterMember:
    """
    One process of a cluster. Make it with `cluster_member`.

    ``service`` is the service while this process is the owner, else None.
    """

    def __init__(self, ports: Ports, stream: TelemetryStream, lease: ClusterLease, proxy: Proxy) -> None:
        self.service: Service | None = None
        self.ports = ports
        self._stream = stream
        self._lease = lease
        self._metrics = ClusterMetrics()
        self._view: View | None = None
        self._fault: str | None = "the database was not asked yet"
        self._token: str | None = None
        self._deaf_since: float | None = None
        """Since when another process reaches NATS, and this one does not."""
        self._stopping = asyncio.Event()
        self._lost = asyncio.Event()
        self._vacant = asyncio.Event()
        self._claimed = asyncio.Event()
        self.registry = CollectorRegistry()
        self.registry.register(self._metrics)
        standby = create_standby_app(
            self, self.registry, access=ports.access, bound=ports.api.getsockname()[0]
        )
        self.front = ClusterFront(stream=stream, proxy=proxy, standby=standby, is_exposed=ports.is_exposed)

    @property
    def member(self) -> Member:
        """This process."""
        return self._lease.member

    def faults(self) -> list[str]:
        """Return what keeps this process from its work, as sentences; empty if all is well."""
        found = [] if self._fault is None else [self._fault]
        if not self._stream.is_accepting:
            found.append("NATS cannot take telemetry")
        if self.service is None and self.front.owner is None:
            found.append("no process of the cluster watches the workers")
        return found

    async def status(self) -> api.ClusterStatus:
        """Return the cluster as this process sees it."""
        await self._look()
        faults, backlog = self.faults(), None
        with contextlib.suppress(StreamUnavailableError):
            state = await self._stream.state()
            backlog = api.Backlog(messages=state.messages, bytes=state.bytes)
        return api.ClusterStatus(
            answered_by=self.member.member_id,
            members=[
                api.ClusterMember(
                    member_id=seen.member.member_id,
                    url=seen.member.api_url,
                    version=seen.member.version,
                    is_owner=seen.is_owner,
                    uptime_seconds=seen.uptime_seconds,
                    unseen_seconds=seen.unseen_seconds,
                )
                for seen in (self._view.members if self._view else ())
            ],
            backlog=backlog,
            faults=faults,
        )

    async def run(self) -> None:
        """Look at the cluster, and own it when it is vacant, until ``stop``."""
        looking = asyncio.create_task(self._keep_looking())
        try:
            while not self._stopping.is_set():
                await self._vacant.wait()
                self._vacant.clear()
                if not self._stopping.is_set():
                    await self._own()
        finally:
            await _cancel(looking)

    def stop(self) -> None:
        """Let `run` end; an owner hands over first."""
        self._stopping.set()
        self._lost.set()
        self._vacant.set()

    async def _keep_looking(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self) -> None:
        self._metrics.is_stream_available = self._stream.is_accepting
        try:
            view = await self._lease.look(can_publish=self._stream.is_available)
            may_evict = view.has_expired and not view.is_vacant and self._token is None
            if may_evict and await self._lease.evict_expired_owner():
                _log.warning("the owner has not renewed its lease in time; its session was ended")
        except LeaseError as error:
            self._note_fault(f"the database cannot be reached: {str(error).splitlines()[0]}")
            return
        self._note_fault(None)
        owner = view.owner
        self.front.owner = None if owner is None or owner.member_id == self.member.member_id else owner
        self._view = view
        self._metrics.members = len(view.members)
        others_can_watch = any(
            seen.can_watch for seen in view.members if seen.member.member_id != self.member.member_id
        )
        if self._stream.is_available or not others_can_watch:
            self._deaf_since = None
        elif self._deaf_since is None:
            self._deaf_since = time.monotonic()
        if self._token is None:
            if view.is_vacant and self._deaf_since is None:
                self._vacant.set()
        elif self._deaf_since is not None and time.monotonic() - self._deaf_since > LEASE_SECONDS:
            _log.error("NATS cannot be reached from here, only from other processes; one of them takes over")
            self._lost.set()

    def _note_fault(self, fault: str | None) -> None:
        if fault != self._fault and fault is not None:
            _log.error("%s", fault)
        self._fault = fault

    # -- ownership ------------------------------------------------------------------------------

    async def _own(self) -> None:
        """Run the service until the lease is lost or `stop` is called."""
        self._lost.clear()
        self._claimed.clear()
        try:
            async with contextlib.AsyncExitStack() as stack:
                renewing = asyncio.create_task(self._keep_lease())
                stack.push_async_callback(_cancel, renewing)
                service = await stack.enter_async_context(
                    run_service(
                        self.ports.settings,
                        self.ports.otlp_url,
                        may_deliver=lambda: self._lease.is_valid,
                        can_receive=lambda: self._stream.is_available,
                        open_store=partial(self._open_store, asyncio.get_running_loop()),
                    )
                )
                if not self._lost.is_set():
                    await self._serve(service, stack)
                await self._lost.wait()
        except StoreError as error:
            _log.warning("not the owner: %s", error)
        except Exception:
            # The next look finds that there is no owner.
            _log.exception("the service has failed")
        finally:
            self._token, self.service, self.front.apps = None, None, None
            self._metrics.is_owner, self._metrics.backlog = False, None

    def _open_store(self, loop: asyncio.AbstractEventLoop, url: str) -> Store:
        """Open the store for writing, in a thread: that makes this process the owner."""
        store = Store.open(url, busy_timeout=_CLAIM_SECONDS, member_id=self.member.member_id)
        self._token = store.writer_token
        loop.call_soon_threadsafe(self._claimed.set)
        return store

    async def _keep_lease(self) -> None:
        """Renew the lease until another process has it."""
        await self._claimed.wait()
        while self._token is not None:
            try:
                await self._lease.renew(self._token)
            except LeaseLostError:
                _log.error("another process of the cluster has taken over")
                self._lost.set()
                return
            except LeaseError as error:
                _log.warning("cannot renew the lease: %s", str(error).splitlines()[0])
            await asyncio.sleep(RENEWAL_SECONDS)

    async def _serve(self, service: Service, stack: contextlib.AsyncExitStack) -> None:
        intake = await make_intake_apps(service, keep_hook=self.front.keep_hook)
        service.registry.register(self._metrics)
        app = create_app(
            service, bound=self.ports.api.getsockname()[0], access=self.ports.access, cluster_state=self
        )
        dropped = service.metrics.telemetry_dropped.labels("stream")
        consumer = StreamConsumer(
            self._stream,
            store=service.store,
            receiver=intake.receiver,
            hooks=intake.hooks,
            ingest=service.pipeline.ingest,
            on_drop=lambda path: dropped.inc(),
            clock=service.clock,
        )
        add_intake_tasks(service, intake, self.ports.access)
        service.tasks.add("telemetry-stream", partial(self._consume, consumer))
        service.tasks.add("backlog", self._watch_backlog)
        self.service, self._metrics.is_owner = service, True
        self.front.apps = OwnerApps(api=app, hooks=intake.hooks)
        stack.callback(self._end_serving, service)
        _log.info("this process watches the workers now")

    async def _consume(self, consumer: StreamConsumer) -> None:
        """Read the stream. If that ends, this process gives up the workers; they are read from the log."""
        try:
            await consumer.run()
        except UnknownCommitError:
            _log.warning("events were stored without an answer of the database; starting again from the log")
        finally:
            self._lost.set()

    def _end_serving(self, service: Service) -> None:
        self.front.apps = None
        end_streams(service)

    async def _watch_backlog(self) -> None:
        while True:
            self._metrics.backlog = None
            with contextlib.suppress(StreamUnavailableError):
                self._metrics.backlog = (await self._stream.state()).messages
            await asyncio.sleep(5)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@contextlib.asynccontextmanager
async def cluster_member(settings: Settings) -> AsyncIterator[ClusterMember]:
    """
    Run a process of a cluster: its ports are open at once, and it becomes the owner when there is none.

    Raises:
        PortInUseError: A port is taken.
        InvalidTokensError: A token would be needed, and there is none.
        QueenrightError: A file that a setting names, or the storage folder, cannot be used.
    """
    cluster = settings.cluster
    assert cluster.nats is not None
    check_files(settings)
    require_usable_storage(settings.storage)
    async with contextlib.AsyncExitStack() as stack:
        ports = stack.enter_context(bind_ports(settings))
        stream = TelemetryStream(cluster.nats, replicas=cluster.replicas, max_bytes=cluster.max_backlog_bytes)
        await stack.enter_async_context(_background(stream.run()))
        lease = ClusterLease(
            parse_address(settings.database_url),
            Member(
                member_id=new_id(),
                host=cluster.host or gethostname(),
                api_port=ports.api.getsockname()[1],
                otlp_port=ports.otlp.getsockname()[1],
                version=version("queenright"),
            ),
        )
        stack.push_async_callback(_leave, lease)
        proxy = Proxy()
        stack.push_async_callback(proxy.aclose)
        member = ClusterMember(ports, stream, lease, proxy)
        receiver = OtlpReceiver(
            _refuse_ingest,
            registry=CollectorRegistry(),
            forwarder=await stack.enter_async_context(
                forwarding(settings.otlp.forward, lambda: counter(names.TELEMETRY_DROPPED, member.registry))
            ),
            publish=member.front.publish,
        )
        guarded = OtlpGuard(
            with_hooks(receiver, member.front.hooks),
            access=ports.access,
            bound=ports.otlp.getsockname()[0],
        )
        await stack.enter_async_context(ports.serve(guarded, member.front.api, receiver.refuse_grpc))
        running = asyncio.create_task(member.run())
        stack.push_async_callback(_stop, member, running)
        yield member


async def _stop(member: ClusterMember, running: asyncio.Task[None]) -> None:
    member.stop()
    await running


async def _leave(lease: ClusterLease) -> None:
    with contextlib.suppress(LeaseError):
        await lease.leave()


async def _refuse_ingest(events: object) -> None:
    raise AssertionError("a member publishes telemetry")


@contextlib.asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await _cancel(task)
