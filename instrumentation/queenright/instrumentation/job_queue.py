"""Run jobs one after the other, off the agent's threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from queenright.instrumentation.error_guard import suppress_errors
from queenright.instrumentation.forks import after_fork_in_child


class JobQueue:
    """
    A job queue with one daemon thread, which exists only while there are jobs.

    A forked child starts with an empty queue: queued jobs belong to its parent.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle_condition = threading.Condition(self._lock)
        self._jobs: deque[Callable[[], None]] = deque()
        self._running = False

    def put(self, job: Callable[[], None]) -> None:
        """Queue ``job``; its exceptions are logged and suppressed."""
        with self._lock:
            self._jobs.append(job)
            if self._running:
                return
            # Raises at interpreter shutdown, when no thread can start.
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._running = True

    def wait(self, seconds: float) -> bool:
        """Wait until the queue is empty, for at most ``seconds``; return whether it is."""
        deadline = time.monotonic() + seconds
        with self._idle_condition:
            while self._running:
                if not self._idle_condition.wait(max(0.0, deadline - time.monotonic())):
                    return False
        return True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._running = False
                    self._idle_condition.notify_all()
                    return
                job = self._jobs.popleft()
            with suppress_errors:
                job()
