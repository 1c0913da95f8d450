"""The ASGI apps of a process. They send telemetry to the streams, and other requests to the owners."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.health.cluster.cluster_lease import Member
from queenright.instrumentation.identity import new_id
from queenright.server.access.access import Access
from queenright.server.access.addresses import is_loopback
from queenright.server.access.headers import set_security_headers
from queenright.server.cluster.gateway.gateway import RETRY_SECONDS, Gateway
from queenright.server.cluster.keys import find_agent_partition, find_hook_partition, split_request
from queenright.server.cluster.local import EMERGENCY_STOP_PATH, LOCAL_PATHS
from queenright.server.cluster.partition import OwnerApps, Partition
from queenright.server.cluster.proxy import FORWARDED_HEADER, PARTITION_HEADER, OwnerUnreachableError, Proxy
from queenright.server.cluster.stream import MessageTooLargeError, StreamUnavailableError
from queenright.server.console.templates import render_error
from queenright.server.http.problems import make_problem_response
from queenright.server.otlp.errors import RESOURCE_EXHAUSTED, RejectedRequestError, make_unavailable_error
from queenright.server.webhooks.hooks import (
    ANSWER_SECONDS,
    BODY_SECONDS,
    CALL_ID_HEADER,
    CLIENT_BY_PATH,
    MAX_BODY,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

_MAX_INLINE_BYTES: Final = 64 * 1024
"""Maximum length of a hook call that is parsed on the event loop; longer ones are parsed in a thread."""
_HOOK_SECONDS: Final = ANSWER_SECONDS + 0.1
"""Timeout of a hook call: more than the owner's, and less than the one second of clients."""
_NO_OWNER_REASON: Final = (
    "no process of the cluster watches the workers at the moment; try again in a few seconds"
)
_PARTITION_UNOWNED_REASON: Final = (
    "no process of the cluster watches a part of the workers at the moment; try again in a few seconds; "
    "`queenright cluster status` shows which"
)


class ClusterFront:
    """
    The ASGI apps of a cluster's process.

    Args:
        partitions: All partitions, by number.
        proxy: Forwards requests to owners.
        local: Answers requests to `LOCAL_PATHS` and `EMERGENCY_STOP_PATH`.
        access: Holds the key that the processes share.
        is_exposed: Whether other machines can reach this process.
        guard: Wraps an app in the guards of the API.

    Attributes:
        refusal: Why this process accepts no telemetry; None if it does.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        *,
        proxy: Proxy,
        local: ASGIApp,
        access: Access,
        is_exposed: bool,
        guard: Callable[[ASGIApp], ASGIApp],
    ) -> None:
        self.refusal: str | None = None
        self._partitions = partitions
        self._proxy = proxy
        self._local = local
        self._access = access
        self._is_exposed = is_exposed
        # A single thread, so that large requests use at most half of the GIL.
        self._executor = ThreadPoolExecutor(1, "split")
        count = len(partitions)
        self._local_paths = LOCAL_PATHS if count == 1 else LOCAL_PATHS | {EMERGENCY_STOP_PATH}
        self._gateway: ASGIApp | None = None
        if count > 1:
            gateway = Gateway(
                self.list_backends,
                partial(find_agent_partition, count=count),
                partial(_answer_no_owner, _PARTITION_UNOWNED_REASON),
            )
            # Check the token here. Otherwise, each partition would count an invalid token.
            self._gateway = guard(gateway)

    def list_backends(self) -> Sequence[ASGIApp | None]:
        """
        Return the API app of each partition, by number; None for a partition without an owner.

        The app of a partition that another process owns forwards requests to the owner.
        """
        return [self._get_backend(partition) for partition in self._partitions]

    async def publish(self, path: str, piece: bytes) -> None:
        """
        Publish a piece of an OTLP request.

        Raises:
            RejectedRequestError: The piece was not acknowledged (503), or is too large (413).
        """
        if self.refusal is not None:
            raise make_unavailable_error(self.refusal, RETRY_SECONDS)
        count = len(self._partitions)
        parts = {0: piece} if count == 1 else await self._run_in_thread(split_request, path, piece, count)
        results = await asyncio.gather(
            *(self._partitions[number].stream.publish(path, part) for number, part in parts.items()),
            return_exceptions=True,
        )
        for error in results:
            if isinstance(error, StreamUnavailableError):
                raise make_unavailable_error(f"{error}; retry later", RETRY_SECONDS) from None
            if isinstance(error, MessageTooLargeError):
                raise RejectedRequestError(413, RESOURCE_EXHAUSTED, str(error)) from None
            if error is not None:
                raise error

    async def api(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the API and the console."""
        if scope["type"] != "http" or scope["path"] in self._local_paths:
            await self._local(scope, receive, send)
        elif self.refusal is not None:
            await _answer_no_owner(self.refusal, scope, receive, send)
        elif self._gateway is not None and (number := self._read_forwarded_partition(scope)) is None:
            await self._gateway(scope, receive, send)
        else:
            partition = self._partitions[0 if self._gateway is None else number or 0]
            await (self._get_backend(partition) or partial(_answer_no_owner, _NO_OWNER_REASON))(
                scope, receive, send
            )

    async def hooks(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        Serve hooks of coding agents.

        If the owner does not answer in time, the call is published to the stream, and its agent continues.
        """
        if self.refusal is not None:
            await JSONResponse({}, 503)(scope, receive, send)
            return
        # If the owner is only late and also stores the call, the id prevents a duplicate.
        call_id = self._get_call_id(scope)
        headers = [header for header in scope["headers"] if header[0] != CALL_ID_HEADER]
        scope = {**scope, "headers": [*headers, (CALL_ID_HEADER, call_id.encode())]}
        if len(self._partitions) == 1 and (apps := self._partitions[0].apps) is not None:
            await apps.hooks(scope, receive, send)
            return
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_body(receive)
        except TimeoutError:
            await JSONResponse({}, 408)(scope, receive, send)
            return
        is_too_long = len(body) > MAX_BODY
        query = scope.get("query_string", b"").decode("latin-1")
        path = f"{scope['path']}?{query}"
        partition = self._partitions[await self._find_hook_partition(b"" if is_too_long else body)]
        if partition.apps is not None:
            await partition.apps.hooks(scope, _replay(body, receive), send)
            return
        try:
            await self._forward(
                partition,
                lambda owner: owner.otlp_url,
                scope,
                receive,
                send,
                body=b"" if is_too_long else body,
                answer_seconds=_HOOK_SECONDS,
            )
            return
        except OwnerUnreachableError:
            pass
        if body and not is_too_long and scope["method"] == "POST" and scope["path"] in CLIENT_BY_PATH:
            try:
                await partition.stream.publish(path, body, message_id=call_id)
            except (StreamUnavailableError, MessageTooLargeError) as error:
                _log.warning("a hook call is lost; its agent continues: %s", error)
        await JSONResponse({})(scope, receive, send)

    def _get_call_id(self, scope: Scope) -> str:
        """Return the id of a hook call: from the process that forwarded it, otherwise a new one."""
        call_id = Headers(scope=scope).get(CALL_ID_HEADER.decode(), "")
        key = self._access.sessions.key
        if call_id and hmac.compare_digest(
            call_id.encode(), sign_call_id(call_id.partition(".")[0], key).encode()
        ):
            return call_id
        return sign_call_id(new_id(), key)

    async def _find_hook_partition(self, body: bytes) -> int:
        count = len(self._partitions)
        if count == 1:
            return 0
        if len(body) > _MAX_INLINE_BYTES:
            return await self._run_in_thread(find_hook_partition, body, count)
        return find_hook_partition(body, count)

    async def _run_in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)

    def _read_forwarded_partition(self, scope: Scope) -> int | None:
        """Return the partition that a forwarding process has set in the headers."""
        value = next((value for name, value in scope["headers"] if name == PARTITION_HEADER), b"")
        numbers = {str(number).encode(): number for number in range(len(self._partitions))}
        return numbers.get(value)

    def _get_backend(self, partition: Partition) -> ASGIApp | None:
        apps: OwnerApps | None = partition.apps
        if apps is not None:
            return apps.api
        return None if partition.owner is None else partial(self._forward_to_owner, partition)

    async def _forward_to_owner(
        self, partition: Partition, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            await self._forward(partition, lambda owner: owner.api_url, scope, receive, send)
        except OwnerUnreachableError:
            await _answer_no_owner(_NO_OWNER_REASON, scope, receive, send)

    async def _forward(
        self,
        partition: Partition,
        get_url: Callable[[Member], str],
        scope: Scope,
        receive: Receive,
        send: Send,
        **options: Any,
    ) -> None:
        owner = partition.owner
        if owner is None or any(name == FORWARDED_HEADER for name, _ in scope["headers"]):
            raise OwnerUnreachableError
        if self._is_exposed and is_loopback(owner.host):
            # Its port on loopback would trust callers without a token.
            raise OwnerUnreachableError
        await self._proxy.forward(
            get_url(owner),
            scope,
            receive,
            send,
            end_event=partition.owner_changed,
            partition=partition.number if len(self._partitions) > 1 else None,
            **options,
        )


def sign_call_id(call_id: str, key: bytes) -> str:
    """
    Return the id of a hook call with its signature.

    The signature prevents a client from sending the id of another message, which would then count as stored.

    Args:
        call_id: The id.
        key: The key that the processes share.
    """
    return f"{call_id}.{hmac.digest(key, f'hook call {call_id}'.encode(), 'sha256').hex()}"


async def _read_body(receive: Receive) -> bytes:
    """Return the body. It is truncated above ``MAX_BODY``, and empty if the client disconnects."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY or not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that replays a body, then continues with ``receive``."""
    remaining_messages: list[Message] = [{"type": "http.request", "body": body}]

    async def replay() -> Message:
        return remaining_messages.pop() if remaining_messages else await receive()

    return replay


async def _answer_no_owner(reason: str, scope: Scope, receive: Receive, send: Send) -> None:
    wants_page = "text/html" in Headers(scope=scope).get("accept", "")
    response = (
        render_error(503, f"Not available: {reason}.") if wants_page else make_problem_response(503, reason)
    )
    response.headers["Retry-After"] = str(RETRY_SECONDS)
    set_security_headers(response.headers)
    await response(scope, receive, send)
