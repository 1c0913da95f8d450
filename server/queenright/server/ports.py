"""Open the ports of a process: one for the API and the console, and one for telemetry."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from starlette.types import ASGIApp

from queenright.server.access.access import Access
from queenright.server.access.addresses import is_loopback
from queenright.server.ops.sockets import listen, make_socket_url, serve_app
from queenright.server.otlp.errors import describe_wrong_port
from queenright.server.otlp.grpc_refusal import GRPC_REASON, Http1Protocol
from queenright.server.settings import Settings

API_PURPOSE: Final = "the API and the console"


@dataclass(frozen=True, slots=True)
class Ports:
    """The listening sockets of a process, and the settings with their ports."""

    settings: Settings
    api: socket.socket
    otlp: socket.socket
    access: Access

    @property
    def api_url(self) -> str:
        """The URL of the API and the console on this machine."""
        return make_socket_url(self.api)

    @property
    def otlp_url(self) -> str:
        """The URL for telemetry on this machine."""
        return make_socket_url(self.otlp)

    @property
    def is_token_required(self) -> bool:
        """Whether at least one port requires a token."""
        return any(self.access.is_token_required(sock.getsockname()[0]) for sock in (self.api, self.otlp))

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach a port."""
        return not all(is_loopback(sock.getsockname()[0]) for sock in (self.api, self.otlp))

    @contextlib.asynccontextmanager
    async def serve(
        self, otlp: ASGIApp, api: ASGIApp, count_grpc_refusal: Callable[[str, str], None]
    ) -> AsyncIterator[None]:
        """
        Serve an app on each port until the block ends.

        Args:
            otlp: The app for telemetry.
            api: The app of the API and the console.
            count_grpc_refusal: Called with the address of a client that uses gRPC, and the setting to change.
        """
        otlp_reason, api_reason = GRPC_REASON, describe_wrong_port(self.otlp_url)
        async with (
            serve_app(otlp, self.otlp, protocol=partial(Http1Protocol, count_grpc_refusal, otlp_reason)),
            serve_app(api, self.api, protocol=partial(Http1Protocol, count_grpc_refusal, api_reason)),
        ):
            yield


@contextlib.contextmanager
def bind_ports(settings: Settings) -> Iterator[Ports]:
    """
    Bind the ports of the API and of telemetry, before anything starts.

    Raises:
        PortInUseError: A port is in use.
        InvalidTokensError: A token is required, but no token is live.
    """
    http, otlp = settings.http, settings.otlp
    with contextlib.ExitStack() as stack:
        api_socket = listen(http.host, http.port, what=API_PURPOSE, option="--port")
        stack.enter_context(contextlib.closing(api_socket))
        otlp_socket = listen(otlp.host, otlp.port, what="telemetry (OTLP)", option="--otlp-port")
        stack.enter_context(contextlib.closing(otlp_socket))
        settings = _link_to_service(
            _set_bound_ports(settings, api_socket, otlp_socket), make_socket_url(api_socket)
        )
        access = Access(settings)
        access.require_live_token(*(sock.getsockname()[0] for sock in (api_socket, otlp_socket)))
        yield Ports(settings, api_socket, otlp_socket, access)


def _set_bound_ports(settings: Settings, api: socket.socket, otlp: socket.socket) -> Settings:
    """Return settings with the bound ports in place of port 0."""
    return settings.model_copy(
        update={
            "http": settings.http.model_copy(update={"port": api.getsockname()[1]}),
            "otlp": settings.otlp.model_copy(update={"port": otlp.getsockname()[1]}),
        }
    )


def _link_to_service(settings: Settings, url: str) -> Settings:
    """Return settings with ``console_url`` set to this service's URL, unless it is set."""
    if "console_url" in settings.alerting.model_fields_set:
        return settings
    return settings.model_copy(update={"alerting": settings.alerting.model_copy(update={"console_url": url})})
