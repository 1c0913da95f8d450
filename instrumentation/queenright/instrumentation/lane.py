"""A lane: a thread that does one thing after the other, off the agent's own threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from queenright.instrumentation.forks import after_fork_in_child
from queenright.instrumentation.harmless import harmless


class Lane:
    """
    Does what it is given, in order, in a daemon thread that is there while there is something to do.

    In a forked child it is empty: what was given before is its parent's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._done = threading.Condition(self._lock)
        self._jobs: deque[Callable[[], None]] = deque()
        self._running = False

    def put(self, job: Callable[[], None]) -> None:
        """Have ``job`` done; what it raises is reported and goes no further."""
        with self._lock:
            self._jobs.append(job)
            if self._running:
                return
            # Raises at the end of the process, when threads cannot begin any more.
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._running = True

    def wait(self, seconds: float) -> bool:
        """Wait until nothing is left to do, for at most ``seconds``; return whether that came about."""
        until = time.monotonic() + seconds
        with self._done:
            while self._running:
                if not self._done.wait(max(0.0, until - time.monotonic())):
                    return False
        return True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._running = False
                    self._done.notify_all()
                    return
                job = self._jobs.popleft()
            with harmless:
                job()
