"""
Queues checkpoints, so that a run continues while the disk fails.

The newest few that could not be written are kept in memory and retried: with the next checkpoint, when the
circuit breaker admits it, and again before the session is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from queenright.runtime.breaker_protocols import CallBreaker, CallRefusedError, guarded_by
from queenright.runtime.deadline import Sleep
from queenright.runtime.storage.checkpoint_store import CheckpointDraft, CheckpointStore
from queenright.runtime.storage.files import Disk

_log = logging.getLogger(__name__)

MAX_CHECKPOINTS: Final = 20
MAX_QUEUED_CHECKPOINTS: Final = 5
"""
Unsaved checkpoints kept per run, newest first: recovery needs the last one, and some older ones as a
fallback.
"""

_RETRY_SECONDS: Final = 60.0
"""Retry interval without a circuit breaker."""


class CheckpointQueue:
    """
    Writes the checkpoints of one run to disk.

    Args:
        checkpoints: The store; it must have no other writer.
        breaker: Circuit breaker of the disk; None writes unconditionally.
        on_saved: Called with the id and the draft of each saved checkpoint, in order.
    """

    def __init__(
        self,
        checkpoints: CheckpointStore,
        *,
        session_id: str,
        disk: Disk,
        sleep: Sleep,
        breaker: CallBreaker | None,
        on_saved: Callable[[str, CheckpointDraft], Awaitable[None]],
    ) -> None:
        self._checkpoints = checkpoints
        self._session_id = session_id
        self._disk = disk
        self._sleep = sleep
        self._breaker = breaker
        self._on_saved = on_saved
        self._queue: deque[CheckpointDraft] = deque(maxlen=MAX_QUEUED_CHECKPOINTS)
        self._drain_lock = asyncio.Lock()
        self._retry_task: asyncio.Task[None] | None = None
        self._retry_seconds = _RETRY_SECONDS
        self._is_failing = False

    @property
    def waiting(self) -> int:
        """Number of unsaved checkpoints."""
        return len(self._queue)

    async def put(self, draft: CheckpointDraft) -> None:
        """Write a checkpoint and those queued before it. Disk failures are logged, not raised."""
        self._queue.append(draft)
        await self._drain()
        if self._queue and self._retry_task is None:
            self._retry_task = asyncio.create_task(
                self._retry_drain(), name=f"checkpoints:{self._session_id}"
            )

    async def close(self) -> None:
        """Write the queue again, regardless of the breaker. Checkpoints that still fail are logged."""
        if self._retry_task is not None:
            async with self._drain_lock:  # do not cancel in the middle of a write
                self._retry_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._retry_task
            self._retry_task = None
        await self._drain(last=True)
        if self._queue:
            _log.error("lost %d checkpoints of session %s", len(self._queue), self._session_id)
            self._queue.clear()

    async def _retry_drain(self) -> None:
        try:
            while self._queue:
                await self._sleep(self._retry_seconds)
                await self._drain()
        except Exception:  # raised by on_saved; the next checkpoint retries
            _log.exception("could not report checkpoints of session %s", self._session_id)
        self._retry_task = None

    async def _drain(self, *, last: bool = False) -> None:
        """Write the queue, oldest first, up to the first failure."""
        async with self._drain_lock:
            while self._queue:
                draft, checkpoint_id = self._queue[0], None
                try:
                    checkpoint_id = await self._write(draft, last=last)
                except CallRefusedError as refusal:
                    self._postpone(refusal, refusal.retry_in)
                    return
                except OSError as error:
                    self._postpone(error, _RETRY_SECONDS if self._breaker is None else 0.0)
                    return
                except ValueError:  # a retry would not help
                    _log.exception("cannot write a checkpoint of session %s", self._session_id)
                # It may have been dropped from the queue in the meantime.
                if self._queue[0] is draft:
                    self._queue.popleft()
                if checkpoint_id is not None:
                    await self._on_saved(checkpoint_id, draft)
            if self._is_failing:
                self._is_failing = False
                _log.info("saving checkpoints of session %s works again", self._session_id)

    def _postpone(self, error: Exception, seconds: float) -> None:
        # Wait at least a second, so that a breaker that is about to close is not polled in a loop.
        self._retry_seconds = max(seconds, 1.0)
        if not self._is_failing:
            self._is_failing = True
            # The run does not depend on it, and state.json has just been written.
            _log.error("could not save a checkpoint of session %s, will retry: %s", self._session_id, error)

    async def _write(self, draft: CheckpointDraft, *, last: bool) -> str:
        with guarded_by(None if last else self._breaker, OSError):
            return await self._disk.run(lambda: self._save(draft))

    def _save(self, draft: CheckpointDraft) -> str:
        checkpoint = self._checkpoints.save(draft)
        try:
            self._checkpoints.prune(MAX_CHECKPOINTS)
        except OSError as error:
            _log.warning("could not remove old checkpoints of session %s: %s", self._session_id, error)
        return checkpoint.checkpoint_id
