"""The event stream over HTTP: server-sent events that go on where they were (``Last-Event-ID``)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Final

from fastapi import FastAPI, Header, HTTPException, Query, Request, Response
from starlette.types import Receive, Scope, Send

from queenright.health.audit_page import read_page
from queenright.health.event_log import Place
from queenright.health.interventions.service import AgentNotFoundError
from queenright.health.store import StoreError
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import EventType
from queenright.server.access.addresses import loopback
from queenright.server.access.caller import Caller, caller_of
from queenright.server.middleware.connections import ABORT
from queenright.server.routes.openapi import says
from queenright.server.routes.params import AgentId
from queenright.server.service import Service
from queenright.server.stream.feed import Feed
from queenright.server.stream.lines import Wanted
from queenright.server.stream.reader import Reader, at, reset

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
"""What is streamed where nothing is said: what an agent does, and what becomes of it."""

_ALL: Final = frozenset({"all", "*"})
_RETRY: Final = 2000
"""Milliseconds after which a browser comes back."""

_EXAMPLE: Final = (
    "retry: 2000\n"
    "id: 0198c5a2f3b87e11\n"
    "\n"
    "event: execution_started\n"
    "id: 0198c5a2f3b97d02\n"
    'data: {"id":"0198c5a2f3b97d02","type":"execution_started","time":"2026-03-01T09:30:00.000+00:00",'
    '"agent_id":"researcher","session_id":"s1","incarnation_id":"i1","graph_id":"","stream_id":"",'
    '"node_id":"","execution_id":"","trace_id":"","span_id":"","data":{}}\n'
    "\n"
)
_REFUSED: Final = {
    400: "An unknown type is asked for; the words name what is near.",
    503: "There are too many streams already.",
}
_REFUSED_OF_ONE: Final = {**_REFUSED, 404: "Nothing has been heard of this worker."}
_CONTENT: Final[dict[str, Any]] = {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}}
_WHAT: Final = "Events as they happen, until either side ends it."

Types = Annotated[
    list[str] | None,
    Query(
        description="Which types, with commas between them; `all` for every type there is.",
        examples=["worker_escalation_ticket,queen_intervention_requested"],
    ),
]
After = Annotated[
    str | None,
    Query(max_length=256, description="As the header `Last-Event-ID`, for whoever cannot send that."),
]
LastEventId = Annotated[
    str | None, Header(max_length=256, description="The id of the last event that was received.")
]


def add_events_api(app: FastAPI, service: Service) -> None:
    """Add the streams to ``app``."""

    shares = Shares(service.settings.http.limits.streams)

    async def stream(
        request: Request,
        types: Sequence[str] | None,
        agent: str | None,
        last: str | None,
        after: str | None,
    ) -> Response:
        name = None if agent is None else clean_name(agent)
        wanted = Wanted(wanted_types(types), name, None if name is None else service.agents.companions)
        most = service.settings.http.limits.streams
        if service.feed.readers >= most:
            raise HTTPException(
                503,
                f"there are {most} event streams already; end one, or raise http.limits.streams",
                headers={"Retry-After": "5"},
            )
        caller = caller_of(request)
        if shares.full(caller):
            raise HTTPException(
                503,
                f"you have {shares.each} event streams already, as many as one caller may; end one, or raise "
                "http.limits.streams: a quarter of it is for one caller",
                headers={"Retry-After": "5"},
            )
        # The header is the newer one: a browser that comes back repeats the address as it was.
        last = last or after
        place = await service.feed.find(last) if last else None
        unknown = last if last and place is None else None
        return EventStream(
            service.feed, wanted, after=place, unknown=unknown, held=lambda: shares.held(caller)
        )

    @app.get(
        "/api/events",
        tags=["events"],
        response_class=EventStream,
        **says("stream_events", None, refused=_REFUSED, what=_WHAT, content=_CONTENT),
    )
    async def events(
        request: Request,
        types: Types = None,
        agent: Annotated[str | None, Query(max_length=1000, description="Only this worker's.")] = None,
        last_event_id: LastEventId = None,
        after: After = None,
    ) -> Response:
        """
        Events of all workers as server-sent events, in the order of the event log.

        With `agent` those of one worker, also of one that has not been heard of yet.
        With `Last-Event-ID` the stream goes on after that event, and misses nothing that is in the log.
        """
        return await stream(request, types, agent, last_event_id, after)

    @app.get(
        "/api/agents/{agent_id:agent}/events",
        tags=["events"],
        response_class=EventStream,
        **says("stream_agent_events", None, refused=_REFUSED_OF_ONE, what=_WHAT, content=_CONTENT),
    )
    async def agent_events(
        request: Request,
        agent_id: AgentId,
        types: Types = None,
        last_event_id: LastEventId = None,
        after: After = None,
    ) -> Response:
        """
        Events of one worker as server-sent events; 404 for one that nothing has been heard of.

        Of an agent that is loaded here those of all its graphs: who runs beside it has a name of its own.
        With `Last-Event-ID` the stream goes on after that event, and misses nothing that is in the log.
        """
        wanted_types(types)  # what is wrong with the request is said first
        if not await _is_known(service, agent_id):
            raise AgentNotFoundError(agent_id)
        return await stream(request, types, agent_id, last_event_id, after)


async def _is_known(service: Service, agent_id: str) -> bool:
    """Return whether an agent is loaded, watched, or in the event log."""
    if agent_id in service.agents.slots or service.monitor.get(agent_id) is not None:
        return True
    return bool(await service.store.read(lambda conn: read_page(conn, agent_id=agent_id, limit=1)))


def wanted_types(said: Sequence[str] | None) -> frozenset[EventType] | None:
    """
    Return the types that somebody asks for; None is all.

    Args:
        said: Names with commas between them, any number of times; None is the default.

    Raises:
        HTTPException: 400 for a name that is no type; says which, what is near, and what there is.
    """
    if said is None:
        return DEFAULT_TYPES
    names = [name.strip() for part in said for name in part.split(",")]
    known = sorted(EventType)
    for name in names:
        if name not in known and name not in _ALL:
            near = get_close_matches(name.lower(), known, 3)
            hint = f"Did you mean {' or '.join(near)}? " if near else ""
            raise HTTPException(
                400,
                f"types: {redact(name, 80)!r} is no type of event. {hint}"
                f"There are: {', '.join(known)}; or `all`. Leave it out for the usual ones.",
            )
    return None if _ALL.intersection(names) else frozenset(EventType(name) for name in names)


class Shares:
    """
    How many streams each caller has: a quarter of all at most, so that one leaves some to the others.

    Args:
        most: How many there may be of all callers.
    """

    def __init__(self, most: int) -> None:
        self.each = max(1, most // 4)
        self._open: Counter[str] = Counter()

    def full(self, caller: Caller) -> bool:
        """Return whether a caller has its share. Who needs no token on this machine has all of it."""
        local = not caller.token_id and loopback(caller.address)
        return not local and self._open[caller.key] >= self.each

    @contextlib.contextmanager
    def held(self, caller: Caller) -> Iterator[None]:
        """Count one more while it is open."""
        self._open[caller.key] += 1
        try:
            yield
        finally:
            self._open[caller.key] -= 1
            if not self._open[caller.key]:
                del self._open[caller.key]


class EventStream(Response):
    """
    Passes on what a reader of the feed reads, no faster than it is taken.

    Args:
        feed: What to read.
        wanted: Which events.
        after: The place to go on after; None: from now on.
        unknown: The id of an event to go on after that is not in the log.
        held: Makes what is entered while it is open.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        feed: Feed,
        wanted: Wanted,
        *,
        after: Place | None = None,
        unknown: str | None = None,
        held: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed
        self._wanted = wanted
        self._after = after
        self._unknown = unknown
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the client goes, takes nothing for too long, or the service stops."""
        with self._held():
            await self._stream(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        after = self._after or self._feed.head
        reader = self._feed.open(self._wanted, after=after)
        gone = asyncio.create_task(_until_gone(receive, reader))
        try:
            async with asyncio.timeout(None) as limit:
                reader.on_cut = lambda: limit.reschedule(asyncio.get_running_loop().time())
                head = {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
                await send(head)
                await _send(reader, send, self._first(after))
                await _pass_on(reader, send)
        except TimeoutError:
            abort = scope.get("extensions", {}).get(ABORT)
            if abort is not None:
                # Else what it does not take would be kept for it for as long as it likes.
                abort()
                await gone
        finally:
            gone.cancel()
            reader.close()

    def _first(self, after: Place) -> bytes:
        """Say when to come back, and from where on: also for who is gone before the first event."""
        first = f"retry: {_RETRY}\n".encode()
        if self._unknown is None:
            return first + at(after.event_id) + b"\n"
        reason = (
            f"event {redact(self._unknown, 100)!r} is not in the log, so what came after it cannot be said; "
            "read the lists anew, this stream goes on from now"
        )
        return first + b"\n" + at(after.event_id) + reset(reason)


async def _until_gone(receive: Receive, reader: Reader) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reader.end()


async def _pass_on(reader: Reader, send: Send) -> None:
    end = b": the service stops\n\n"
    try:
        while (piece := await reader.read()) is not None:
            await _send(reader, send, piece)
    except StoreError:
        end = b": the event log cannot be read just now\n\n"
    await send({"type": "http.response.body", "body": end, "more_body": False})


async def _send(reader: Reader, send: Send, piece: bytes) -> None:
    reader.sending()
    await send({"type": "http.response.body", "body": piece, "more_body": True})
    reader.sent()
