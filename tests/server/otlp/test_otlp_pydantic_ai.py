"""A third-party framework with its own instrumentation, over real HTTP through the real SDK."""

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
    """Instrument pydantic-ai as its manual says, with export in batches of two to the receiver."""
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


def calling_model(tool: str, times: int, **arguments: str) -> ModelFunction:
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
    await run_agent(make_agent(calling_model("search", 2, query="hive")), instrumented)

    turn = ["llm_call_completed", "step_completed"]
    tool = ["tool_call_completed"]
    assert otlp.types() == ["execution_started", *turn, *tool, *turn, *tool, *turn, "execution_completed"]
    assert {(e.agent_id, e.incarnation_id) for e in otlp.events} == {("researcher", "i-1")}
    assert len({e.session_id for e in otlp.events}) == 1
    assert otlp.events[0].data["framework"] == "pydantic-ai"
    llm = otlp.events[1].data
    assert (llm["provider"], llm["input_tokens"] > 0, llm["output_tokens"] > 0) == ("function", True, True)
    assert otlp.spans("accepted") == 6


async def test_loop_has_equal_fingerprints_in_different_turns(
    otlp: RunningReceiver, instrumented: TracerProvider
) -> None:
    """B26: same tool and arguments with the same result, from a framework's own spans over OTLP."""
    await run_agent(make_agent(calling_model("search", 8, query="hive")), instrumented)

    tools = [e.data for e in otlp.events if e.type == "tool_call_completed"]
    assert len(tools) == 8
    assert len({(d["tool"], d["args_hash"], d["result_hash"]) for d in tools}) == 1
    assert len({d["turn"] for d in tools}) == 8
    assert all(d["args_hash"] and d["result_hash"] for d in tools)


async def test_parallel_calls_of_one_answer_share_their_turn(
    otlp: RunningReceiver, instrumented: TracerProvider
) -> None:
    """B31: parallel equal calls in one turn count once, because they have the same `turn`."""
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

    three = ModelResponse(parts=[ToolCallPart("search", {"query": "hive"}) for _ in range(3)])
    answers = iter([three, ModelResponse(parts=[TextPart("done")])])

    await run_agent(make_agent(lambda *_: next(answers)), instrumented)

    turns = [e.data["turn"] for e in otlp.events if e.type == "tool_call_completed"]
    assert (len(turns), len(set(turns))) == (3, 1)


async def test_failing_tool_fails_the_run_and_its_secret_is_masked(
    otlp: RunningReceiver, instrumented: TracerProvider
) -> None:
    with pytest.raises(RuntimeError):
        await make_agent(calling_model("broken_tool", 1)).run("go")
    await asyncio.to_thread(instrumented.force_flush)

    [call] = [e for e in otlp.events if e.type == "tool_call_completed"]
    assert (call.data["outcome"], call.data["error_type"]) == ("error", "RuntimeError")
    assert otlp.types()[-1] == "execution_failed"
    assert "the index is gone" in otlp.events[-1].data["error"]
    assert "hunter2" not in str(otlp.events)


async def test_provider_error_is_a_failed_turn(otlp: RunningReceiver, instrumented: TracerProvider) -> None:
    """B34: LLM API errors arrive as failed model calls."""

    def unavailable(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        raise ConnectionError("503 from the provider")

    with pytest.raises(ConnectionError):
        await make_agent(unavailable).run("go")
    await asyncio.to_thread(instrumented.force_flush)

    llm, step = otlp.events[1:3]
    assert (llm.type, llm.data["error_type"]) == ("llm_call_completed", "ConnectionError")
    assert (step.type, step.data["error_type"], "verdict" in step.data) == (
        "step_completed",
        "ConnectionError",
        False,
    )


async def test_agent_with_its_own_conversation_is_a_separate_worker(
    otlp: RunningReceiver, instrumented: TracerProvider
) -> None:
    outer = make_agent(calling_model("ask", 1, question="where"), "queen")
    inner = make_agent(calling_model("search", 1, query="hive"), "scout")

    @outer.tool_plain
    async def ask(question: str) -> str:
        return (await inner.run(question)).output

    await run_agent(outer, instrumented)

    tools = {(e.agent_id, e.data["tool"]) for e in otlp.events if e.type == "tool_call_completed"}
    assert tools == {("queen", "ask"), ("scout", "search")}
    assert {e.agent_id for e in otlp.events if e.type == "execution_completed"} == {"scout", "queen"}
    assert [e.agent_id for e in otlp.events if e.type == "execution_started"] == ["queen", "scout"]
