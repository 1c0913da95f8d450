"""Events of a running graph match the documentation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.graphs.goal import Goal, SuccessCriterion
from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolSpec, TransientModelError
from tests.runtime.conftest import FakeTime, ScriptedModel, tool_call_reply

PAGE = Path(__file__).parents[2] / "docs" / "events.md"


def read_documented_keys() -> dict[EventType, tuple[set[str], set[str]]]:
    """Return the required keys and all keys of ``data``, by event type."""
    rows: dict[EventType, tuple[set[str], set[str]]] = {}
    for line in PAGE.read_text("utf-8").partition("## Event stream")[0].splitlines():
        if not line.startswith("| `"):
            continue
        types, keys = line.strip("| ").split(" | ", 1)
        matches = re.findall(r"`(\w+)`(\??)", re.sub(r"\([^)]*\)", "", keys))
        required_keys = {key for key, optional in matches if not optional}
        for name in re.findall(r"`(\w+)`", types):
            rows[EventType(name)] = (required_keys, {key for key, _ in matches})
    return rows


class StreamingModel(ScriptedModel):
    """A scripted model that also streams its text."""

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        reply = await super().complete(messages, tools, on_text)
        if on_text is not None and reply.text:
            on_text(reply.text)
        return reply


GRAPH = GraphSpec(
    id="g",
    nodes=(
        NodeSpec(id="ask", system_prompt="Ask.", client_facing=True, output_keys=("topic",)),
        NodeSpec(id="count", node_type="function", function="count", output_keys=("words",)),
        NodeSpec(id="write", system_prompt="Write."),
    ),
    edges=(EdgeSpec(source="ask", target="count"), EdgeSpec(source="count", target="write")),
    entry_points=(EntryPointSpec(id="start", node_id="ask"),),
)
GOAL = Goal(id="done", success_criteria=(SuccessCriterion(id="counted", expression="words > 1"),))


async def test_every_event_of_a_graph_has_the_documented_keys(tmp_path: Path, fake_time: FakeTime) -> None:
    """B63: each event has its graph."""
    bus = EventBus()
    events: list[AgentEvent] = []
    bus.subscribe(events.append, name="reader")
    runtime = AgentRuntime(
        bus=bus,
        storage=tmp_path,
        clock=fake_time,
        monotonic=fake_time,
        sleep=fake_time.sleep,
        disk=fake_time.disk,
    )
    model = StreamingModel(
        [
            TransientModelError("the hive is busy"),
            ModelReply(text="What about?"),
            tool_call_reply("set_output", '{"topic": "bees and wax"}'),
            ModelReply(text="Bees and wax."),
        ]
    )
    runtime.add_graph(GRAPH, model=model, functions={"count": lambda: 3}, goal=GOAL, agent_id="bee")
    await runtime.start()

    with bus.expect(EventType.CLIENT_INPUT_REQUESTED) as question:
        execution = await runtime.trigger("start", {"message": "hello"})
        await fake_time.advance(120)
        await question
        await fake_time.settle()
        await runtime.inject_input("ask", "Bees and wax, please.")
        await fake_time.advance(1)
        result = await runtime.wait(execution)
    await runtime.stop()
    await bus.drain()

    rows = read_documented_keys()
    assert result.succeeded
    assert {event.type for event in events} >= {
        EventType.EXECUTION_STARTED,
        EventType.CLIENT_OUTPUT_DELTA,
        EventType.LLM_TEXT_DELTA,
        EventType.CLIENT_INPUT_RECEIVED,
        EventType.WORKER_WAITING,
        EventType.TOOL_CALL_COMPLETED,
        EventType.EDGE_TRAVERSED,
        EventType.GOAL_PROGRESS,
        EventType.CHECKPOINT_SAVED,
        EventType.EXECUTION_COMPLETED,
    }
    for event in events:
        required_keys, all_keys = rows[event.type]
        assert required_keys <= event.data.keys() <= all_keys, event
        assert (event.graph_id, event.stream_id, event.agent_id) == ("g", "g::start", "bee")


def test_every_event_is_documented() -> None:
    assert set(read_documented_keys()) == set(EventType)
