import asyncio
import json
import math
import threading
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from queenright.instrumentation import current_worker
from queenright.runtime.llm.model import ToolCall
from queenright.runtime.tooling.tools import Tool, ToolError, ToolRegistry, ToolResult, tool_from_function


async def call_tool(tool: Tool, arguments: str, **context: object) -> str:
    return (await ToolRegistry([tool]).call(ToolCall("c1", tool.name, arguments), context)).content


def find_insects(
    place: str, depth: Annotated[int, Field(ge=0)] = 1, kind: Literal["bee", "wasp"] = "bee"
) -> dict[str, Any]:
    """
    Find what flies.

    It looks twice.

    Args:
        place: Where to look,
            and nowhere else.
        depth (int): How deep.

    Returns:
        place: not this one
    """
    return {"place": place, "depth": depth, "kind": kind}


async def test_function_becomes_a_tool_with_its_annotations_and_docstring() -> None:
    tool = tool_from_function(find_insects, timeout_seconds=5)

    assert (tool.name, tool.description) == ("find_insects", "Find what flies.\n\nIt looks twice.")
    assert (tool.timeout_seconds, tool.threaded) == (5, True)
    properties = tool.spec.parameters["properties"]
    assert properties["place"]["description"] == "Where to look, and nowhere else."
    assert properties["depth"]["description"] == "How deep."
    assert properties["kind"]["enum"] == ["bee", "wasp"]
    assert tool.spec.parameters["required"] == ["place"]
    assert json.loads(await call_tool(tool, '{"place": "hive"}')) == {
        "place": "hive",
        "depth": 1,
        "kind": "bee",
    }
    assert (await call_tool(tool, '{"depth": -1}')).startswith(
        "error: find_insects: place: it is required; depth: -1 is refused"
    )
    assert "extra" in (await call_tool(tool, '{"place": "x", "extra": 1}'))


async def test_async_function_runs_on_the_loop_with_any_parameter_name() -> None:
    class Hive(BaseModel):
        bees: int

    async def schema(json: str, copy: Hive, model_config: int = 0) -> Hive:
        return copy

    tool = tool_from_function(schema, name="count")

    assert (tool.name, tool.threaded) == ("count", False)
    assert await call_tool(tool, '{"json": "x", "copy": {"bees": 3}}') == '{"bees":3}'


async def test_context_parameters_come_only_from_the_runtime() -> None:
    def where(place: str, session_id: str, runtime: object = None) -> str:
        return f"{place} {session_id} {runtime}"

    tool = tool_from_function(where)

    assert list(tool.spec.parameters["properties"]) == ["place"]
    assert set(tool.context) == {"session_id", "runtime"}
    assert await call_tool(tool, '{"place": "hive"}', session_id="s1", agent_id="bee") == "hive s1 None"
    assert (await call_tool(tool, '{"place": "hive", "session_id": "s2"}')).startswith(
        "error: where: session_id"
    )


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda *places: "", "cannot be passed by name"),
        (lambda **places: "", "cannot be passed by name"),
        (lambda place, /: "", "cannot be passed by name"),
    ],
)
def test_function_with_unnamed_parameters_is_rejected(function: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        tool_from_function(function)


def test_annotation_that_cannot_be_checked_is_refused() -> None:
    def wait_for(event: threading.Event) -> str:
        return ""

    with pytest.raises(TypeError, match="tool 'wait_for' has an annotation that cannot be validated"):
        tool_from_function(wait_for)


SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"place": "hive", "more": [1]}', '{"place": "hive", "more": [1]}'),
        ("", "{}"),
        ("[]", "error: raw: arguments: [] is refused: it must be an object"),
        ("{", "error: raw: arguments: it is not valid JSON"),
        ("[" * 100_000, "error: raw: arguments: it is not valid JSON"),
    ],
)
async def test_raw_schema_is_passed_unchanged_and_must_be_an_object(arguments: str, expected: str) -> None:
    tool = Tool("raw", "Raw.", SCHEMA, lambda arguments: arguments)

    assert tool.spec.parameters is SCHEMA
    assert (await call_tool(tool, arguments)).startswith(expected)


class Weight(BaseModel):
    grams: float


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("words", "words"),
        (None, "null"),
        ([1, "ä"], '[1, "ä"]'),
        ({1, 2}, '"{1, 2}"'),
        (
            {"a": [math.nan, 1.5], "NaN": math.inf, "c": -math.inf},
            '{"a": [null, 1.5], "NaN": null, "c": null}',
        ),
        (math.nan, "null"),
        (Weight(grams=math.inf), '{"grams":null}'),
    ],
)
async def test_result_that_is_not_text_becomes_json(answer: object, text: str) -> None:
    assert await call_tool(Tool("say", "Say.", {}, lambda arguments: answer), "{}") == text


class UnexpectedError(BaseException):
    """A failure that is not an Exception, and whose message fails."""

    def __str__(self) -> str:
        raise ValueError("no words")


FAILURES = [
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    StopIteration(),
    OSError("gone"),
    UnexpectedError(),
    BaseExceptionGroup("two", [SystemExit(1), OSError("gone")]),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("kind", ["plain", "threaded", "async"])
async def test_any_tool_failure_becomes_a_result(failure: BaseException, kind: str) -> None:
    def fail(arguments: object) -> str:
        raise failure

    async def fail_later(arguments: object) -> str:
        await asyncio.sleep(0)
        raise failure

    function = fail_later if kind == "async" else fail
    tool = Tool("fail", "Fail.", {}, function, threaded=kind == "threaded")
    result = await tool.call("{}", {}, ToolRegistry().threads)

    assert result.failed
    assert result.content.startswith("error: fail failed: ")
    assert result.error is not None


async def test_tool_that_cancels_its_own_task_fails_without_other_effects() -> None:
    async def cancel_itself(arguments: object) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "still there"

    result = await Tool("leave", "Leave.", {}, cancel_itself).call("{}")

    assert result.content == "error: leave failed: CancelledError: cancelled from inside"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_outer_cancellation_reaches_tool_and_caller() -> None:
    cleanups: list[str] = []
    has_started = asyncio.Event()

    async def wait(arguments: object) -> str:
        try:
            has_started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleanups.append("tidied")
        return ""

    call = asyncio.create_task(Tool("wait", "Wait.", {}, wait).call("{}"))
    await has_started.wait()
    call.cancel()
    await asyncio.wait([call])

    assert call.cancelled()
    assert cleanups == ["tidied"]


async def test_approval_refusal_reaches_the_model() -> None:
    def refuse(arguments: object) -> str:
        raise ToolError("not today")

    result = await Tool("refuse", "Refuse.", {}, refuse).call("{}")

    assert (result.content, type(result.error)) == ("error: refuse: not today", ToolError)


async def test_threaded_tool_runs_outside_the_loop_in_the_callers_context() -> None:
    loop_thread = threading.get_ident()

    def look(arguments: object) -> list[bool]:
        return [threading.get_ident() == loop_thread, current_worker() is None]

    assert await call_tool(Tool("look", "Look.", {}, look, threaded=True), "{}") == "[false, true]"


async def test_thread_of_a_cancelled_call_is_counted_until_it_ends() -> None:
    has_started, may_end = threading.Event(), threading.Event()

    def dig(arguments: object) -> str:
        has_started.set()
        may_end.wait(10)
        return "dug"

    registry = ToolRegistry([Tool("dig", "Dig.", {}, dig, threaded=True)])
    call_coroutine = registry.select(["dig"]).call(ToolCall("c1", "dig", "{}"), {"session_id": "s1"})
    task = asyncio.create_task(call_coroutine)
    await asyncio.to_thread(has_started.wait, 10)

    task.cancel()
    await asyncio.wait([task])
    idle_task = asyncio.create_task(registry.threads.wait_idle("s1"))
    await asyncio.sleep(0)

    assert task.cancelled()
    assert (registry.threads.count_running("s1"), registry.threads.count_running("s2"), idle_task.done()) == (
        1,
        0,
        False,
    )
    may_end.set()
    await idle_task
    assert registry.threads.count_running("s1") == 0


async def test_timed_out_calls_are_limited_in_threads() -> None:
    may_end = threading.Event()
    calls_run: list[int] = []

    def dig(arguments: object) -> str:
        may_end.wait(10)
        calls_run.append(1)
        return "dug"

    registry = ToolRegistry([Tool("dig", "Dig.", {}, dig, threaded=True)])

    def start_call(session: str = "s1") -> asyncio.Task[ToolResult]:
        return asyncio.create_task(registry.call(ToolCall("c1", "dig", "{}"), {"session_id": session}))

    abandoned_calls = [start_call() for _ in range(32)]
    while registry.threads.count_running("s1") < 32:  # noqa: ASYNC110 - each call starts at a separate turn of the loop
        await asyncio.sleep(0)
    waiting_call = start_call()
    for abandoned_call in abandoned_calls:
        abandoned_call.cancel()
    await asyncio.wait(abandoned_calls)

    for result in (await waiting_call, await start_call()):
        assert result.failed
        assert "32 calls" in result.content
    other_call = start_call("s2")
    may_end.set()
    assert (await other_call).content == "dug"
    await registry.threads.wait_idle("s1")
    assert (await start_call()).content == "dug"
    assert len(calls_run) == 34


async def test_concurrent_calls_beyond_the_threads_wait() -> None:
    lock, running_and_peak = threading.Lock(), [0, 0]

    def dig(arguments: object) -> str:
        with lock:
            running_and_peak[0] += 1
            running_and_peak[1] = max(running_and_peak)
        threading.Event().wait(0.001)
        with lock:
            running_and_peak[0] -= 1
        return "dug"

    registry = ToolRegistry([Tool("dig", "Dig.", {}, dig, threaded=True)])
    call = ToolCall("c1", "dig", "{}")

    answers = await asyncio.gather(*(registry.call(call, {"session_id": "s1"}) for _ in range(100)))

    assert {answer.content for answer in answers} == {"dug"}
    assert running_and_peak[1] <= 32


def test_tool_is_registered_once() -> None:
    tool = Tool("look", "Look.", {}, lambda arguments: "")

    with pytest.raises(ValueError, match="'look' is registered twice"):
        ToolRegistry([tool, tool])
    with pytest.raises(ValueError, match="'look' is registered twice"):
        ToolRegistry([tool]).merge([tool])


def test_registry_contains_the_registered_tools() -> None:
    first_tool, second_tool = (Tool(name, "", {}, lambda arguments: "") for name in ("one", "two"))
    registry = ToolRegistry([first_tool]).merge([second_tool])

    assert registry.names == ("one", "two")
    assert registry.select(["two"]).names == ("two",)
    assert registry.get("two") is second_tool
    assert registry.get("three") is None
    with pytest.raises(KeyError, match="three"):
        registry.select(["three"])


def test_changing_a_tool_schema_affects_no_other_copy() -> None:
    tool = tool_from_function(find_insects)

    parameters: dict[str, Any] = tool.spec.parameters  # type: ignore[assignment]
    parameters["properties"].clear()

    assert set(tool.spec.parameters["properties"]) == {"place", "depth", "kind"}
