"""
Heartbeats of the workers in this process, all sent by one task.

They are published from the event loop that the workers run on, so that a blocked loop misses its beats.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

from queenright.runtime.deadline import Sleep
from queenright.runtime.events import Clock, EventType
from queenright.runtime.execution import Execution
from queenright.runtime.nodes.reporting import Reporter

_MIN_SLEEP_SECONDS: Final = 0.01


@dataclass(slots=True)
class _Member:
    execution: Execution
    reporter: Reporter
    due: float


class HeartbeatSender:
    """
    Sends heartbeats for every run that has joined, until it leaves.

    The first heartbeat is sent one interval after joining, since the start event already shows that the
    worker is alive. Later ones come slightly early, with jitter. Belongs to one event loop.

    Args:
        interval: Maximum seconds between two heartbeats of a run; None disables heartbeats.

    Raises:
        ValueError: The interval is not positive.
    """

    def __init__(self, interval: float | None, *, monotonic: Clock, sleep: Sleep, random: Random) -> None:
        if interval is not None and not interval > 0:
            raise ValueError(
                f"heartbeat_interval must be above 0 seconds, or None to disable it, not {interval!r}"
            )
        self.interval = interval
        self._monotonic = monotonic
        self._sleep = sleep
        self._random = random
        self._members: dict[str, _Member] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_sending = False

    def add(self, execution: Execution, reporter: Reporter) -> None:
        """Start heartbeats for a run; a graph that is not a worker has none."""
        if self.interval is None or not reporter.origin.agent_id:
            return
        # A whole interval, so that a new member is never due before the task wakes up.
        due_at = self._monotonic() + self.interval
        self._members[execution.id] = _Member(execution, reporter, due_at)
        self._start_task(self.interval)

    def remove(self, execution: Execution) -> None:
        """Stop the heartbeats of a run."""
        self._members.pop(execution.id, None)
        if not self._members and self._task is not None and not self._is_sending:
            self._task.cancel()

    async def stop(self) -> None:
        """Stop all heartbeats and wait for the task."""
        self._members.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _start_task(self, interval: float) -> None:
        if self._task is None and self._members:
            self._task = asyncio.create_task(self._run(interval), name="heartbeats")
            self._task.add_done_callback(partial(self._on_task_done, interval))

    def _on_task_done(self, interval: float, _: asyncio.Task[None]) -> None:
        self._task = None
        # A run may have joined while the task was ending.
        self._start_task(interval)

    async def _run(self, interval: float) -> None:
        while self._members:
            next_due = min(member.due for member in self._members.values())
            await self._sleep(max(_MIN_SLEEP_SECONDS, next_due - self._monotonic()))
            now = self._monotonic()
            self._is_sending = True
            try:
                for key, member in list(self._members.items()):
                    if member.due <= now and key in self._members:
                        member.due = now + interval * self._random.uniform(0.8, 1.0)
                        await _send_heartbeat(member, interval)
            finally:
                self._is_sending = False


async def _send_heartbeat(member: _Member, interval: float) -> None:
    reporter = member.reporter
    data: dict[str, Any] = {"interval": interval}
    if progress := _describe_progress(member.execution):
        data["progress_indicator"] = progress
    await reporter.emit(EventType.AGENT_HEARTBEAT, data | reporter.worker.facts())


def _describe_progress(execution: Execution) -> str:
    """Describe a run's progress: towards its goal if it has one, otherwise the nodes completed."""
    goal = execution.goal
    if goal is not None:
        return f"{goal.fraction:.0%} of the goal"
    path = execution.executor.state.path if execution.executor is not None else ()
    if not path:
        return ""
    return f"{len(path)} node{'s' if len(path) > 1 else ''} completed, last {path[-1]!r}"
