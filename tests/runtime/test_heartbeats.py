"""Heartbeats of workers on the runtime's bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.graphs.goal import Goal, SuccessCriterion
from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import ModelReply
from tests.runtime.conftest import FakeTime, ScriptedModel

GRAPH = GraphSpec(
    id="g",
    nodes=(
        NodeSpec(id="count", node_type="function", function="count", output_keys=("words",)),
        NodeSpec(id="ask", system_prompt="Ask.", client_facing=True),
    ),
    edges=(EdgeSpec(source="count", target="ask"),),
    entry_points=(EntryPointSpec(id="e", node_id="count", max_concurrent=50),),
)


class Hive:
    """A runtime whose worker waits for an answer."""

    def __init__(self, path: Path, time: FakeTime, interval: float | None = 300.0) -> None:
        self.time = time
        self.bus = EventBus()
        self.beats: list[AgentEvent] = []
        self.started: list[AgentEvent] = []
        self.bus.subscribe(self.beats.append, name="beats", types=[EventType.AGENT_HEARTBEAT])
        self.bus.subscribe(self.started.append, name="started", types=[EventType.EXECUTION_STARTED])
        self.runtime = AgentRuntime(
            bus=self.bus,
            storage=path,
            clock=time,
            monotonic=time,
            sleep=time.sleep,
            disk=time.disk,
            heartbeat_interval=interval,
        )

    async def ask(self, agent_id: str = "bee", goal: Goal | None = None) -> str:
        if not self.runtime.list_graphs():
            model = ScriptedModel([ModelReply(text="Which?", input_tokens=100, output_tokens=5)] * 60)
            self.runtime.add_graph(
                GRAPH, model=model, functions={"count": lambda: 3}, goal=goal, agent_id=agent_id
            )
            await self.runtime.start()
        execution = await self.runtime.trigger("e", {})
        await self.time.advance(1)
        return execution


@pytest.fixture
async def hive(tmp_path: Path, fake_time: FakeTime) -> AsyncIterator[Hive]:
    hive = Hive(tmp_path, fake_time)
    yield hive
    await hive.runtime.stop()


def heartbeat_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "heartbeats"]


async def test_run_sends_complete_heartbeat_every_interval(hive: Hive) -> None:
    """002 §11: agents emit heartbeats, and each says task, phase, tool call, tokens, errors and progress."""
    await hive.ask()

    await hive.time.advance(1000)

    assert 3 <= len(hive.beats) <= 4
    [started] = hive.started
    assert started.data["heartbeat_interval"] == 300.0
    beat = hive.beats[0]
    assert (beat.agent_id, beat.session_id, beat.incarnation_id, beat.graph_id, beat.execution_id) == (
        "bee",
        started.session_id,
        started.incarnation_id,
        "g",
        started.execution_id,
    )
    assert beat.data == {
        "interval": 300.0,
        "task_id": started.session_id,
        "phase": "idle",
        "token_count": 105,
        "error_count": 0,
        "progress_indicator": "1 node completed, last 'count'",
    }


async def test_heartbeat_is_never_later_than_interval(hive: Hive) -> None:
    await hive.ask()

    await hive.time.advance(20_000)

    times = [hive.started[0].time, *(beat.time for beat in hive.beats)]
    gaps = [after - before for before, after in pairwise(times)]
    assert all(240 <= gap <= 300 for gap in gaps)
    assert len(set(gaps)) > 10


async def test_heartbeats_have_jitter(hive: Hive) -> None:
    for _ in range(5):
        await hive.ask()

    await hive.time.advance(3000)

    late = [beat.time for beat in hive.beats if beat.time > hive.started[-1].time + 900]
    assert len({beat.session_id for beat in hive.beats}) == 5
    assert len(set(late)) == len(late)
    assert heartbeat_tasks() == ["heartbeats"]


async def test_heartbeat_progress_uses_the_goal(hive: Hive) -> None:
    criteria = (
        SuccessCriterion(id="counted", expression="words > 1"),
        SuccessCriterion(id="told", expression="told"),
    )
    await hive.ask(goal=Goal(id="done", success_criteria=criteria))

    await hive.time.advance(300)

    assert [beat.data["progress_indicator"] for beat in hive.beats] == ["50% of the goal"]


async def test_ended_run_sends_no_heartbeat(hive: Hive) -> None:
    execution = await hive.ask()
    assert heartbeat_tasks()

    await hive.runtime.cancel_execution(execution)
    await hive.time.settle()

    assert heartbeat_tasks() == []
    await hive.time.advance(1000)
    assert hive.beats == []


async def test_run_joining_while_the_task_ends_gets_heartbeats(hive: Hive) -> None:
    execution = await hive.ask()
    await hive.time.advance(200)

    await hive.runtime.cancel_execution(execution)
    await hive.ask()
    await hive.time.advance(301)

    assert {beat.session_id for beat in hive.beats} == {hive.started[-1].session_id}


async def test_graph_without_agent_id_has_no_heartbeat(hive: Hive) -> None:
    await hive.ask(agent_id="")

    await hive.time.advance(1000)

    assert hive.beats == []
    assert "heartbeat_interval" not in hive.started[0].data


async def test_heartbeats_can_be_off(tmp_path: Path, fake_time: FakeTime) -> None:
    hive = Hive(tmp_path, fake_time, interval=None)
    await hive.ask()

    await fake_time.advance(1000)
    await hive.runtime.stop()

    assert hive.beats == []
    assert "heartbeat_interval" not in hive.started[0].data


async def test_stopping_the_runtime_leaves_no_task(hive: Hive) -> None:
    await hive.ask()
    await hive.ask()

    await hive.runtime.stop()

    assert heartbeat_tasks() == []


def test_invalid_interval_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="above 0 seconds"):
        AgentRuntime(bus=EventBus(), storage=tmp_path, heartbeat_interval=0)
