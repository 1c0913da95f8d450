"""The guard before the OTLP receiver: whoever sends telemetry is a reporter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from starlette.datastructures import Headers

from queenright.server.access.access import Access, Denied
from queenright.server.access.caller import Caller, address_of
from queenright.server.access.presented import DuplicateTokenError, bearer_of
from queenright.server.access.roles import Need
from queenright.server.access.tokens import PREFIX
from queenright.server.middleware.gate import foreign, misnamed, names_of
from queenright.server.otlp.encoding import MediaType, render_status
from queenright.server.otlp.errors import RejectedRequestError
from queenright.server.otlp.receiver import Receive, Scope, Send

# gRPC's codes, which OTLP has for its errors over HTTP, too.
_CODES: Final = {400: 3, 401: 16, 403: 7, 429: 8, 503: 14}

_FROM_CONTAINERS: Final = ("host.docker.internal", "host.containers.internal")
"""What containers call the machine that they run on. No site is called so: ``internal`` cannot be bought."""


class OtlpGuard:
    """
    ASGI middleware. A token of ours goes no further: what is passed on to a collector does not carry it.

    Where none is needed, an ``Authorization`` that is not ours is meant for that collector, and stays.

    Args:
        app: The receiver.
        access: Knows the callers.
        bound: The address that is listened on.
        denied: Called with the path, the status and the reason of each request that is not let through.
    """

    def __init__(
        self,
        app: Any,
        *,
        access: Access,
        bound: str,
        denied: Callable[[str, int, str], None] = lambda path, status, reason: None,
    ) -> None:
        self._app = app
        self._access = access
        self._required = access.required(bound)
        self._denied = denied
        settings = access.settings
        self._names = names_of(
            settings.otlp.host,
            settings.http.host,
            settings.alerting.console_url,
            *_FROM_CONTAINERS,
            bound=bound,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        found = self._decide(scope, headers)
        if isinstance(found, Denied):
            self._denied(scope["path"], found.status, found.words)
            await _answer(found, headers.get("content-type", ""), send)
            return
        if found.token_id:
            left = [(name, value) for name, value in scope["headers"] if name.lower() != b"authorization"]
            scope = {**scope, "headers": left}
        await self._app(scope, receive, send)

    def _decide(self, scope: Scope, headers: Headers) -> Caller | Denied:
        if refused := self._from_a_page(scope, headers):
            return Denied(*refused)
        try:
            presented = bearer_of(headers)
        except DuplicateTokenError as error:
            return Denied(400, str(error))
        if presented is not None and not self._required and not presented.startswith(PREFIX):
            presented = None
        caller = self._access.identify(
            address_of(scope.get("client")), presented=presented, session=None, required=self._required
        )
        if isinstance(caller, Denied):
            return caller
        return self._access.allow(caller, Need.REPORTER) or caller

    def _from_a_page(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Return the refusal of what a browser sends for another site's page, as at the API's gate."""
        if self._names is None:
            return None
        hosts = headers.getlist("host")
        return misnamed(hosts, self._names, setting="otlp.host") or foreign(scope["method"], headers)


async def _answer(denied: Denied, content_type: str, send: Send) -> None:
    try:
        media_type = MediaType.from_header(content_type)
    except RejectedRequestError:
        media_type = MediaType.JSON
    body = render_status(_CODES[denied.status], denied.words, media_type)
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        *((name.lower().encode(), value.encode()) for name, value in denied.headers),
    ]
    await send({"type": "http.response.start", "status": denied.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
