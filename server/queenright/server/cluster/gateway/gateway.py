"""The gateway app. It finds the partition of a request, or merges the responses of all partitions."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qs, quote

import orjson
from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.health.monitoring.heartbeat import InvalidHeartbeatError, parse_heartbeat
from queenright.instrumentation.identity import clean_name
from queenright.runtime.deadline import Sleep
from queenright.server.access.headers import set_security_headers
from queenright.server.cluster.gateway.ask import (
    BodyTooLargeError,
    ClientGoneError,
    Reply,
    ask,
    make_get_scope,
    make_json_reply,
    mark_scope,
    read_body,
    replay,
    unmark_scope,
)
from queenright.server.cluster.gateway.kinds import RouteKind, classify_route, read_agent_name
from queenright.server.cluster.gateway.pages import ask_all, fetch_merged_page
from queenright.server.cluster.gateway.short_ids import find_matches, find_short_id
from queenright.server.cluster.gateway.streams import stream_events
from queenright.server.cluster.gateway.summaries import get_merge
from queenright.server.http.gateway_header import FIND_KEY, LOCATE_WORKER
from queenright.server.http.problems import make_problem_response
from queenright.server.middleware.gate import MAX_BODY
from queenright.server.middleware.idempotency import KEY_HEADER
from queenright.server.routes.gateway_requests import LocatedWorker
from queenright.server.routes.pagination import InvalidCursorError
from queenright.server.routes.short_ids import complete_id

_MAX_SESSIONS: Final = 100_000
RETRY_SECONDS: Final = 2
"""Value of ``Retry-After``, in seconds. By then, the partition usually has an owner."""
_OWNER_SECONDS: Final = 4.0
"""Maximum seconds that a request to all partitions waits for one that is being handed over."""
_POLL_SECONDS: Final = 0.1
_MERGED_KINDS: Final = frozenset(
    {RouteKind.PAGE, RouteKind.SUMMARY, RouteKind.AGENT, RouteKind.STREAM, RouteKind.CLICK}
)


class SessionKey(NamedTuple):
    """The agent and the session that a request refers to."""

    agent_id: str
    session_id: str
    """Empty for the newest session."""


class Search(NamedTuple):
    """The session that a request refers to, and the partition to try first."""

    session: SessionKey | None = None
    first: int | None = None
    """The partition to try first; None: the one that last had the session, or likely has it."""
    likely: int | None = None
    """The likely partition of a new session; None: the partition of the agent's name."""
    takes_new: bool = False
    """Whether a partition accepts an unknown session."""


class PartitionOf(Protocol):
    """Returns the likely partition of the telemetry of an agent or a service."""

    def __call__(self, name: str, namespace: str = "", /) -> int:
        """Return the partition for the name of an agent, or of a service with its namespace."""


class Gateway:
    """
    The ASGI app that answers for all partitions.

    Args:
        backends: Returns the app of each partition, by number; None while the partition has no owner.
        partition_of_agent: Returns the likely partition of the telemetry of an agent or a service.
        answer_unowned: Answers a request that needs a partition without an owner.
        clock: A monotonic clock, in seconds.
        sleep: Sleeps on that clock.
    """

    def __init__(
        self,
        backends: Callable[[], Sequence[ASGIApp | None]],
        partition_of_agent: PartitionOf,
        answer_unowned: ASGIApp,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._backends = backends
        self._clock = clock
        self._sleep = sleep
        self._partition_of_agent = partition_of_agent
        self._answer_unowned = answer_unowned
        self._session_partitions: OrderedDict[SessionKey, int] = OrderedDict()
        """The partition in which each session was last found."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        scope = unmark_scope(scope)
        kind = classify_route(scope["method"], scope["path"])
        backends = self._backends()
        if kind in _MERGED_KINDS:
            backends = await self._wait_for_owners()
        try:
            if kind is RouteKind.ANY:
                app = next((app for app in backends if app is not None), self._answer_unowned)
                await app(scope, receive, send)
            elif kind is RouteKind.FIRST:
                await (backends[0] or self._answer_unowned)(scope, receive, send)
            elif kind in (RouteKind.SESSION, RouteKind.POLL):
                await self._answer_for_session(kind, backends, scope, receive, send)
            elif kind is RouteKind.FIND:
                await self._find_by_id(backends, scope, receive, send)
            elif kind is RouteKind.HEARTBEAT:
                await self._take_heartbeat(backends, scope, receive, send)
            elif (apps := [app for app in backends if app is not None]) and len(apps) == len(backends):
                await self._ask_all(kind, apps, scope, receive, send)
            elif kind is RouteKind.ALL and apps:
                await self._send_to_some(backends, scope, receive, send)
            else:
                await self._answer_unowned(scope, receive, send)
        except BodyTooLargeError:
            await _send_refusal(413, f"the body is longer than {MAX_BODY} bytes; send less at once", send)
        except ClientGoneError:
            return

    async def _wait_for_owners(self) -> Sequence[ASGIApp | None]:
        """Return the app of each partition once all have an owner, or after ``_OWNER_SECONDS``."""
        deadline = self._clock() + _OWNER_SECONDS
        while None in (backends := self._backends()) and self._clock() < deadline:
            await self._sleep(_POLL_SECONDS)
        return backends

    async def _ask_all(
        self, kind: RouteKind, apps: Sequence[ASGIApp], scope: Scope, receive: Receive, send: Send
    ) -> None:
        if kind is RouteKind.STREAM:
            await stream_events(apps, scope, receive, send)
            return
        if kind is RouteKind.PAGE:
            try:
                reply = await fetch_merged_page(apps, scope, receive)
            except InvalidCursorError as error:
                await _send_refusal(400, str(error), send)
                return
        elif kind in (RouteKind.SUMMARY, RouteKind.AGENT):
            replies = await ask_all(apps, [make_get_scope(scope)] * len(apps), receive)
            reply = _merge_replies(replies, get_merge(scope["path"]))
        else:
            reply = await _send_to_all(kind, apps, scope, receive)
        await reply.send(send)

    async def _send_to_some(
        self, backends: Sequence[ASGIApp | None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Apply a change, such as the emergency stop, where possible; report partitions without an owner."""
        reply = await _send_to_all(
            RouteKind.ALL, [app for app in backends if app is not None], scope, receive
        )
        if reply.status < 400:
            unowned_partitions = ", ".join(str(number) for number, app in enumerate(backends) if app is None)
            reason = (
                f"done, but not in the partitions without an owner: {unowned_partitions}; "
                "send it again in a few seconds"
            )
            await _send_refusal(503, reason, send)
        else:
            await reply.send(send)

    async def _answer_for_session(
        self, kind: RouteKind, backends: Sequence[ASGIApp | None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        agent_id = read_agent_name(scope["path"], scope.get("raw_path"))
        query = parse_qs(scope["query_string"].decode("latin-1"))
        body = b"" if scope["method"] == "GET" else await read_body(receive)
        session_id = clean_name(query.get("session_id", [""])[0] or _read_session_id(body))
        search = Search(SessionKey(agent_id, session_id), takes_new=kind is RouteKind.POLL)
        if not session_id:
            if None in backends and scope["method"] != "GET":
                # The latest session may be in the partition without an owner.
                await self._answer_unowned(scope, receive, send)
                return
            if (app := await self._find_repeated(backends, scope, receive)) is not None:
                await app(scope, replay(body, receive), send)
                return
            replies = await self._ask_health(backends, agent_id, scope, receive)
            if _is_any_unavailable(replies) and scope["method"] != "GET":
                await self._answer_unowned(scope, receive, send)
                return
            search = search._replace(first=_find_latest(replies))
        await self._find_partition(backends, search, scope, replay(body, receive), send)

    async def _ask_health(
        self, backends: Sequence[ASGIApp | None], agent_id: str, scope: Scope, receive: Receive
    ) -> dict[int, Reply]:
        """Return the health of an agent's latest session in each partition that has an owner."""
        health_scope = make_get_scope(scope, path=f"/api/agents/{agent_id}/health", query=b"")
        health_scope["raw_path"] = f"/api/agents/{quote(agent_id, safe='')}/health".encode()
        available_apps = {number: app for number, app in enumerate(backends) if app is not None}
        replies = await ask_all(list(available_apps.values()), [health_scope] * len(available_apps), receive)
        return dict(zip(available_apps, replies, strict=True))

    async def _find_repeated(
        self, backends: Sequence[ASGIApp | None], scope: Scope, receive: Receive
    ) -> ASGIApp | None:
        """
        Return the app that already has the request's Idempotency-Key; None if the key is new.

        Without this, a repeated request without a session or with an abbreviated id could match another item.
        """
        if scope["method"] == "GET" or KEY_HEADER not in Headers(scope=scope):
            return None
        apps = [app for app in backends if app is not None]
        replies = await ask_all(apps, [make_get_scope(scope, mark=FIND_KEY)] * len(apps), receive)
        if any(reply.status == 503 for reply in replies):
            return self._answer_unowned
        return next((app for app, reply in zip(apps, replies, strict=True) if reply.status == 204), None)

    def _remember_partition(self, session: SessionKey, partition: int) -> None:
        self._session_partitions[session] = partition
        self._session_partitions.move_to_end(session)
        if len(self._session_partitions) > _MAX_SESSIONS:
            self._session_partitions.popitem(last=False)

    async def _take_heartbeat(
        self, backends: Sequence[ASGIApp | None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        body = await read_body(receive)
        try:
            heartbeat = parse_heartbeat(body)
        except InvalidHeartbeatError:
            app = next((app for app in backends if app is not None), self._answer_unowned)
            await app(scope, replay(body, receive), send)
            return
        search = Search(SessionKey(heartbeat.agent_id, heartbeat.session_id), takes_new=True)
        if heartbeat.service_name:
            likely = self._partition_of_agent(heartbeat.service_name, heartbeat.service_namespace)
            search = search._replace(likely=likely)
        if not heartbeat.session_id:
            if None in backends:
                # The latest session may be in the partition without an owner.
                await self._answer_unowned(scope, receive, send)
                return
            apps = [app for app in backends if app is not None]
            replies = dict(enumerate(await _ask_each(apps, mark_scope(scope, LOCATE_WORKER), body, receive)))
            if _is_any_unavailable(replies):
                await self._answer_unowned(scope, receive, send)
                return
            search = search._replace(first=_find_latest(replies))
        await self._find_partition(backends, search, scope, replay(body, receive), send)

    async def _find_by_id(
        self, backends: Sequence[ASGIApp | None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a request about one item. An abbreviated id must be unique across all partitions."""
        short_id = find_short_id(scope["path"])
        if short_id is None:
            await self._find_partition(backends, Search(), scope, receive, send)
            return
        body = await read_body(receive)
        backends = await self._wait_for_owners()
        apps = [app for app in backends if app is not None]
        if (app := await self._find_repeated(backends, scope, receive)) is not None:
            await app(scope, replay(body, receive), send)
            return
        candidates = await find_matches(apps, short_id, scope, receive)
        refusal = next(
            (
                matches_of_partition
                for matches_of_partition in candidates
                if isinstance(matches_of_partition, Reply)
            ),
            None,
        )
        is_incomplete = len(apps) < len(backends) or None in candidates
        if is_incomplete or (refusal is not None and refusal.status == 503):
            # The partition may know another match.
            reason = (
                f"{short_id.prefix[:80]!r} is an abbreviated id, and a partition that may have another match "
                "is not available at the moment; give the complete id, or try again in a few seconds"
            )
            await _send_refusal(503, reason, send)
            return
        if refusal is not None:
            await refusal.send(send)
            return
        matches = [
            matches_of_partition
            for matches_of_partition in candidates
            if isinstance(matches_of_partition, dict)
        ]
        ids = dict(
            sorted(
                (id_, name) for matches_of_partition in matches for id_, name in matches_of_partition.items()
            )
        )
        try:
            complete_item_id = complete_id(short_id.prefix, short_id.item_type, ids)
        except HTTPException as error:
            await _send_refusal(error.status_code, error.detail, send)
            return
        app = next(
            (
                app
                for app, matches_of_partition in zip(apps, matches, strict=True)
                if complete_item_id in matches_of_partition
            ),
            None,
        )
        if app is None:
            await self._find_partition(backends, Search(), scope, replay(body, receive), send)
        else:
            # Send the original path, because a retry with the same key must be identical.
            await app(scope, replay(body, receive), send)

    async def _find_partition(
        self,
        backends: Sequence[ASGIApp | None],
        search: Search,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Try the partitions in turn, until one has the session or item of a request."""
        body = await read_body(receive)
        session = search.session
        likely_partition = search.likely
        if likely_partition is None:
            likely_partition = 0 if session is None else self._partition_of_agent(session.agent_id)
        first_partition = search.first
        if first_partition is None and session is not None:
            first_partition = self._session_partitions.get(session, likely_partition)
        partition_order = sorted(range(len(backends)), key=lambda number: number != first_partition)
        # The mark makes a partition refuse an unknown session with 404 instead of creating it.
        request = mark_scope(scope) if search.takes_new else scope
        refusals: dict[int, list[Message]] = {}
        for number in partition_order:
            app = backends[number]
            answer = _HoldMissing(send)
            await (self._answer_unowned if app is None else app)(request, replay(body, receive), answer)
            if answer.is_sent:
                if session is not None and session.session_id:
                    self._remember_partition(session, number)
                return
            refusals.setdefault(answer.status, answer.messages)
            if number == search.first and answer.status == 503 and scope["method"] != "GET":
                # The other partitions have only older sessions, which the request does not mean.
                break
        if 503 not in refusals and search.takes_new:
            await (backends[likely_partition] or self._answer_unowned)(scope, replay(body, receive), send)
            return
        # It may be in a partition that cannot answer at the moment.
        for message in refusals.get(503) or refusals[404]:
            await send(message)


async def _send_refusal(status: int, reason: str, send: Send) -> None:
    response = make_problem_response(status, reason)
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_SECONDS)
    # No partition answers, so no middleware sets these headers.
    set_security_headers(response.headers)
    await Reply(status, response.raw_headers, bytes(response.body)).send(send)


class _HoldMissing:
    """Sends a response as it arrives, except one with status 404 or 503, which it holds back."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 503
        self.messages: list[Message] = []
        self.is_sent = False

    async def __call__(self, message: Message) -> None:
        """Send a message of the response, or hold it back."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.is_sent = self.status not in (404, 503)
        if self.is_sent:
            await self._send(message)
        else:
            self.messages.append(message)


def _is_any_unavailable(replies: Mapping[int, Reply]) -> bool:
    """Return whether a partition that may have the latest session is unavailable."""
    return any(reply.status == 503 for reply in replies.values())


def _find_latest(replies: Mapping[int, Reply]) -> int | None:
    """Return the partition with the latest activity of the worker; None if no partition knows the worker."""
    candidates = [
        (LocatedWorker.model_validate_json(reply.body).last_activity, number)
        for number, reply in replies.items()
        if reply.status == 200
    ]
    return max(candidates)[1] if candidates else None


def _read_session_id(body: bytes) -> str:
    """Return the session id in a JSON body."""
    try:
        value = orjson.loads(body)
    except ValueError:
        return ""
    session_id = value.get("session_id") if isinstance(value, dict) else None
    return session_id if isinstance(session_id, str) else ""


def _merge_replies(replies: Sequence[Reply], merge: Callable[[Sequence[Any]], Any]) -> Reply:
    known_replies = [reply for reply in replies if reply.status != 404] or replies[:1]
    refusals = [reply for reply in known_replies if reply.status != 200]
    if refusals:
        return refusals[0]
    return make_json_reply(merge([reply.json() for reply in known_replies]), known_replies[0])


async def _ask_each(apps: Sequence[ASGIApp], scope: Scope, body: bytes, receive: Receive) -> list[Reply]:
    """Send the same request with a body to each app, and return the responses."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(app, scope, replay(body, receive))) for app in apps]
    return [task.result() for task in tasks]


async def _send_to_all(kind: RouteKind, apps: Sequence[ASGIApp], scope: Scope, receive: Receive) -> Reply:
    """Send a change to all partitions, and return one response."""
    body = await read_body(receive)
    replies = await _ask_each(apps, mark_scope(scope) if kind is RouteKind.CLICK else scope, body, receive)
    known_replies = [reply for reply in replies if reply.status != 404] or replies[:1]
    refusals = [reply for reply in known_replies if reply.status >= 400]
    if refusals:
        return refusals[0]
    if kind is RouteKind.CLICK:
        done_reply = next(
            (reply for reply in replies if reply.json().get("response_type") == "in_channel"), None
        )
        # No partition has the ticket. Without the mark, a partition also posts its reply to Slack.
        return done_reply or await ask(apps[0], scope, replay(body, receive))
    return make_json_reply(
        get_merge(scope["path"])([reply.json() for reply in known_replies]), known_replies[0]
    )
