"""Run the service, with or without ports: for `queenright serve`, `queenright up`, and cluster partitions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from queenright.health.cluster.fleet import FleetState
from queenright.health.cluster.shared_secrets import LOGIN_KEY, get_secret
from queenright.health.store.event_log import read_history
from queenright.health.store.store import Store
from queenright.server.access.access import Access
from queenright.server.access.token_watch import TokenWatch
from queenright.server.app import create_app
from queenright.server.build import build
from queenright.server.metrics.tracing import make_tracer_provider
from queenright.server.otlp.forward import Forwarder, run_forwarder
from queenright.server.otlp.otlp_guard import OtlpGuard
from queenright.server.otlp.receiver import OtlpReceiver
from queenright.server.ports import bind_ports
from queenright.server.service import Service
from queenright.server.settings import Settings
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.pricing import Prices, load_prices
from queenright.server.telemetry.recall import MAX_RECALLED_EVENTS, RECALLED_TYPES, restore_runs
from queenright.server.webhooks.hooks import CallKeeper, HookReceiver, count_denied, route_hooks

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RunningService:
    """A service with open ports, and the URLs of the programs that run with it."""

    service: Service
    url: str
    otlp_url: str
    prometheus_url: str | None = None
    alertmanager_url: str | None = None
    own_token: str | None = None
    """The token of the programs that `up` starts; None if the service requires no token."""
    has_real_receiver: bool = False
    """Whether notifications go to Slack or PagerDuty instead of the stand-in."""


@contextlib.asynccontextmanager
async def serving(
    settings: Settings,
    *,
    registry: CollectorRegistry | None = None,
    hold_outbox: bool = False,
    prices: Prices | None = None,
) -> AsyncIterator[RunningService]:
    """
    Run the service with its API and its OTLP receiver.

    Args:
        settings: All settings.
        registry: The registry of the metrics.
        hold_outbox: Whether to deliver nothing until ``Outbox.release``.
        prices: Prices of models in addition to litellm's table.

    Raises:
        PortInUseError: A port is in use.
        InvalidTokensError: A token is required, but no token is live.
        StoreError: The database cannot be used.
    """
    async with contextlib.AsyncExitStack() as stack:
        ports = stack.enter_context(bind_ports(settings))
        service = await stack.enter_async_context(
            run_service(ports.settings, ports.otlp_url, registry=registry, hold_outbox=hold_outbox)
        )
        forwarder = await stack.enter_async_context(
            run_forwarder(settings.otlp.forward, lambda: service.metrics.telemetry_dropped)
        )
        intake = await make_intake_apps(service, prices=prices, forwarder=forwarder)
        guarded_app = OtlpGuard(
            route_hooks(intake.receiver, intake.hooks),
            access=ports.access,
            bind_address=ports.otlp.getsockname()[0],
            on_denied=partial(count_denied, service.intake, intake.hooks.calls, service.clock),
        )
        ports.access.sessions.key = await service.store.transact(partial(get_secret, name=LOGIN_KEY))
        if (count := len(await asyncio.to_thread(service.store.list_partitions))) > 1:
            service.faults.append(
                f"the database has {count} partitions, but this process watches the workers of only one; "
                f"start it with --cluster NATS and cluster.partitions: {count}"
            )
            _log.error("%s", service.faults[-1])
        app = create_app(service, bind_address=ports.api.getsockname()[0], access=ports.access)
        await stack.enter_async_context(ports.serve(guarded_app, app, intake.receiver.count_grpc_refusal))
        add_intake_tasks(service, intake, ports.access)
        stack.callback(end_streams, service)
        yield RunningService(
            service,
            ports.api_url,
            ports.otlp_url,
            own_token=ports.access.create_own_token() if ports.is_token_required else None,
        )


@contextlib.asynccontextmanager
async def run_service(
    settings: Settings,
    otlp_url: str,
    *,
    registry: CollectorRegistry | None = None,
    hold_outbox: bool = False,
    may_deliver: Callable[[], bool] = lambda: True,
    can_receive: Callable[[], bool] = lambda: True,
    open_store: Callable[[str], Store] = Store.open,
    folder: Path | None = None,
    fleet: FleetState | None = None,
) -> AsyncIterator[Service]:
    """
    Run the service without its ports; see ``build`` for the other arguments.

    Args:
        settings: All settings.
        otlp_url: The URL to which the service sends its own spans.
        hold_outbox: Whether to deliver nothing until ``Outbox.release``.
    """
    provider = make_tracer_provider(otlp_url)
    service = await build(
        settings,
        registry=registry,
        tracer=provider.get_tracer("queenright"),
        may_deliver=may_deliver,
        can_receive=can_receive,
        open_store=open_store,
        folder=folder,
        fleet=fleet,
    )
    if hold_outbox:
        service.outbox.hold()
    try:
        await service.start()
    except BaseException:
        await service.tasks.stop()
        await service.store.close()
        raise
    try:
        yield service
    finally:
        await service.stop()
        await asyncio.to_thread(provider.shutdown)


@dataclass(frozen=True, slots=True)
class IntakeApps:
    """The apps that receive telemetry. They share an assembler."""

    receiver: OtlpReceiver
    hooks: HookReceiver


async def make_intake_apps(
    service: Service,
    *,
    prices: Prices | None = None,
    forwarder: Forwarder | None = None,
    keeper: CallKeeper | None = None,
) -> IntakeApps:
    """
    Return the receivers of OTLP and hooks. They restore the runs that were open before a restart.

    Args:
        service: The service.
        prices: Prices of models in addition to litellm's table.
        forwarder: Forwards OTLP requests.
        keeper: Keeps hook calls that cannot be stored yet.
    """
    assembler = Assembler(prices={**await asyncio.to_thread(load_prices), **(prices or {})})
    events = await service.store.read(
        lambda connection: read_history(connection, types=RECALLED_TYPES, limit=MAX_RECALLED_EVENTS)
    )
    restore_runs(assembler, service.monitor, events)
    receiver = OtlpReceiver(
        service.ingest,
        assembler=assembler,
        intake=service.intake,
        record_process_alive=service.record_process_alive,
        registry=service.registry,
        forwarder=forwarder,
    )
    hooks = HookReceiver(
        service.ingest,
        assembler,
        service.instructions,
        service.permissions,
        service.intake,
        clock=service.clock,
        registry=service.registry,
        keeper=keeper,
    )
    return IntakeApps(receiver, hooks)


def add_intake_tasks(service: Service, intake: IntakeApps, access: Access | None) -> None:
    """
    Add the tasks that end runs without an end record, and watch the token file.

    Args:
        service: The service.
        intake: Its receivers.
        access: Holds the token file; None if another service records its changes.
    """
    service.tasks.add("ends", intake.receiver.end_runs_periodically)
    if access is None:
        return
    watch = TokenWatch(access.file, service.store, service.bus.publish, clock=service.clock)
    service.tasks.add("tokens", watch.run)


def end_streams(service: Service) -> None:
    """End long-running requests that would keep a port open. Call this before closing the ports."""
    service.permissions.close()
    service.stopping.set()
    service.agents.stop_loading()
