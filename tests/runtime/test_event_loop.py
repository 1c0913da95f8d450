import asyncio
import gc
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from queenright.instrumentation.verdict import Verdict
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.llm.model import (
    Message,
    ModelError,
    ModelReply,
    OnText,
    ToolSpec,
    TransientModelError,
)
from queenright.runtime.nodes.inbox import Note
from queenright.runtime.nodes.node_guard import GuardFinding
from queenright.runtime.nodes.node_judge import FunctionJudge, Judgement, Turn
from queenright.runtime.tooling.tools import Tool
from tests.runtime.conftest import FakeTime, ScriptedModel
from tests.runtime.node_parts import Bench, Place, call_reply, output_reply


async def test_model_is_called_until_it_sets_its_output(tmp_path: Path, fake_time: FakeTime) -> None:
    model = ScriptedModel([call_reply(("look", '{"place": "hive"}')), output_reply(verdict="fine")])
    bench = Bench(tmp_path, model, fake_time)

    result = await bench.run(message="How is the hive?")

    assert (result.outcome, result.outputs, result.turns) == ("done", {"verdict": "fine"}, 2)
    assert (result.input_tokens, result.output_tokens, result.cost, result.tool_calls) == (20, 4, 1.0, 2)
    assert result.verdicts == ("CONTINUE", "ACCEPT")
    assert model.requests[0] == [
        Message(role="system", content="Be a bee."),
        Message(role="user", content="How is the hive?"),
    ]
    assert model.requests[1][-1] == Message(role="tool", content="looked at hive", tool_call_id="c0")
    assert model.offered_tools[0] == ["look", "set_output"]
    turn = ["llm_call_started", "llm_call_completed", "tool_call_started", "tool_call_completed"]
    step = ["step_started", *turn, "step_completed"]
    assert bench.list_event_types() == ["node_loop_started", *step, *step, "node_loop_completed"]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("look", '{"place": "nowhere"}', "error: look: there is no nowhere; try the hive"),
        ("look", '{"place": "void"}', "error: look failed: OSError: void"),
        ("look", '{"place": 7}', "error: look: place: 7 is refused: it must be text"),
        ("look", "{}", "error: look: place: it is required"),
        ("look", "{not json", "error: look: arguments: '{not json' is refused: it is not valid JSON"),
        ("fly", "{}", "error: there is no tool 'fly'; available: look, set_output"),
        ("ask_user", '{"question": "?"}', "error: there is no tool 'ask_user'; available: look, set_output"),
        ("set_output", '{"verdict": ""}', "error: set_output: verdict: must not be empty"),
        ("set_output", '{"verdict": null}', "error: set_output: verdict: must not be empty"),
        ("set_output", "{}", "error: set_output: no output is set; set at least one of: verdict"),
        ("set_output", '{"other": "x"}', "error: set_output: other: no such field"),
    ],
)
async def test_invalid_call_is_explained_to_the_model(
    tmp_path: Path, fake_time: FakeTime, name: str, arguments: str, expected: str
) -> None:
    model = ScriptedModel([call_reply((name, arguments)), output_reply(verdict="ok")])
    bench = Bench(tmp_path, model, fake_time)

    result = await bench.run()

    assert (result.outcome, result.verdicts) == ("done", ("CONTINUE", "ACCEPT"))
    assert model.requests[1][-1].content.startswith(expected)
    assert bench.list_event_data(EventType.TOOL_CALL_COMPLETED)[0]["outcome"] == "error"


async def test_successful_final_tool_ends_the_visit(tmp_path: Path, fake_time: FakeTime) -> None:
    model = ScriptedModel(
        [
            call_reply(("look", '{"place": "nowhere"}')),
            call_reply(("look", '{"place": "hive"}')),
            output_reply(verdict="late"),
        ]
    )
    bench = Bench(tmp_path, model, fake_time, final_tools=("look",))

    result = await bench.run()

    assert (result.outcome, result.outputs, result.turns) == ("done", {}, 2)
    assert result.verdicts == ("CONTINUE", "ACCEPT")


async def test_outputs_may_come_one_by_one_and_be_any_json(tmp_path: Path, fake_time: FakeTime) -> None:
    model = ScriptedModel(
        [
            call_reply(("set_output", '{"a": [1, {"b": null}]}')),
            call_reply(("set_output", '{"schema": 0.5, "note": null}')),
        ]
    )
    keys = ("a", "schema", "note", "rest")
    bench = Bench(tmp_path, model, fake_time, output_keys=keys, nullable_output_keys=("note", "rest"))

    result = await bench.run()

    assert (result.outcome, result.turns) == ("done", 2)
    assert result.outputs == {"a": [1, {"b": None}], "schema": 0.5, "note": None}


async def test_failing_model_is_recorded_without_a_verdict(tmp_path: Path, fake_time: FakeTime) -> None:
    """B51: an exception is never a verdict."""
    bench = Bench(tmp_path, ScriptedModel([ModelError("overloaded")]), fake_time)

    result = await bench.run()

    assert (result.outcome, result.error, result.outputs, result.turns) == ("no_answer", "overloaded", {}, 1)
    assert (result.error_type, result.verdicts) == ("ModelError", ())
    assert bench.conversation.messages[-1] == Message(role="user", content="(no answer: overloaded)")
    assert bench.list_event_data(EventType.STEP_COMPLETED)[0]["error_type"] == "ModelError"


class BrokenProvider:
    """A misbehaving provider."""

    name = "broken"

    def __init__(self, behave: Callable[[], Any]) -> None:
        self.behave = behave

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        await asyncio.sleep(0)
        answer: ModelReply = self.behave()
        return answer


class NotAsync(BrokenProvider):
    def complete(self, *_: Any) -> Any:
        return self.behave()


def raise_error(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def cancel_itself() -> ModelReply:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return ModelReply(text="too late")


NO_ANSWER = "the provider 'broken' ({}) returned a {}; its complete() must be async and return a ModelReply"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (BrokenProvider(raise_error(SystemExit(3))), "SystemExit: 3"),
        (BrokenProvider(raise_error(KeyboardInterrupt())), "KeyboardInterrupt: "),
        (BrokenProvider(raise_error(GeneratorExit())), "GeneratorExit: "),
        (BrokenProvider(raise_error(asyncio.CancelledError())), "CancelledError: cancelled from inside"),
        (NotAsync(raise_error(SystemExit(3))), "SystemExit: 3"),
        (BrokenProvider(lambda: None), NO_ANSWER.format("BrokenProvider", "NoneType")),
        (BrokenProvider(lambda: {"text": "hum"}), NO_ANSWER.format("BrokenProvider", "dict")),
        (NotAsync(lambda: "hum"), NO_ANSWER.format("NotAsync", "str")),
    ],
)
async def test_misbehaving_provider_fails_only_its_visit(
    model: BrokenProvider, expected: str, tmp_path: Path, fake_time: FakeTime
) -> None:
    loop_errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
    bench = Bench(tmp_path, model, fake_time)

    result = await bench.run()
    gc.collect()
    await asyncio.sleep(0)

    assert (result.outcome, result.error_type, result.error) == ("no_answer", "ModelError", expected)
    assert loop_errors == []


async def test_visit_without_an_answer_can_be_resumed(tmp_path: Path, fake_time: FakeTime) -> None:
    bench = Bench(tmp_path, ScriptedModel([RuntimeError("a bug")]), fake_time)
    assert (await bench.run()).error == "RuntimeError: a bug"

    resumed_bench = Bench(tmp_path, ScriptedModel([output_reply(verdict="ok")]), fake_time)
    result = await resumed_bench.run()

    assert (result.outcome, result.turns) == ("done", 1)
    assert [kind for kind, _ in resumed_bench.list_contents()] == ["input", "feedback", "assistant", "tool"]


async def test_hanging_model_times_out(tmp_path: Path, fake_time: FakeTime) -> None:
    """B51: a timeout is never a verdict, and leaves no task behind."""
    bench = Bench(tmp_path, HangingModel(), fake_time, model_timeout_seconds=30, model_attempts=1)
    run = asyncio.create_task(bench.run())
    other_tasks = asyncio.all_tasks() - {run}

    await fake_time.advance(29)
    assert not run.done()
    await fake_time.advance(1)

    assert "30 s" in str((await run).error)
    assert asyncio.all_tasks() == other_tasks


async def test_model_call_start_is_published_before_its_reply(tmp_path: Path, fake_time: FakeTime) -> None:
    """B19: a hang in the first step is visible, because its start was published."""
    bench = Bench(tmp_path, HangingModel(), fake_time)

    run = asyncio.create_task(bench.run())
    await fake_time.advance(1)

    assert bench.list_event_types() == ["node_loop_started", "step_started", "llm_call_started"]
    run.cancel()
    await asyncio.wait([run])


async def test_transient_failure_waits_as_backoff(tmp_path: Path, fake_time: FakeTime) -> None:
    """B18: the wait is reported, and at least as long as the provider requested."""
    busy_error = TransientModelError("429", retry_after=20)
    model = ScriptedModel([busy_error, TransientModelError("cut"), output_reply(verdict="ok")])
    bench = Bench(tmp_path, model, fake_time)

    run = asyncio.create_task(bench.run())
    await fake_time.advance(19)
    assert bench.list_event_data(EventType.WORKER_WAITING) == [
        {"reason": "backoff", "seconds": 20, "attempt": 1}
    ]
    await fake_time.advance(20)

    assert (await run).outcome == "done"
    waits = bench.list_event_data(EventType.WORKER_WAITING)
    assert [(data["reason"], data.get("attempt")) for data in waits] == [
        ("backoff", 1),
        (None, None),
        ("backoff", 2),
        (None, None),
    ]
    errors = [data.get("error_type") for data in bench.list_event_data(EventType.LLM_CALL_COMPLETED)]
    assert errors == ["TransientModelError", "TransientModelError", None]


async def test_provider_failures_are_counted_and_limited(tmp_path: Path, fake_time: FakeTime) -> None:
    """B34: each failed call counts, whatever the outcome of the step."""
    bench = Bench(tmp_path, ScriptedModel([TransientModelError("429")] * 9), fake_time, model_attempts=3)

    run = asyncio.create_task(bench.run())
    await fake_time.advance(60)

    result = await run
    assert (result.outcome, result.error, result.error_type) == ("no_answer", "429", "TransientModelError")
    assert len(bench.list_event_data(EventType.LLM_CALL_COMPLETED)) == 3
    assert [row["type"] for row in bench.cursor.guard] == ["llm_call_completed"] * 3


async def test_text_is_streamed_as_it_arrives(tmp_path: Path, fake_time: FakeTime) -> None:
    class Streaming(ScriptedModel):
        async def complete(
            self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
        ) -> ModelReply:
            assert on_text is not None
            on_text("All ")
            on_text("well.")
            return ModelReply(text="All well.")

    plain_bench = Bench(tmp_path / "a", Streaming(), fake_time, output_keys=())
    await plain_bench.run()
    streaming_bench = Bench(tmp_path / "b", Streaming(), fake_time, output_keys=(), client_facing=True)
    run = asyncio.create_task(streaming_bench.run())
    await fake_time.settle()
    run.cancel()
    await asyncio.wait([run])

    assert plain_bench.list_event_data(EventType.LLM_TEXT_DELTA) == [{"text": "All "}, {"text": "well."}]
    assert streaming_bench.list_event_data(EventType.CLIENT_OUTPUT_DELTA) == [
        {"text": "All "},
        {"text": "well."},
    ]


async def test_text_without_deltas_is_emitted_as_one_piece(tmp_path: Path, fake_time: FakeTime) -> None:
    replies = [ModelReply(text="All well.")]
    plain_bench = Bench(tmp_path / "a", ScriptedModel(replies), fake_time, output_keys=())
    await plain_bench.run()
    streaming_bench = Bench(
        tmp_path / "b", ScriptedModel(replies), fake_time, output_keys=(), client_facing=True
    )
    run = asyncio.create_task(streaming_bench.run())
    await fake_time.settle()
    run.cancel()
    await asyncio.wait([run])

    assert plain_bench.list_event_data(EventType.LLM_TEXT_DELTA) == [{"text": "All well."}]
    assert streaming_bench.list_event_data(EventType.CLIENT_OUTPUT_DELTA) == [{"text": "All well."}]


async def test_empty_reply_emits_no_text(tmp_path: Path, fake_time: FakeTime) -> None:
    bench = Bench(tmp_path, ScriptedModel([output_reply(verdict="ok")]), fake_time)

    await bench.run()

    assert bench.list_event_data(EventType.LLM_TEXT_DELTA) == []


async def test_text_answer_without_required_output_is_retried(tmp_path: Path, fake_time: FakeTime) -> None:
    """B51: an invalid answer is never a verdict."""
    model = ScriptedModel([ModelReply(text="All is well!"), output_reply(verdict="fine")])
    bench = Bench(tmp_path, model, fake_time)

    result = await bench.run()

    assert (result.outcome, result.verdicts) == ("done", ("RETRY", "ACCEPT"))
    assert model.requests[1][-1].content.startswith("You ended your turn without setting verdict.")


async def test_zero_retries_end_at_first_retry_verdict(tmp_path: Path, fake_time: FakeTime) -> None:
    bench = Bench(tmp_path, ScriptedModel([ModelReply(text="Well!")]), fake_time, max_retries=0)

    result = await bench.run()

    assert (result.outcome, result.text, result.turns) == ("incomplete", "Well!", 1)
    assert (result.verdicts, "verdict" in str(result.error)) == (("RETRY",), True)


async def test_retries_are_counted_over_the_visit(tmp_path: Path, fake_time: FakeTime) -> None:
    texts = [ModelReply(text=f"Well {n}") for n in range(9)]
    bench = Bench(tmp_path, ScriptedModel(texts), fake_time, max_retries=2)

    result = await bench.run()

    assert (result.outcome, result.turns, result.verdicts) == ("incomplete", 3, ("RETRY",) * 3)


async def test_text_answer_ends_node_without_outputs(tmp_path: Path, fake_time: FakeTime) -> None:
    bench = Bench(tmp_path, ScriptedModel([ModelReply(text="Hello.")]), fake_time, output_keys=())

    result = await bench.run()

    assert (result.outcome, result.text, result.outputs) == ("done", "Hello.", {})


async def test_endless_model_stops_at_max_turns(tmp_path: Path, fake_time: FakeTime) -> None:
    model = ScriptedModel([call_reply(("look", '{"place": "hive"}')) for _ in range(9)])
    bench = Bench(tmp_path, model, fake_time, max_turns=3)

    result = await bench.run()

    assert (result.outcome, result.turns, "max_turns" in str(result.error)) == ("incomplete", 3, True)
    assert len(model.requests) == 3


async def test_ended_visit_returns_its_stored_result(tmp_path: Path, fake_time: FakeTime) -> None:
    first_result = await Bench(tmp_path, ScriptedModel([output_reply(verdict="fine")]), fake_time).run()
    second_bench = Bench(tmp_path, ScriptedModel(), fake_time)

    assert await second_bench.run() == first_result
    assert second_bench.events == []


async def test_new_visit_sees_conversation_unless_fresh(tmp_path: Path, fake_time: FakeTime) -> None:
    await Bench(tmp_path, ScriptedModel([output_reply(verdict="one")]), fake_time).run("v1", "First.")
    second_model = ScriptedModel([output_reply(verdict="two")])
    result = await Bench(tmp_path, second_model, fake_time).run("v2", "Second.")
    third_model = ScriptedModel([output_reply(verdict="three")])
    await Bench(tmp_path, third_model, fake_time, fresh=True).run("v3", "Third.")

    assert [m.content for m in second_model.requests[0][1:]] == [
        "First.",
        "",
        '{"verdict": "one"}',
        "Second.",
    ]
    assert (result.outputs, result.turns, result.tool_calls) == ({"verdict": "two"}, 1, 1)
    assert [m.content for m in third_model.requests[0][1:]] == ["Third."]


async def test_long_conversation_is_shortened_and_keeps_the_task(tmp_path: Path, fake_time: FakeTime) -> None:
    calls = [call_reply(("look", f'{{"place": "{n}{"x" * 200}"}}')) for n in range(20)]
    model = ScriptedModel([*calls, output_reply(verdict="ok")])
    bench = Bench(tmp_path, model, fake_time, max_context_tokens=600)

    result = await bench.run(message="Find the queen.")

    assert (result.outcome, result.turns, result.tool_calls) == ("done", 21, 21)
    assert "Find the queen." in model.requests[-1][1].content
    assert all(sum(len(m.content) for m in message) < 4 * 600 for message in model.requests)


# -- tools ------------------------------------------------------------------------------------------


async def test_calls_of_one_turn_run_concurrently(tmp_path: Path, fake_time: FakeTime) -> None:
    """B31: parallel calls share their turn."""
    meeting = asyncio.Barrier(3)

    async def meet(arguments: Place) -> str:
        await meeting.wait()
        return f"met at {arguments.place}"

    places = [("meet", f'{{"place": "{place}"}}') for place in "abc"]
    model = ScriptedModel([call_reply(*places), output_reply(verdict="ok")])
    bench = Bench(tmp_path, model, fake_time, tools=[Tool("meet", "Meet.", Place, meet)])

    assert (await bench.run()).outcome == "done"
    answers = {m.tool_call_id: m.content for m in model.requests[1] if m.role == "tool"}
    assert answers == {"c0": "met at a", "c1": "met at b", "c2": "met at c"}
    turns = [data["turn"] for data in bench.list_event_data(EventType.TOOL_CALL_COMPLETED)]
    assert turns == ["n:0", "n:0", "n:0", "n:1"]


async def test_calls_with_equal_ids_get_unique_ids(tmp_path: Path, fake_time: FakeTime) -> None:
    first, second = call_reply(("look", '{"place": "a"}')), call_reply(("look", '{"place": "b"}'))
    reply = ModelReply(tool_calls=first.tool_calls + second.tool_calls)
    model = ScriptedModel([reply, output_reply(verdict="ok")])

    await Bench(tmp_path, model, fake_time).run()

    answers = {m.tool_call_id: m.content for m in model.requests[1] if m.role == "tool"}
    assert answers == {"c0": "looked at a", "call_1_2": "looked at b"}


async def test_declared_timeout_is_passed_to_tools_and_stored(tmp_path: Path, fake_time: FakeTime) -> None:
    """B21: observers know how long a call may be silent."""

    async def dig(arguments: Place) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    slow_tool = Tool("dig", "Dig.", Place, dig, timeout_seconds=2400)
    calls = call_reply(("dig", '{"place": "a"}'), ("look", '{"place": "b"}'))
    model = ScriptedModel([calls, output_reply(verdict="ok")])
    bench = Bench(tmp_path, model, fake_time, tools=[slow_tool, LOOK_TOOL], tool_timeout_seconds=7)

    run = asyncio.create_task(bench.run())
    await fake_time.advance(2399)
    assert not run.done()
    await fake_time.advance(1)

    assert (await run).outcome == "done"
    timeouts = {
        data["tool"]: data.get("timeout") for data in bench.list_event_data(EventType.TOOL_CALL_STARTED)
    }
    assert timeouts == {"dig": 2400, "look": 7, "set_output": None}
    [completion] = [d for d in bench.list_event_data(EventType.TOOL_CALL_COMPLETED) if d["tool"] == "dig"]
    assert (completion["outcome"], completion["error_type"], completion["duration"]) == (
        "timeout",
        "TimeoutError",
        2400,
    )
    [text] = [m.content for m in model.requests[1] if m.tool_call_id == "c0"]
    assert text.startswith("error: dig: ")
    assert "2400 s" in text


async def test_each_of_many_slow_calls_in_one_step_is_activity(tmp_path: Path, fake_time: FakeTime) -> None:
    """B20: fifteen calls that end one minute apart are not a stall."""

    class Numbered(BaseModel):
        number: int

    async def wait(arguments: Numbered) -> str:
        await fake_time.sleep(60 * arguments.number)
        return "done"

    calls = [("wait", f'{{"number": {n}}}') for n in range(1, 16)]
    model = ScriptedModel([call_reply(*calls), output_reply(verdict="ok")])
    tool = Tool("wait", "Wait.", Numbered, wait, timeout_seconds=3600)
    bench = Bench(tmp_path, model, fake_time, tools=[tool])

    run = asyncio.create_task(bench.run())
    await fake_time.advance(901)
    await run

    step = bench.list_event_types().index("step_completed")
    ends = [e.time for e in bench.events[:step] if e.type is EventType.TOOL_CALL_COMPLETED]
    assert [end - 1_000_000 for end in ends] == [60 * n for n in range(1, 16)]


async def test_node_cancelled_during_tools_leaves_none_running(tmp_path: Path, fake_time: FakeTime) -> None:
    ended_places: list[str] = []

    async def dig(arguments: Place) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended_places.append(arguments.place)
        raise AssertionError

    calls = call_reply(("dig", '{"place": "a"}'), ("look", '{"place": "b"}'), ("dig", '{"place": "c"}'))
    tools = [Tool("dig", "Dig.", Place, dig), LOOK_TOOL]
    bench = Bench(tmp_path, ScriptedModel([calls]), fake_time, tools=tools)
    run = asyncio.create_task(bench.run())
    await fake_time.settle()
    run.cancel()
    await asyncio.wait([run])

    assert run.cancelled()
    assert ended_places == ["a", "c"]
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("tool")]
    model = ScriptedModel([output_reply(verdict="ok")])
    resumed_bench = Bench(tmp_path, model, fake_time, tools=tools)
    assert (await resumed_bench.run()).outcome == "done"
    answers = {m.tool_call_id: m.content for m in model.requests[0] if m.role == "tool"}
    assert answers["c1"] == "looked at b"
    assert answers["c0"] == answers["c2"] != ""
    assert "may or may not have taken effect" in answers["c0"]


async def test_cancelled_step_is_not_an_error(tmp_path: Path, fake_time: FakeTime) -> None:
    bench = Bench(tmp_path, HangingModel(), fake_time)
    run = asyncio.create_task(bench.run())
    await fake_time.settle()
    run.cancel()
    await asyncio.wait([run])

    [step] = bench.list_event_data(EventType.STEP_COMPLETED)
    [call] = bench.list_event_data(EventType.LLM_CALL_COMPLETED)
    assert "error_type" not in step | call
    assert "verdict" not in step


# -- judges and guards ------------------------------------------------------------------------------


async def test_judge_can_retry_complete_outputs(tmp_path: Path, fake_time: FakeTime) -> None:
    turns: list[Turn] = []

    def judge(turn: Turn) -> Judgement:
        turns.append(turn)
        if turn.outputs["verdict"] == "draft":
            return Judgement(Verdict.RETRY, "Say more.")
        return Judgement(Verdict.ACCEPT)

    model = ScriptedModel(
        [
            output_reply(verdict="draft"),
            call_reply(("look", '{"place": "hive"}')),
            output_reply(verdict="better"),
        ]
    )
    bench = Bench(tmp_path, model, fake_time, judge=FunctionJudge(judge))

    result = await bench.run()

    assert (result.outputs, result.verdicts) == ({"verdict": "better"}, ("RETRY", "CONTINUE", "ACCEPT"))
    assert model.requests[1][-1] == Message(role="user", content="Say more.")
    assert [turn.iteration for turn in turns] == [1, 3]


async def test_judge_can_escalate(tmp_path: Path, fake_time: FakeTime) -> None:
    judge = FunctionJudge(lambda turn: Judgement(Verdict.ESCALATE, "beyond it"))
    bench = Bench(tmp_path, ScriptedModel([output_reply(verdict="x")]), fake_time, judge=judge)

    result = await bench.run()

    assert (result.outcome, result.error, result.verdicts) == ("escalated", "beyond it", ("ESCALATE",))
    assert bench.list_event_data(EventType.STEP_COMPLETED)[0]["verdict"] == "ESCALATE"


async def test_continue_verdict_adds_feedback(tmp_path: Path, fake_time: FakeTime) -> None:
    verdicts = iter([Verdict.CONTINUE, Verdict.ACCEPT])
    model = ScriptedModel([ModelReply(text="One."), ModelReply(text="Two.")])
    judge = FunctionJudge(lambda turn: next(verdicts))
    bench = Bench(tmp_path, model, fake_time, output_keys=(), judge=judge)

    assert (await bench.run()).verdicts == ("CONTINUE", "ACCEPT")
    assert model.requests[1][-1] == Message(role="user", content="Go on.")


async def test_failing_judge_fails_visit_and_can_be_retried(tmp_path: Path, fake_time: FakeTime) -> None:
    def judge(turn: Turn) -> bool:
        raise ZeroDivisionError("oops")

    bench = Bench(tmp_path, ScriptedModel([output_reply(verdict="x")]), fake_time, judge=FunctionJudge(judge))
    result = await bench.run()
    second_result = await Bench(tmp_path, ScriptedModel(), fake_time).run()

    assert (result.outcome, result.error_type) == ("failed", "JudgeFailedError")
    assert "ZeroDivisionError: oops" in str(result.error)
    assert (second_result.outcome, second_result.turns, second_result.verdicts) == ("done", 1, ("ACCEPT",))


class CountingGuard:
    """A guard that warns from the second tool call on, and stops from call ``limit`` on."""

    def __init__(self, limit: int = 99, *, hold_seconds: float = 0) -> None:
        self.limit = limit
        self.hold_seconds = hold_seconds
        self.events: list[AgentEvent] = []

    def observe(self, event: AgentEvent) -> GuardFinding | None:
        self.events.append(event)
        calls = sum(1 for e in self.events if e.type is EventType.TOOL_CALL_COMPLETED)
        if event.type is EventType.TOOL_CALL_COMPLETED and calls >= 2:
            should_stop = calls >= self.limit
            return GuardFinding(
                "doom_loop", f"{calls} calls", stop=should_stop, hold_seconds=self.hold_seconds
            )
        return None

    def reset(self) -> None:
        self.events.clear()


async def test_guard_warning_is_given_once(tmp_path: Path, fake_time: FakeTime) -> None:
    model = ScriptedModel(
        [call_reply(("look", '{"place": "hive"}')) for _ in range(4)] + [output_reply(verdict="ok")]
    )
    bench = Bench(tmp_path, model, fake_time, guard=CountingGuard())

    assert (await bench.run()).outcome == "done"
    feedback = [text for kind, text in bench.list_contents() if kind == "feedback"]
    assert feedback == ["You may be going in circles: 2 calls. Try something else."]
    assert model.requests[2][-1].content == feedback[0]


async def test_guard_can_stop_the_visit(tmp_path: Path, fake_time: FakeTime) -> None:
    guard = CountingGuard(limit=3)
    model = ScriptedModel([call_reply(("look", '{"place": "hive"}')) for _ in range(9)])
    bench = Bench(tmp_path, model, fake_time, guard=guard)

    result = await bench.run()

    assert (result.outcome, result.error, result.error_type) == ("escalated", "3 calls", "doom_loop")
    assert result.verdicts == ("CONTINUE", "CONTINUE", "ESCALATE")
    assert bench.list_event_data(EventType.STEP_COMPLETED)[-1]["verdict"] == "ESCALATE"
    order = ["llm_call_completed", "tool_call_completed", "step_completed"]
    assert [event.type.value for event in guard.events] == order * 3
    assert all(event.node_id == "n" and event.agent_id == "bee" for event in guard.events)


def make_look_replies(times: int) -> list[ModelReply]:
    return [call_reply(("look", '{"place": "hive"}')) for _ in range(times)]


async def test_paused_visit_calls_no_model_and_continues_with_a_note(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    """B33: after the note, the counters of the visit start again."""
    model = ScriptedModel([*make_look_replies(4), output_reply(verdict="ok")])
    bench = Bench(tmp_path, model, fake_time, guard=CountingGuard(limit=3, hold_seconds=600))

    run = asyncio.create_task(bench.run())
    await fake_time.advance(599)
    request_count = len(model.requests)
    note = Note(note_id="n1", content="REMINDER", incarnation_id=bench.reporter.origin.incarnation_id)
    await bench.node.send_note(note)
    result = await run

    assert request_count == 3
    assert (result.outcome, result.turns) == ("done", 5)
    assert model.requests[3][-1].content == "REMINDER"
    assert bench.list_event_data(EventType.STEP_COMPLETED)[2]["verdict"] == "ESCALATE"


async def test_paused_visit_without_input_is_escalated(tmp_path: Path, fake_time: FakeTime) -> None:
    bench = Bench(
        tmp_path,
        ScriptedModel(make_look_replies(9)),
        fake_time,
        guard=CountingGuard(limit=3, hold_seconds=600),
    )

    run = asyncio.create_task(bench.run())
    await fake_time.advance(599)
    was_paused = not run.done()
    await fake_time.advance(2)
    result = await run

    assert was_paused
    assert (result.outcome, result.error, result.turns) == ("escalated", "3 calls", 3)


async def test_paused_visit_is_paused_again_after_a_kill(tmp_path: Path, fake_time: FakeTime) -> None:
    """B33: the guard gets the events from before the kill."""
    bench = Bench(
        tmp_path,
        ScriptedModel(make_look_replies(3)),
        fake_time,
        guard=CountingGuard(limit=3, hold_seconds=600),
    )
    run = asyncio.create_task(bench.run())
    await fake_time.advance(10)
    run.cancel()
    await asyncio.wait([run])

    model = ScriptedModel([output_reply(verdict="ok")])
    resumed_bench = Bench(tmp_path, model, fake_time, guard=CountingGuard(limit=3, hold_seconds=600))
    second_run = asyncio.create_task(resumed_bench.run())
    await fake_time.advance(599)
    request_count = len(model.requests)
    await resumed_bench.node.inject("Stop looking.")
    result = await second_run

    assert request_count == 0
    assert result.outcome == "done"


async def test_default_retry_limit_applies_without_guard(tmp_path: Path, fake_time: FakeTime) -> None:
    texts = [ModelReply(text="Well!") for _ in range(9)]
    without_guard = Bench(tmp_path / "alone", ScriptedModel(texts), fake_time)
    with_guard = Bench(
        tmp_path / "watched",
        ScriptedModel([*texts, output_reply(verdict="ok")]),
        fake_time,
        guard=CountingGuard(),
    )

    without_guard_result = await without_guard.run()
    result = await with_guard.run()

    assert (without_guard_result.outcome, without_guard_result.turns) == ("incomplete", 4)
    assert (result.outcome, result.turns) == ("done", 10)


@pytest.mark.parametrize(("hold_seconds", "outcome", "turns"), [(0.0, "incomplete", 3), (600.0, "done", 10)])
async def test_retry_limit_does_not_end_a_visit_that_the_guard_pauses(
    tmp_path: Path, fake_time: FakeTime, hold_seconds: float, outcome: str, turns: int
) -> None:
    """
    The guard pauses after many bad steps. Only if it does not pause does the retry limit apply.
    """
    model = ScriptedModel([*(ModelReply(text="Well!") for _ in range(9)), output_reply(verdict="ok")])
    guard = CountingGuard(hold_seconds=hold_seconds)
    bench = Bench(tmp_path, model, fake_time, guard=guard, max_retries=2)

    result = await bench.run()

    assert (result.outcome, result.turns) == (outcome, turns)


async def test_user_input_is_shown_to_the_guard(tmp_path: Path, fake_time: FakeTime) -> None:
    guard = CountingGuard()
    bench = Bench(tmp_path, ScriptedModel([output_reply(verdict="ok")]), fake_time, guard=guard)
    await bench.node.inject("Hurry.")

    await bench.run()

    assert EventType.CLIENT_INPUT_RECEIVED in [event.type for event in guard.events]


async def test_guard_history_survives_a_kill(tmp_path: Path, fake_time: FakeTime) -> None:
    """B33: after a kill between the second and the third call, the third call still stops the visit."""
    calls = [call_reply(("look", '{"place": "hive"}')) for _ in range(2)]
    first_guard = CountingGuard(limit=3)
    bench = Bench(tmp_path, HangingAtEndModel(calls), fake_time, guard=first_guard)
    run = asyncio.create_task(bench.run())
    await fake_time.settle()
    run.cancel()
    await asyncio.wait([run])

    second_guard = CountingGuard(limit=3)
    resumed_bench = Bench(tmp_path, ScriptedModel([calls[0]]), fake_time, guard=second_guard)
    result = await resumed_bench.run()

    assert (result.outcome, result.error, result.turns) == ("escalated", "3 calls", 3)
    guard_events = [(e.type, e.time, dict(e.data)) for e in second_guard.events]
    assert guard_events[: len(first_guard.events)] == [
        (e.type, e.time, dict(e.data)) for e in first_guard.events
    ]


async def test_failing_guard_is_ignored(
    tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    class BrokenGuard:
        hold_seconds = 0.0

        def observe(self, event: AgentEvent) -> GuardFinding | None:
            raise ZeroDivisionError

        def reset(self) -> None:
            pass

    bench = Bench(tmp_path, ScriptedModel([output_reply(verdict="ok")]), fake_time, guard=BrokenGuard())

    assert (await bench.run()).outcome == "done"
    assert "guard of node n" in caplog.text


# -- the user ---------------------------------------------------------------------------------------


async def test_question_waits_for_the_user(tmp_path: Path, fake_time: FakeTime) -> None:
    """B17: the wait is reported, and ends with the reply."""
    model = ScriptedModel(
        [call_reply(("ask_user", '{"question": "Which hive?"}')), output_reply(verdict="ok")]
    )
    bench = Bench(tmp_path, model, fake_time, client_facing=True)

    run = asyncio.create_task(bench.run())
    await fake_time.advance(3 * 3600)

    assert (bench.node.is_waiting_for_user, bench.node.question) == (True, "Which hive?")
    assert bench.list_event_data(EventType.CLIENT_INPUT_REQUESTED) == [{"question": "Which hive?"}]
    assert bench.list_event_types()[-2:] == ["client_input_requested", "worker_waiting"]
    assert bench.list_event_data(EventType.WORKER_WAITING) == [{"reason": "user_input"}]
    await bench.node.inject("The left one.")
    result = await run
    assert (result.outcome, result.verdicts) == ("done", ("CONTINUE", "ACCEPT"))
    assert bench.list_event_data(EventType.WORKER_WAITING)[-1] == {"reason": None}
    assert "client_input_received" in bench.list_event_types()
    assert model.requests[1][-2:] == [
        Message(role="tool", content="asked", tool_call_id="c0"),
        Message(role="user", content="The left one."),
    ]
    assert (bench.node.is_waiting_for_user, bench.cursor.user_interaction_count) == (False, 1)


async def test_client_facing_node_talks_to_user_before_it_ends(tmp_path: Path, fake_time: FakeTime) -> None:
    model = ScriptedModel([output_reply(verdict="ok"), ModelReply(text="Bye.")])
    bench = Bench(tmp_path, model, fake_time, client_facing=True)

    run = asyncio.create_task(bench.run())
    await fake_time.settle()
    assert (bench.node.is_waiting_for_user, bench.node.question) == (True, "verdict: ok")
    await bench.node.inject("Fine.")

    assert (await run).outputs == {"verdict": "ok"}


async def test_input_during_last_turn_continues_the_visit(tmp_path: Path, fake_time: FakeTime) -> None:
    """The node continues, although its outputs are complete."""
    bench: Bench

    class InterruptedModel(ScriptedModel):
        async def complete(
            self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
        ) -> ModelReply:
            if len(self.requests) == 1:
                await bench.node.inject("Wait, the other one!")
            return await super().complete(messages, tools, on_text)

    model = InterruptedModel(
        [ModelReply(text="Which?"), output_reply(verdict="left"), output_reply(verdict="right")]
    )
    bench = Bench(tmp_path, model, fake_time, client_facing=True)
    run = asyncio.create_task(bench.run())
    await fake_time.settle()
    await bench.node.inject("The left one.")

    result = await run

    assert (result.outputs, result.verdicts) == ({"verdict": "right"}, ("CONTINUE", "CONTINUE", "ACCEPT"))
    assert model.requests[2][-1].content == "Wait, the other one!"
    assert list((tmp_path / "inbox").iterdir()) == []


async def test_input_during_a_turn_is_read_at_the_next(tmp_path: Path, fake_time: FakeTime) -> None:
    model = ScriptedModel([call_reply(("look", '{"place": "hive"}')), output_reply(verdict="ok")])
    bench = Bench(tmp_path, model, fake_time)
    await bench.node.inject("first")
    await bench.node.inject("second")

    await bench.run()

    assert [m.content for m in model.requests[0][1:]] == ["Go.", "first", "second"]
    assert list((tmp_path / "inbox").iterdir()) == []


async def test_input_left_in_inbox_by_a_kill_is_read_once(tmp_path: Path, fake_time: FakeTime) -> None:
    bench = Bench(tmp_path, HangingAtEndModel([]), fake_time)
    await bench.node.inject("hello")
    [file] = (tmp_path / "inbox").iterdir()
    content = file.read_bytes()
    run = asyncio.create_task(bench.run())
    await fake_time.settle()
    run.cancel()
    await asyncio.wait([run])

    file.write_bytes(content)
    (tmp_path / "inbox" / "torn.json").write_text('{"content": ')
    resumed_bench = Bench(tmp_path, ScriptedModel([output_reply(verdict="ok")]), fake_time)
    await resumed_bench.run()

    assert [text for kind, text in resumed_bench.list_contents() if kind == "user"] == ["hello"]
    assert resumed_bench.cursor.user_interaction_count == 1
    assert [path.name for path in (tmp_path / "inbox").iterdir()] == ["torn.json"]


async def test_log_of_an_invalid_note_has_its_path_and_no_values(
    tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path, ScriptedModel([output_reply(verdict="ok")]), fake_time)
    await bench.node.inject("hello")
    path = tmp_path / "inbox" / "1.json"
    path.write_text(json.dumps({"content": "hi", "note_id": "n1", "incarnation_id": ["s3cret"]}))

    await bench.run()

    assert f"{path} cannot be used: incarnation_id: " in caplog.text
    assert "s3cret" not in caplog.text


async def test_note_with_an_invalid_expiry_time_does_not_expire(tmp_path: Path, fake_time: FakeTime) -> None:
    bench = Bench(tmp_path, ScriptedModel([output_reply(verdict="ok")]), fake_time)
    note = Note(note_id="n1", content="REMINDER", incarnation_id=bench.reporter.origin.incarnation_id)
    await bench.node.send_note(note)
    [path] = (tmp_path / "inbox").iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"expires_at": "soon"}))

    await bench.run()

    assert ("feedback", "REMINDER") in bench.list_contents()


class HangingModel(ScriptedModel):
    """A model that never answers."""

    async def complete(self, *_: Any) -> ModelReply:
        await asyncio.Event().wait()
        raise AssertionError


class HangingAtEndModel(ScriptedModel):
    """A model that gives its replies and then hangs."""

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        if not self.replies:
            await asyncio.Event().wait()
        return await super().complete(messages, tools, on_text)


def look(arguments: Place) -> str:
    return f"looked at {arguments.place}"


LOOK_TOOL = Tool("look", "Look at a place.", Place, look)
