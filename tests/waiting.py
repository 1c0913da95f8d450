"""Waiting for what threads, other programs and the machine bring about in their own time."""

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
