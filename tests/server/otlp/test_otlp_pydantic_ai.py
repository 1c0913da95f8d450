"""A third-party framework with its own instrumentation, over real HTTP and with the real SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models.function import AgentInfo

    from tests.server.otlp.conftest import RunningReceiver

    ModelFunction = Callable[[list[ModelMessage], AgentInfo], ModelResponse]


@pytest.fixture
def instrumented(otlp: RunningReceiver) -> Iterator[TracerProvider]:
    """Instrument pydantic-ai as its documentation describes, and export to the receiver in batches of two."""
    from pydantic_ai import Agent
    from pydantic_ai.models.instrumented import InstrumentationSettings

    exporter = OTLPSpanExporter(f"{otlp.url}/v1/traces", compression=Compression.Gzip)
    provider = TracerProvider(resource=Resource({"service.name": "bees", "service.instance.id": "i-1"}))
    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=2))
    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))
    yield provider
    Agent.instrument_all(False)
    provider.shutdown()


def make_agent(model: ModelFunction, name: str = "researcher") -> Agent[None, str]:
    from pydantic_ai import Agent
    from pydantic_ai.models.function import FunctionModel

    worker = Agent(FunctionModel(model), name=name)

    @worker.tool_plain
    def search(query: str) -> str:
        return f"nothing found about {query}"

    @worker.tool_plain
    def broken_tool() -> str:
        raise RuntimeError("the index is gone, password=hunter2")

    return worker


def make_calling_model(tool: str, times: int, **arguments: str) -> ModelFunction:
    """Return a model that calls one tool ``times`` times, then answers."""
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

    turns = iter(range(times))

    def model(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        if next(turns, None) is None:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(tool, dict(arguments))])

    return model


async def run_agent(agent: Agent[None, str], provider: TracerProvider) -> None:
    await agent.run("find the hive")
    await asyncio.to_thread(provider.force_flush)


async def test_run_is_one_worker_with_its_steps_tools_and_tokens(
    otlp: RunningReceiver, instrumented: TracerProvider
) -> None:
    await run_agent(make_agent(make_calling_model("search", 2, query="hive")), instrumented)

    turn = ["llm_call_completed", "step_completed"]
    tool = ["tool_call_completed"]
    assert otlp.list_types() == [
        "execution_started",
        *turn,
        *tool,
        *turn,
        *tool,
        *turn,
        "execution_completed",
    ]
    assert {(event.agent_id, event.incarnation_id) for event in otlp.events} == {("researcher", "i-1")}
    assert len({event.session_id for event in otlp.events}) == 1
    assert otlp.events[0].data["framework"] == "pydantic-ai"
    model_calls = otlp.events[1].data
    assert (model_calls["provider"], model_calls["input_tokens"] > 0, model_calls["output_tokens"] > 0) == (
        "function",
        True,
        True,
    )
    assert otlp.count_spans("accepted") == 6


async def test_repeated_calls_in_different_turns_have_equal_fingerprints(
    otlp: RunningReceiver, instrumented: TracerProvider
) -> None:
    """B26: the same tool, arguments and result are a repeat, in a framework's own spans over OTLP."""
    await run_agent(make_agent(make_calling_model("search", 8, query="hive")), instrumented)

    tools = [event.data for event in otlp.events if event.type == "tool_call_completed"]
    assert len(tools) == 8
    assert len({(data["tool"], data["args_hash"], data["result_hash"]) for data in tools}) == 1
    assert len({data["turn"] for data in tools}) == 8
    assert all(data["args_hash"] and data["result_hash"] for data in tools)


async def test_parallel_calls_of_one_answer_share_their_turn(
    otlp: RunningReceiver, instrumented: TracerProvider
) -> None:
    """B31: equal parallel calls in one turn count once, because they have the same `turn`."""
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

    parallel_calls = ModelResponse(parts=[ToolCallPart("search", {"query": "hive"}) for _ in range(3)])
    answers = iter([parallel_calls, ModelResponse(parts=[TextPart("done")])])

    await run_agent(make_agent(lambda *_: next(answers)), instrumented)

    turns = [event.data["turn"] for event in otlp.events if event.type == "tool_call_completed"]
    assert (len(turns), len(set(turns))) == (3, 1)


async def test_failing_tool_fails_the_run_and_its_secret_is_masked(
    otlp: RunningReceiver, instrumented: TracerProvider
) -> None:
    with pytest.raises(RuntimeError):
        await make_agent(make_calling_model("broken_tool", 1)).run("go")
    await asyncio.to_thread(instrumented.force_flush)

    [call] = [event for event in otlp.events if event.type == "tool_call_completed"]
    assert (call.data["outcome"], call.data["error_type"]) == ("error", "RuntimeError")
    assert otlp.list_types()[-1] == "execution_failed"
    assert "the index is gone" in otlp.events[-1].data["error"]
    assert "hunter2" not in str(otlp.events)


async def test_provider_error_is_a_failed_turn(otlp: RunningReceiver, instrumented: TracerProvider) -> None:
    """B34: errors of the model API arrive as failed model calls."""

    def raise_unavailable(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        raise ConnectionError("503 from the provider")

    with pytest.raises(ConnectionError):
        await make_agent(raise_unavailable).run("go")
    await asyncio.to_thread(instrumented.force_flush)

    llm, step = otlp.events[1:3]
    assert (llm.type, llm.data["error_type"]) == ("llm_call_completed", "ConnectionError")
    assert (step.type, step.data["error_type"], "verdict" in step.data) == (
        "step_completed",
        "ConnectionError",
        False,
    )


async def test_agent_with_a_separate_conversation_is_a_separate_worker(
    otlp: RunningReceiver, instrumented: TracerProvider
) -> None:
    outer = make_agent(make_calling_model("ask", 1, question="where"), "queen")
    inner = make_agent(make_calling_model("search", 1, query="hive"), "scout")

    @outer.tool_plain
    async def ask(question: str) -> str:
        return (await inner.run(question)).output

    await run_agent(outer, instrumented)

    tools = {
        (event.agent_id, event.data["tool"]) for event in otlp.events if event.type == "tool_call_completed"
    }
    assert tools == {("queen", "ask"), ("scout", "search")}
    assert {event.agent_id for event in otlp.events if event.type == "execution_completed"} == {
        "scout",
        "queen",
    }
    assert [event.agent_id for event in otlp.events if event.type == "execution_started"] == [
        "queen",
        "scout",
    ]
