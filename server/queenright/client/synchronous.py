"""The synchronous client: the asynchronous one, over a transport that blocks."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from queenright.api.events import Event
from queenright.client.address import remove_credentials, resolve_url
from queenright.client.asynchronous import agents, client, resources
from queenright.client.asynchronous.client import new_id
from queenright.client.asynchronous.stream import AsyncEventStream
from queenright.client.notices import Notice, ignore
from queenright.instrumentation.certificates import certificates

P = ParamSpec("P")
T = TypeVar("T")


def _run_without_loop(coroutine: Awaitable[T]) -> T:
    """Run a coroutine that never waits: every request blocks, so no event loop is needed."""
    steps = coroutine.__await__()
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("the transport of a synchronous client has to block")


def _make_blocking(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the synchronous form of a method."""

    @functools.wraps(method)
    def call(self: _Resource, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _run_without_loop(method(self._asynchronous, *args, **kwargs))

    return call


def _make_iterator(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Return the synchronous form of a method that yields items."""

    @functools.wraps(method)
    def call(self: _Resource, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _iterate(method(self._asynchronous, *args, **kwargs))

    return call


def _iterate(items: AsyncIterator[T]) -> Iterator[T]:
    while True:
        try:
            item = _run_without_loop(anext(items))
        except StopAsyncIteration:
            return
        yield item


class _BlockingTransport(httpx.AsyncBaseTransport):
    """Sends the requests of an asynchronous client with a synchronous transport."""

    def __init__(self, transport: httpx.BaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = self._transport.handle_request(request)
        response.stream = _BlockingStream(response)
        return response

    async def aclose(self) -> None:
        self._transport.close()


class _BlockingStream(httpx.AsyncByteStream):
    """The body of a response of a synchronous transport."""

    def __init__(self, response: httpx.Response) -> None:
        assert isinstance(response.stream, httpx.SyncByteStream)
        self._stream = response.stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        self._stream.close()


class EventStream:
    """
    An iterator over events as they happen; see ``AsyncEventStream``.

    Args:
        asynchronous: The stream over a transport that blocks.
    """

    def __init__(self, asynchronous: AsyncEventStream) -> None:
        self._asynchronous = asynchronous

    @property
    def last_event_id(self) -> str | None:
        """The last event that was returned; another stream can continue after it."""
        return self._asynchronous.last_event_id

    @property
    def connected(self) -> bool:
        """Whether the stream is connected."""
        return self._asynchronous.connected

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            return _run_without_loop(anext(self._asynchronous))
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream."""
        _run_without_loop(self._asynchronous.aclose())


class _Resource:
    """A group of API calls, with the signatures of the asynchronous group."""

    def __init__(self, asynchronous: Any) -> None:
        self._asynchronous = asynchronous


class Agents(_Resource):
    """The workers of a service, including the agents that run inside it."""

    list = _make_iterator(agents.AsyncAgents.list)
    health = _make_blocking(agents.AsyncAgents.health)
    ask_queen = _make_blocking(agents.AsyncAgents.ask_queen)
    queen_messages = _make_blocking(agents.AsyncAgents.queen_messages)
    all_health = _make_iterator(agents.AsyncAgents.all_health)
    history = _make_iterator(agents.AsyncAgents.history)
    steps = _make_blocking(agents.AsyncAgents.steps)
    evaluate = _make_blocking(agents.AsyncAgents.evaluate)
    recording = _make_blocking(agents.AsyncAgents.recording)
    heartbeat = _make_blocking(agents.AsyncAgents.heartbeat)
    send_heartbeat = _make_blocking(agents.AsyncAgents.send_heartbeat)
    nudge = _make_blocking(agents.AsyncAgents.nudge)
    escalate = _make_blocking(agents.AsyncAgents.escalate)
    terminate = _make_blocking(agents.AsyncAgents.terminate)
    escalations = _make_iterator(agents.AsyncAgents.escalations)
    escalation = _make_blocking(agents.AsyncAgents.escalation)
    discover = _make_iterator(agents.AsyncAgents.discover)
    load = _make_blocking(agents.AsyncAgents.load)
    unload = _make_blocking(agents.AsyncAgents.unload)
    loaded = _make_blocking(agents.AsyncAgents.loaded)
    get = _make_blocking(agents.AsyncAgents.get)
    stats = _make_blocking(agents.AsyncAgents.stats)
    entry_points = _make_iterator(agents.AsyncAgents.entry_points)
    trigger = _make_blocking(agents.AsyncAgents.trigger)
    execution = _make_blocking(agents.AsyncAgents.execution)
    chat = _make_blocking(agents.AsyncAgents.chat)
    inject = _make_blocking(agents.AsyncAgents.inject)
    resume = _make_blocking(agents.AsyncAgents.resume)
    stop = _make_blocking(agents.AsyncAgents.stop)
    replay = _make_blocking(agents.AsyncAgents.replay)
    goal_progress = _make_blocking(agents.AsyncAgents.goal_progress)
    graphs = _make_iterator(agents.AsyncAgents.graphs)
    add_graph = _make_blocking(agents.AsyncAgents.add_graph)
    remove_graph = _make_blocking(agents.AsyncAgents.remove_graph)
    active_graph = _make_blocking(agents.AsyncAgents.active_graph)
    set_active_graph = _make_blocking(agents.AsyncAgents.set_active_graph)
    nodes = _make_iterator(agents.AsyncAgents.nodes)
    node = _make_blocking(agents.AsyncAgents.node)
    criteria = _make_blocking(agents.AsyncAgents.criteria)
    sessions = _make_iterator(agents.AsyncAgents.sessions)
    session = _make_blocking(agents.AsyncAgents.session)
    delete_session = _make_blocking(agents.AsyncAgents.delete_session)
    checkpoints = _make_iterator(agents.AsyncAgents.checkpoints)
    restore = _make_blocking(agents.AsyncAgents.restore)
    messages = _make_iterator(agents.AsyncAgents.messages)
    logs = _make_iterator(agents.AsyncAgents.logs)
    node_logs = _make_iterator(agents.AsyncAgents.node_logs)


class Tickets(_Resource):
    """The tickets of a service."""

    list = _make_iterator(resources.AsyncTickets.list)
    incidents = _make_blocking(resources.AsyncTickets.incidents)
    get = _make_blocking(resources.AsyncTickets.get)
    acknowledge = _make_blocking(resources.AsyncTickets.acknowledge)
    unacknowledge = _make_blocking(resources.AsyncTickets.unacknowledge)
    dismiss = _make_blocking(resources.AsyncTickets.dismiss)
    resolve = _make_blocking(resources.AsyncTickets.resolve)
    timeline = _make_blocking(resources.AsyncTickets.timeline)
    chat = _make_blocking(resources.AsyncTickets.chat)
    messages = _make_blocking(resources.AsyncTickets.messages)


class Breakers(_Resource):
    """The circuit breakers of a service."""

    list = _make_iterator(resources.AsyncBreakers.list)
    get = _make_blocking(resources.AsyncBreakers.get)
    reset = _make_blocking(resources.AsyncBreakers.reset)


class Recoveries(_Resource):
    """The recoveries of a service."""

    list = _make_iterator(resources.AsyncRecoveries.list)
    get = _make_blocking(resources.AsyncRecoveries.get)
    recover = _make_blocking(resources.AsyncRecoveries.recover)


class Interventions(_Resource):
    """Interventions on workers: done, refused, or logged by a dry run."""

    list = _make_iterator(resources.AsyncInterventions.list)


class Escalations(_Resource):
    """Escalations to the orchestrator, and their decisions."""

    list = _make_iterator(resources.AsyncEscalations.list)
    decide = _make_blocking(resources.AsyncEscalations.decide)


class Approvals(_Resource):
    """Requests of the queen to terminate a worker."""

    list = _make_iterator(resources.AsyncApprovals.list)
    approve = _make_blocking(resources.AsyncApprovals.approve)
    deny = _make_blocking(resources.AsyncApprovals.deny)


class Permissions(_Resource):
    """Permission requests of coding agents."""

    list = _make_iterator(resources.AsyncPermissions.list)
    answer = _make_blocking(resources.AsyncPermissions.answer)


class Silences(_Resource):
    """The silences of a service's Alertmanagers."""

    list = _make_iterator(resources.AsyncSilences.list)
    snapshot = _make_blocking(resources.AsyncSilences.snapshot)
    add = _make_blocking(resources.AsyncSilences.add)
    remove = _make_blocking(resources.AsyncSilences.remove)


class Audit(_Resource):
    """The event log of a service."""

    list = _make_iterator(resources.AsyncAudit.list)


class Service(_Resource):
    """State of the service, and settings for all workers."""

    status = _make_blocking(resources.AsyncService.status)
    attention = _make_blocking(resources.AsyncService.attention)
    caller = _make_blocking(resources.AsyncService.caller)
    version = _make_blocking(resources.AsyncService.version)
    cluster = _make_blocking(resources.AsyncService.cluster)
    ready = _make_blocking(resources.AsyncService.ready)
    settings = _make_blocking(resources.AsyncService.settings)
    telemetry = _make_blocking(resources.AsyncService.telemetry)
    providers = _make_blocking(resources.AsyncService.providers)
    reload = _make_blocking(resources.AsyncService.reload)
    emergency_stop = _make_blocking(resources.AsyncService.emergency_stop)
    set_emergency_stop = _make_blocking(resources.AsyncService.set_emergency_stop)
    notifications = _make_iterator(resources.AsyncService.notifications)
    judge_checks = _make_iterator(resources.AsyncService.judge_checks)


class Events(_Resource):
    """The events of a service."""

    def stream(
        self,
        *,
        types: Iterable[str] | str | None = None,
        agent_id: str | None = None,
        last_event_id: str | None = None,
        wait: bool = False,
        on_notice: Callable[[Notice], None] = ignore,
    ) -> EventStream:
        """Return an iterator over events from now on; see ``AsyncQueenright``."""
        return EventStream(
            self._asynchronous.stream(
                types=types, agent_id=agent_id, last_event_id=last_event_id, wait=wait, on_notice=on_notice
            )
        )


class Queenright:
    """
    A client of one running service.

    Args:
        url: URL of the service. Default: ``QUEENRIGHT_URL``, then http://127.0.0.1:8420.
        token: Access token. Default: ``QUEENRIGHT_TOKEN``, then the content of ``QUEENRIGHT_TOKEN_FILE``.
        token_file: A file with the token, instead of ``token``.
        timeout: Seconds to wait for a response; actions wait up to 300.
        transport: The httpx transport. Default: sockets.
        ids: Makes the idempotency key of each action.
        sleep: Waits for a number of seconds.

    Raises:
        InvalidAddressError: The URL is invalid, or the token cannot be read.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        token_file: Path | str | None = None,
        timeout: float = 10.0,
        transport: httpx.BaseTransport | None = None,
        ids: Callable[[], str] = new_id,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        async def wait(seconds: float) -> None:
            sleep(seconds)

        url = resolve_url(url)
        self._client = client.AsyncQueenright(
            url,
            token,
            token_file=token_file,
            timeout=timeout,
            transport=_BlockingTransport(
                transport or httpx.HTTPTransport(verify=certificates(url), trust_env=False)
            ),
            ids=ids,
            sleep=wait,
        )
        self.agents = Agents(self._client.agents)
        self.tickets = Tickets(self._client.tickets)
        self.breakers = Breakers(self._client.breakers)
        self.recoveries = Recoveries(self._client.recoveries)
        self.interventions = Interventions(self._client.interventions)
        self.escalations = Escalations(self._client.escalations)
        self.approvals = Approvals(self._client.approvals)
        self.permissions = Permissions(self._client.permissions)
        self.silences = Silences(self._client.silences)
        self.audit = Audit(self._client.audit)
        self.service = Service(self._client.service)
        self.events = Events(self._client.events)

    @property
    def url(self) -> str:
        """URL of the service."""
        return self._client.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({remove_credentials(self.url)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        _run_without_loop(self._client.aclose())
