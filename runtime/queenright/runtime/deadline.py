"""
Ends of tasks: a time limit, on the clock that everything else runs on, and a wait that nothing cuts short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final, TypeVar

Sleep = Callable[[float], Awaitable[None]]
"""Returns after so many seconds. ``asyncio.sleep`` in production, a fake in tests."""

ResultT = TypeVar("ResultT")

_GRACE_SECONDS: Final = 1.0


async def within(
    seconds: float, work: Coroutine[Any, Any, ResultT], sleep: Sleep, *, grace: float = _GRACE_SECONDS
) -> ResultT:
    """
    Return what ``work`` returns, or cancel it after ``seconds``, or with the caller.

    Work that is slow to stop is waited for ``grace`` seconds at most: it must not hold up whoever gave it
    a limit.

    Raises:
        TimeoutError: The time was up.
    """
    task = asyncio.ensure_future(work)
    alarm = asyncio.ensure_future(sleep(seconds))
    try:
        await asyncio.wait((task, alarm), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise TimeoutError(f"no answer within {seconds:g} s")
        return task.result()
    finally:
        unfinished = [pending for pending in (task, alarm) if not pending.done()]
        for pending in unfinished:
            pending.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=grace)
        # What it still had to say is nobody's any more; asyncio would complain of it.
        task.add_done_callback(_seen)


async def alone(work: Coroutine[Any, Any, ResultT]) -> tuple[ResultT | None, BaseException | None]:
    """
    Return what ``work`` returns, and what it raised, whatever that is: nothing that it does ends the caller.

    It runs in a task of its own, so that it can cancel nobody else: ``CancelledError`` is what it raised
    then. A cancellation of the caller is passed on to it, and raised when it has ended by it.
    """
    task = asyncio.create_task(_outcome(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
            task.cancel()
    work.close()  # if it was cancelled before it began
    if not task.cancelled():
        return task.result()
    if cancelled is not None:
        raise cancelled
    return None, asyncio.CancelledError("cancelled from inside")


async def _outcome(work: Coroutine[Any, Any, ResultT]) -> tuple[ResultT | None, BaseException | None]:
    # Here, not around the task: a loop lets no task keep a SystemExit or a KeyboardInterrupt for itself.
    try:
        return await work, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


def _seen(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def all_ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until all have ended, also if the waiter is cancelled meanwhile; then that is passed on."""
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        _seen(task)
    if cancelled is not None:
        raise cancelled
