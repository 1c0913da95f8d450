"""
Heartbeats of the workers that run here: one task says for all of them that they live.

They go onto the bus from the event loop that the workers run on: a loop that stands still misses its beats.
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

_SHORTEST_SLEEP: Final = 0.01


@dataclass(slots=True)
class _Member:
    execution: Execution
    reporter: Reporter
    due: float


class Heartbeats:
    """
    Beats for every run that has joined, until it leaves.

    The first beat of a run comes one interval after it joined, which its start has told; the later ones
    a little early and never in step. Belongs to one event loop.

    Args:
        interval: Seconds between the beats of a run at most; None for no beats.
        monotonic: Seconds from anywhere.
        sleep: Waits on that clock.
        random: Keeps runs that began together from beating together.

    Raises:
        ValueError: The interval is not above zero.
    """

    def __init__(self, interval: float | None, *, monotonic: Clock, sleep: Sleep, random: Random) -> None:
        if interval is not None and not interval > 0:
            raise ValueError(
                f"heartbeat_interval must be above 0 seconds, or None for none, not {interval!r}"
            )
        self.interval = interval
        self._monotonic = monotonic
        self._sleep = sleep
        self._random = random
        self._members: dict[str, _Member] = {}
        self._task: asyncio.Task[None] | None = None
        self._beating = False

    def join(self, execution: Execution, reporter: Reporter) -> None:
        """Beat for a run from now on; a graph that is no worker has no heartbeat."""
        if self.interval is None or not reporter.origin.agent_id:
            return
        # A whole interval: so nobody who joins is due before those for whom the task sleeps now.
        due = self._monotonic() + self.interval
        self._members[execution.id] = _Member(execution, reporter, due)
        self._begin(self.interval)

    def leave(self, execution: Execution) -> None:
        """Beat no more for a run."""
        self._members.pop(execution.id, None)
        if not self._members and self._task is not None and not self._beating:
            self._task.cancel()

    async def stop(self) -> None:
        """Beat for nobody any more, and return when that is so."""
        self._members.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self, interval: float) -> None:
        if self._task is None and self._members:
            self._task = asyncio.create_task(self._run(interval), name="heartbeats")
            self._task.add_done_callback(partial(self._over, interval))

    def _over(self, interval: float, _: asyncio.Task[None]) -> None:
        self._task = None
        # For whoever joined while it was ending.
        self._begin(interval)

    async def _run(self, interval: float) -> None:
        while self._members:
            first = min(member.due for member in self._members.values())
            await self._sleep(max(_SHORTEST_SLEEP, first - self._monotonic()))
            now = self._monotonic()
            self._beating = True
            try:
                for key, member in list(self._members.items()):
                    if member.due <= now and key in self._members:
                        member.due = now + interval * self._random.uniform(0.8, 1.0)
                        await _beat(member, interval)
            finally:
                self._beating = False


async def _beat(member: _Member, interval: float) -> None:
    reporter = member.reporter
    told: dict[str, Any] = {"interval": interval}
    if progress := _progress(member.execution):
        told["progress_indicator"] = progress
    await reporter.emit(EventType.AGENT_HEARTBEAT, told | reporter.worker.facts())


def _progress(execution: Execution) -> str:
    """Say how far a run has got: of its goal if it has one, else by the nodes that have ended."""
    goal = execution.goal
    if goal is not None:
        return f"{goal.fraction:.0%} of the goal"
    ended = execution.executor.state.path if execution.executor is not None else ()
    if not ended:
        return ""
    return f"{len(ended)} node{'s' if len(ended) > 1 else ''} ended, {ended[-1]!r} last"
