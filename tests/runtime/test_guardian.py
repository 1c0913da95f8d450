"""Several graphs in one session: a guardian repairs a failed agent, or asks its user if present."""

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
BROKEN_CODE = "def sort(inbox):\n    return inbox['letters']\n"
REPAIRED_CODE = "def sort(inbox):\n    return sorted(inbox)\n"


class RepairArguments(BaseModel):
    code: str


class GuardianModel:
    """A model that repairs the agent if no user is present, and otherwise asks the user."""

    name = "guardian"

    def __init__(self) -> None:
        self.requests: list[list[Message]] = []

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        self.requests.append(list(messages))
        answers = [m.content for m in messages if m.role == "tool"]
        if not answers:
            return self.make_call_reply("get_user_presence")
        if '"user_present": true' in answers[0]:
            if messages[-1].role == "user":
                return self.make_call_reply("set_output", decision=f"asked: {messages[-1].content}")
            return self.make_call_reply("ask_user", question="email_agent fails. What now?")
        steps = [
            self.make_call_reply("mend", code=REPAIRED_CODE),
            self.make_call_reply("restart_agent", graph_id="email_agent"),
            self.make_call_reply("start_agent", graph_id="email_agent", input_data={}),
            self.make_call_reply("set_output", decision="mended it"),
        ]
        return steps[len(answers) - 1]

    def make_call_reply(self, tool: str, **arguments: object) -> ModelReply:
        return ModelReply(tool_calls=(ToolCall(f"c{len(self.requests)}", tool, json.dumps(arguments)),))


class GuardedRuntime:
    """A runtime with a coder, its guardian, and the email agent that the coder loads."""

    def __init__(self, path: Path, time: FakeTime) -> None:
        self.agent = path / "agents" / "email_agent"
        self.agent.mkdir(parents=True)
        (self.agent / "agent.json").write_text(json.dumps(EMAIL_AGENT))
        (self.agent / "functions.py").write_text(BROKEN_CODE)
        self.storage = path / "storage"
        self.runtime = AgentRuntime(bus=EventBus(), storage=self.storage, monotonic=time)
        self.lifecycle = Lifecycle([path / "agents"])
        self.guardian = GuardianModel()

    async def start(self) -> None:
        tools = [*self.lifecycle.tools, Tool("mend", "Rewrite the agent.", RepairArguments, self.repair)]
        names = tuple(tool.name for tool in tools)
        coder = GraphSpec(
            id="coder",
            nodes=(NodeSpec(id="code", system_prompt="Code.", tools=names),),
            entry_points=(EntryPointSpec(id="default", node_id="code"),),
        )
        guardian = GraphSpec(
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
        self.runtime.add_graph(guardian, model=self.guardian, tools=tools)
        await self.runtime.start()

    async def stop(self) -> None:
        await self.runtime.stop()
        await self.lifecycle.close()

    def repair(self, arguments: RepairArguments) -> str:
        (self.agent / "functions.py").write_text(arguments.code)
        return "written"


@pytest.fixture
async def guarded_runtime(tmp_path: Path, fake_time: FakeTime) -> AsyncIterator[GuardedRuntime]:
    guarded_runtime = GuardedRuntime(tmp_path, fake_time)
    await guarded_runtime.start()
    yield guarded_runtime
    await guarded_runtime.stop()


async def test_failed_agent_is_repaired_while_user_is_absent(guarded_runtime: GuardedRuntime) -> None:
    """The guardian sees the event and the shared memory, and its change takes effect."""
    bus = guarded_runtime.runtime.bus
    with bus.expect(EventType.EXECUTION_COMPLETED, filter_graph="email_agent") as completion:
        await guarded_runtime.runtime.trigger("default", {"message": "Sort my letters."}, graph_id="coder")
        event = await completion.within(20)

    store = guarded_runtime.runtime.session_store("coder")
    memory = store.read_state(event.session_id).memory
    assert memory["sorted"] == ["a", "b"]
    request = json.loads(guarded_runtime.guardian.requests[0][1].content)
    assert request["inbox"] == ["b", "a"]
    assert request["event"]["graph_id"] == "email_agent"
    assert "TypeError" in request["event"]["data"]["error_type"]


async def test_failed_agent_is_escalated_to_present_user(guarded_runtime: GuardedRuntime) -> None:
    bus = guarded_runtime.runtime.bus
    await guarded_runtime.runtime.inject_input("code", "hello")
    with bus.expect(EventType.CLIENT_INPUT_REQUESTED, filter_graph="guardian") as question:
        await guarded_runtime.runtime.trigger("default", {"message": "Sort my letters."}, graph_id="coder")
        event = await question.within(20)
    assert event.data["question"] == "email_agent fails. What now?"

    with bus.expect(EventType.EXECUTION_COMPLETED, filter_graph="guardian") as completion:
        assert await guarded_runtime.runtime.inject_input("guard", "leave it")
        event = await completion.within(20)

    memory = guarded_runtime.runtime.session_store("coder").read_state(event.session_id).memory
    assert memory["decision"] == "asked: leave it"
    assert (guarded_runtime.agent / "functions.py").read_text() == BROKEN_CODE


def make_sorter_graph(graph_id: str, **entry: object) -> GraphSpec:
    """Return a graph that sorts its input, and fails if the input cannot be sorted."""
    node = NodeSpec(
        id="sort", node_type="function", function="sort", input_keys=("inbox",), output_keys=("sorted",)
    )
    entry_point = EntryPointSpec.model_validate(
        {"id": "default", "node_id": "sort", "max_concurrent": 9, **entry}
    )
    return GraphSpec(id=graph_id, nodes=(node,), entry_points=(entry_point,))


WATCHING_GUARDIAN = GraphSpec(
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
async def watched_runtime(tmp_path: Path) -> AsyncIterator[AgentRuntime]:
    """Yield a runtime with three sorters (primary, secondary, with its own session) and a guardian."""
    runtime = AgentRuntime(bus=EventBus(), storage=tmp_path)
    functions = {"sort": lambda inbox: sorted(inbox), "watch": lambda inbox: inbox}
    runtime.add_graph(make_sorter_graph("main"), functions=functions, primary=True)
    runtime.add_graph(make_sorter_graph("other"), functions=functions)
    runtime.add_graph(
        make_sorter_graph("kept", isolation_level="isolated", max_concurrent=1), functions=functions
    )
    runtime.add_graph(WATCHING_GUARDIAN, functions=functions)
    await runtime.start()
    yield runtime
    await runtime.stop()


@pytest.mark.parametrize("graph_id", ["main", "other"])
async def test_guardian_is_in_the_session_of_the_run_that_failed(
    watched_runtime: AgentRuntime, graph_id: str
) -> None:
    """004: a run that an event starts uses the session of the event, and not the newest session."""
    failing_input, valid_input = [1, "a"], [2, 1]
    first_id = await watched_runtime.trigger("default", {"inbox": valid_input}, graph_id="main")
    await watched_runtime.wait(first_id)
    with watched_runtime.bus.expect(EventType.EXECUTION_COMPLETED, filter_graph="watcher") as completion:
        failed_id = await watched_runtime.trigger("default", {"inbox": failing_input}, graph_id=graph_id)
        newest_id = await watched_runtime.trigger("default", {"inbox": valid_input}, graph_id="main")
        event = await completion.within(20)
    failed_run, newest_run = await watched_runtime.wait(failed_id), await watched_runtime.wait(newest_id)
    store, session, state = watched_runtime.find_session(failed_run.session_id, "watcher")

    assert event.session_id == failed_run.session_id != newest_run.session_id
    assert (state.memory["inbox"], state.memory["seen"]) == (failing_input, failing_input)
    assert session.path == session.root / "graphs" / "watcher"
    assert [run.session_id for _, run in watched_runtime.list_sessions("watcher")] == [failed_run.session_id]
    assert store.base == watched_runtime.session_store(graph_id).base


async def test_guardian_is_not_in_sessions_of_an_entry_point(watched_runtime: AgentRuntime) -> None:
    await watched_runtime.wait(await watched_runtime.trigger("default", {"inbox": [2, 1]}, graph_id="main"))
    with watched_runtime.bus.expect(EventType.EXECUTION_COMPLETED, filter_graph="watcher") as completion:
        failed_id = await watched_runtime.trigger("default", {"inbox": [1, "a"]}, graph_id="kept")
        event = await completion.within(20)
    failed_run = await watched_runtime.wait(failed_id)

    assert event.session_id != failed_run.session_id
    assert watched_runtime.session_store("main").read_state(event.session_id).memory["seen"] == [2, 1]
