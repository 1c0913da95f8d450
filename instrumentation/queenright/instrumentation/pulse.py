"""The pulse: one thread that lets every live worker of this process beat and look at its own clock."""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol
from weakref import WeakSet

from queenright.instrumentation.forks import after_fork_in_child
from queenright.instrumentation.harmless import harmless

LONGEST: Final = 15.0
"""Seconds between two looks at most; a stall is seen from inside this late."""


class Living(Protocol):
    """What has a pulse."""

    def tick(self) -> float:
        """Do what is due; return the seconds until something is due next."""

    def close(self) -> None:
        """End, because the process does."""


class Pulse:
    """
    Ticks for all who joined.

    A child made by a fork starts without members: a worker that is used there joins again, so that a pool
    process that does nothing for it does not say that it lives.
    """

    def __init__(self) -> None:
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._members: WeakSet[Living] = WeakSet()
        self._thread: threading.Thread | None = None

    def join(self, member: Living) -> None:
        """Have ``member`` ticked from now on."""
        with self._lock:
            self._members.add(member)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="queenright-pulse", daemon=True)
                self._thread.start()
        self._wake.set()

    def leave(self, member: Living) -> None:
        """Tick ``member`` no more."""
        with self._lock:
            self._members.discard(member)

    def close_all(self) -> None:
        """Close every member."""
        with self._lock:
            members = list(self._members)
        for member in members:
            with harmless:
                member.close()

    def _run(self) -> None:
        due = 0.0
        while True:
            self._wake.wait(max(0.01, due - time.monotonic()))
            self._wake.clear()
            with self._lock:
                members = list(self._members)
                if not members:
                    self._thread = None
                    return
            due = time.monotonic() + _tick(members)
            del members


def _tick(members: list[Living]) -> float:
    pause = LONGEST
    for member in members:
        with harmless:
            pause = min(pause, member.tick())
    return pause


PULSE: Final = Pulse()
