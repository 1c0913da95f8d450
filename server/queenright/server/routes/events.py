"""Event streams (server-sent events), which a client can resume with ``Last-Event-ID``."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, HTTPException, Query, Request, Response
from starlette.types import Receive, Scope, Send

from queenright.health.audit.audit_page import read_page
from queenright.health.interventions.intervention_service import AgentNotFoundError
from queenright.health.store.event_log import Place
from queenright.health.store.store import StoreError
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import EventType
from queenright.server.access.addresses import is_loopback
from queenright.server.access.caller import Caller, find_caller
from queenright.server.middleware.connections import ABORT
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.openapi import operation
from queenright.server.routes.params import AgentId
from queenright.server.service import Service
from queenright.server.stream.feed import Feed, Reader, format_id_line, format_reset
from queenright.server.stream.lines import StreamFilter

DEFAULT_TYPES: Final = frozenset(
    {
        EventType.CLIENT_OUTPUT_DELTA,
        EventType.CLIENT_INPUT_REQUESTED,
        EventType.LLM_TEXT_DELTA,
        EventType.TOOL_CALL_STARTED,
        EventType.TOOL_CALL_COMPLETED,
        EventType.EXECUTION_STARTED,
        EventType.EXECUTION_COMPLETED,
        EventType.EXECUTION_FAILED,
        EventType.EXECUTION_PAUSED,
        EventType.NODE_LOOP_STARTED,
        EventType.NODE_LOOP_COMPLETED,
        EventType.EDGE_TRAVERSED,
        EventType.GOAL_PROGRESS,
        EventType.WORKER_ESCALATION_TICKET,
        EventType.QUEEN_INTERVENTION_REQUESTED,
    }
)
"""Event types of a stream by default."""

_ALL_TYPES_NAMES: Final = frozenset({"all", "*"})
_RETRY_MILLISECONDS: Final = 2000
"""Milliseconds after which a browser reconnects."""
_END_SECONDS: Final = 0.1
"""Time for a client to receive the rest of its stream when the service stops."""
_BEGINNING: Final = Place(0, "beginning")
"""The position before the first event. Its id is sent to readers of an empty log."""
MAX_STREAMS: Final = 500
"""Maximum number of open streams, each with a socket and a queue. More are a leak or an attack."""

_EXAMPLE: Final = (
    "retry: 2000\n"
    "id: 0198c5a2f3b87e11\n"
    "\n"
    "event: execution_started\n"
    "id: 0198c5a2f3b97d02\n"
    'data: {"id":"0198c5a2f3b97d02","type":"execution_started","time":1772357400.0,'
    '"agent_id":"researcher","session_id":"s1","incarnation_id":"i1","graph_id":"","stream_id":"",'
    '"node_id":"","execution_id":"","trace_id":"","span_id":"","data":{}}\n'
    "\n"
)
_STREAM_ERRORS: Final = {
    400: "An unknown event type; `title` names similar ones.",
    503: "Too many streams are open.",
}
_AGENT_STREAM_ERRORS: Final = {**_STREAM_ERRORS, 404: "The worker is unknown."}
_CONTENT: Final[dict[str, Any]] = {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}}
_DESCRIPTION: Final = "Events as they happen, until either side closes the connection."

EventTypesQuery = Annotated[
    list[str] | None,
    Query(
        description="Comma-separated types; `all` for every type.",
        examples=["worker_escalation_ticket,queen_intervention_requested"],
    ),
]
AfterQuery = Annotated[
    str | None,
    Query(
        max_length=256, description="The same as `Last-Event-ID`, for clients that cannot send the header."
    ),
]
LastEventIdHeader = Annotated[
    str | None, Header(max_length=256, description="The id of the last event that the client received.")
]


async def _is_known_worker(service: Service, agent_id: str) -> bool:
    """Return whether an agent is loaded, monitored, or in the event log."""
    if agent_id in service.agents.slots or service.monitor.get(agent_id) is not None:
        return True
    return bool(await service.store.read(lambda conn: read_page(conn, agent_id=agent_id, limit=1)))


def parse_event_types(names: Sequence[str] | None) -> frozenset[EventType] | None:
    """
    Parse the event types of a request. Return None for all types.

    Args:
        names: Comma-separated names; None for the default types.

    Raises:
        HTTPException: 400 for an unknown type, with similar ones.
    """
    if names is None:
        return DEFAULT_TYPES
    types = [name.strip() for part in names for name in part.split(",")]
    type_names = sorted(EventType)
    for name in types:
        if name not in type_names and name not in _ALL_TYPES_NAMES:
            similar_names = get_close_matches(name.lower(), type_names, 3)
            hint = f"Did you mean {' or '.join(similar_names)}? " if similar_names else ""
            raise HTTPException(
                400,
                f"types: {redact(name, 80)!r} is not an event type. {hint}"
                f"Use: {', '.join(type_names)}; or `all`. Omit it for the default types.",
            )
    return None if _ALL_TYPES_NAMES.intersection(types) else frozenset(EventType(name) for name in types)


class StreamQuota:
    """
    Counts open streams. Each caller may open a quarter of the maximum.

    Args:
        limit: Maximum number of streams of all callers.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.limit_per_caller = max(1, limit // 4)
        self._open_counts: Counter[str] = Counter()

    def is_used_up(self, caller: Caller) -> bool:
        """Return whether a caller has reached its limit. Callers on loopback without a token have none."""
        is_local = not caller.token_id and is_loopback(caller.address)
        return not is_local and self._open_counts[caller.key] >= self.limit_per_caller

    @contextlib.contextmanager
    def count_stream(self, caller: Caller) -> Iterator[None]:
        """Count a stream within the block."""
        self._open_counts[caller.key] += 1
        try:
            yield
        finally:
            self._open_counts[caller.key] -= 1
            if not self._open_counts[caller.key]:
                del self._open_counts[caller.key]


class EventStream(Response):
    """
    A stream of events from the feed, sent no faster than the client receives.

    Args:
        feed: The feed.
        event_filter: The events to send.
        after: The position to resume after; None to start now.
        unknown_id: The requested id, if it is not in the log.
        count_stream: Returns a context manager that is entered while the stream is open.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        feed: Feed,
        event_filter: StreamFilter,
        *,
        after: Place | None = None,
        unknown_id: str | None = None,
        count_stream: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed
        self._event_filter = event_filter
        self._after = after
        self._unknown_id = unknown_id
        self._count_stream = count_stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client disconnects or stops receiving, or the service stops."""
        with self._count_stream():
            await self._stream(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        after = self._after or (self._feed.head if self._feed.head.seq else _BEGINNING)
        reader = self._feed.open(self._event_filter, after=after)
        disconnect_task = asyncio.create_task(_wait_for_disconnect(receive, reader))
        should_abort = False
        try:
            async with asyncio.timeout(None) as timeout:
                reader.on_disconnect = lambda: timeout.reschedule(asyncio.get_running_loop().time())
                head = {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
                await send(head)
                await _send(reader, send, self._format_first_block(after))
                end = await _send_events(reader, send)
                timeout.reschedule(asyncio.get_running_loop().time() + _END_SECONDS)
                await send({"type": "http.response.body", "body": end, "more_body": False})
            should_abort = self._feed.is_closed
        except TimeoutError:
            should_abort = True
        finally:
            abort = scope.get("extensions", {}).get(ABORT)
            if should_abort and abort is not None:
                # Otherwise unsent data would stay in memory and delay the stop of the service.
                abort()
                await disconnect_task
            disconnect_task.cancel()
            reader.close()

    def _format_first_block(self, after: Place) -> bytes:
        """Return the first block of the stream: the retry time, and the id to resume after."""
        retry_line = f"retry: {_RETRY_MILLISECONDS}\n".encode()
        if self._unknown_id is None:
            return retry_line + format_id_line(after.event_id) + b"\n"
        reason = (
            f"event {redact(self._unknown_id, 100)!r} is not in the log, so the events after it are unknown; "
            "read the lists again; this stream starts now"
        )
        return retry_line + b"\n" + format_id_line(after.event_id) + format_reset(reason)


async def _wait_for_disconnect(receive: Receive, reader: Reader) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reader.end()


async def _send_events(reader: Reader, send: Send) -> bytes:
    """Send events until the stream ends. Return a comment line with the reason for the end."""
    try:
        while (chunk := await reader.read()) is not None:
            await _send(reader, send, chunk)
    except StoreError:
        return b": the event log cannot be read\n\n"
    return b": the service is stopping\n\n"


async def _send(reader: Reader, send: Send, chunk: bytes) -> None:
    reader.mark_sending()
    await send({"type": "http.response.body", "body": chunk, "more_body": True})
    reader.mark_sent()


router = APIRouter(prefix="/api", tags=["events"])


@router.get(
    "/events",
    response_class=EventStream,
    **operation(errors=_STREAM_ERRORS, description=_DESCRIPTION, content=_CONTENT),
)
async def stream_events(
    request: Request,
    service: ServiceDep,
    types: EventTypesQuery = None,
    agent_id: Annotated[str | None, Query(max_length=1000, description="Only events of this worker.")] = None,
    last_event_id: LastEventIdHeader = None,
    after: AfterQuery = None,
) -> EventStream:
    """
    Stream events of all workers as server-sent events, in the order of the event log.

    In a cluster with partitions, the order is that of each partition's log.
    With `agent_id`, only events of one worker, which may still be unknown.
    With `Last-Event-ID`, the stream resumes after that event and misses nothing that is in the log.
    """
    if "agent" in request.query_params:  # if it were ignored, the stream would have the events of all workers
        raise HTTPException(400, "agent is not a parameter of event streams; use agent_id")
    # The header takes precedence, because a reconnecting browser repeats the original URL.
    return await _open_stream(request, service, parse_event_types(types), agent_id, last_event_id or after)


@router.get(
    "/agents/{agent_id:agent}/events",
    response_class=EventStream,
    **operation(errors=_AGENT_STREAM_ERRORS, description=_DESCRIPTION, content=_CONTENT),
)
async def stream_agent_events(
    request: Request,
    service: ServiceDep,
    agent_id: AgentId,
    types: EventTypesQuery = None,
    last_event_id: LastEventIdHeader = None,
    after: AfterQuery = None,
) -> EventStream:
    """
    Stream events of one worker as server-sent events. An unknown worker is an error (404).

    For a loaded agent, the stream includes all its graphs, whose workers have their own names.
    With `Last-Event-ID`, the stream resumes after that event and misses nothing that is in the log.
    """
    event_types = parse_event_types(types)
    if not await _is_known_worker(service, agent_id):
        raise AgentNotFoundError(agent_id)
    return await _open_stream(request, service, event_types, agent_id, last_event_id or after)


async def _open_stream(
    request: Request,
    service: Service,
    types: frozenset[EventType] | None,
    agent: str | None,
    last_event_id: str | None,
) -> EventStream:
    name = None if agent is None else clean_name(agent)
    event_filter = StreamFilter(types, name, None if name is None else service.agents.companions)
    quota: StreamQuota = request.state.stream_quota
    caller = find_caller(request)
    if service.feed.readers >= quota.limit:
        raise HTTPException(
            503,
            f"{quota.limit} event streams are open already, which is the maximum; close one first",
            headers={"Retry-After": "5"},
        )
    if quota.is_used_up(caller):
        raise HTTPException(
            503,
            f"you have {quota.limit_per_caller} open event streams already, which is the maximum for one "
            "caller; close one first",
            headers={"Retry-After": "5"},
        )
    position = _BEGINNING if last_event_id == _BEGINNING.event_id else None
    if last_event_id and position is None:
        position = await service.feed.find_position(last_event_id)
    unknown_id = last_event_id if last_event_id and position is None else None
    return EventStream(
        service.feed,
        event_filter,
        after=position,
        unknown_id=unknown_id,
        count_stream=lambda: quota.count_stream(caller),
    )
