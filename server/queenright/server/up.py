"""
`queenright up`: the service, the real Prometheus and Alertmanager, and a demo fleet.

Everything listens on loopback. A missing program is reported; the service needs neither to detect, judge and
store.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from starlette.types import ASGIApp

from queenright.alerting.config import GROUP_INTERVAL, render_alertmanager, render_prometheus
from queenright.alerting.export.links import rule_links
from queenright.alerting.files import templates_folder
from queenright.alerting.recorder import Recorder
from queenright.alerting.rules import rule_files
from queenright.demo import DEMO_AGENTS, DEMO_FRAMEWORK, DEMO_PRICES, HOOK_AGENT, Fleet, HookClient
from queenright.health.cluster.fleet import FleetState
from queenright.health.cluster.shared_secrets import LOGIN_KEY, get_secret
from queenright.health.store.event_log import read_history
from queenright.health.store.store import Store
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.service_token import TOKEN_ENV
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.access.access import Access
from queenright.server.access.addresses import is_loopback
from queenright.server.access.token_watch import TokenWatch
from queenright.server.app import create_app
from queenright.server.build import build, require_usable_storage
from queenright.server.metrics.tracing import tracer_provider
from queenright.server.ops.child_processes import Child, wait_for_answer
from queenright.server.ops.programs import ProgramNotFoundError, find_program
from queenright.server.ops.secret_files import InvalidSecretError
from queenright.server.ops.sockets import find_free_port, listen, serve_app, url_of
from queenright.server.otlp.errors import wrong_port_reason
from queenright.server.otlp.forward import Forwarder, forwarding
from queenright.server.otlp.grpc_refusal import GRPC_REASON, Http1Protocol
from queenright.server.otlp.otlp_guard import OtlpGuard
from queenright.server.otlp.receiver import OtlpReceiver
from queenright.server.service import Service
from queenright.server.settings import AgentsSettings, Settings
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.pricing import Price, Prices, load_prices
from queenright.server.telemetry.recall import RECALLED, RECALLED_EVENTS, restore_runs
from queenright.server.webhooks.hooks import CallKeeper, HookReceiver, with_hooks

_log = logging.getLogger(__name__)

_API: Final = "the API and the console"

Say = Callable[[str], None]
Find = Callable[[str], Path | None]

DEMO_DEFAULTS: Final[dict[str, Any]] = {
    "health_monitoring": {
        "judge": {"interval_seconds": 5, "start_grace_seconds": 4, "triage_timeout_seconds": 10},
        "stall": {"idle_seconds": 20, "llm_seconds": 20, "tool_seconds": 20, "unknown_seconds": 30},
        "tickets": {"hold_seconds": 5},
        "health_check": {"interval_seconds": 5},
        "intervention": {"quiet_seconds": 20},
        # The demo agents get into trouble on purpose.
        "rules": {"bad_steps": {"error_budget": 0.5}},
    },
}
"""Clock of the demo: minutes become seconds. A setting that was made takes precedence."""

UP_DEFAULTS: Final[dict[str, Any]] = {
    "health_monitoring": DEMO_DEFAULTS["health_monitoring"]
    | {
        "intervention": {
            **DEMO_DEFAULTS["health_monitoring"]["intervention"],
            "permission": {"wait_seconds": 1800},
        },
        # Only the expensive demo agent reaches it.
        "spending": {"run_usd": 2, "brake": "approval"},
    }
}
"""Defaults of `queenright up` with the demo: its clock, and what a person decides."""

_DEMO_PRICES: Final = {model: Price(*price) for model, price in DEMO_PRICES.items()}


def with_examples(folder: Path = Path()) -> dict[str, Any]:
    """Return defaults that add a checkout's ``examples`` folder to the agent roots; empty without one."""
    examples = folder / "examples"
    if not examples.is_dir():
        return {}
    return {"agents": {"roots": [*AgentsSettings().roots, examples]}}


class AlreadyRunningError(QueenrightError):
    """Raised when another `queenright up` uses the same storage folder."""

    def __init__(self, storage: Path, running: str) -> None:
        super().__init__(
            f"Queenright is already running on {storage} ({running}). "
            "Stop it with Ctrl-C in its terminal, or use another folder with --storage."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `queenright up` starts besides the service. Port 0 takes a free port."""

    demo: bool = True
    fast: bool = True
    """Scrape every second and group alerts for one second."""
    model: str | None = None
    files: Path = Path()
    prometheus_port: int = 9090
    alertmanager_port: int = 9093
    receiver_port: int = 8421
    slack_url_file: Path | None = None
    pagerduty_key_file: Path | None = None


@dataclass(slots=True)
class Running:
    """What was started: addresses, for the caller to show."""

    service: Service
    url: str
    otlp_url: str
    prometheus_url: str | None = None
    alertmanager_url: str | None = None
    missing: list[str] = field(default_factory=list)
    own_token: str | None = None
    """The token of the programs that `up` starts; None if the service requires none."""
    has_real_receiver: bool = False
    """Whether Slack or PagerDuty gets its notifications instead of the stand-in."""


@contextlib.contextmanager
def only_one(storage: Path, url: str) -> Iterator[None]:
    """
    Hold the storage folder's lock.

    Raises:
        AlreadyRunningError: another process holds it.
    """
    require_usable_storage(storage)
    path = storage / "up.lock"
    with path.open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise AlreadyRunningError(storage, lock.read().strip() or "its process is not known") from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()}, {url}")
        lock.flush()
        yield


@contextlib.asynccontextmanager
async def serving(
    settings: Settings,
    *,
    registry: CollectorRegistry | None = None,
    hold_outbox: bool = False,
    prices: Prices | None = None,
) -> AsyncIterator[Running]:
    """
    Run the service with its API and its OTLP receiver.

    Args:
        settings: All settings.
        registry: Where the metrics live.
        hold_outbox: Whether nothing is delivered until ``Outbox.release``.
        prices: Prices of models in addition to the table of litellm.

    Raises:
        PortInUseError: a port is taken.
        InvalidTokensError: a token would be needed, and there is none.
        StoreError: the database cannot be used.
    """
    async with contextlib.AsyncExitStack() as stack:
        ports = stack.enter_context(bind_ports(settings))
        service = await stack.enter_async_context(
            run_service(ports.settings, ports.otlp_url, registry=registry, hold_outbox=hold_outbox)
        )
        forwarder = await stack.enter_async_context(
            forwarding(settings.otlp.forward, lambda: service.metrics.telemetry_dropped)
        )
        intake = await make_intake_apps(service, prices=prices, forwarder=forwarder)
        guarded = OtlpGuard(
            with_hooks(intake.receiver, intake.hooks),
            access=ports.access,
            bound=ports.otlp.getsockname()[0],
            on_denied=intake.hooks.count_denied,
        )
        ports.access.sessions.key = await service.store.transact(partial(get_secret, name=LOGIN_KEY))
        if (count := len(await asyncio.to_thread(service.store.list_partitions))) > 1:
            service.faults.append(
                f"the database has {count} partitions, and this process watches the workers of one: start it "
                f"with cluster.nats and cluster.partitions: {count}"
            )
            _log.error("%s", service.faults[-1])
        app = create_app(service, bound=ports.api.getsockname()[0], access=ports.access)
        await stack.enter_async_context(ports.serve(guarded, app, intake.receiver.refuse_grpc))
        add_intake_tasks(service, intake, ports.access)
        stack.callback(end_streams, service)
        yield Running(
            service,
            ports.api_url,
            ports.otlp_url,
            own_token=ports.access.own_token() if ports.is_token_required else None,
        )


@dataclass(frozen=True, slots=True)
class Ports:
    """The listening sockets of a process, and the settings with their ports."""

    settings: Settings
    api: socket.socket
    otlp: socket.socket
    access: Access

    @property
    def api_url(self) -> str:
        """The URL of the API and the console on this machine."""
        return url_of(self.api)

    @property
    def otlp_url(self) -> str:
        """The URL for telemetry on this machine."""
        return url_of(self.otlp)

    @property
    def is_token_required(self) -> bool:
        """Whether a port requires tokens."""
        return any(self.access.is_token_required(sock.getsockname()[0]) for sock in (self.api, self.otlp))

    @property
    def is_exposed(self) -> bool:
        """Whether other machines reach a port."""
        return not all(is_loopback(sock.getsockname()[0]) for sock in (self.api, self.otlp))

    @contextlib.asynccontextmanager
    async def serve(
        self, otlp: ASGIApp, api: ASGIApp, refuse_grpc: Callable[[str, str], None]
    ) -> AsyncIterator[None]:
        """
        Serve an app on each port until the block ends.

        Args:
            otlp: The app for telemetry.
            api: The app of the API and the console.
            refuse_grpc: Called with the address of a gRPC client, and what it has to change.
        """
        here, other = GRPC_REASON, wrong_port_reason(self.otlp_url)
        async with (
            serve_app(otlp, self.otlp, protocol=partial(Http1Protocol, refuse_grpc, here)),
            serve_app(api, self.api, protocol=partial(Http1Protocol, refuse_grpc, other)),
        ):
            yield


@contextlib.contextmanager
def bind_ports(settings: Settings) -> Iterator[Ports]:
    """
    Bind the ports of the API and of telemetry, before anything starts.

    Raises:
        PortInUseError: a port is taken.
        InvalidTokensError: a token would be needed, and there is none.
    """
    http, otlp = settings.http, settings.otlp
    with contextlib.ExitStack() as stack:
        api_socket = listen(http.host, http.port, what=_API, option="--port")
        stack.enter_context(contextlib.closing(api_socket))
        otlp_socket = listen(otlp.host, otlp.port, what="telemetry (OTLP)", option="--otlp-port")
        stack.enter_context(contextlib.closing(otlp_socket))
        settings = _link_to_service(_with_ports(settings, api_socket, otlp_socket), url_of(api_socket))
        access = Access(settings)
        access.require_live_token(*(sock.getsockname()[0] for sock in (api_socket, otlp_socket)))
        yield Ports(settings, api_socket, otlp_socket, access)


@dataclass(frozen=True, slots=True)
class IntakeApps:
    """What takes in telemetry: OTLP and hooks share an assembler."""

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
    Return the receivers of OTLP and hooks, with the runs that were open before a restart.

    Args:
        service: The service.
        prices: Prices of models, beside the known ones.
        forwarder: Sends OTLP requests on.
        keeper: Keeps hook calls that cannot be stored now.
    """
    assembler = Assembler(prices={**await asyncio.to_thread(load_prices), **(prices or {})})
    events = await service.store.read(
        lambda connection: read_history(connection, types=RECALLED, limit=RECALLED_EVENTS)
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
    End runs that ended without a record, and watch the file of tokens.

    Args:
        service: The service.
        intake: Its receivers.
        access: Has the file of tokens; None: another service records its changes.
    """
    service.tasks.add("ends", intake.receiver.run_ending)
    if access is None:
        return
    watch = TokenWatch(access.file, service.store, service.bus.publish, clock=service.clock)
    service.tasks.add("tokens", watch.run)


def end_streams(service: Service) -> None:
    """End what would keep a port open: before the ports are closed."""
    service.permissions.close()
    service.stopping.set()
    service.agents.stop_loading()


def with_own_sessions(settings: Settings) -> Settings:
    """Return settings that keep sessions of agents in the storage folder, unless a folder is set for them."""
    if settings.agents.storage is not None:
        return settings
    agents = settings.agents.model_copy(update={"storage": settings.storage / "agents"})
    return settings.model_copy(update={"agents": agents})


@contextlib.asynccontextmanager
async def up(
    settings: Settings, options: UpOptions, *, say: Say, find: Find = find_program
) -> AsyncIterator[Running]:
    """
    Run everything; at the end, stop what was started and nothing else.

    Args:
        settings: All settings; Alertmanager's address is set here.
        options: What to start.
        say: Called with each line of progress.
        find: Returns the path of a program, or None if there is none.

    Raises:
        AlreadyRunningError, PortInUseError, ChildProcessFailedError, InvalidSecretError, StoreError: The
            message says what to do.
    """
    _refuse_unusable(
        options.slack_url_file, "--slack-url-file", "a Slack webhook URL", ("https://", "http://")
    )
    _refuse_unusable(options.pagerduty_key_file, "--pagerduty-key-file", "a PagerDuty routing key", ())
    settings = with_own_sessions(settings)
    if options.demo:
        agents = settings.agents.model_copy(update={"roots": (*settings.agents.roots, DEMO_AGENTS)})
        settings = settings.model_copy(update={"agents": agents})
    with only_one(settings.storage, f"http://{settings.http.host}:{settings.http.port}"):
        async with contextlib.AsyncExitStack() as stack:
            # Before all other ports: if another Queenright runs, its API port is taken.
            find_free_port(settings.http.host, settings.http.port, what=_API, option="--port")
            recorder = Recorder()
            receiver = listen(
                "127.0.0.1",
                options.receiver_port,
                what="the stand-in for Slack and PagerDuty",
                option="--receiver-port",
            )
            stack.enter_context(contextlib.closing(receiver))
            await stack.enter_async_context(serve_app(recorder, receiver))

            # A configured Alertmanager is used; no second one is started.
            program = None if settings.alerting.alertmanager_urls else _program("alertmanager", find, say)
            settings, alertmanager_url = _alertmanager_address(settings, options, program)
            prometheus = _program("prometheus", find, say)
            settings, prometheus_url = _prometheus_address(settings, options, prometheus)
            # They stop after the service, which delivers to Alertmanager until it stops.
            programs = await stack.enter_async_context(contextlib.AsyncExitStack())
            say("Starting the service ...")
            running = await stack.enter_async_context(
                serving(settings, hold_outbox=bool(program), prices=_DEMO_PRICES if options.demo else None)
            )
            running.has_real_receiver = bool(options.slack_url_file or options.pagerduty_key_file)
            if program and not (options.slack_url_file and options.pagerduty_key_file):
                running.service.recorder = recorder
            token_file = None
            if running.own_token:
                token_file = _write_secret(settings.storage / "own_token", running.own_token).resolve()
            if program and alertmanager_url:
                say("Starting Alertmanager ...")
                child = await extra_alertmanager(
                    program,
                    settings,
                    options,
                    alertmanager_url,
                    running.url,
                    url_of(receiver),
                    token_file=token_file,
                )
                programs.push_async_callback(child.stop)
                await child.wait_ready(f"{alertmanager_url}/-/ready")
                running.service.outbox.release()
                await stack.enter_async_context(
                    _watch_child(child, f"{alertmanager_url}/-/ready", running.service, say)
                )
                running.alertmanager_url = alertmanager_url

            if prometheus and prometheus_url:
                say("Starting Prometheus ...")
                port = urlsplit(prometheus_url).port or 0
                # The service's settings: they hold the address by which people reach it.
                service_settings = running.service.settings
                child = await _prometheus(
                    prometheus, service_settings, options, port, running.url, token_file
                )
                programs.push_async_callback(child.stop)
                running.prometheus_url = prometheus_url
                await child.wait_ready(f"{running.prometheus_url}/-/ready")
                await stack.enter_async_context(
                    _watch_child(child, f"{prometheus_url}/-/ready", running.service, say)
                )
            if options.demo:
                fleet = Fleet(
                    options.files,
                    endpoint=running.otlp_url,
                    registry=CollectorRegistry(),
                    storage=settings.storage / "demo",
                    control=running.url,
                    model=options.model,
                )
                if running.own_token:
                    stack.enter_context(_token_in_environment(running.own_token))
                files = format_count(fleet.files, "file")
                say(f"Starting the demo fleet on {files} below {options.files.resolve()} ...")
                await end_former_demo_runs(running.service)
                fleet.start()
                hooks = HookClient(running.otlp_url, token=running.own_token)
                hooks.start()
                await _start_asking_agent(running.service)
                stack.push_async_callback(asyncio.to_thread, fleet.stop)
                stack.push_async_callback(asyncio.to_thread, hooks.stop)
            yield running


def _refuse_unusable(file: Path | None, option: str, holds: str, starts: tuple[str, ...]) -> None:
    """Refuse an unusable secret file: Alertmanager would start with it, and pages would be lost."""
    if file is None:
        return
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidSecretError(f"{option} {file} cannot be read ({why}); it should hold {holds}.") from None
    if not secret or (starts and not secret.startswith(starts)) or len(secret.split()) != 1:
        raise InvalidSecretError(f"{option} {file} does not hold {holds} alone on its line.")


def _alertmanager_address(
    settings: Settings, options: UpOptions, program: Path | None
) -> tuple[Settings, str | None]:
    """Return the settings with the address of the Alertmanager that is started, and the address."""
    if program is None:
        return settings, None
    port = find_free_port(
        "127.0.0.1", options.alertmanager_port, what="Alertmanager", option="--alertmanager-port"
    )
    url = f"http://127.0.0.1:{port}"
    alerting = settings.alerting.model_copy(update={"alertmanager_urls": (url,)})
    return settings.model_copy(update={"alerting": alerting}), url


def _prometheus_address(
    settings: Settings, options: UpOptions, program: Path | None
) -> tuple[Settings, str | None]:
    """Return the settings with the address of the Prometheus that is started, and the address."""
    if program is None:
        return settings, None
    port = find_free_port("127.0.0.1", options.prometheus_port, what="Prometheus", option="--prometheus-port")
    url = f"http://127.0.0.1:{port}"
    if settings.judging.prometheus_url is not None:
        return settings, url  # the judge reads the configured one
    judging = settings.judging.model_copy(update={"prometheus_url": SecretStr(url)})
    return settings.model_copy(update={"judging": judging}), url


def _with_ports(settings: Settings, api: socket.socket, otlp: socket.socket) -> Settings:
    """Return settings with the ports that were bound: port 0 took free ones."""
    return settings.model_copy(
        update={
            "http": settings.http.model_copy(update={"port": api.getsockname()[1]}),
            "otlp": settings.otlp.model_copy(update={"port": otlp.getsockname()[1]}),
        }
    )


def _link_to_service(settings: Settings, url: str) -> Settings:
    """Let the links in notifications lead to this service, unless ``console_url`` is set."""
    if "console_url" in settings.alerting.model_fields_set:
        return settings
    return settings.model_copy(update={"alerting": settings.alerting.model_copy(update={"console_url": url})})


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
    Run the service without its ports; see ``build`` for the arguments.

    Args:
        settings: All settings.
        otlp_url: Where the service sends its own spans.
        hold_outbox: Whether nothing is delivered until ``Outbox.release``.
    """
    provider = tracer_provider(otlp_url)
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


@contextlib.asynccontextmanager
async def _watch_child(child: Child, url: str, service: Service, say: Say) -> AsyncIterator[None]:
    """Report a fault when a started program exits unexpectedly, until another one answers ``url``."""

    async def watch() -> None:
        code = await child.process.wait()
        fault = f"{child.name} exited unexpectedly (exit code {code}, {child.log}); restart `queenright up`"
        service.faults.append(fault)
        say(f"warning: {fault}.")
        await wait_for_answer(url)
        service.faults.remove(fault)
        say(f"{child.name} answers again.")

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _start_asking_agent(service: Service) -> None:
    """Load the demo agent that runs in the service, and let it ask its user."""
    slot = await service.agents.load(DEMO_AGENTS / "publisher")
    await slot.runtime.trigger("review", {"message": "Which pages are ready?"})


async def end_former_demo_runs(service: Service) -> None:
    """
    Cancel the runs of demo agents whose process was killed: nothing else ends them.

    They have not completed, so the failed runs before them still count.
    """
    demo_runs = [
        health.vitals
        for health in service.workers()
        if health.vitals.framework == DEMO_FRAMEWORK or health.vitals.agent_id == HOOK_AGENT
    ]
    await service.ingest(
        [
            AgentEvent(
                type=EventType.EXECUTION_FAILED,
                time=service.clock(),
                agent_id=vitals.agent_id,
                session_id=vitals.session_id,
                incarnation_id=vitals.incarnation_id,
                data={"error_type": "cancelled", "error": "the demo was killed"},
            )
            for vitals in demo_runs
            if not vitals.has_ended
        ]
    )


def _program(name: str, find: Find, say: Say) -> Path | None:
    path = find(name)
    if path is None:
        say(str(ProgramNotFoundError(name)))
    return path


async def extra_alertmanager(
    program: Path,
    settings: Settings,
    options: UpOptions,
    url: str,
    service_url: str,
    receiver_url: str,
    *,
    token_file: Path | None = None,
) -> Child:
    """Start Alertmanager at ``url``, with routes to the receivers and back to the service."""
    folder = settings.storage / "alertmanager"
    folder.mkdir(parents=True, exist_ok=True)
    slack = options.slack_url_file or _write_secret(
        folder / "slack_url", f"{receiver_url}/slack/services/demo"
    )
    pagerduty = options.pagerduty_key_file or _write_secret(folder / "pagerduty_key", "0" * 32)
    config = folder / "alertmanager.yml"
    config.write_text(
        render_alertmanager(
            service_url=service_url,
            slack_api_url_file=slack.resolve(),
            pagerduty_routing_key_file=pagerduty.resolve(),
            pagerduty_url=None if options.pagerduty_key_file else f"{receiver_url}/pagerduty/v2/enqueue",
            deadman_url=f"{receiver_url}/deadman",
            templates=templates_folder(),
            group_wait="1s" if options.fast else "10s",
            group_interval="5s" if options.fast else GROUP_INTERVAL,
            slack_interactive=settings.alerting.slack_signing_secret_file is not None,
            token_file=token_file,
        ),
        encoding="utf-8",
    )
    return await Child.start(
        "Alertmanager",
        [
            program,
            f"--config.file={config}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address={url.removeprefix('http://')}",
            # For the links in its messages; the default is the host name.
            f"--web.external-url={url}",
            "--cluster.listen-address=",
        ],
        folder / "alertmanager.log",
    )


async def _prometheus(
    program: Path,
    settings: Settings,
    options: UpOptions,
    port: int,
    service_url: str,
    token_file: Path | None,
) -> Child:
    folder = settings.storage / "prometheus"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "prometheus.yml"
    config.write_text(
        render_prometheus(
            service_url=service_url,
            alertmanager_url=settings.alerting.alertmanager_urls or None,
            rules=_rules(folder / "rules", settings),
            interval="1s" if options.fast else "15s",
            cluster=settings.alerting.cluster,
            token_file=token_file,
        ),
        encoding="utf-8",
    )
    return await Child.start(
        "Prometheus",
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=15d",
            f"--web.listen-address=127.0.0.1:{port}",
            "--enable-feature=exemplar-storage",
        ],
        folder / "prometheus.log",
    )


def _rules(folder: Path, settings: Settings) -> Path:
    """Write the rules with the service's own thresholds; return their folder."""
    files = rule_files(
        settings.health_monitoring,
        links=rule_links(settings.alerting),
        header="Written by `queenright up` at every start; changes here are lost.",
    )
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@contextlib.contextmanager
def _token_in_environment(token: str) -> Iterator[None]:
    """Give the demo agents a token, in their environment, as for other agents."""
    ours = {TOKEN_ENV: token, "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization=Bearer%20{token}"}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _write_secret(path: Path, value: str) -> Path:
    """Write a secret file that only its user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(value)
    return path
