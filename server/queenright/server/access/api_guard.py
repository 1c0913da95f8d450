"""Middleware that authenticates callers of the API, and checks roles and rate limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.server.access.access import Access, Denial
from queenright.server.access.caller import SCOPE_KEY, Caller, get_client_address
from queenright.server.access.credentials import DuplicateTokenError, read_bearer_token, read_session_cookie
from queenright.server.access.rights import find_required_level
from queenright.server.access.roles import AccessLevel
from queenright.server.http.methods import CHANGING_METHODS
from queenright.server.http.problems import make_problem_response

RECHECK_SECONDS: Final = 5.0
"""Seconds between checks that the token of an open stream is still valid."""

_RELOAD_PAGE: Final = (
    '<!doctype html><meta charset="utf-8"><meta name="referrer" content="same-origin">'
    '<meta http-equiv="refresh" content="0"><title>Queenright</title><p>One moment ...</p>'
)

Page = Callable[[int, str], Response]
"""Renders a denial as a page, from its status and reason."""


class ApiGuard:
    """
    ASGI middleware that adds the caller to the scope, or denies the request.

    Args:
        app: The ASGI app.
        access: Authenticates and authorizes callers.
        bind_address: The address of the port: on loopback, no token is required by default.
        page: Renders a denial for browsers.
        monotonic: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        bind_address: str,
        page: Page,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._access = access
        self._is_token_required = access.is_token_required(bind_address)
        self._page = page
        self._monotonic = monotonic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Deny a request, or pass it to the app."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # The app has no WebSocket routes. This keeps a future one from being open by mistake.
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        level = find_required_level(scope["method"], scope["path"])
        caller = self._identify(scope, headers, level)
        if isinstance(caller, Denial):
            await self._make_denial_response(scope, headers, caller)(scope, receive, send)
            return
        scope[SCOPE_KEY] = caller
        if caller.token_id:
            await self._serve_while_valid(caller, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _identify(self, scope: Scope, headers: Headers, level: AccessLevel) -> Caller | Denial:
        try:
            token_text = read_bearer_token(headers)
        except DuplicateTokenError as error:
            return Denial(400, str(error))
        session = read_session_cookie(headers) if token_text is None else None
        caller = self._access.identify(
            get_client_address(scope.get("client")),
            token_text=token_text,
            session=session,
            is_token_required=self._is_token_required,
        )
        if isinstance(caller, Denial):
            return caller
        denial = self._access.check_rate(caller) or self._access.check_role(caller, level)
        if denial is None and session and caller.token_id:
            denial = _check_same_origin(scope["method"], headers)
        return denial or caller

    async def _serve_while_valid(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. End a stream soon after its token expires or is revoked."""
        checked_at, is_ended = self._monotonic(), False

        async def send_while_valid(message: Message) -> None:
            nonlocal checked_at, is_ended
            if message["type"] == "http.response.body" and message.get("more_body"):
                now = self._monotonic()
                if now - checked_at >= RECHECK_SECONDS:
                    checked_at = now
                    if not self._access.is_valid(caller):
                        is_ended = True
                        await send({"type": "http.response.body", "body": b"", "more_body": False})
                        # As if the client had disconnected: the route stops.
                        raise OSError("the token is expired or revoked")
            await send(message)

        try:
            await self._app(scope, receive, send_while_valid)
        except Exception:
            if not is_ended:
                raise

    def _make_denial_response(self, scope: Scope, headers: Headers, denial: Denial) -> Response:
        path = scope["path"]
        wants_html = "text/html" in headers.get("accept", "") and not path.startswith(("/api/", "/-/"))
        if not wants_html:
            response: Response = make_problem_response(denial.status, denial.reason)
        elif denial.status == 401:
            if headers.get("sec-fetch-site") == "cross-site" and scope["method"] == "GET":
                # A request from another site carries no SameSite cookie; the reload from this page does.
                return Response(_RELOAD_PAGE, 200, media_type="text/html")
            query = scope["query_string"].decode("latin-1")
            current_url = quote(path, safe="/") + (f"?{query}" if query else "")
            return RedirectResponse(f"/login?next={quote(current_url, safe='')}", 303)
        else:
            response = self._page(denial.status, denial.reason)
        response.headers.update(dict(denial.headers))
        return response


def _check_same_origin(method: str, headers: Headers) -> Denial | None:
    """Deny a change by a cookie if its origin is unknown. The gate has already checked any ``Origin``."""
    if (
        method not in CHANGING_METHODS
        or "origin" in headers
        or headers.get("sec-fetch-site") == "same-origin"
    ):
        return None
    return Denial(
        403, "a cookie alone does not authorize changes; send the token in the header Authorization"
    )
