"""One API for a fleet that is in several partitions: what each knows is found, or merged."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.health.heartbeat import InvalidHeartbeatError, parse_heartbeat
from queenright.instrumentation.identity import clean_name
from queenright.server.access.headers import set_security_headers
from queenright.server.cluster.gateway.ask import (
    BodyTooLargeError,
    ClientGoneError,
    Reply,
    ask,
    asking,
    json_reply,
    read_body,
    replay,
)
from queenright.server.cluster.gateway.kinds import Kind, agent_in, kind_of
from queenright.server.cluster.gateway.pages import ask_all, merged_page
from queenright.server.cluster.gateway.streams import stream_events
from queenright.server.cluster.gateway.summaries import merge_of
from queenright.server.http.problems import problem
from queenright.server.middleware.gate import MAX_BODY
from queenright.server.routes.pagination import ASKED, InvalidCursorError

_MOST_REMEMBERED: Final = 100_000


class Session(NamedTuple):
    """The session of an agent that a request is about."""

    agent_id: str
    session_id: str
    """Empty: the newest."""


class Gateway:
    """
    The ASGI app that answers for all partitions.

    Args:
        backends: Returns the app of each partition, by number; None while the partition has no owner.
        partition_of_agent: Returns the partition that an agent's telemetry is likely to be in.
        answer_unowned: Answers a request that needs a partition without an owner.
    """

    def __init__(
        self,
        backends: Callable[[], Sequence[ASGIApp | None]],
        partition_of_agent: Callable[[str], int],
        answer_unowned: ASGIApp,
    ) -> None:
        self._backends = backends
        self._partition_of_agent = partition_of_agent
        self._answer_unowned = answer_unowned
        self._remembered: OrderedDict[Session, int] = OrderedDict()
        """The partition in which a session was found."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        kind = kind_of(scope["method"], scope["path"])
        backends = self._backends()
        try:
            if kind is Kind.ANY:
                app = next((app for app in backends if app is not None), self._answer_unowned)
                await app(scope, receive, send)
            elif kind is Kind.FIRST:
                await (backends[0] or self._answer_unowned)(scope, receive, send)
            elif kind is Kind.SESSION:
                await self._answer_for_session(backends, scope, receive, send)
            elif kind is Kind.FIND:
                await self._find(backends, range(len(backends)), scope, receive, send)
            elif kind is Kind.HEARTBEAT:
                await self._take_heartbeat(backends, scope, receive, send)
            elif (apps := [app for app in backends if app is not None]) and len(apps) == len(backends):
                await self._ask_all(kind, apps, scope, receive, send)
            else:
                await self._answer_unowned(scope, receive, send)
        except BodyTooLargeError:
            await _refuse(413, f"the body is longer than {MAX_BODY} bytes; send less at once", send)
        except ClientGoneError:
            return

    async def _ask_all(
        self, kind: Kind, apps: Sequence[ASGIApp], scope: Scope, receive: Receive, send: Send
    ) -> None:
        if kind is Kind.STREAM:
            await stream_events(apps, scope, receive, send)
            return
        if kind is Kind.PAGE:
            try:
                reply = await merged_page(apps, scope, receive)
            except InvalidCursorError as error:
                await _refuse(400, str(error), send)
                return
        elif kind in (Kind.SUMMARY, Kind.AGENT):
            replies = await ask_all(apps, [asking(scope)] * len(apps), receive)
            reply = _merged(replies, merge_of(scope["path"]))
        else:
            reply = await _send_to_all(kind, apps, scope, receive)
        await reply.send(send)

    async def _answer_for_session(
        self, backends: Sequence[ASGIApp | None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        agent_id = agent_in(scope["path"], scope.get("raw_path"))
        query = parse_qs(scope["query_string"].decode("latin-1"))
        body = b"" if scope["method"] == "GET" else await read_body(receive)
        session_id = query.get("session_id", [""])[0] or _session_in(body)
        session = Session(agent_id, clean_name(session_id) if session_id else "")
        places = await self._places(backends, session, scope, receive)
        await self._find(backends, places, scope, replay(body, receive), send)

    async def _places(
        self,
        backends: Sequence[ASGIApp | None],
        session: Session,
        scope: Scope,
        receive: Receive,
    ) -> Sequence[int]:
        """Return the partitions to ask for a session, the first one first."""
        first = self._remembered.get(session)
        if first is None:
            first = await self._locate(backends, session, scope, receive)
            if first is None:
                first = self._partition_of_agent(session.agent_id)
            elif session.session_id:
                self._remember(session, first)
        return [first, *(number for number in range(len(backends)) if number != first)]

    async def _locate(
        self, backends: Sequence[ASGIApp | None], session: Session, scope: Scope, receive: Receive
    ) -> int | None:
        """Return the partition that watches a session, or the latest one of an agent; None if none does."""
        path = f"/api/agents/{session.agent_id}/health"
        query = f"session_id={quote(session.session_id, safe='')}" if session.session_id else ""
        asked = asking(scope, path=path, query=query.encode())
        asked["raw_path"] = f"/api/agents/{quote(session.agent_id, safe='')}/health".encode()
        present = [(number, app) for number, app in enumerate(backends) if app is not None]
        replies = await ask_all([app for _, app in present], [asked] * len(present), receive)
        seen = [
            (reply.json()["last_activity"], number)
            for (number, _), reply in zip(present, replies, strict=True)
            if reply.status == 200
        ]
        return max(seen)[1] if seen else None

    def _remember(self, session: Session, partition: int) -> None:
        self._remembered[session] = partition
        self._remembered.move_to_end(session)
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)

    async def _take_heartbeat(
        self, backends: Sequence[ASGIApp | None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        body = await read_body(receive)
        number = 0
        with contextlib.suppress(InvalidHeartbeatError):
            heartbeat = parse_heartbeat(body)
            session = Session(heartbeat.agent_id, heartbeat.session_id)
            number = (await self._places(backends, session, scope, receive))[0]
        await (backends[number] or self._answer_unowned)(scope, replay(body, receive), send)

    async def _find(
        self,
        backends: Sequence[ASGIApp | None],
        places: Sequence[int],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Pass a request on until a partition knows what it is about."""
        body = await read_body(receive)
        missing: list[Message] = []
        is_unowned = False
        for number in places:
            app = backends[number]
            if app is None:
                is_unowned = True
                continue
            answer = _UnlessMissing(send)
            await app(scope, replay(body, receive), answer)
            if answer.is_sent:
                return
            missing = missing or answer.messages
        if is_unowned or not missing:
            await self._answer_unowned(scope, replay(body, receive), send)
            return
        for message in missing:
            await send(message)


async def _refuse(status: int, reason: str, send: Send) -> None:
    response = problem(status, reason)
    # No partition is asked, whose middleware would do so.
    set_security_headers(response.headers)
    await Reply(status, response.raw_headers, bytes(response.body)).send(send)


class _UnlessMissing:
    """Sends a response as it comes, but keeps one with the status 404."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.messages: list[Message] = []
        self.is_sent = False

    async def __call__(self, message: Message) -> None:
        """Send a message of the response, or keep it."""
        if message["type"] == "http.response.start" and message["status"] != 404:
            self.is_sent = True
        if self.is_sent:
            await self._send(message)
        else:
            self.messages.append(message)


def _session_in(body: bytes) -> str:
    """Return the session that a JSON body names."""
    try:
        value = orjson.loads(body)
    except ValueError:
        return ""
    session_id = value.get("session_id") if isinstance(value, dict) else None
    return session_id if isinstance(session_id, str) else ""


def _merged(replies: Sequence[Reply], merge: Callable[[Sequence[Any]], Any]) -> Reply:
    known = [reply for reply in replies if reply.status != 404] or replies[:1]
    refused = [reply for reply in known if reply.status != 200]
    return refused[0] if refused else json_reply(merge([reply.json() for reply in known]), known[0])


async def _send_to_all(kind: Kind, apps: Sequence[ASGIApp], scope: Scope, receive: Receive) -> Reply:
    """Send a request that changes something to all partitions, and return one response."""
    body = await read_body(receive)
    asked = scope
    if kind is Kind.CLICK:
        asked = {**scope, "headers": [*scope["headers"], (ASKED.encode(), b"1")]}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(app, asked, replay(body, receive))) for app in apps]
    replies = [task.result() for task in tasks]
    known = [reply for reply in replies if reply.status != 404] or replies[:1]
    refused = [reply for reply in known if reply.status >= 400]
    if refused:
        return refused[0]
    if kind is Kind.CLICK:
        done = next((reply for reply in replies if reply.json().get("response_type") == "in_channel"), None)
        # Nobody knows the ticket: without the mark, the answer is also posted below the message.
        return done or await ask(apps[0], scope, replay(body, receive))
    return json_reply(merge_of(scope["path"])([reply.json() for reply in known]), known[0])
