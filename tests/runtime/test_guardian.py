"""Several graphs in one session: a guardian repairs a failed agent, or asks the user if one is present."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from pydantic import BaseModel

from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.lifecycle_tools import Lifecycle
from queenright.runtime.bus import EventBus
from queenright.runtime.events import EventType
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolCall, ToolSpec
from queenright.runtime.llm.scripted_provider import ScriptedProvider
from queenright.runtime.tooling.tools import Tool
from tests.runtime.conftest import FakeTime

EMAIL_AGENT = {
    "name": "email_agent",
    "graph": {
        "id": "email_agent",
        "nodes": [
            {
                "id": "sort",
                "node_type": "function",
                "function": "sort",
                "input_keys": ["inbox"],
                "output_keys": ["sorted"],
            }
        ],
        "entry_points": [{"id": "default", "node_id": "sort", "isolation_level": "shared"}],
    },
}
BROKEN = "def sort(inbox):\n    return inbox['letters']\n"
MENDED = "def sort(inbox):\n    return sorted(inbox)\n"


class Mend(BaseModel):
    code: str


class Guardian:
    """A model that repairs the agent if no user is present, and asks the user otherwise."""

    name = "guardian"

    def __init__(self) -> None:
        self.requests: list[list[Message]] = []

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        self.requests.append(list(messages))
        answers = [m.content for m in messages if m.role == "tool"]
        if not answers:
            return self.call("get_user_presence")
        if '"user_present": true' in answers[0]:
            if messages[-1].role == "user":
                return self.call("set_output", decision=f"asked: {messages[-1].content}")
            return self.call("ask_user", question="email_agent fails. What now?")
        steps = [
            self.call("mend", code=MENDED),
            self.call("restart_agent", graph_id="email_agent"),
            self.call("start_agent", graph_id="email_agent", input_data={}),
            self.call("set_output", decision="mended it"),
        ]
        return steps[len(answers) - 1]

    def call(self, tool: str, **arguments: object) -> ModelReply:
        return ModelReply(tool_calls=(ToolCall(f"c{len(self.requests)}", tool, json.dumps(arguments)),))


class House:
    """A runtime with a coder, its guardian, and the email agent that the coder loads."""

    def __init__(self, path: Path, time: FakeTime) -> None:
        self.agent = path / "agents" / "email_agent"
        self.agent.mkdir(parents=True)
        (self.agent / "agent.json").write_text(json.dumps(EMAIL_AGENT))
        (self.agent / "functions.py").write_text(BROKEN)
        self.storage = path / "storage"
        self.runtime = AgentRuntime(bus=EventBus(), storage=self.storage, monotonic=time)
        self.lifecycle = Lifecycle([path / "agents"])
        self.guardian = Guardian()

    async def start(self) -> None:
        tools = [*self.lifecycle.tools, Tool("mend", "Rewrite the agent.", Mend, self.mend)]
        names = tuple(tool.name for tool in tools)
        coder = GraphSpec(
            id="coder",
            nodes=(NodeSpec(id="code", system_prompt="Code.", tools=names),),
            entry_points=(EntryPointSpec(id="default", node_id="code"),),
        )
        guard = GraphSpec(
            id="guardian",
            nodes=(
                NodeSpec(
                    id="guard",
                    system_prompt="Guard.",
                    tools=names,
                    input_keys=("event", "inbox"),
                    output_keys=("decision",),
                    client_facing=True,
                ),
            ),
            entry_points=(
                EntryPointSpec(
                    id="failed",
                    node_id="guard",
                    trigger_type="event",
                    event_types=frozenset({EventType.EXECUTION_FAILED}),
                    filter_graph="email_agent",
                    isolation_level="shared",
                ),
            ),
        )
        calls = [
            ToolCall("c1", "load_agent", '{"agent_path": "email_agent"}'),
            ToolCall("c2", "start_agent", '{"graph_id": "email_agent", "input_data": {"inbox": ["b", "a"]}}'),
        ]
        model = ScriptedProvider([*(ModelReply(tool_calls=(c,)) for c in calls), ModelReply(text="started")])
        self.runtime.add_graph(coder, model=model, tools=tools, primary=True)
        self.runtime.add_graph(guard, model=self.guardian, tools=tools)
        await self.runtime.start()

    async def stop(self) -> None:
        await self.runtime.stop()
        await self.lifecycle.close()

    def mend(self, given: Mend) -> str:
        (self.agent / "functions.py").write_text(given.code)
        return "written"


@pytest.fixture
async def house(tmp_path: Path, fake_time: FakeTime) -> AsyncIterator[House]:
    house = House(tmp_path, fake_time)
    await house.start()
    yield house
    await house.stop()


async def test_failed_agent_is_repaired_while_user_is_absent(house: House) -> None:
    """The guardian sees the event and the shared memory, and its change takes effect."""
    bus = house.runtime.bus
    with bus.expect(EventType.EXECUTION_COMPLETED, filter_graph="email_agent") as mended:
        await house.runtime.trigger("default", {"message": "Sort my letters."}, graph_id="coder")
        event = await mended.within(20)

    store = house.runtime.session_store("coder")
    memory = store.read_state(event.session_id).memory
    assert memory["sorted"] == ["a", "b"]
    requests = json.loads(house.guardian.requests[0][1].content)
    assert requests["inbox"] == ["b", "a"]
    assert requests["event"]["graph_id"] == "email_agent"
    assert "TypeError" in requests["event"]["data"]["error_type"]


async def test_failed_agent_is_escalated_to_present_user(house: House) -> None:
    bus = house.runtime.bus
    await house.runtime.inject_input("code", "hello")
    with bus.expect(EventType.CLIENT_INPUT_REQUESTED, filter_graph="guardian") as question:
        await house.runtime.trigger("default", {"message": "Sort my letters."}, graph_id="coder")
        event = await question.within(20)
    assert event.data["question"] == "email_agent fails. What now?"

    with bus.expect(EventType.EXECUTION_COMPLETED, filter_graph="guardian") as done:
        assert await house.runtime.inject_input("guard", "leave it")
        event = await done.within(20)

    memory = house.runtime.session_store("coder").read_state(event.session_id).memory
    assert memory["decision"] == "asked: leave it"
    assert (house.agent / "functions.py").read_text() == BROKEN


def sorter(graph_id: str, **entry: object) -> GraphSpec:
    """Build a graph that sorts its input, and fails if it cannot be sorted."""
    node = NodeSpec(
        id="sort", node_type="function", function="sort", input_keys=("inbox",), output_keys=("sorted",)
    )
    point = EntryPointSpec.model_validate({"id": "default", "node_id": "sort", "max_concurrent": 9, **entry})
    return GraphSpec(id=graph_id, nodes=(node,), entry_points=(point,))


WATCHER = GraphSpec(
    id="watcher",
    nodes=(
        NodeSpec(
            id="watch",
            node_type="function",
            function="watch",
            input_keys=("inbox",),
            output_keys=("seen",),
        ),
    ),
    entry_points=(
        EntryPointSpec(
            id="failed",
            node_id="watch",
            trigger_type="event",
            event_types=frozenset({EventType.EXECUTION_FAILED}),
            isolation_level="shared",
        ),
    ),
)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[AgentRuntime]:
    """Set up a primary sorter, a secondary one, one with its own session, and a guardian."""
    runtime = AgentRuntime(bus=EventBus(), storage=tmp_path)
    functions = {"sort": lambda inbox: sorted(inbox), "watch": lambda inbox: inbox}
    runtime.add_graph(sorter("main"), functions=functions, primary=True)
    runtime.add_graph(sorter("other"), functions=functions)
    runtime.add_graph(sorter("kept", isolation_level="isolated", max_concurrent=1), functions=functions)
    runtime.add_graph(WATCHER, functions=functions)
    await runtime.start()
    yield runtime
    await runtime.stop()


@pytest.mark.parametrize("graph_id", ["main", "other"])
async def test_guardian_is_in_the_session_of_the_run_that_failed(
    watched: AgentRuntime, graph_id: str
) -> None:
    """004: whoever an event calls reads the memory of its agent's session, not of the newest one."""
    bad, good = [1, "a"], [2, 1]
    first = await watched.trigger("default", {"inbox": good}, graph_id="main")
    await watched.wait(first)
    with watched.bus.expect(EventType.EXECUTION_COMPLETED, filter_graph="watcher") as called:
        failed = await watched.trigger("default", {"inbox": bad}, graph_id=graph_id)
        newest = await watched.trigger("default", {"inbox": good}, graph_id="main")
        event = await called.within(20)
    result, ended = await watched.wait(failed), await watched.wait(newest)
    store, session, state = watched.find_session(result.session_id, "watcher")

    assert event.session_id == result.session_id != ended.session_id
    assert (state.memory["inbox"], state.memory["seen"]) == (bad, bad)
    assert session.path == session.root / "graphs" / "watcher"
    assert [one.session_id for _, one in watched.list_sessions("watcher")] == [result.session_id]
    assert store.base == watched.session_store(graph_id).base


async def test_guardian_is_not_in_sessions_of_an_entry_point(watched: AgentRuntime) -> None:
    await watched.wait(await watched.trigger("default", {"inbox": [2, 1]}, graph_id="main"))
    with watched.bus.expect(EventType.EXECUTION_COMPLETED, filter_graph="watcher") as called:
        failed = await watched.trigger("default", {"inbox": [1, "a"]}, graph_id="kept")
        event = await called.within(20)
    result = await watched.wait(failed)

    assert event.session_id != result.session_id
    assert watched.session_store("main").read_state(event.session_id).memory["seen"] == [2, 1]
