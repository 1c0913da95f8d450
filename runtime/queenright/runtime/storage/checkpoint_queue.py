"""
Writing checkpoints, now or later: a run goes on while the disk takes none.

What could not be written waits here, the newest few, and is tried again: with the next checkpoint, when
the breaker lets it, and a last time before the session is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from queenright.runtime.breakers import CallBreaker, CallRefused
from queenright.runtime.deadline import Sleep
from queenright.runtime.storage.checkpoint_store import CheckpointStore, Reason
from queenright.runtime.storage.files import Disk
from queenright.runtime.storage.session_state import ExecutionState

_log = logging.getLogger(__name__)

CHECKPOINTS_KEPT: Final = 20
CHECKPOINTS_WAITING: Final = 5
"""So many of one run wait to be written, the newest: a recovery wants the last, and some to fall back on."""

_RETRY_SECONDS: Final = 60.0
"""Where no breaker says when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDraft:
    """What a checkpoint is to hold: how things stood when it was due."""

    execution_id: str
    graph_id: str
    node_id: str
    reason: Reason
    memory: Mapping[str, Any]
    execution: ExecutionState
    conversations: Mapping[str, int]


class CheckpointQueue:
    """
    The way of one run's checkpoints to the disk.

    Args:
        checkpoints: Where they go. Nobody else writes there meanwhile.
        session_id: The session that they are of.
        disk: Does the disk work.
        sleep: Waits until it is worth trying again.
        breaker: Stands before the disk; None: it is simply tried.
        on_saved: Is told the id and the draft of each that is on the disk, in the order they were due.
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
        self._waiting: deque[CheckpointDraft] = deque(maxlen=CHECKPOINTS_WAITING)
        self._one_at_a_time = asyncio.Lock()
        self._retry: asyncio.Task[None] | None = None
        self._retry_in = _RETRY_SECONDS
        self._failing = False

    @property
    def waiting(self) -> int:
        """How many are not on the disk yet."""
        return len(self._waiting)

    async def put(self, draft: CheckpointDraft) -> str | None:
        """
        Write a checkpoint, and what waits before it; return its id, or None if it is not on the disk yet.

        What goes wrong with the disk is no error here.
        """
        self._waiting.append(draft)
        saved = await self._drain()
        if self._waiting and self._retry is None:
            self._retry = asyncio.create_task(self._try_again(), name=f"checkpoints:{self._session_id}")
        return None if self._waiting else saved

    async def close(self) -> None:
        """Try a last time, whatever the breaker says; what is not on the disk then is lost, and logged."""
        if self._retry is not None:
            async with self._one_at_a_time:  # not in the middle of a write
                self._retry.cancel()
            with suppress(asyncio.CancelledError):
                await self._retry
            self._retry = None
        await self._drain(last=True)
        if self._waiting:
            _log.error("%d checkpoints of session %s are lost", len(self._waiting), self._session_id)
            self._waiting.clear()

    async def _try_again(self) -> None:
        try:
            while self._waiting:
                await self._sleep(self._retry_in)
                await self._drain()
        except Exception:  # of whoever is told; the next checkpoint tries again
            _log.exception("checkpoints of session %s could not be told of", self._session_id)
        self._retry = None

    async def _drain(self, *, last: bool = False) -> str | None:
        """Write what waits, oldest first, up to the first that cannot be written."""
        saved = None
        async with self._one_at_a_time:
            while self._waiting:
                draft = self._waiting[0]
                try:
                    saved = await self._write(draft, last=last)
                except CallRefused as refusal:
                    self._put_off(refusal, refusal.retry_in)
                    return None
                except OSError as error:
                    self._put_off(error, _RETRY_SECONDS if self._breaker is None else 0.0)
                    return None
                except ValueError:
                    saved = None  # no later try would help
                    _log.exception("a checkpoint of session %s cannot be written", self._session_id)
                # Unless it was crowded out meanwhile.
                if self._waiting[0] is draft:
                    self._waiting.popleft()
                if saved is not None:
                    await self._on_saved(saved, draft)
            if self._failing:
                self._failing = False
                _log.info("checkpoints of session %s are saved again", self._session_id)
        return saved

    def _put_off(self, error: Exception, seconds: float) -> None:
        # At least a moment, so that a breaker that is about to open is not asked without a pause.
        self._retry_in = max(seconds, 1.0)
        if not self._failing:
            self._failing = True
            # The run does not depend on it, and state.json has just been written.
            _log.error(
                "a checkpoint of session %s could not be saved, and waits: %s", self._session_id, error
            )

    async def _write(self, draft: CheckpointDraft, *, last: bool) -> str:
        permit = None if self._breaker is None or last else self._breaker.admit()
        try:
            saved = await self._disk.run(lambda: self._save(draft))
        except OSError as error:
            if permit is not None:
                permit.failed(error)
            raise
        except BaseException:
            if permit is not None:
                permit.given_back()
            raise
        if permit is not None:
            permit.succeeded()
        return saved

    def _save(self, draft: CheckpointDraft) -> str:
        saved = self._checkpoints.save(
            session_id=self._session_id,
            graph_id=draft.graph_id,
            execution_id=draft.execution_id,
            node_id=draft.node_id,
            reason=draft.reason,
            memory=draft.memory,
            execution=draft.execution,
            conversations=draft.conversations,
        )
        try:
            self._checkpoints.prune(CHECKPOINTS_KEPT)
        except OSError as error:
            _log.warning("old checkpoints of session %s could not be removed: %s", self._session_id, error)
        return saved.checkpoint_id
