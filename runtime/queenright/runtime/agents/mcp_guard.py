"""
Supervisor of an MCP server: starts the server, and stops it when the client ends.

    python -I -S mcp_guard.py CLIENT_PID COMMAND [ARGUMENT ...]

It uses only the standard library and leads a process group. All processes of the server are in that group
and are killed when the server or the client ends for any reason.
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
_POLL_SECONDS: Final = 1.0
_PR_SET_PDEATHSIG: Final = 1


def main(client: int, command: list[str]) -> None:
    """Run ``command`` until it ends, or until its parent, the process ``client``, is gone."""
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGALRM, _kill)
    has_parent_signal = _request_parent_death_signal(signal.SIGTERM)
    guard = os.getpid()
    server = os.fork()
    if server == 0:
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        _request_parent_death_signal(signal.SIGKILL)
        if os.getppid() == guard:
            try:
                os.execvp(command[0], command)
            except OSError as error:
                print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)
    # Only the server may hold the pipes: the client must see them close when the server closes them.
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    if os.getppid() != client:
        os.kill(guard, signal.SIGTERM)
    elif not has_parent_signal:
        threading.Thread(target=_watch_parent, args=(client,), daemon=True).start()
    os.waitpid(server, 0)
    os.killpg(0, signal.SIGKILL)


def _end(_number: int, _frame: FrameType | None) -> None:
    """Ask the process group to end, and kill it after a grace period."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    signal.alarm(_GRACE_SECONDS)


def _kill(_number: int, _frame: FrameType | None) -> None:
    os.killpg(0, signal.SIGKILL)


def _request_parent_death_signal(number: int) -> bool:
    """Let the kernel send a signal when the parent ends. Return False on systems other than Linux."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _watch_parent(client: int) -> None:
    while os.getppid() == client:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
