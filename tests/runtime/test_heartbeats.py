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


class WaitingAgent:
    """A runtime whose worker waits for an answer."""

    def __init__(self, path: Path, time: FakeTime, interval: float | None = 300.0) -> None:
        self.time = time
        self.bus = EventBus()
        self.heartbeats: list[AgentEvent] = []
        self.run_starts: list[AgentEvent] = []
        self.bus.subscribe(self.heartbeats.append, name="beats", types=[EventType.AGENT_HEARTBEAT])
        self.bus.subscribe(self.run_starts.append, name="started", types=[EventType.EXECUTION_STARTED])
        self.runtime = AgentRuntime(
            bus=self.bus,
            storage=path,
            clock=time,
            monotonic=time,
            sleep=time.sleep,
            disk=time.disk,
            heartbeat_interval=interval,
        )

    async def start_run(self, agent_id: str = "bee", goal: Goal | None = None) -> str:
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
async def agent(tmp_path: Path, fake_time: FakeTime) -> AsyncIterator[WaitingAgent]:
    agent = WaitingAgent(tmp_path, fake_time)
    yield agent
    await agent.runtime.stop()


def list_heartbeat_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "heartbeats"]


async def test_run_sends_complete_heartbeat_every_interval(agent: WaitingAgent) -> None:
    """002 §11: each heartbeat has task, phase, tool call, tokens, errors and progress."""
    await agent.start_run()

    await agent.time.advance(1000)

    assert 3 <= len(agent.heartbeats) <= 4
    [run_start] = agent.run_starts
    assert run_start.data["heartbeat_interval"] == 300.0
    heartbeat = agent.heartbeats[0]
    assert (
        heartbeat.agent_id,
        heartbeat.session_id,
        heartbeat.incarnation_id,
        heartbeat.graph_id,
        heartbeat.execution_id,
    ) == (
        "bee",
        run_start.session_id,
        run_start.incarnation_id,
        "g",
        run_start.execution_id,
    )
    assert heartbeat.data == {
        "interval": 300.0,
        "task_id": run_start.session_id,
        "phase": "idle",
        "token_count": 105,
        "error_count": 0,
        "progress_indicator": "1 node completed, last 'count'",
    }


async def test_heartbeat_is_never_later_than_interval(agent: WaitingAgent) -> None:
    await agent.start_run()

    await agent.time.advance(20_000)

    times = [agent.run_starts[0].time, *(event.time for event in agent.heartbeats)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(240 <= gap <= 300 for gap in gaps)
    assert len(set(gaps)) > 10


async def test_heartbeats_have_jitter(agent: WaitingAgent) -> None:
    for _ in range(5):
        await agent.start_run()

    await agent.time.advance(3000)

    later_times = [event.time for event in agent.heartbeats if event.time > agent.run_starts[-1].time + 900]
    assert len({event.session_id for event in agent.heartbeats}) == 5
    assert len(set(later_times)) == len(later_times)
    assert list_heartbeat_tasks() == ["heartbeats"]


async def test_heartbeat_progress_uses_the_goal(agent: WaitingAgent) -> None:
    criteria = (
        SuccessCriterion(id="counted", expression="words > 1"),
        SuccessCriterion(id="told", expression="told"),
    )
    await agent.start_run(goal=Goal(id="done", success_criteria=criteria))

    await agent.time.advance(300)

    assert [event.data["progress_indicator"] for event in agent.heartbeats] == ["50% of the goal"]


async def test_ended_run_sends_no_heartbeat(agent: WaitingAgent) -> None:
    execution = await agent.start_run()
    assert list_heartbeat_tasks()

    await agent.runtime.cancel_execution(execution)
    await agent.time.settle()

    assert list_heartbeat_tasks() == []
    await agent.time.advance(1000)
    assert agent.heartbeats == []


async def test_run_joining_while_the_task_ends_gets_heartbeats(agent: WaitingAgent) -> None:
    execution = await agent.start_run()
    await agent.time.advance(200)

    await agent.runtime.cancel_execution(execution)
    await agent.start_run()
    await agent.time.advance(301)

    assert {event.session_id for event in agent.heartbeats} == {agent.run_starts[-1].session_id}


async def test_graph_without_agent_id_has_no_heartbeat(agent: WaitingAgent) -> None:
    await agent.start_run(agent_id="")

    await agent.time.advance(1000)

    assert agent.heartbeats == []
    assert "heartbeat_interval" not in agent.run_starts[0].data


async def test_heartbeats_can_be_off(tmp_path: Path, fake_time: FakeTime) -> None:
    agent = WaitingAgent(tmp_path, fake_time, interval=None)
    await agent.start_run()

    await fake_time.advance(1000)
    await agent.runtime.stop()

    assert agent.heartbeats == []
    assert "heartbeat_interval" not in agent.run_starts[0].data


async def test_stopping_the_runtime_leaves_no_task(agent: WaitingAgent) -> None:
    await agent.start_run()
    await agent.start_run()

    await agent.runtime.stop()

    assert list_heartbeat_tasks() == []


def test_invalid_interval_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="above 0 seconds"):
        AgentRuntime(bus=EventBus(), storage=tmp_path, heartbeat_interval=0)
