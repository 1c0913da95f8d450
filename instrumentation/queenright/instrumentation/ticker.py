"""One thread per process that ticks every live worker, for heartbeats and stall detection."""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol
from weakref import WeakSet

from queenright.instrumentation.error_guard import suppress_errors
from queenright.instrumentation.forks import after_fork_in_child

MAX_TICK_SECONDS: Final = 15.0
"""Maximum seconds between two ticks, and so the maximum delay until a worker notices its own stall."""


class Tickable(Protocol):
    """An object that the ticker ticks."""

    def tick(self) -> float:
        """Do what is due and return the seconds until the next tick."""

    def close(self) -> None:
        """Close at the end of the process."""


class Ticker:
    """
    Ticks its members from one daemon thread.

    A forked child starts without members; a worker that is used there joins again. An idle pool process
    therefore sends no heartbeats for its parent's worker.
    """

    def __init__(self) -> None:
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._wake_event = threading.Event()
        self._members: WeakSet[Tickable] = WeakSet()
        self._thread: threading.Thread | None = None

    def join(self, member: Tickable) -> None:
        """Start ticking ``member``."""
        with self._lock:
            self._members.add(member)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="queenright-ticker", daemon=True)
                self._thread.start()
        self._wake_event.set()

    def leave(self, member: Tickable) -> None:
        """Stop ticking ``member``."""
        with self._lock:
            self._members.discard(member)

    def close_all(self) -> None:
        """Close every member."""
        with self._lock:
            members = list(self._members)
        for member in members:
            with suppress_errors:
                member.close()

    def _run(self) -> None:
        next_tick = 0.0
        while True:
            self._wake_event.wait(max(0.01, next_tick - time.monotonic()))
            self._wake_event.clear()
            with self._lock:
                members = list(self._members)
                if not members:
                    self._thread = None
                    return
            next_tick = time.monotonic() + _tick_members(members)
            del members


def _tick_members(members: list[Tickable]) -> float:
    pause = MAX_TICK_SECONDS
    for member in members:
        with suppress_errors:
            pause = min(pause, member.tick())
    return pause


TICKER: Final = Ticker()
