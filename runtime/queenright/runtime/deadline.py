"""Timeouts on an injected clock, isolated and background tasks, and waits that ignore cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final, TypeVar

Sleep = Callable[[float], Awaitable[None]]
"""Sleeps for a number of seconds: ``asyncio.sleep`` in production, a fake in tests."""

ResultT = TypeVar("ResultT")

_GRACE_SECONDS: Final = 1.0


async def within(
    seconds: float, work: Coroutine[Any, Any, ResultT], sleep: Sleep, *, grace: float = _GRACE_SECONDS
) -> ResultT:
    """
    Return the result of ``work``; cancel it after ``seconds``, or when the caller is cancelled.

    Work that does not stop at once is awaited for at most ``grace`` seconds, so that it cannot hold up the
    caller.

    Raises:
        TimeoutError: The time limit passed.
    """
    task = asyncio.ensure_future(work)
    alarm = asyncio.ensure_future(sleep(seconds))
    try:
        await asyncio.wait((task, alarm), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise TimeoutError(f"no answer within {seconds:g} s")
        return task.result()
    finally:
        pending_tasks = [pending for pending in (task, alarm) if not pending.done()]
        for pending in pending_tasks:
            pending.cancel()
        if pending_tasks:
            await asyncio.wait(pending_tasks, timeout=grace)
        # Retrieve a late exception, or asyncio would log it as never retrieved.
        task.add_done_callback(_retrieve_exception)


async def run_isolated(work: Coroutine[Any, Any, ResultT]) -> tuple[ResultT | None, BaseException | None]:
    """
    Return the result of ``work``, or the exception it raised, of any type.

    It runs in its own task, so that it cannot cancel the caller; if it cancels itself, the exception is a
    ``CancelledError``. Cancelling the caller cancels the work, and is raised once the work has ended.
    """
    task = asyncio.create_task(_capture(work))
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancellation = error
            task.cancel()
    work.close()  # in case it was cancelled before it started
    if not task.cancelled():
        return task.result()
    if cancellation is not None:
        raise cancellation
    return None, asyncio.CancelledError("cancelled from inside")


async def _capture(work: Coroutine[Any, Any, ResultT]) -> tuple[ResultT | None, BaseException | None]:
    # Catch inside the task: asyncio re-raises SystemExit and KeyboardInterrupt of a task in the loop.
    try:
        return await work, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


def _retrieve_exception(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def wait_all(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait until all tasks have ended, even if the caller is cancelled; then raise the cancellation."""
    cancellation: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancellation = error
    for task in tasks:
        _retrieve_exception(task)
    if cancellation is not None:
        raise cancellation


class TaskSet:
    """Background tasks. Keeps references, because asyncio does not prevent garbage collection of tasks."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Run a coroutine in its own task; cancelling the caller does not cancel it."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Return the result of ``work``, which continues if the caller is cancelled."""
        task = self.start(work)
        task.add_done_callback(_retrieve_exception)  # a cancelled caller does not
        return await asyncio.shield(task)

    async def wait(self) -> None:
        """Wait until all tasks have ended, including those started in the meantime."""
        while self._running:
            # Unlike ``gather``, this does not cancel the tasks if the caller is cancelled.
            done, _ = await asyncio.wait(set(self._running))
            for task in done:
                _retrieve_exception(task)

    async def cancel(self) -> None:
        """Cancel the tasks and wait until they have ended."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
