"""Wait for a condition, or until the event loop is idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest


async def until(condition: Callable[[], object], what: str, *, seconds: float = 60) -> None:
    """Wait until ``condition`` is true; otherwise fail after ``seconds``, with ``what`` in the message."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"did not happen within {seconds:.0f} s: {what}")
        await asyncio.sleep(0.02)


async def idle(in_hand: Callable[[], object]) -> None:
    """
    Wait until the event loop has nothing to run and no thread has work ``in_hand``.

    Tasks that wait for a socket or a timer do not count.
    """
    ready = vars(asyncio.get_running_loop())["_ready"]
    quiet = 0
    # Check twice, because of a timer that was due at the first check.
    while quiet < 2:
        # Threads need real time.
        await asyncio.sleep(0.001 if in_hand() else 0)
        quiet = 0 if ready or in_hand() else quiet + 1
