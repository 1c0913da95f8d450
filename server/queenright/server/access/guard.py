"""The guard before the API, behind the gate: who asks, whether they may, and how much."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.server.access.access import Access, Denial
from queenright.server.access.caller import KEY, Caller, address_of
from queenright.server.access.credentials import DuplicateTokenError, bearer_of, session_of
from queenright.server.access.rights import required_level
from queenright.server.access.roles import AccessLevel
from queenright.server.routes.problems import problem

RECHECK_SECONDS: Final = 5.0
"""Seconds after which a stream that is still open is looked at: whether its token still holds."""

_WRITE_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_BOUNCE: Final = (
    '<!doctype html><meta charset="utf-8"><meta name="referrer" content="same-origin">'
    '<meta http-equiv="refresh" content="0"><title>Queenright</title><p>One moment ...</p>'
)

Page = Callable[[int, str], Response]
"""Makes a page of a refusal: its status and its words."""


class Guard:
    """
    ASGI middleware that lets a request through with its caller in the scope, or refuses it.

    Args:
        app: What is behind it.
        access: Knows the callers.
        bound: The address that is listened on: on loopback no token is needed by default.
        page: Makes a page of a refusal, for whoever reads pages.
        monotonic: Seconds from anywhere.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        bound: str,
        page: Page,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._access = access
        self._is_token_required = access.is_token_required(bound)
        self._page = page
        self._monotonic = monotonic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # There is none of these; should one come to be, it is not open by mistake.
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        level = required_level(scope["method"], scope["path"])
        found = self._identify(scope, headers, level)
        if isinstance(found, Denial):
            await self._denial_response(scope, headers, found)(scope, receive, send)
            return
        scope[KEY] = found
        if found.token_id:
            await self._serve_while_valid(found, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _identify(self, scope: Scope, headers: Headers, level: AccessLevel) -> Caller | Denial:
        try:
            token_text = bearer_of(headers)
        except DuplicateTokenError as error:
            return Denial(400, str(error))
        session = session_of(headers) if token_text is None else None
        caller = self._access.identify(
            address_of(scope.get("client")),
            token_text=token_text,
            session=session,
            is_token_required=self._is_token_required,
        )
        if isinstance(caller, Denial):
            return caller
        denied = self._access.check_rate(caller) or self._access.check_role(caller, level)
        if denied is None and session and caller.token_id:
            denied = _check_same_origin(scope["method"], headers)
        return denied or caller

    async def _serve_while_valid(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; a stream ends soon after its token does."""
        looked, ended = self._monotonic(), False

        async def sending(message: Message) -> None:
            nonlocal looked, ended
            if message["type"] == "http.response.body" and message.get("more_body"):
                now = self._monotonic()
                if now - looked >= RECHECK_SECONDS:
                    looked = now
                    if not self._access.is_valid(caller):
                        ended = True
                        await send({"type": "http.response.body", "body": b"", "more_body": False})
                        # As when a client has gone: the route leaves off.
                        raise OSError("the token is expired or revoked")
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            if not ended:
                raise

    def _denial_response(self, scope: Scope, headers: Headers, denied: Denial) -> Response:
        path = scope["path"]
        wants_html = "text/html" in headers.get("accept", "") and not path.startswith(("/api/", "/-/"))
        if not wants_html:
            response: Response = problem(denied.status, denied.reason)
        elif denied.status == 401:
            if headers.get("sec-fetch-site") == "cross-site" and scope["method"] == "GET":
                # A link from elsewhere brings no cookie along; the same page, asked for by ours, does.
                return Response(_BOUNCE, 200, media_type="text/html")
            query = scope["query_string"].decode("latin-1")
            here = quote(path, safe="/") + (f"?{query}" if query else "")
            return RedirectResponse(f"/login?next={quote(here, safe='')}", 303)
        else:
            response = self._page(denied.status, denied.reason)
        response.headers.update(dict(denied.headers))
        return response


def _check_same_origin(method: str, headers: Headers) -> Denial | None:
    """Refuse what a cookie alone would change: a browser says where from, and the gate has looked."""
    if method not in _WRITE_METHODS or "origin" in headers or headers.get("sec-fetch-site") == "same-origin":
        return None
    return Denial(403, "a cookie does not authorize changes; send the token in the header Authorization")
