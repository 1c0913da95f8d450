"""The service's background tasks: named, under one ``asyncio.TaskGroup``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

_log = logging.getLogger(__name__)

_CANCEL_SECONDS: Final = 5.0
"""Seconds after which a task that has not ended is cancelled again."""

Work = Callable[[], Awaitable[None]]


class BackgroundTasks:
    """
    Runs named tasks until ``stop``. An instance belongs to one event loop.

    A failed task does not cancel the others. The service keeps running and reports that it is not ready.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._supervisor: asyncio.Task[None] | None = None

    def __getitem__(self, name: str) -> asyncio.Task[None]:
        """Return a task by name. Raises ``KeyError`` if there is none."""
        return self._tasks[name]

    @property
    def is_started(self) -> bool:
        """Whether ``start`` was called."""
        return self._supervisor is not None

    def list_stopped(self) -> list[str]:
        """Return the names of the tasks that have ended."""
        return [name for name, task in self._tasks.items() if task.done()]

    async def start(self, work: Mapping[str, Work]) -> None:
        """Start the task group, with a task for each function."""
        is_open = asyncio.Event()

        async def supervise() -> None:
            async with asyncio.TaskGroup() as self._group:
                is_open.set()
                await asyncio.Event().wait()

        self._supervisor = asyncio.create_task(supervise(), name="background-tasks")
        await is_open.wait()
        for name, function in work.items():
            self.add(name, function)

    def add(self, name: str, work: Work) -> None:
        """Start another task. Call ``start`` first."""
        assert self._group is not None, "start() opens the task group"
        self._tasks[name] = self._group.create_task(_run(name, work), name=name)

    async def stop(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        if self._supervisor is None:
            return
        self._supervisor.cancel()
        while not self._supervisor.done():
            await asyncio.wait([self._supervisor], timeout=_CANCEL_SECONDS)
            # Cancel again, because `asyncio.wait_for` of Python 3.11 can swallow a cancellation.
            for task in self._tasks.values():
                task.cancel()
        await asyncio.gather(self._supervisor, return_exceptions=True)


async def _run(name: str, work: Work) -> None:
    try:
        await work()
    except Exception:
        _log.exception("background task %r failed; restart the service", name)
