"""Reserve ports for a test while nothing listens on them."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator

from queenright.server.ops.sockets import find_free_port


@contextlib.contextmanager
def reserve_port(what: str = "a child") -> Iterator[int]:
    """
    Yield a port of 127.0.0.1 that no other test takes until the block ends.

    On Linux a bound socket that never listens holds it: other programs that bind with SO_REUSEADDR, as
    servers do, can listen there, and connections are refused while none does. ``find_free_port`` skips it.
    """
    with contextlib.closing(socket.socket()) as holder:
        while True:
            port = find_free_port("127.0.0.1", 0, what=what, option="")
            if sys.platform != "linux":
                break  # elsewhere, nothing could listen next to the holder
            with contextlib.suppress(OSError):  # taken in the meantime: try another port
                holder.bind(("127.0.0.1", port))
                # Set after the bind, so that the bind fails if another test holds the port.
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                break
        yield port
