"""Waiting for the loop to be idle, and for what threads, other programs and the machine bring about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest


async def until(condition: Callable[[], object], what: str, *, seconds: float = 60) -> None:
    """Return as soon as ``condition`` holds; fail with ``what`` if it never does, on a busy machine, too."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"within {seconds:.0f} s: {what}")
        await asyncio.sleep(0.02)


async def idle(in_hand: Callable[[], object]) -> None:
    """
    Return as soon as the loop has nothing left to run, and threads nothing ``in_hand``.

    What waits for a socket, or for a timer, is not waited for.
    """
    ready = vars(asyncio.get_running_loop())["_ready"]
    quiet = 0
    # A second look, for a timer that was due at the first.
    while quiet < 2:
        # A thread finishes in real time.
        await asyncio.sleep(0.001 if in_hand() else 0)
        quiet = 0 if ready or in_hand() else quiet + 1
