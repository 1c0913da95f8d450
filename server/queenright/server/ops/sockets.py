"""Open listening sockets, before the service starts, so that a port in use is reported immediately."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Final, cast

import httpx
import uvicorn

from queenright.instrumentation.certificates import certificates
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.http_url import http_url
from queenright.server.access.addresses import find_address_family
from queenright.server.middleware.connections import Connections, GuardedProtocol, compute_connection_limit

# Below the ephemeral ports of Linux (from 32768) and macOS (from 49152).
_CHILD_PORTS: Final = range(20000, 32000)
_SEND_BUFFER_BYTES: Final = 256 * 1_024
"""The kernel buffers twice this for a client that does not read. Its default is megabytes."""


class PortInUseError(QueenrightError):
    """Raised when another program listens on a port. The message names the option for another port."""

    def __init__(self, what: str, host: str, port: int, option: str, *, by: str = "another program") -> None:
        super().__init__(
            f"Port {port} on {host}, for {what}, is in use by {by}. "
            f"Stop it, or choose another port with {option}."
        )
        self.port = port


def _describe_listener(host: str, port: int) -> str:
    """Return a description of the program that listens on a port."""
    with contextlib.suppress(httpx.HTTPError):
        url = f"http://{host}:{port}/readyz"
        answer = httpx.get(url, timeout=3, trust_env=False, verify=certificates(url))
        if answer.headers.get("content-type", "").startswith("application/json") and "ready" in answer.text:
            return "another Queenright"
    return "another program"


def listen(host: str, port: int, *, what: str, option: str, reuse: bool = True) -> socket.socket:
    """
    Return a listening socket. Port 0 takes any free port.

    Args:
        what: The purpose, for error messages.
        option: The command-line option for another port.
        reuse: Set SO_REUSEADDR.

    Raises:
        PortInUseError: Another program uses the port.
        QueenrightError: The address cannot be used.
    """
    sock = socket.socket(find_address_family(host), socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    # Accepted connections inherit this option.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        sock.bind((host, port))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(what, host, port, option, by=_describe_listener(host, port)) from None
        raise QueenrightError(
            f"Cannot listen on {host}:{port} for {what}: {error.strerror}. "
            f"Choose another address, or another port with {option}."
        ) from None
    sock.setblocking(False)
    return sock


def find_free_port(host: str, port: int, *, what: str, option: str) -> int:
    """
    Return a free port for a child program; see `listen`.

    Port 0 takes a free port below the ephemeral range, because the system could give an ephemeral port to
    another connection before the child binds it.
    """
    for candidate in [port] if port else random.sample(_CHILD_PORTS, 100):
        try:
            with contextlib.closing(listen(host, candidate, what=what, option=option, reuse=port != 0)):
                return candidate
        except PortInUseError as error:
            last_error = error
    raise last_error


class Server(uvicorn.Server):
    """uvicorn inside a running event loop, without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Keep the process's signal handlers."""
        yield


def _has_cancelled_requests(record: logging.LogRecord) -> bool:
    """Return False for uvicorn's error about cancelled requests if their number is 0."""
    return not (str(record.msg).startswith("Cancel %s running task(s)") and record.args == (0,))


def make_socket_url(sock: socket.socket) -> str:
    """Return the URL that reaches a listening socket from this machine."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return http_url(host, port)


@contextlib.asynccontextmanager
async def serve_app(
    app: Any, sock: socket.socket, *, protocol: Callable[..., GuardedProtocol] = GuardedProtocol
) -> AsyncIterator[None]:
    """
    Serve an ASGI app on a listening socket until the block ends.

    Args:
        app: The ASGI app.
        sock: A socket that listens; see `listen`.
        protocol: Creates the protocol of a connection from the port's `Connections` and uvicorn's arguments.
    """
    logging.getLogger("uvicorn.error").addFilter(_has_cancelled_requests)
    connections = Connections(compute_connection_limit())
    http = Server(
        uvicorn.Config(
            app,
            log_config=None,  # uvicorn's log lines use the handlers and limits of the service
            log_level="warning",
            access_log=False,
            lifespan="off",
            interface="asgi3",  # uvicorn would detect another interface for a bound method
            timeout_graceful_shutdown=2,
            server_header=False,
            proxy_headers=False,  # otherwise any client could set its own address with a header
            ws="none",
            # uvicorn calls the factory like a class.
            http=cast("type[GuardedProtocol]", partial(protocol, connections)),
        )
    )
    task = asyncio.create_task(http.serve(sockets=[sock]))
    while not http.started:
        if task.done():
            task.result()
        await asyncio.sleep(0.01)
    try:
        with connections.sweep_periodically():
            yield
    finally:
        http.should_exit = True
        await task
