"""
Serve two ports in a process with few file descriptors. The path of a request is a command; the ports are
printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvloop

from queenright.server.ops.sockets import listen, serve_app

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class App:
    """An app that runs the command in the path, and responds with the result as JSON."""

    def __init__(self) -> None:
        self._open_descriptors: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        body = json.dumps(self._run_command(scope["path"])).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _run_command(self, command: str) -> object:
        match command:
            case "/deliver":
                # Like the outbox, this needs a connection and a few files of the store.
                with contextlib.ExitStack() as stack:
                    for _ in range(8):
                        stack.enter_context(open(os.devnull))
                    with socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=60):
                        return "delivered"
            case "/exhaust":
                try:
                    while True:
                        self._open_descriptors.append(os.open(os.devnull, os.O_RDONLY))
                except OSError as error:
                    return errno.errorcode[error.errno or 0]
            case "/release":
                for descriptor in self._open_descriptors:
                    os.close(descriptor)
                self._open_descriptors.clear()
        return time.process_time()


async def main() -> None:
    """Serve until standard input is closed."""
    app = App()
    with (
        contextlib.closing(listen("127.0.0.1", 0, what="a test", option="none")) as api_port,
        contextlib.closing(listen("127.0.0.1", 0, what="a test", option="none")) as otlp_port,
    ):
        async with serve_app(app, api_port), serve_app(app, otlp_port):
            print(api_port.getsockname()[1], otlp_port.getsockname()[1], flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
    uvloop.run(main())
