"""The lifespan of an ASGI application that has nothing to start or stop."""

from __future__ import annotations

from starlette.types import Receive, Send


async def complete_lifespan(receive: Receive, send: Send) -> None:
    """Confirm the server's startup and shutdown messages."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
