from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.lifecycle_tools import Lifecycle
from queenright.runtime.bus import EventBus
from queenright.runtime.events import EventType
from queenright.runtime.llm.model import ToolCall
from queenright.runtime.storage.session_state import SessionStatus
from queenright.runtime.tooling.tools import ToolRegistry
from tests.runtime.agents import MODEL_FREE, adder, chatter, talker, write_agent
from tests.runtime.conftest import FakeTime
from tests.runtime.processes import list_children

MCP_SERVER = Path(__file__).with_name("mcp_server.py")


class ManagingGraph:
    """A graph that manages other graphs with the lifecycle tools."""

    def __init__(self, runtime: AgentRuntime, lifecycle: Lifecycle, fake_time: FakeTime) -> None:
        self.runtime = runtime
        self.lifecycle = lifecycle
        self.fake_time = fake_time
        self.tools = ToolRegistry(lifecycle.tools)

    async def __call__(self, tool: str, **arguments: Any) -> str:
        context = {"runtime": self.runtime, "graph_id": "keeper"}
        return (await self.tools.call(ToolCall("c1", tool, json.dumps(arguments)), context)).content


@pytest.fixture
async def managing_graph(tmp_path: Path, fake_time: FakeTime) -> AsyncIterator[ManagingGraph]:
    runtime = AgentRuntime(
        bus=EventBus(), storage=tmp_path / "storage", monotonic=fake_time, sleep=fake_time.sleep
    )
    lifecycle = Lifecycle([tmp_path / "agents"])
    await runtime.start()
    (tmp_path / "agents").mkdir()
    yield ManagingGraph(runtime, lifecycle, fake_time)
    await runtime.stop()
    await lifecycle.close()


async def wait_for_run(managing_graph: ManagingGraph, reply: str) -> Any:
    return await managing_graph.runtime.wait(reply.rpartition("run ")[2])


async def test_agent_is_loaded_started_and_unloaded_again(
    managing_graph: ManagingGraph, tmp_path: Path
) -> None:
    adder(tmp_path / "agents" / "one")

    load_reply = await managing_graph("load_agent", agent_path="one")
    start_reply = await managing_graph("start_agent", graph_id="adder", input_data={"a": 2, "b": 3})
    result = await wait_for_run(managing_graph, start_reply)
    unload_reply = await managing_graph("unload_agent", graph_id="adder")

    assert load_reply == "loaded 'adder'; entry points: start"
    assert start_reply.startswith("started 'adder' at 'start': run ")
    assert result.outputs == {"sum": 5}
    assert unload_reply.startswith("unloaded 'adder'")
    assert managing_graph.runtime.list_graphs() == []


async def test_unloaded_agent_leaves_no_timer_or_subscription(
    managing_graph: ManagingGraph, tmp_path: Path
) -> None:
    spec = json.loads(json.dumps(MODEL_FREE))
    spec["graph"]["entry_points"] += [
        {"id": "often", "node_id": "add", "trigger_type": "timer", "interval_seconds": 60},
        {"id": "later", "node_id": "add", "trigger_type": "event", "event_types": ["execution_failed"]},
    ]
    write_agent(tmp_path / "agents" / "one", spec, functions="def add(a, b):\n    return a + b\n")
    tasks_before = asyncio.all_tasks()

    await managing_graph("load_agent", agent_path="one")
    await managing_graph.fake_time.settle()
    subscriptions, tasks = managing_graph.runtime.bus.subscriptions, asyncio.all_tasks() - tasks_before
    await managing_graph("restart_agent", graph_id="adder")
    await managing_graph("unload_agent", graph_id="adder")

    assert (len(subscriptions), len(tasks)) == (1, 1)
    assert managing_graph.runtime.bus.subscriptions == ()
    assert asyncio.all_tasks() == tasks_before


async def test_servers_of_the_agents_end_with_the_lifecycle(
    managing_graph: ManagingGraph, tmp_path: Path
) -> None:
    path = adder(tmp_path / "agents" / "one")
    server = {"command": "python", "args": [str(MCP_SERVER), str(tmp_path / "starts")]}
    (path / "mcp_servers.json").write_text(json.dumps({"servers": {"tools": server}}), encoding="utf-8")
    tasks_before = asyncio.all_tasks()
    load_reply = await managing_graph("load_agent", agent_path="one")
    servers = list_children(tmp_path)

    await managing_graph.runtime.stop()
    await managing_graph.lifecycle.close()

    assert load_reply == "loaded 'adder'; entry points: start"
    assert len(servers) == 1
    assert list_children(tmp_path) == []
    assert asyncio.all_tasks() == tasks_before


async def test_input_may_be_a_json_string(managing_graph: ManagingGraph, tmp_path: Path) -> None:
    adder(tmp_path / "agents" / "one")
    await managing_graph("load_agent", agent_path="one")

    start_reply = await managing_graph("start_agent", graph_id="adder", input_data='{"a": 1, "b": 1}')

    assert (await wait_for_run(managing_graph, start_reply)).outputs == {"sum": 2}
    for invalid_input in ("{nope", "[1]"):
        assert "error: start_agent: input_data" in await managing_graph(
            "start_agent", graph_id="adder", input_data=invalid_input
        )


async def test_restart_loads_changed_files(managing_graph: ManagingGraph, tmp_path: Path) -> None:
    path = adder(tmp_path / "agents" / "one")
    await managing_graph("load_agent", agent_path="one")
    (path / "functions.py").write_text("def add(a, b):\n    return a * b\n", encoding="utf-8")

    restart_reply = await managing_graph("restart_agent", graph_id="adder")
    result = await wait_for_run(
        managing_graph, await managing_graph("start_agent", graph_id="adder", input_data={"a": 4, "b": 5})
    )

    assert restart_reply.startswith("restarted 'adder' from ")
    assert result.outputs == {"sum": 20}


@pytest.mark.parametrize("code", ["def add(a, b:\n", "def something_else():\n    return 1\n"])
async def test_failed_restart_keeps_the_running_agent(
    managing_graph: ManagingGraph, tmp_path: Path, code: str
) -> None:
    path = adder(tmp_path / "agents" / "one")
    await managing_graph("load_agent", agent_path="one")
    (path / "functions.py").write_text(code, encoding="utf-8")

    reply = await managing_graph("restart_agent", graph_id="adder")
    result = await wait_for_run(
        managing_graph, await managing_graph("start_agent", graph_id="adder", input_data={"a": 1, "b": 2})
    )

    assert reply.startswith("error: restart_agent: ")
    assert "functions.py" in reply
    assert result.outputs == {"sum": 3}


async def test_unloading_pauses_running_work(managing_graph: ManagingGraph, tmp_path: Path) -> None:
    chatter(tmp_path / "agents" / "one")
    await managing_graph("load_agent", agent_path="one")
    start_reply = await managing_graph("start_agent", graph_id="chatter")
    await managing_graph.runtime.bus.wait_for(EventType.CLIENT_INPUT_REQUESTED, timeout=None)

    rows = json.loads(await managing_graph("list_agents"))
    await managing_graph("unload_agent", graph_id="chatter")

    assert rows == [
        {
            "graph_id": "chatter",
            "entry_points": ["start"],
            "runs": [start_reply.rpartition("run ")[2]],
            "path": str(tmp_path / "agents" / "one"),
            "waits_for_user": "Hello, who are you?",
        }
    ]
    assert (await wait_for_run(managing_graph, start_reply)).status is SessionStatus.PAUSED


async def test_agent_can_neither_unload_restart_nor_start_itself(
    managing_graph: ManagingGraph, tmp_path: Path
) -> None:
    spec = json.loads((adder(tmp_path / "agents" / "one") / "agent.json").read_text(encoding="utf-8"))
    write_agent(
        tmp_path / "agents" / "one", {**spec, "name": "keeper"}, functions="def add(a, b):\n    return 0\n"
    )
    await managing_graph("load_agent", agent_path="one")

    for tool in ("unload_agent", "restart_agent", "start_agent"):
        assert "an agent cannot" in await managing_graph(tool, graph_id="keeper")

    [row] = json.loads(await managing_graph("list_agents"))
    assert row["you"] is True


async def test_graphs_not_loaded_by_a_tool_are_not_changed(
    managing_graph: ManagingGraph, tmp_path: Path
) -> None:
    from queenright.runtime.agents.runner import AgentRunner

    runner = AgentRunner.load(adder(tmp_path / "elsewhere"))
    await runner.setup_as_secondary(managing_graph.runtime, "other")

    assert "load_agent" in await managing_graph("unload_agent", graph_id="other")
    assert "load_agent" in await managing_graph("restart_agent", graph_id="other")
    assert "'nobody'" in await managing_graph("unload_agent", graph_id="nobody")
    assert "'nobody'" in await managing_graph("start_agent", graph_id="nobody")
    assert "'x'" in await managing_graph("start_agent", graph_id="other", entry_point="x")


async def test_agents_come_from_below_the_roots_only(managing_graph: ManagingGraph, tmp_path: Path) -> None:
    outside = adder(tmp_path / "outside")
    (tmp_path / "agents" / "link").symlink_to(outside)

    for path in ("../outside", str(outside), "link", "/", "nowhere"):
        result = await managing_graph("load_agent", agent_path=path)
        assert repr(path) in result
        assert str(tmp_path / "agents") in result
    assert managing_graph.runtime.list_graphs() == []


async def test_load_agent_explains_failure(managing_graph: ManagingGraph, tmp_path: Path) -> None:
    adder(tmp_path / "agents" / "broken", "def add(:\n")
    (tmp_path / "agents" / "empty").mkdir()
    adder(tmp_path / "agents" / "twice")
    await managing_graph("load_agent", agent_path="twice")

    assert "functions.py, line 1: invalid syntax" in await managing_graph("load_agent", agent_path="broken")
    assert "has no agent.json or agent.py" in await managing_graph("load_agent", agent_path="empty")
    assert "graph 'adder' already exists" in await managing_graph("load_agent", agent_path="twice")


async def test_user_presence_depends_on_last_input(
    managing_graph: ManagingGraph, fake_time: FakeTime
) -> None:
    without_input = json.loads(await managing_graph("get_user_presence"))
    await managing_graph.runtime.inject_input("nobody", "hello")
    fake_time.now += 30
    after_input = json.loads(await managing_graph("get_user_presence"))
    fake_time.now += 3600
    long_after_input = json.loads(await managing_graph("get_user_presence"))

    assert without_input == {"user_present": False, "user_idle_seconds": None}
    assert after_input == {"user_present": True, "user_idle_seconds": 30}
    assert long_after_input == {"user_present": False, "user_idle_seconds": 3630}


async def test_model_uses_the_tools_from_inside_a_graph(tmp_path: Path) -> None:
    from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec, NodeSpec
    from queenright.runtime.llm.model import ModelReply
    from queenright.runtime.llm.scripted_provider import ScriptedProvider

    talker(tmp_path / "agents" / "one")
    lifecycle = Lifecycle([tmp_path / "agents"])
    tools = lifecycle.tools
    calls = [
        ToolCall("c1", "load_agent", '{"agent_path": "one"}'),
        ToolCall("c2", "unload_agent", '{"graph_id": "keeper"}'),
    ]
    model = ScriptedProvider([*(ModelReply(tool_calls=(call,)) for call in calls), ModelReply(text="done")])
    runtime = AgentRuntime(bus=EventBus(), storage=tmp_path / "storage")
    graph = GraphSpec(
        id="keeper",
        nodes=(NodeSpec(id="keep", system_prompt="Keep.", tools=tuple(t.name for t in tools)),),
        entry_points=(EntryPointSpec(id="start", node_id="keep"),),
    )
    runtime.add_graph(graph, model=model, tools=tools, primary=True)
    await runtime.start()
    try:
        await runtime.wait(await runtime.trigger("start", {"message": "go"}))
    finally:
        await runtime.stop()
        await lifecycle.close()

    answers = [m.content for m in model.requests[-1].messages if m.role == "tool"]
    assert answers[0] == "loaded 'talker'; entry points: start"
    assert "an agent cannot unload or restart itself" in answers[1]
    assert all("runtime" not in spec.parameters.get("properties", {}) for spec in model.requests[0].tools)
