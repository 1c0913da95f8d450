import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from queenright.runtime.conversation import Conversation
from queenright.runtime.event_loop import EventLoopNode
from queenright.runtime.events import EventType
from queenright.runtime.graph import NodeSpec
from queenright.runtime.model import Message, ModelError, ModelReply
from queenright.runtime.tools import Tool, ToolError, ToolRegistry
from tests.runtime.conftest import FakeTime, ScriptedModel, calls


class Where(BaseModel):
    place: str


def look(given: Where) -> str:
    if given.place == "nowhere":
        raise ToolError("there is no nowhere; try the hive")
    if given.place == "void":
        raise OSError("void")
    return f"looked at {given.place}"


LOOK = Tool("look", "Look at a place.", Where, look)


class Bench:
    """A node on a table: its model, its conversation, the events it emitted."""

    def __init__(self, path: Path, model: ScriptedModel, time: FakeTime, **spec: Any) -> None:
        fields = {
            "id": "n",
            "system_prompt": "Be a bee.",
            "tools": ("look",),
            "output_keys": ("verdict",),
        } | spec
        self.events: list[tuple[EventType, Mapping[str, Any]]] = []
        self.conversation = Conversation(path, max_messages=60, max_characters=60_000)
        self.node = EventLoopNode(
            NodeSpec(**fields),
            model=model,
            tools=ToolRegistry([LOOK]),
            conversation=self.conversation,
            emit=self.emit,
            sleep=time.sleep,
        )

    async def emit(self, event_type: EventType, data: Mapping[str, Any]) -> None:
        self.events.append((event_type, data))


async def test_the_model_is_asked_again_until_it_sets_its_output(tmp_path: Path, fake_time: FakeTime) -> None:
    model = ScriptedModel([calls("look", '{"place": "hive"}'), calls("set_output", '{"verdict": "fine"}')])
    bench = Bench(tmp_path, model, fake_time)

    result = await bench.node.run("How is the hive?")

    assert (result.outcome, result.outputs, result.turns) == ("done", {"verdict": "fine"}, 2)
    assert model.shown[0] == [
        Message(role="system", content="Be a bee."),
        Message(role="user", content="How is the hive?"),
    ]
    assert model.shown[1][-1] == Message(role="tool", content="looked at hive", tool_call_id="c1")
    assert model.offered[0] == ["look", "set_output"]
    assert [t for t, _ in bench.events] == [
        EventType.NODE_LOOP_STARTED,
        EventType.LLM_CALL_COMPLETED,
        EventType.TOOL_CALL_COMPLETED,
        EventType.LLM_CALL_COMPLETED,
        EventType.TOOL_CALL_COMPLETED,
        EventType.NODE_LOOP_COMPLETED,
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("look", '{"place": "nowhere"}', "error: look: there is no nowhere; try the hive"),
        ("look", '{"place": "void"}', "error: look failed: OSError: void"),
        ("look", '{"place": 7}', "error: look: place: Input should be a valid string (given: 7)"),
        ("look", "{}", "error: look: place: Field required"),
        ("look", "{not json", "error: look: arguments: Invalid JSON"),
        ("fly", "{}", "error: there is no tool 'fly'; there are: look, set_output"),
        (
            "set_output",
            '{"verdict": ""}',
            "error: set_output: verdict: String should have at least 1 character",
        ),
        ("set_output", '{"other": "x"}', "error: set_output: verdict: Field required; other: Extra inputs"),
    ],
)
async def test_whatever_is_wrong_with_a_call_is_told_to_the_model(
    tmp_path: Path, fake_time: FakeTime, name: str, arguments: str, told: str
) -> None:
    model = ScriptedModel([calls(name, arguments), calls("set_output", '{"verdict": "ok"}')])
    bench = Bench(tmp_path, model, fake_time)

    result = await bench.node.run("Go.")

    assert result.outcome == "done"
    assert model.shown[1][-1].content.startswith(told)


async def test_a_model_that_fails_is_no_answer_and_the_conversation_says_so(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    """B51: an exception is never a verdict."""
    bench = Bench(tmp_path, ScriptedModel([ModelError("overloaded")]), fake_time)

    result = await bench.node.run("Go.")

    assert (result.outcome, result.error, result.outputs) == ("no_answer", "overloaded", {})
    assert bench.conversation.messages[-1] == Message(role="assistant", content="(no answer: overloaded)")


async def test_a_model_that_hangs_is_given_up_at_its_time_limit(tmp_path: Path, fake_time: FakeTime) -> None:
    """B51: a timeout is never a verdict, and leaves no task behind."""

    class Hanging(ScriptedModel):
        async def complete(self, *_: Any) -> ModelReply:
            await asyncio.Event().wait()
            raise AssertionError

    bench = Bench(tmp_path, Hanging(), fake_time, model_timeout_seconds=30)
    run = asyncio.create_task(bench.node.run("Go."))
    others = asyncio.all_tasks() - {run}

    await fake_time.advance(29)
    assert not run.done()
    await fake_time.advance(1)

    assert (await run).error == "no answer within 30 s"
    assert asyncio.all_tasks() == others


async def test_an_answer_in_words_is_incomplete_where_an_output_is_wanted(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    """B51: an invalid answer is never a verdict."""
    bench = Bench(tmp_path, ScriptedModel([ModelReply(text="All is well!")]), fake_time)

    result = await bench.node.run("Go.")

    assert (result.outcome, result.text) == ("incomplete", "All is well!")
    assert result.error == "ended without setting verdict"


async def test_an_answer_in_words_is_enough_where_no_output_is_wanted(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    bench = Bench(tmp_path, ScriptedModel([ModelReply(text="Hello.")]), fake_time, output_keys=())

    result = await bench.node.run("Hi.")

    assert (result.outcome, result.text) == ("done", "Hello.")


async def test_a_model_that_never_ends_is_stopped_after_its_turns(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    model = ScriptedModel([calls("look", '{"place": "hive"}', f"c{n}") for n in range(9)])
    bench = Bench(tmp_path, model, fake_time, max_turns=3)

    result = await bench.node.run("Go.")

    assert (result.outcome, result.turns, result.error) == ("incomplete", 3, "not done after 3 turns")
    assert len(model.shown) == 3


async def test_several_calls_of_one_turn_are_all_answered(tmp_path: Path, fake_time: FakeTime) -> None:
    first, second = calls("look", '{"place": "a"}', "1"), calls("look", '{"place": "b"}', "2")
    both = ModelReply(tool_calls=first.tool_calls + second.tool_calls)
    model = ScriptedModel([both, calls("set_output", '{"verdict": "ok"}')])
    bench = Bench(tmp_path, model, fake_time)

    await bench.node.run("Go.")

    assert [(m.tool_call_id, m.content) for m in model.shown[1][-2:]] == [
        ("1", "looked at a"),
        ("2", "looked at b"),
    ]


def test_a_tool_is_registered_once() -> None:
    with pytest.raises(ValueError, match="'look' is registered twice"):
        ToolRegistry([LOOK, LOOK])
