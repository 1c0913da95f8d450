"""Wait for a condition, or until the event loop is idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest


async def until(condition: Callable[[], object], description: str, *, seconds: float = 60) -> None:
    """Wait until ``condition`` is true; fail the test after ``seconds``, with ``description`` in the text."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"did not happen within {seconds:.0f} s: {description}")
        await asyncio.sleep(0.02)


async def idle(has_work: Callable[[], object]) -> None:
    """
    Wait until the event loop has nothing to run and ``has_work`` returns nothing for the threads.

    Tasks that wait for a socket or a timer do not count.
    """
    ready_callbacks = vars(asyncio.get_running_loop())["_ready"]
    idle_checks = 0
    # Check twice, because of a timer that was due at the first check.
    while idle_checks < 2:
        # Threads need real time.
        await asyncio.sleep(0.001 if has_work() else 0)
        idle_checks = 0 if ready_callbacks or has_work() else idle_checks + 1
