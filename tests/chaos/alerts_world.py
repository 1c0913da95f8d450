"""Simulated workers, and a service that is repeatedly killed and restarted."""

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

WORKER_COUNT = 6
HOUR = 3600.0
_BATCH_INTERVAL = 0.05
_TIMEOUT_SECONDS = 300.0
"""Time limit in seconds for a service process on a busy machine."""


@dataclass
class SimulatedWorker:
    """A worker that is healthy or loops, ends, and then starts another session."""

    agent: str
    number: int = 1
    is_looping: bool = False
    has_started: bool = False


class SimulatedFleet:
    """The workers and their events. The next process gets events again that were not acknowledged."""

    def __init__(self, random: Random) -> None:
        self.workers = [SimulatedWorker(f"bee{n}") for n in range(WORKER_COUNT)]
        self.delay = HOUR
        """Seconds by which the simulated clock is behind the real clock."""
        self.batch: dict[str, Any] | None = None
        self._random = random
        self._batches = self._ids = 0

    def next_batch(self) -> bytes:
        """Return the next batch as a line of JSON."""
        if self.batch is None:
            self._batches += 1
            events = [event for worker in self.workers for event in self._next_events(worker)]
            self.batch = {"n": self._batches, "events": events}
        return json.dumps(self.batch | {"ago": self.delay}).encode() + b"\n"

    def change_worker(self) -> None:
        """Let a random worker start or stop looping, or end its session."""
        worker = self._random.choice(self.workers)
        if worker.has_started and self._random.random() < 0.15:
            worker.number, worker.has_started, worker.is_looping = worker.number + 1, False, False
        else:
            worker.is_looping = not worker.is_looping

    def set_looping(self, looping: Collection[int]) -> None:
        """Let only these workers loop from now on."""
        for index, worker in enumerate(self.workers):
            worker.is_looping = index in looping

    def _next_events(self, worker: SimulatedWorker) -> list[dict[str, Any]]:
        lines = []
        if not worker.has_started:
            worker.has_started = True
            if worker.number > 1:
                lines.append(self._make_event(worker, EventType.EXECUTION_COMPLETED, worker.number - 1))
            lines.append(
                self._make_event(worker, EventType.EXECUTION_STARTED, framework="test", start_records=True)
            )
        verdict = "RETRY" if worker.is_looping else "ACCEPT"
        calls = [self._make_call(worker) for _ in range(3)]
        return [
            *lines,
            *calls,
            self._make_event(worker, EventType.STEP_COMPLETED, index=self._ids, verdict=verdict),
        ]

    def _make_call(self, worker: SimulatedWorker) -> dict[str, Any]:
        result_hash = "b" * 16 if worker.is_looping else f"{self._ids:016x}"
        call: dict[str, Any] = {
            "tool": "search",
            "turn": str(self._ids),
            "args_hash": "a" * 16,
            "result_hash": result_hash,
        }
        return self._make_event(worker, EventType.TOOL_CALL_COMPLETED, outcome="ok", **call)

    def _make_event(
        self, worker: SimulatedWorker, type_: EventType, number: int = 0, **data: Any
    ) -> dict[str, Any]:
        self._ids += 1
        session = f"{worker.agent}-{number or worker.number}"
        return {
            "id": f"w{self._ids}",
            "type": type_.value,
            "time": time.time() - self.delay,
            "agent_id": worker.agent,
            "session_id": session,
            "incarnation_id": session,
            "node_id": "search",
            "data": data,
        }


class ServiceProcesses:
    """The successive processes of the service."""

    def __init__(self, settings: Path, fleet: SimulatedFleet) -> None:
        self.deaths: Counter[str] = Counter()
        self.outbox: dict[str, Any] = {}
        """The latest outbox status of the current process; empty before the first report."""
        self.acknowledged_batches = 0
        """Number of batches that the current process has acknowledged."""
        self._settings = settings
        self._fleet = fleet
        self._is_stopping = False

    @contextlib.asynccontextmanager
    async def run_parent(self) -> AsyncIterator[ServiceProcesses]:
        """Run the parent process that forks service processes."""
        server = await asyncio.start_server(self._send_batches, "127.0.0.1", 0, limit=1 << 24)
        self._port = server.sockets[0].getsockname()[1]
        self._parent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.alert_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        try:
            yield self
        finally:
            server.close()
            assert self._parent.stdin is not None
            self._parent.stdin.close()
            await self._parent.wait()

    async def run_and_kill(self, batches: int, *, point: str = "", nth: int = 0, active: int = 0) -> None:
        """
        Run a process, and kill it at ``point``, or after ``batches`` batches if it does not reach the point.

        After ``batches`` batches, wait until at least ``active`` notifications are active.
        """
        pid, exit_status = await self._start_process(point, nth)

        def is_due() -> bool:
            return exit_status.done() or (
                self.acknowledged_batches >= batches and self.outbox.get("active", 0) >= active
            )

        await until(
            is_due, f"{batches} batches accepted, {active} notifications active", seconds=_TIMEOUT_SECONDS
        )
        self.deaths[point if exit_status.done() else "at any moment"] += 1
        if not exit_status.done():
            os.kill(pid, signal.SIGKILL)
        assert await exit_status == signal.SIGKILL, "the process was not killed"

    async def run_and_stop(self, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """Run a process until ``work`` is done, stop it normally, and return the result of ``work``."""
        _, exit_status = await self._start_process("", 0)
        try:
            result = await work
        finally:
            self._is_stopping = True
            status = await exit_status
        assert status == 0, f"a process did not end normally: {status}"
        return result

    async def _start_process(self, point: str, nth: int) -> tuple[int, asyncio.Task[int]]:
        assert self._parent.stdin is not None
        self.outbox, self.acknowledged_batches, self._is_stopping = {}, 0, False
        order = {"settings": str(self._settings), "port": self._port, "point": point, "nth": nth}
        self._parent.stdin.write(json.dumps(order | {"ago": self._fleet.delay}).encode() + b"\n")
        return await self._read_number("started"), asyncio.create_task(self._read_number("exited"))

    async def _read_number(self, word: str) -> int:
        assert self._parent.stdout is not None
        line = (await self._parent.stdout.readline()).decode().split()
        assert line[:1] == [word], f"the parent process wrote {line}"
        return int(line[1])

    async def _send_batches(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                decoded = json.loads(line) if line.endswith(b"\n") else {}
                if self._fleet.batch is not None and decoded.get("done") == self._fleet.batch["n"]:
                    self._fleet.batch = None
                    self.acknowledged_batches += 1
                self.outbox = decoded.get("outbox") or self.outbox
                await asyncio.sleep(_BATCH_INTERVAL)
                writer.write(b"null\n" if self._is_stopping else self._fleet.next_batch())
        writer.close()
