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
from queenright.client.address import resolve_url, without_credentials
from queenright.client.asynchronous import agents, client, resources
from queenright.client.asynchronous.client import new_id
from queenright.client.asynchronous.stream import AsyncEventStream
from queenright.client.notices import Notice, ignore
from queenright.instrumentation.certificates import certificates

P = ParamSpec("P")
T = TypeVar("T")


def _finish(work: Awaitable[T]) -> T:
    """Run a coroutine that never waits: every request blocks, so no event loop is needed."""
    step = work.__await__()
    try:
        next(step)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("the transport of a synchronous client has to block")


def _call(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the synchronous form of a method."""

    @functools.wraps(method)
    def call(self: _Resource, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _finish(method(self._asynchronous, *args, **kwargs))

    return call


def _list(
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
            item = _finish(anext(items))
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
            return _finish(anext(self._asynchronous))
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
        _finish(self._asynchronous.aclose())


class _Resource:
    """A group of API calls, with the signatures of the asynchronous group."""

    def __init__(self, asynchronous: Any) -> None:
        self._asynchronous = asynchronous


class Agents(_Resource):
    """The workers of a service, including the agents that run inside it."""

    list = _list(agents.AsyncAgents.list)
    health = _call(agents.AsyncAgents.health)
    ask_queen = _call(agents.AsyncAgents.ask_queen)
    queen_messages = _call(agents.AsyncAgents.queen_messages)
    all_health = _list(agents.AsyncAgents.all_health)
    history = _list(agents.AsyncAgents.history)
    steps = _call(agents.AsyncAgents.steps)
    evaluate = _call(agents.AsyncAgents.evaluate)
    recording = _call(agents.AsyncAgents.recording)
    heartbeat = _call(agents.AsyncAgents.heartbeat)
    send_heartbeat = _call(agents.AsyncAgents.send_heartbeat)
    nudge = _call(agents.AsyncAgents.nudge)
    escalate = _call(agents.AsyncAgents.escalate)
    terminate = _call(agents.AsyncAgents.terminate)
    escalations = _list(agents.AsyncAgents.escalations)
    escalation = _call(agents.AsyncAgents.escalation)
    discover = _list(agents.AsyncAgents.discover)
    load = _call(agents.AsyncAgents.load)
    unload = _call(agents.AsyncAgents.unload)
    loaded = _call(agents.AsyncAgents.loaded)
    get = _call(agents.AsyncAgents.get)
    stats = _call(agents.AsyncAgents.stats)
    entry_points = _list(agents.AsyncAgents.entry_points)
    trigger = _call(agents.AsyncAgents.trigger)
    execution = _call(agents.AsyncAgents.execution)
    chat = _call(agents.AsyncAgents.chat)
    inject = _call(agents.AsyncAgents.inject)
    resume = _call(agents.AsyncAgents.resume)
    stop = _call(agents.AsyncAgents.stop)
    replay = _call(agents.AsyncAgents.replay)
    goal_progress = _call(agents.AsyncAgents.goal_progress)
    graphs = _list(agents.AsyncAgents.graphs)
    add_graph = _call(agents.AsyncAgents.add_graph)
    remove_graph = _call(agents.AsyncAgents.remove_graph)
    active_graph = _call(agents.AsyncAgents.active_graph)
    set_active_graph = _call(agents.AsyncAgents.set_active_graph)
    nodes = _list(agents.AsyncAgents.nodes)
    node = _call(agents.AsyncAgents.node)
    criteria = _call(agents.AsyncAgents.criteria)
    sessions = _list(agents.AsyncAgents.sessions)
    session = _call(agents.AsyncAgents.session)
    delete_session = _call(agents.AsyncAgents.delete_session)
    checkpoints = _list(agents.AsyncAgents.checkpoints)
    restore = _call(agents.AsyncAgents.restore)
    messages = _list(agents.AsyncAgents.messages)
    logs = _list(agents.AsyncAgents.logs)
    node_logs = _list(agents.AsyncAgents.node_logs)


class Tickets(_Resource):
    """The tickets of a service."""

    list = _list(resources.AsyncTickets.list)
    incidents = _call(resources.AsyncTickets.incidents)
    get = _call(resources.AsyncTickets.get)
    acknowledge = _call(resources.AsyncTickets.acknowledge)
    unacknowledge = _call(resources.AsyncTickets.unacknowledge)
    dismiss = _call(resources.AsyncTickets.dismiss)
    resolve = _call(resources.AsyncTickets.resolve)
    timeline = _call(resources.AsyncTickets.timeline)
    chat = _call(resources.AsyncTickets.chat)
    messages = _call(resources.AsyncTickets.messages)


class Breakers(_Resource):
    """The circuit breakers of a service."""

    list = _list(resources.AsyncBreakers.list)
    get = _call(resources.AsyncBreakers.get)
    reset = _call(resources.AsyncBreakers.reset)


class Recoveries(_Resource):
    """The recoveries of a service."""

    list = _list(resources.AsyncRecoveries.list)
    get = _call(resources.AsyncRecoveries.get)
    recover = _call(resources.AsyncRecoveries.recover)


class Interventions(_Resource):
    """Interventions on workers: done, refused, or logged by a dry run."""

    list = _list(resources.AsyncInterventions.list)


class Escalations(_Resource):
    """Escalations to the orchestrator, and their decisions."""

    list = _list(resources.AsyncEscalations.list)
    decide = _call(resources.AsyncEscalations.decide)


class Approvals(_Resource):
    """Requests of the queen to terminate a worker."""

    list = _list(resources.AsyncApprovals.list)
    approve = _call(resources.AsyncApprovals.approve)
    deny = _call(resources.AsyncApprovals.deny)


class Permissions(_Resource):
    """Permission requests of coding agents."""

    list = _list(resources.AsyncPermissions.list)
    answer = _call(resources.AsyncPermissions.answer)


class Silences(_Resource):
    """The silences of a service's Alertmanagers."""

    list = _list(resources.AsyncSilences.list)
    snapshot = _call(resources.AsyncSilences.snapshot)
    add = _call(resources.AsyncSilences.add)
    remove = _call(resources.AsyncSilences.remove)


class Audit(_Resource):
    """The event log of a service."""

    list = _list(resources.AsyncAudit.list)


class Service(_Resource):
    """State of the service, and settings for all workers."""

    status = _call(resources.AsyncService.status)
    attention = _call(resources.AsyncService.attention)
    caller = _call(resources.AsyncService.caller)
    version = _call(resources.AsyncService.version)
    cluster = _call(resources.AsyncService.cluster)
    ready = _call(resources.AsyncService.ready)
    settings = _call(resources.AsyncService.settings)
    telemetry = _call(resources.AsyncService.telemetry)
    providers = _call(resources.AsyncService.providers)
    reload = _call(resources.AsyncService.reload)
    emergency_stop = _call(resources.AsyncService.emergency_stop)
    set_emergency_stop = _call(resources.AsyncService.set_emergency_stop)
    notifications = _list(resources.AsyncService.notifications)
    judge_checks = _list(resources.AsyncService.judge_checks)


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
        return f"{type(self).__name__}({without_credentials(self.url)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        _finish(self._client.aclose())
