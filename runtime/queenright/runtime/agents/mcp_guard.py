"""
The guard of an MCP server: a program that starts the server and ends with it, or ends it with its client.

    python -I -S mcp_guard.py CLIENT_PID COMMAND [ARGUMENT ...]

It needs nothing but the standard library, and is a group leader: whatever the server starts is in its group,
and is killed when the server has ended, or when the client has, however that came about.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Final

_GRACE_SECONDS: Final = 2
_LOOK_SECONDS: Final = 1.0
_PR_SET_PDEATHSIG: Final = 1


def main(client: int, command: list[str]) -> None:
    """Run ``command`` until it ends, or until the process ``client``, our parent, is gone."""
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGALRM, _kill)
    told = _signalled_with_parent(signal.SIGTERM)
    guard = os.getpid()
    server = os.fork()
    if server == 0:
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        _signalled_with_parent(signal.SIGKILL)
        if os.getppid() == guard:
            try:
                os.execvp(command[0], command)
            except OSError as error:
                print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)
    # The pipes are the server's: the client must see them closed when the server closes them.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    if os.getppid() != client:
        os.kill(guard, signal.SIGTERM)
    elif not told:
        threading.Thread(target=_look, args=(client,), daemon=True).start()
    os.waitpid(server, 0)
    os.killpg(0, signal.SIGKILL)


def _end(_number: int, _frame: FrameType | None) -> None:
    """Ask everybody to end, and see to it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    signal.alarm(_GRACE_SECONDS)


def _kill(_number: int, _frame: FrameType | None) -> None:
    os.killpg(0, signal.SIGKILL)


def _signalled_with_parent(number: int) -> bool:
    """Be sent a signal when the parent ends; false where only Linux would know how."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _look(client: int) -> None:
    while os.getppid() == client:
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
