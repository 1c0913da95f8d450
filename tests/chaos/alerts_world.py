"""Simulated workers, and a service that is killed and restarted repeatedly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from queenright.runtime.events import EventType
from tests.waiting import until

BEES = 6
HOUR = 3600.0
_TICK = 0.05
_LONGEST = 300.0
"""Time limit for the end of a service process on a busy machine."""


@dataclass
class SimulatedWorker:
    """A worker: it is healthy or loops, ends, and begins another session."""

    agent: str
    number: int = 1
    loops: bool = False
    began: bool = False


class Bees:
    """The events of the workers. Unacknowledged events are sent again to the next process."""

    def __init__(self, chance: Random) -> None:
        self.all = [SimulatedWorker(f"bee{n}") for n in range(BEES)]
        self.ago = HOUR
        """How many seconds the simulated clock is behind the real one."""
        self.batch: dict[str, Any] | None = None
        self._chance = chance
        self._batches = self._ids = 0

    def next_batch(self) -> bytes:
        """Return the next batch, as a line."""
        if self.batch is None:
            self._batches += 1
            events = [event for worker in self.all for event in self._lives(worker)]
            self.batch = {"n": self._batches, "events": events}
        return json.dumps(self.batch | {"ago": self.ago}).encode() + b"\n"

    def change_worker(self) -> None:
        """Change the state of one worker."""
        worker = self._chance.choice(self.all)
        if worker.began and self._chance.random() < 0.15:
            worker.number, worker.began, worker.loops = worker.number + 1, False, False
        else:
            worker.loops = not worker.loops

    def set_looping(self, looping: Collection[int]) -> None:
        """Let only these workers loop from now on."""
        for place, worker in enumerate(self.all):
            worker.loops = place in looping

    def _lives(self, worker: SimulatedWorker) -> list[dict[str, Any]]:
        lines = []
        if not worker.began:
            worker.began = True
            if worker.number > 1:
                lines.append(self._event(worker, EventType.EXECUTION_COMPLETED, worker.number - 1))
            lines.append(
                self._event(worker, EventType.EXECUTION_STARTED, framework="test", start_records=True)
            )
        verdict = "RETRY" if worker.loops else "ACCEPT"
        calls = [self._call(worker) for _ in range(3)]
        return [
            *lines,
            *calls,
            self._event(worker, EventType.STEP_COMPLETED, index=self._ids, verdict=verdict),
        ]

    def _call(self, worker: SimulatedWorker) -> dict[str, Any]:
        seen = "b" * 16 if worker.loops else f"{self._ids:016x}"
        call: dict[str, Any] = {
            "tool": "search",
            "turn": str(self._ids),
            "args_hash": "a" * 16,
            "result_hash": seen,
        }
        return self._event(worker, EventType.TOOL_CALL_COMPLETED, outcome="ok", **call)

    def _event(
        self, worker: SimulatedWorker, type_: EventType, number: int = 0, **data: Any
    ) -> dict[str, Any]:
        self._ids += 1
        session = f"{worker.agent}-{number or worker.number}"
        return {
            "id": f"w{self._ids}",
            "type": type_.value,
            "time": time.time() - self.ago,
            "agent_id": worker.agent,
            "session_id": session,
            "incarnation_id": session,
            "node_id": "search",
            "data": data,
        }


class AlertProcess:
    """The processes of the service, in sequence."""

    def __init__(self, settings: Path, bees: Bees) -> None:
        self.deaths: Counter[str] = Counter()
        self.outbox: dict[str, Any] = {}
        """The last report of the current process about its outbox; empty before the first."""
        self.heard = 0
        """Number of batches that the current process has acknowledged."""
        self._settings = settings
        self._bees = bees
        self._over = False

    @contextlib.asynccontextmanager
    async def mother(self) -> AsyncIterator[AlertProcess]:
        """Start the parent that forks service processes."""
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0, limit=1 << 24)
        self._port = server.sockets[0].getsockname()[1]
        self._mother = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.alert_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        try:
            yield self
        finally:
            server.close()
            assert self._mother.stdin is not None
            self._mother.stdin.close()
            await self._mother.wait()

    async def killed(self, batches: int, *, point: str = "", nth: int = 0, active: int = 0) -> None:
        """
        Run a process that is killed at ``point``, or after ``batches`` batches if it does not get there.

        It is not killed before ``active`` notifications are active.
        """
        pid, dead = await self._begin(point, nth)

        def done() -> bool:
            return dead.done() or (self.heard >= batches and self.outbox.get("active", 0) >= active)

        await until(done, f"{batches} batches accepted, {active} notifications active", seconds=_LONGEST)
        self.deaths[point if dead.done() else "at any moment"] += 1
        if not dead.done():
            os.kill(pid, signal.SIGKILL)
        assert await dead == signal.SIGKILL, "a process ended by itself"

    async def peaceful(self, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """Run until ``work`` is done and stop normally; return its result."""
        _, dead = await self._begin("", 0)
        try:
            result = await work
        finally:
            self._over = True
            status = await dead
        assert status == 0, f"a process did not end normally: {status}"
        return result

    async def _begin(self, point: str, nth: int) -> tuple[int, asyncio.Task[int]]:
        assert self._mother.stdin is not None
        self.outbox, self.heard, self._over = {}, 0, False
        order = {"settings": str(self._settings), "port": self._port, "point": point, "nth": nth}
        self._mother.stdin.write(json.dumps(order | {"ago": self._bees.ago}).encode() + b"\n")
        return await self._number("born"), asyncio.create_task(self._number("dead"))

    async def _number(self, word: str) -> int:
        assert self._mother.stdout is not None
        line = (await self._mother.stdout.readline()).decode().split()
        assert line[:1] == [word], f"the parent process wrote {line}"
        return int(line[1])

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                decoded = json.loads(line) if line.endswith(b"\n") else {}
                if self._bees.batch is not None and decoded.get("done") == self._bees.batch["n"]:
                    self._bees.batch = None
                    self.heard += 1
                self.outbox = decoded.get("outbox") or self.outbox
                await asyncio.sleep(_TICK)
                writer.write(b"null\n" if self._over else self._bees.next_batch())
        writer.close()
