"""Listening sockets, bound before anything is started so that a taken port is named at once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Final, cast

import httpx
import uvicorn

from queenright.instrumentation.certificates import certificates
from queenright.instrumentation.errors import QueenrightError
from queenright.server.middleware.connections import Connections, GuardedProtocol, connection_limit

# Below what Linux (from 32768) and macOS (from 49152) hand out by themselves.
_NOT_EPHEMERAL: Final = range(20000, 32000)


class PortInUseError(QueenrightError):
    """Raised when another program listens on a port: names it and the way out."""

    def __init__(self, what: str, host: str, port: int, option: str, *, by: str = "another program") -> None:
        super().__init__(
            f"Port {port} on {host}, for {what}, is in use by {by}. "
            f"Stop it, or choose another port with {option}."
        )
        self.port = port


def _describe_listener(host: str, port: int) -> str:
    """Say who listens there, if it is one of us."""
    with contextlib.suppress(httpx.HTTPError):
        url = f"http://{host}:{port}/readyz"
        answer = httpx.get(url, timeout=1, trust_env=False, verify=certificates(url))
        if answer.headers.get("content-type", "").startswith("application/json") and "ready" in answer.text:
            return "another Queenright"
    return "another program"


def listen(host: str, port: int, *, what: str, option: str, reuse: bool = True) -> socket.socket:
    """
    Return a socket that listens; port 0 takes any free one.

    Args:
        what: What it is for, in words, for the error.
        option: How the user chooses another port.
        reuse: Whether to take a port that is left from closed connections, or bound by a socket that
            does not listen.

    Raises:
        PortInUseError: another program has the port.
        QueenrightError: the address cannot be used at all.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    try:
        sock.bind((host, port))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(what, host, port, option, by=_describe_listener(host, port)) from None
        raise QueenrightError(f"Cannot listen on {host}:{port} for {what}: {error.strerror}.") from None
    sock.setblocking(False)
    return sock


def free_port(host: str, port: int, *, what: str, option: str) -> int:
    """
    Return a port that a child program can have; see `listen`.

    Port 0 takes a free one that the system gives nobody by itself: until the child has it,
    some connection's own end could get any other.
    """
    for candidate in [port] if port else random.sample(_NOT_EPHEMERAL, 100):
        try:
            with contextlib.closing(listen(host, candidate, what=what, option=option, reuse=port != 0)):
                return candidate
        except PortInUseError as error:
            taken = error
    raise taken


class Server(uvicorn.Server):
    """uvicorn inside our own loop: signals are ours to handle."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signal handlers alone."""
        yield


def url_of(sock: socket.socket) -> str:
    """Return the URL at which a listening socket is reached from this machine."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.asynccontextmanager
async def listening(
    app: Any, sock: socket.socket, *, protocol: Callable[..., GuardedProtocol] = GuardedProtocol
) -> AsyncIterator[None]:
    """
    Serve an ASGI app on a listening socket until the block ends.

    Args:
        app: The ASGI app.
        sock: A socket that listens; see `listen`.
        protocol: Makes the protocol of a connection, of the port's `Connections` and uvicorn's arguments.
    """
    connections = Connections(connection_limit())
    http = Server(
        uvicorn.Config(
            app,
            log_config=None,  # its lines go where ours go, and are limited as ours are
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
            server_header=False,
            proxy_headers=False,  # else a header that anybody may send would say where a request is from
            ws="none",
            # uvicorn calls it like a class, with what it has itself.
            http=cast("type[GuardedProtocol]", partial(protocol, connections)),
        )
    )
    task = asyncio.create_task(http.serve(sockets=[sock]))
    while not http.started:
        if task.done():
            task.result()
        await asyncio.sleep(0.01)
    try:
        with connections.sweeping():
            yield
    finally:
        http.should_exit = True
        await task
