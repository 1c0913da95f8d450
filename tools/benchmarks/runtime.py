"""The runtime under load for two minutes: 200 concurrent sessions, and the resources left afterwards."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from queenright.health.settings import HealthSettings
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus
from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolCall, ToolSpec
from queenright.runtime.storage.session_state import SessionStatus
from queenright.runtime.tooling.tools import Tool
from queenright.server.agents.node_guards import make_health_guard
from tools.benchmarks.row import Row

SESSIONS = 200
SECONDS = float(os.environ.get("QUEENRIGHT_SOAK_SECONDS", "120"))
_TURNS = 3
_MAX_GROWTH = 0.05
"""Of the memory, from the first to the second half."""


class _ToolInput(BaseModel):
    n: int


class _Worker:
    """A model that calls a tool a few times and then answers, with the delays of a real model."""

    name = "worker"

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        await asyncio.sleep(1.0)
        look_calls = sum(m.role == "tool" for m in messages)
        if look_calls >= 2 * _TURNS:
            arguments = json.dumps({"seen": str(look_calls)})
            return ModelReply(tool_calls=(ToolCall(f"c{look_calls}", "set_output", arguments),))
        calls = (ToolCall(f"c{look_calls + i}", "look", json.dumps({"n": look_calls + i})) for i in range(2))
        return ModelReply(text="looking", tool_calls=tuple(calls), input_tokens=100, output_tokens=10)


async def _look(request: _ToolInput) -> str:
    await asyncio.sleep(0.05)
    return f"saw {request.n}"


@dataclass(frozen=True, slots=True)
class _Usage:
    """Resources of the process."""

    at: float
    tasks: int
    handles: int
    memory: int

    @classmethod
    def now(cls, since: float) -> _Usage:
        gc.collect()
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        handles = len(os.listdir("/proc/self/fd"))
        return cls(time.perf_counter() - since, len(asyncio.all_tasks()), handles, rss)


async def _soak(storage: Path) -> tuple[list[_Usage], int, int]:
    runtime = AgentRuntime(bus=EventBus(), storage=storage, guards=make_health_guard(HealthSettings()))
    spec = GraphSpec(
        id="soak",
        nodes=(
            NodeSpec(id="look", system_prompt="Look.", tools=("look",), output_keys=("seen",)),
            NodeSpec(
                id="count", node_type="function", function="count", input_keys=("seen",), output_keys=("n",)
            ),
        ),
        edges=(EdgeSpec(source="look", target="count"),),
        entry_points=(EntryPointSpec(id="start", node_id="look", max_concurrent=SESSIONS),),
    )
    runtime.add_graph(
        spec,
        model=_Worker(),
        tools=[Tool("look", "Look.", _ToolInput, _look)],
        functions={"count": lambda seen: int(seen)},
        agent_id="worker",
        primary=True,
    )
    await runtime.start()
    since = time.perf_counter()
    idle = _Usage.now(since)
    run_count = failure_count = 0
    uses = [idle]

    async def keep_running() -> None:
        nonlocal run_count, failure_count
        while time.perf_counter() - since < SECONDS:
            result = await runtime.wait(await runtime.trigger("start", {"message": "go"}))
            run_count += 1
            failure_count += result.status is not SessionStatus.COMPLETED

    async def watch() -> None:
        while time.perf_counter() - since < SECONDS:
            await asyncio.sleep(SECONDS / 12)
            uses.append(_Usage.now(since))

    await asyncio.gather(watch(), *(keep_running() for _ in range(SESSIONS)))
    await runtime.stop()
    await asyncio.sleep(0.5)
    uses.append(_Usage.now(since))
    return uses, run_count, failure_count


def run() -> list[Row]:
    """Run the measurement, which takes two minutes (``QUEENRIGHT_SOAK_SECONDS``)."""
    if not Path("/proc/self/statm").exists():
        return [Row("runtime: soak", "needs /proc", "", ok=True)]
    with tempfile.TemporaryDirectory() as folder:
        uses, run_count, failure_count = asyncio.run(_soak(Path(folder)))
    idle, *loaded, final = uses
    half = len(loaded) // 2
    first = max(use.memory for use in loaded[1:half])
    second = max(use.memory for use in loaded[half:])
    growth = second / first - 1
    name = f"runtime: {SESSIONS} sessions for {SECONDS:g} s"
    tasks = max(use.tasks for use in loaded)
    return [
        Row(
            f"{name}: runs, failed",
            f"{run_count:,} ({run_count / SECONDS:.0f}/s), {failure_count}",
            "0 failed",
            failure_count == 0,
        ),
        Row(
            f"{name}: tasks idle, at most, after",
            f"{idle.tasks}, {tasks}, {final.tasks}",
            "as before",
            final.tasks <= idle.tasks,
        ),
        Row(
            f"{name}: file handles idle, at most, after",
            f"{idle.handles}, {max(use.handles for use in loaded)}, {final.handles}",
            "as before",
            final.handles <= idle.handles + 1,
        ),
        Row(
            f"{name}: memory, first and second half",
            f"{first / 2**20:.0f} MB, {second / 2**20:.0f} MB ({growth:+.1%})",
            f"≤ {_MAX_GROWTH:+.0%}",
            growth <= _MAX_GROWTH,
        ),
    ]
