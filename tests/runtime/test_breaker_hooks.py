"""Circuit breakers of the runtime: before tools, models and checkpoint writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from queenright.health.breakers import BreakerRegistry, BreakerState
from queenright.health.settings import CircuitBreakerSettings
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.breaker_protocols import BreakerPermit, Breakers, CallRefusedError
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import ModelError, ModelReply, TransientModelError
from queenright.runtime.storage.checkpoint_queue import MAX_QUEUED_CHECKPOINTS
from queenright.runtime.storage.checkpoint_store import CheckpointStore
from queenright.runtime.storage.session_state import SessionStatus
from queenright.runtime.tooling.tools import Tool, ToolError, ToolUnavailableError
from tests.runtime.conftest import FakeTime, ScriptedModel, tool_call_reply

CLOSED, OPEN, HALF_OPEN = BreakerState


class NoArguments(BaseModel):
    pass


class RuntimeBench:
    """A runtime with breakers, and the events that it published."""

    def __init__(self, path: Path, time: FakeTime, breakers: Breakers | None) -> None:
        self.path, self.time = path, time
        self.registry = breakers if isinstance(breakers, BreakerRegistry) else None
        self.events: list[AgentEvent] = []
        bus = EventBus()
        bus.on_publish(self.events.extend)
        self.runtime = AgentRuntime(
            bus=bus,
            storage=path,
            clock=time,
            monotonic=time,
            sleep=time.sleep,
            disk=time.disk,
            breakers=breakers,
        )
        self.model = ScriptedModel()

    async def load_chain(self, *nodes: NodeSpec, agent_id: str = "bee", **options: Any) -> None:
        """Start a runtime whose graph has these nodes, one after the other."""
        edges = [EdgeSpec(source=a.id, target=b.id) for a, b in pairwise(nodes)]
        spec = GraphSpec(
            id="g",
            nodes=nodes,
            edges=tuple(edges),
            entry_points=(EntryPointSpec(id="e", node_id=nodes[0].id),),
        )
        self.runtime.add_graph(spec, model=self.model, agent_id=agent_id, primary=True, **options)
        await self.runtime.start()

    async def load_node(
        self, *replies: ModelReply | Exception, tools: tuple[Tool, ...] = (), **options: Any
    ) -> None:
        """Start a runtime whose graph has one node, with these model replies."""
        self.model.replies = list(replies)
        agent_id = options.pop("agent_id", "bee")
        node = NodeSpec(
            id="n", system_prompt="Be a bee.", tools=tuple(make_tool.name for make_tool in tools), **options
        )
        await self.load_chain(node, tools=tools, agent_id=agent_id)

    async def run(self, *, max_seconds: float = 0.0) -> ExecutionResult:
        """Run the graph, advance the clock by ``max_seconds``, and return the result."""
        execution = await self.runtime.trigger("e", {"message": "Go."})
        await self.time.advance(max_seconds)
        return await self.runtime.wait(execution)

    def list_states(self) -> dict[str, str]:
        assert self.registry is not None
        return {status.name: status.state.value for status in self.registry.all()}

    def count_failures(self, name: str) -> int:
        assert self.registry is not None
        return self.registry.status(name).failures

    def list_tool_messages(self) -> list[str]:
        """Return the tool results that the model received."""
        return [message.content for message in self.model.requests[-1] if message.role == "tool"]

    def count_events(self, kind: EventType) -> int:
        return sum(event.type is kind for event in self.events)

    def open_checkpoints(self, result: ExecutionResult) -> CheckpointStore:
        folder = self.path / "sessions" / result.session_id / "checkpoints"
        return CheckpointStore(folder, clock=self.time, ids=lambda: "x")


@pytest.fixture
async def bench(tmp_path: Path, fake_time: FakeTime) -> AsyncIterator[RuntimeBench]:
    registry = BreakerRegistry(CircuitBreakerSettings(), clock=fake_time, monotonic=fake_time)
    bench = RuntimeBench(tmp_path, fake_time, registry)
    yield bench
    await bench.runtime.stop()


# -- tools ------------------------------------------------------------------------------------------


def make_tool(work: Callable[[NoArguments], str | Awaitable[str]], **options: Any) -> Tool:
    return Tool("search", "Search.", NoArguments, work, **options)


def make_search_replies(times: int) -> list[ModelReply]:
    return [tool_call_reply("search", "{}", f"c{n}") for n in range(times)]


async def test_failing_tool_opens_its_breaker_and_the_model_is_informed(bench: RuntimeBench) -> None:
    run_count = 0

    def fail(_: NoArguments) -> str:
        nonlocal run_count
        run_count += 1
        raise OSError("no route")

    await bench.load_node(*make_search_replies(5), tools=(make_tool(fail),))

    result = await bench.run()

    assert result.succeeded
    assert run_count == 3
    assert bench.list_states()["tool_execution:bee:search"] == "open"
    refusal = (
        "error: search was not run: circuit breaker 'tool_execution:bee:search' is open (3 failures in a "
        "row, the last: OSError: no route). Retry in 60 s, or reset it. "
        "Do something else in the meantime."
    )
    assert bench.list_tool_messages()[3:] == [refusal] * 2
    completions = [e.data for e in bench.events if e.type is EventType.TOOL_CALL_COMPLETED]
    assert [data.get("error_type") for data in completions][2:4] == ["OSError", "CircuitOpenError"]


async def test_other_tools_and_workers_are_not_affected(bench: RuntimeBench) -> None:
    assert bench.registry is not None
    for _ in range(3):
        bench.registry.get("tool_execution", "wasp", "search").admit().record_failure("x")
        bench.registry.get("tool_execution", "bee", "read").admit().record_failure("x")
    await bench.load_node(*make_search_replies(1), tools=(make_tool(lambda _: "found"),))

    await bench.run()

    assert bench.list_tool_messages() == ["found"]


async def test_half_open_breaker_admits_one_call(bench: RuntimeBench) -> None:
    is_working = False

    async def fail_at_first(_: NoArguments) -> str:
        if not is_working:
            raise OSError("no route")
        return "found"

    await bench.load_node(*make_search_replies(4), tools=(make_tool(fail_at_first),))
    await bench.run()
    is_working = True
    await bench.time.advance(60)
    bench.model.replies = list(make_search_replies(1))

    await bench.run()

    assert bench.list_tool_messages()[-1] == "found"
    assert bench.list_states()["tool_execution:bee:search"] == "closed"


async def test_invalid_call_is_not_a_tool_failure(bench: RuntimeBench) -> None:
    def require_text(_: NoArguments) -> str:
        raise ToolError("say where")

    invalid_replies = [tool_call_reply("search", '{"x"', f"w{n}") for n in range(5)]
    unknown_tool_replies = [tool_call_reply("serch", "{}", f"u{n}") for n in range(5)]
    await bench.load_node(
        *make_search_replies(5), *invalid_replies, *unknown_tool_replies, tools=(make_tool(require_text),)
    )

    await bench.run()

    assert bench.list_states() == {
        "external_api:bee:scripted": "closed",
        "external_api::scripted": "closed",
        "tool_execution:bee:search": "closed",
        "checkpoint_write:bee": "closed",
    }
    assert bench.count_failures("tool_execution:bee:search") == 0


async def test_unavailable_server_and_unanswered_call_are_tool_failures(bench: RuntimeBench) -> None:
    async def fail_to_connect(_: NoArguments) -> str:
        raise ToolUnavailableError("the MCP server 'maps' cannot be reached")

    async def hang(_: NoArguments) -> str:
        await asyncio.Event().wait()
        return ""

    hanging = Tool("hang", "Hang.", NoArguments, hang, timeout_seconds=10)
    turns = [tool_call_reply("search", "{}", "a"), tool_call_reply("hang", "{}", "b")]
    await bench.load_node(*turns, tools=(make_tool(fail_to_connect), hanging))

    await bench.run(max_seconds=10)

    assert bench.count_failures("tool_execution:bee:search") == 1
    assert bench.count_failures("tool_execution:bee:hang") == 1


async def test_run_stopped_during_probe_releases_its_permit(bench: RuntimeBench) -> None:
    assert bench.registry is not None
    breaker = bench.registry.get("tool_execution", "bee", "search")
    for _ in range(3):
        breaker.admit().record_failure("x")
    await bench.time.advance(60)

    async def hang(_: NoArguments) -> str:
        await asyncio.Event().wait()
        return ""

    await bench.load_node(*make_search_replies(1), tools=(make_tool(hang),))
    await bench.runtime.trigger("e", {"message": "Go."})
    await bench.time.settle()
    assert breaker.state is HALF_OPEN
    await bench.runtime.stop()

    breaker.admit().record_success()
    assert breaker.state is CLOSED


async def test_internal_graphs_use_tools_despite_open_breakers(bench: RuntimeBench) -> None:
    def fail(_: NoArguments) -> str:
        raise OSError("no route")

    await bench.load_node(*make_search_replies(5), tools=(make_tool(fail),), agent_id="")

    await bench.run()

    assert bench.list_tool_messages() == ["error: search failed: OSError: no route"] * 5
    assert bench.list_states() == {"external_api::scripted": "closed"}


# -- models -----------------------------------------------------------------------------------------


def make_overload_errors(times: int) -> list[Exception]:
    return [TransientModelError("overloaded") for _ in range(times)]


async def test_failing_model_opens_its_breaker(bench: RuntimeBench) -> None:
    await bench.load_node(*make_overload_errors(3), ModelReply(text="done"), model_attempts=5)

    result = await bench.run(max_seconds=3600)

    assert result.succeeded
    # The calls are three failures and a success. Between them, one refusal waits for the breaker.
    assert bench.count_events(EventType.LLM_CALL_STARTED) == 4
    assert bench.count_events(EventType.WORKER_WAITING) == 8
    waits = [
        e.data["seconds"] for e in bench.events if e.type is EventType.WORKER_WAITING and "seconds" in e.data
    ]
    assert max(waits) > 50
    assert set(bench.list_states().values()) == {"closed"}


async def test_breaker_refusal_uses_no_model_attempt(bench: RuntimeBench) -> None:
    await bench.load_node(*make_overload_errors(3), ModelReply(text="done"), model_attempts=4)

    result = await bench.run(max_seconds=3600)

    assert result.succeeded


class OpenBreakers:
    """Breakers that are always open."""

    def get(
        self, kind: str, agent: str = "", target: str = "", *, parents: Sequence[str] = ()
    ) -> OpenBreakers:
        return self

    def admit(self) -> BreakerPermit:
        raise CallRefusedError("it is open", retry_in=5)


async def test_repeated_breaker_refusals_end_without_answer(tmp_path: Path, fake_time: FakeTime) -> None:
    bench = RuntimeBench(tmp_path, fake_time, OpenBreakers())
    await bench.load_node(model_attempts=4)

    result = await bench.run(max_seconds=3600)

    assert result.status is SessionStatus.FAILED
    assert "it is open" in result.error
    assert bench.count_events(EventType.LLM_CALL_STARTED) == 0
    assert bench.count_events(EventType.WORKER_WAITING) == 6
    await bench.runtime.stop()


async def test_models_of_one_provider_share_a_breaker(bench: RuntimeBench) -> None:
    bench.model.name = "openai/small"
    await bench.load_node(*make_overload_errors(3), model_attempts=3)

    await bench.run(max_seconds=3600)

    assert bench.list_states()["external_api:bee:openai/small"] == "open"
    assert bench.list_states()["external_api::openai"] == "open"


@pytest.mark.parametrize("error", [ModelError("no such model"), ValueError("a bug")])
async def test_invalid_request_is_not_a_provider_failure(bench: RuntimeBench, error: Exception) -> None:
    await bench.load_node(error)

    result = await bench.run()

    assert result.status is SessionStatus.FAILED
    assert bench.count_failures("external_api:bee:scripted") == 0


# -- checkpoints ------------------------------------------------------------------------------------


def make_function_nodes(count: int) -> list[NodeSpec]:
    return [NodeSpec(id=f"n{n}", node_type="function", function=f"n{n}") for n in range(count)]


async def start_run(bench: RuntimeBench, functions: dict[str, Callable[[], Awaitable[object]]]) -> str:
    await bench.load_chain(*make_function_nodes(len(functions)), functions=functions)
    return await bench.runtime.trigger("e", {})


async def do_nothing() -> None: ...


class CheckpointFolder:
    """The checkpoint folder, which a file in its place makes unwritable."""

    def __init__(self, bench: RuntimeBench) -> None:
        self._bench = bench

    @property
    def _folder(self) -> Path:
        [session] = (self._bench.path / "sessions").iterdir()
        return session / "checkpoints"

    # This is async, because a synchronous function would run in a thread and end in real time.
    async def make_unwritable(self) -> None:
        self._folder.write_text("")

    async def make_writable(self) -> None:
        self._folder.unlink()


async def test_unwritable_checkpoint_is_queued_and_run_continues(
    bench: RuntimeBench, caplog: pytest.LogCaptureFixture
) -> None:
    disk = CheckpointFolder(bench)
    execution = await start_run(
        bench,
        {"n0": disk.make_unwritable, "n1": do_nothing, "n2": disk.make_writable, "n3": do_nothing},
    )

    result = await bench.runtime.wait(execution)

    assert result.succeeded
    checkpoints = bench.open_checkpoints(result).list_checkpoints()
    assert [checkpoint.node_id for checkpoint in checkpoints] == ["n3", "n2", "n1", "n0"]
    assert [checkpoint.execution.path for checkpoint in checkpoints][-1] == ["n0"]  # the state at that time
    assert bench.count_events(EventType.CHECKPOINT_SAVED) == 4
    assert caplog.text.count("could not save a checkpoint") == 1
    assert bench.count_failures("checkpoint_write:bee") == 0


async def test_open_breaker_blocks_checkpoints_visibly(bench: RuntimeBench) -> None:
    disk = CheckpointFolder(bench)
    may_continue = asyncio.Event()
    bench_functions: dict[str, Any] = {f"n{n}": do_nothing for n in range(6)}
    execution = await start_run(
        bench, {**bench_functions, "n0": disk.make_unwritable, "n5": may_continue.wait}
    )
    await bench.time.settle()
    assert bench.list_states()["checkpoint_write:bee"] == "open"

    await disk.make_writable()
    await bench.time.advance(30)
    assert bench.count_events(EventType.CHECKPOINT_SAVED) == 0
    await bench.time.advance(31)  # no other write follows, so the queue itself must retry

    assert bench.list_states()["checkpoint_write:bee"] == "closed"
    assert bench.count_events(EventType.CHECKPOINT_SAVED) == 5
    may_continue.set()
    result = await bench.runtime.wait(execution)
    assert len(bench.open_checkpoints(result).list_checkpoints()) == 6


async def test_queued_checkpoints_are_retried_on_close(bench: RuntimeBench) -> None:
    disk = CheckpointFolder(bench)
    functions: dict[str, Any] = {f"n{n}": do_nothing for n in range(5)}
    execution = await start_run(bench, {**functions, "n0": disk.make_unwritable, "n4": disk.make_writable})

    result = await bench.runtime.wait(execution)

    node_ids = [checkpoint.node_id for checkpoint in bench.open_checkpoints(result).list_checkpoints()]
    assert node_ids == ["n4", "n3", "n2", "n1", "n0"]


async def test_newest_queued_checkpoints_are_kept(bench: RuntimeBench) -> None:
    disk = CheckpointFolder(bench)
    functions: dict[str, Any] = {f"n{n}": do_nothing for n in range(10)}
    execution = await start_run(bench, {**functions, "n0": disk.make_unwritable, "n9": disk.make_writable})

    result = await bench.runtime.wait(execution)

    node_ids = [checkpoint.node_id for checkpoint in bench.open_checkpoints(result).list_checkpoints()]
    assert node_ids == [f"n{n}" for n in range(9, 9 - MAX_QUEUED_CHECKPOINTS, -1)]


async def test_lost_checkpoints_are_logged(bench: RuntimeBench, caplog: pytest.LogCaptureFixture) -> None:
    disk = CheckpointFolder(bench)
    execution = await start_run(bench, {"n0": disk.make_unwritable, "n1": do_nothing})

    result = await bench.runtime.wait(execution)

    assert result.succeeded
    assert "2 checkpoints of session" in caplog.text
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("checkpoints:")]


async def test_checkpoint_is_retried_without_breaker(
    tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = RuntimeBench(tmp_path, fake_time, None)
    disk = CheckpointFolder(bench)
    may_continue = asyncio.Event()
    execution = await start_run(bench, {"n0": disk.make_unwritable, "n1": may_continue.wait})
    await bench.time.settle()
    await disk.make_writable()

    await bench.time.advance(60)

    assert bench.count_events(EventType.CHECKPOINT_SAVED) == 1
    assert "works again" in caplog.text
    may_continue.set()
    await bench.runtime.wait(execution)
    await bench.runtime.stop()
