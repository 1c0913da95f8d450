"""
Processes that write until they are killed, or take a lock and hold it.

As a program, the first argument selects the function, and the others are its arguments.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from queenright.runtime.storage import files
from queenright.runtime.storage.files import ExecutionLock, write_files
from queenright.runtime.storage.session_state import SessionState
from queenright.runtime.storage.session_store import SessionStore


def _print_line(word: str) -> None:
    print(word, flush=True)


def kill_at_every_line(folder: str, copies: str) -> None:
    """Rewrite two files in child processes, each killed before another line of the writing code."""
    paths = [Path(folder) / "first", Path(folder) / "made" / "second"]
    for number in range(sys.maxsize):
        shutil.rmtree(folder, ignore_errors=True)
        write_files({paths[0]: b"old"})
        child = os.fork()
        if child == 0:
            sys.settrace(_make_killer(number))
            write_files(dict.fromkeys(paths, b"new"))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        shutil.copytree(folder, Path(copies) / str(number))
        if os.WIFEXITED(status):
            break


def _make_killer(number: int) -> Callable[[FrameType, str, Any], Any]:
    lines = itertools.count()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != files.__file__:
            return None
        if event == "line" and next(lines) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def hold_claim(lock: str) -> None:
    """Take a claim and hold it."""
    claim = ExecutionLock.take(Path(lock))
    _print_line("held")
    sys.stdin.read()
    claim.release()


def hold_claim_with_child(lock: str) -> None:
    """Take a claim and fork a child, which prints its id and must not keep the claim."""
    claim = ExecutionLock.take(Path(lock))
    child = os.fork()
    if child == 0:
        _print_line(str(os.getpid()))
        sys.stdin.read()
        os._exit(0)
    os.waitpid(child, 0)
    claim.release()


def increment(base: str, session_id: str, times: str) -> None:
    """Increment a number in a session's memory repeatedly."""
    store = SessionStore(Path(base), clock=time.time)
    session = store.open(session_id)

    def add(state: SessionState) -> None:
        state.memory["count"] = state.memory.get("count", 0) + 1

    for _ in range(int(times)):
        store.update(session, add)


if __name__ == "__main__":
    work: dict[str, Callable[..., None]] = {
        "kill_at_every_line": kill_at_every_line,
        "hold": hold_claim,
        "hold_with_child": hold_claim_with_child,
        "count": increment,
    }
    work[sys.argv[1]](*sys.argv[2:])
