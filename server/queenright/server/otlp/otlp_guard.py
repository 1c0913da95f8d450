"""Middleware that authorizes senders on the OTLP port (role `reporter`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from queenright.server.access.access import Access, Denial
from queenright.server.access.caller import Caller, get_client_address
from queenright.server.access.credentials import DuplicateTokenError, read_bearer_token
from queenright.server.access.roles import AccessLevel
from queenright.server.access.tokens import TOKEN_PREFIX
from queenright.server.middleware.gate import check_host, check_origin, list_accepted_hosts
from queenright.server.otlp.encoding import MediaType, render_status
from queenright.server.otlp.errors import RejectedRequestError

# gRPC codes, which OTLP also uses for errors over HTTP.
_GRPC_CODES: Final = {400: 3, 401: 16, 403: 7, 429: 8, 503: 14}

_CONTAINER_HOST_NAMES: Final = ("host.docker.internal", "host.containers.internal")
"""Names of the host inside containers. No public site can use them: ``internal`` is a reserved TLD."""


class OtlpGuard:
    """
    ASGI middleware that authorizes senders.

    If no token is required, an ``Authorization`` header without a Queenright token is ignored, because it is
    meant for a collector.

    Args:
        app: The OTLP receiver.
        access: Authenticates and authorizes callers.
        bind_address: The address that the port listens on.
        on_denied: Called with the path, status and reason of each denied request.
    """

    def __init__(
        self,
        app: Any,
        *,
        access: Access,
        bind_address: str,
        on_denied: Callable[[str, int, str], None] = lambda path, status, reason: None,
    ) -> None:
        self._app = app
        self._access = access
        self._is_token_required = access.is_token_required(bind_address)
        self._on_denied = on_denied
        settings = access.settings
        self._accepted_hosts = list_accepted_hosts(
            settings.otlp.host,
            settings.http.host,
            settings.alerting.console_url,
            *_CONTAINER_HOST_NAMES,
            bind_address=bind_address,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Deny a request, or pass it to the app."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        caller = self._identify(scope, headers)
        if isinstance(caller, Denial):
            self._on_denied(scope["path"], caller.status, caller.reason)
            await _send_denial(caller, headers.get("content-type", ""), send)
            return
        await self._app(scope, receive, send)

    def _identify(self, scope: Scope, headers: Headers) -> Caller | Denial:
        if refusal := self._check_browser_origin(scope, headers):
            return Denial(*refusal)
        try:
            token_text = read_bearer_token(headers)
        except DuplicateTokenError as error:
            return Denial(400, str(error))
        if token_text is not None and not self._is_token_required and not token_text.startswith(TOKEN_PREFIX):
            token_text = None
        caller = self._access.identify(
            get_client_address(scope.get("client")),
            token_text=token_text,
            session=None,
            is_token_required=self._is_token_required,
        )
        if isinstance(caller, Denial):
            return caller
        return self._access.check_role(caller, AccessLevel.REPORTER) or caller

    def _check_browser_origin(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Return the status and reason for a cross-site browser request, like the API's gate; else None."""
        if self._accepted_hosts is None:
            return None
        hosts = headers.getlist("host")
        return check_host(hosts, self._accepted_hosts, setting="otlp.host") or check_origin(
            scope["method"], headers
        )


async def _send_denial(denial: Denial, content_type: str, send: Send) -> None:
    try:
        media_type = MediaType.from_header(content_type)
    except RejectedRequestError:
        media_type = MediaType.JSON
    body = render_status(_GRPC_CODES[denial.status], denial.reason, media_type)
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        *((name.lower().encode(), value.encode()) for name, value in denial.headers),
    ]
    await send({"type": "http.response.start", "status": denial.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
