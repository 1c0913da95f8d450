import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from queenright.instrumentation.telemetry import Telemetry
from queenright.runtime.agent_runtime import AgentRuntime, GraphError
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.graphs.goal import Goal, SuccessCriterion
from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import ModelReply
from queenright.runtime.storage.checkpoint_store import CheckpointNotFoundError, CheckpointStore
from queenright.runtime.storage.files import Disk
from queenright.runtime.storage.session_state import SessionState, SessionStatus
from queenright.runtime.storage.session_store import SessionBusyError
from tests.runtime.conftest import FakeTime, ScriptedModel, tool_call_reply


class GraphBench:
    """A runtime with one graph, and the events that it published."""

    def __init__(self, path: Path, time: FakeTime, **options: Any) -> None:
        self.path, self.time = path, time
        self.bus = EventBus()
        self.events: list[AgentEvent] = []
        self.bus.subscribe(self.events.append, name="test", capacity=100_000)
        self.runtime = AgentRuntime(
            bus=self.bus,
            storage=path,
            clock=time,
            monotonic=time,
            sleep=time.sleep,
            disk=time.disk,
            **options,
        )
        self.model = ScriptedModel()

    async def load(self, *nodes: NodeSpec, edges: str = "", agent_id: str = "bee", **options: Any) -> None:
        """Start a runtime with this graph; ``edges`` has the form ``a>b a>c``."""
        spec = GraphSpec(
            id="g",
            nodes=nodes,
            edges=options.pop("edge_specs", ())
            or tuple(EdgeSpec(source=e[0], target=e[2]) for e in edges.split()),
            entry_points=(EntryPointSpec(id="e", node_id=nodes[0].id),),
        )
        self.runtime.add_graph(spec, model=self.model, agent_id=agent_id, primary=True, **options)
        await self.runtime.start()

    async def run(self, **input_data: Any) -> ExecutionResult:
        execution = await self.runtime.trigger("e", input_data)
        result = await self.runtime.wait(execution)
        await self.bus.drain()
        return result

    def list_events(self, *types: EventType) -> list[AgentEvent]:
        return [event for event in self.events if event.type in types]

    def load_state(self, result: ExecutionResult) -> SessionState:
        return self.runtime.session_store().read_state(result.session_id)

    def session_folder(self, result: ExecutionResult) -> Path:
        return self.path / "sessions" / result.session_id


@pytest.fixture
async def bench(tmp_path: Path, fake_time: FakeTime) -> AsyncIterator[GraphBench]:
    bench = GraphBench(tmp_path, fake_time)
    yield bench
    await bench.runtime.stop()


def function_node(name: str, input_keys: str = "", output_keys: str = "", **options: Any) -> NodeSpec:
    return NodeSpec(
        id=name,
        node_type="function",
        function=name,
        input_keys=tuple(input_keys.split()),
        output_keys=tuple(output_keys.split()),
        **options,
    )


async def test_outputs_become_the_next_nodes_input(bench: GraphBench) -> None:
    await bench.load(
        function_node("a", "text", "words"),
        function_node("b", "words", "count"),
        edges="a>b",
        functions={"a": lambda text: text.split(), "b": lambda words: {"count": len(words)}},
    )

    result = await bench.run(text="a hive of bees")

    assert result.succeeded
    assert result.path == ("a", "b")
    assert result.outputs == {"count": 4}
    assert bench.load_state(result).memory == {
        "text": "a hive of bees",
        "words": ["a", "hive", "of", "bees"],
        "count": 4,
    }
    assert [e.data["edge"] for e in bench.list_events(EventType.EDGE_TRAVERSED)] == ["a-b"]


async def test_branches_run_concurrently_and_join_once(bench: GraphBench) -> None:
    """The branches may have different lengths. Both outputs are available where they join."""
    barrier = asyncio.Barrier(2)
    joined_inputs: list[dict[str, int]] = []

    async def left() -> int:
        await barrier.wait()
        return 1

    async def right() -> int:
        await barrier.wait()
        return 2

    await bench.load(
        function_node("a"),
        function_node("b", output_keys="left"),
        function_node("c", output_keys="right"),
        function_node("d", "right", output_keys="far"),
        function_node("e", "left right far"),
        edges="a>b a>c c>d b>e d>e",
        functions={
            "a": lambda: None,
            "b": left,
            "c": right,
            "d": lambda right: right * 10,
            "e": lambda **input_data: joined_inputs.append(input_data),
        },
    )

    result = await bench.run()

    assert result.succeeded
    assert joined_inputs == [{"left": 1, "right": 2, "far": 20}]


async def test_unhandled_failure_ends_run_and_stops_other_nodes(bench: GraphBench) -> None:
    is_stopped = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_stopped.set()

    def fail() -> None:
        raise ValueError("no nectar, key sk-abcdefghijklmnopqrstuvwx1234")

    await bench.load(
        function_node("a"),
        function_node("b"),
        function_node("c"),
        edges="a>b a>c",
        functions={"a": lambda: None, "b": fail, "c": hang},
    )

    result = await bench.run()

    assert is_stopped.is_set()
    assert result.status is SessionStatus.FAILED
    assert result.error_type == "ValueError"
    assert "node 'b' failed: no nectar" in result.error
    assert "sk-abcdef" not in result.error + json.dumps([e.to_dict() for e in bench.events])
    [failure] = bench.list_events(EventType.EXECUTION_FAILED)
    assert failure.data["error_type"] == "ValueError"
    assert bench.load_state(result).status is SessionStatus.FAILED


async def test_failure_edge_continues_the_run(bench: GraphBench) -> None:
    def fail() -> None:
        raise ValueError("no nectar")

    inputs: list[dict[str, Any]] = []
    await bench.load(
        function_node("a"),
        function_node("b"),
        edge_specs=(EdgeSpec(source="a", target="b", when="failure"),),
        functions={"a": fail, "b": lambda **input_data: inputs.append(input_data)},
    )

    result = await bench.run()

    assert result.succeeded
    assert inputs == [{"error": "no nectar", "outcome": "failed"}]


async def test_loop_repeats_until_its_condition_holds(bench: GraphBench) -> None:
    """Each iteration is a separate visit."""
    loop_edge = EdgeSpec(source="a", target="a", when="expression", expression="n < 4")
    await bench.load(
        function_node("a", "n", "n"),
        edge_specs=(loop_edge,),
        functions={"a": lambda n: n + 1},
        agent_id="bee",
    )

    result = await bench.run(n=0)

    assert result.outputs == {"n": 4}
    assert result.path == ("a",) * 4
    [run] = bench.load_state(result).executions.values()
    assert run.visits == {"a": 4}


async def test_loop_beyond_its_limit_is_an_error_that_names_the_edge(bench: GraphBench) -> None:
    loop_edge = EdgeSpec(source="a", target="a", when="expression", expression="True")
    await bench.load(
        function_node("a", max_node_visits=3), edge_specs=(loop_edge,), functions={"a": lambda: None}
    )

    result = await bench.run()

    assert result.path == ("a", "a")
    assert all(part in result.error for part in ("'a-a'", "'a'", "3 visits"))


async def test_router_with_a_function_chooses_by_name(bench: GraphBench) -> None:
    routes = {"left": "bees", "right": "wasps"}
    await bench.load(
        NodeSpec(id="a", node_type="router", function="choose", routes=routes, input_keys=("kind",)),
        function_node("b", output_keys="went"),
        function_node("c", output_keys="went"),
        edge_specs=(
            EdgeSpec(source="a", target="b", when="route", route="left"),
            EdgeSpec(source="a", target="c", when="route", route="right"),
        ),
        functions={
            "choose": lambda kind: "left" if kind == "bee" else "right",
            "b": lambda: "left",
            "c": lambda: "right",
        },
    )

    assert (await bench.run(kind="bee")).outputs == {"went": "left"}
    assert (await bench.run(kind="wasp")).outputs == {"went": "right"}


async def test_model_router_must_choose_a_known_route(bench: GraphBench) -> None:
    await bench.load(
        NodeSpec(
            id="a", node_type="router", system_prompt="Sort.", routes={"left": "bees", "right": "wasps"}
        ),
        function_node("b", output_keys="went"),
        function_node("c", output_keys="went"),
        edge_specs=(
            EdgeSpec(source="a", target="b", when="route", route="left"),
            EdgeSpec(source="a", target="c", when="route", route="right"),
        ),
        functions={"b": lambda: "left", "c": lambda: "right"},
    )
    bench.model.replies = [
        tool_call_reply("set_output", '{"route": "up"}', "c1"),
        tool_call_reply("set_output", '{"route": ["right"]}', "c2"),
        tool_call_reply("set_output", '{"route": "right"}', "c3"),
    ]

    result = await bench.run(message="a wasp")

    assert result.outputs == {"went": "right"}
    assert "left: bees" in bench.model.requests[0][0].content
    assert "left, right" in bench.model.requests[1][-1].content
    assert "left, right" in bench.model.requests[2][-1].content


async def test_router_function_must_return_a_known_route(bench: GraphBench) -> None:
    routes = {"left": "bees"}
    await bench.load(
        NodeSpec(id="a", node_type="router", function="choose", routes=routes),
        function_node("b"),
        edge_specs=(EdgeSpec(source="a", target="b", when="route", route="left"),),
        functions={"choose": lambda: ["left"], "b": lambda: None},
    )

    assert "returned ['left'], which is not a route; routes: left" in (await bench.run()).error


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (lambda: {"other": 1}, "did not return 'x'; it must return an object with: x, y"),
        (lambda: {"x": object(), "y": 1}, "'x' cannot be stored: object is not JSON"),
        (lambda: 1, "did not return 'x'"),
    ],
)
async def test_missing_function_output_is_an_error(
    bench: GraphBench, run: Callable[[], Any], problem: str
) -> None:
    await bench.load(function_node("a", output_keys="x y"), functions={"a": run})

    assert problem in (await bench.run()).error


async def test_missing_input_is_named(bench: GraphBench) -> None:
    await bench.load(
        function_node("a"),
        function_node("b", "x"),
        edges="a-b",
        functions={"a": lambda: None, "b": lambda x: None},
    )

    result = await bench.run(message="go")

    assert all(part in result.error for part in ("'b'", "'x'", "message"))


async def test_edge_passes_its_mapped_values(bench: GraphBench) -> None:
    await bench.load(
        function_node("a", output_keys="x"),
        function_node("b", "y", "z"),
        edge_specs=(EdgeSpec(source="a", target="b", input_mapping={"y": "x"}),),
        functions={"a": lambda: 1, "b": lambda y: y + 1},
    )

    assert (await bench.run()).outputs == {"z": 2}


async def test_plain_function_does_not_block_the_loop(bench: GraphBench) -> None:
    thread_names: list[str] = []
    await bench.load(
        function_node("a"), functions={"a": lambda: thread_names.append(threading.current_thread().name)}
    )

    await bench.run()

    assert thread_names != [threading.current_thread().name]


async def test_function_receives_declared_context_parameters(bench: GraphBench) -> None:
    context: dict[str, Any] = {}

    def write(session_id: str, node_id: str, data_dir: Path) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        (data_dir / "report.txt").write_text("all well")
        context.update(session_id=session_id, node_id=node_id)

    await bench.load(function_node("a"), functions={"a": write})

    result = await bench.run()

    assert context == {"session_id": result.session_id, "node_id": "a"}
    assert (bench.session_folder(result) / "artifacts" / "report.txt").read_text() == "all well"


async def test_each_finished_node_is_a_checkpoint_in_a_chain(bench: GraphBench) -> None:
    await bench.load(
        function_node("a", output_keys="x"),
        function_node("b", output_keys="y"),
        edges="a>b",
        functions={"a": lambda: 1, "b": lambda: 2},
    )

    result = await bench.run()

    store = CheckpointStore(bench.session_folder(result) / "checkpoints", clock=bench.time, ids=lambda: "")
    newest, oldest = store.list_checkpoints()
    assert (oldest.node_id, newest.node_id) == ("a", "b")
    assert oldest.memory == {"x": 1}
    assert [p.node_id for p in oldest.execution.pending] == ["b"]
    assert newest.parent_id == oldest.checkpoint_id
    assert [e.data["checkpoint_id"] for e in bench.list_events(EventType.CHECKPOINT_SAVED)] == [
        oldest.checkpoint_id,
        newest.checkpoint_id,
    ]


async def test_graph_without_agent_id_saves_no_checkpoints(bench: GraphBench) -> None:
    await bench.load(function_node("a"), functions={"a": lambda: None}, agent_id="")

    result = await bench.run()

    assert result.succeeded
    assert not (bench.session_folder(result) / "checkpoints").exists()


async def test_goal_progress_is_published_as_it_changes(bench: GraphBench) -> None:
    goal = Goal(
        id="honey",
        name="Honey",
        description="Make honey.",
        success_criteria=(
            SuccessCriterion(id="nectar", description="found", expression="nectar > 3"),
            SuccessCriterion(id="honey", description="made", expression="honey > 1", weight=3),
        ),
    )
    await bench.load(
        function_node("a", output_keys="nectar"),
        function_node("b", output_keys="honey"),
        edges="a>b",
        functions={"a": lambda: 4, "b": lambda: 2},
        goal=goal,
    )

    result = await bench.run()

    assert [e.data["fraction"] for e in bench.list_events(EventType.GOAL_PROGRESS)] == [0.25, 1.0]
    assert result.goal is not None
    assert result.goal.achieved
    assert bench.runtime.get_goal_progress() == result.goal


async def test_run_is_logged_at_three_levels(bench: GraphBench) -> None:
    await bench.load(
        NodeSpec(id="a", system_prompt="Find.", tools=(), output_keys=("x",)),
        function_node("b", "x", "y"),
        edges="a>b",
        functions={"b": lambda x: x + "!"},
    )
    bench.model.replies = [
        ModelReply(text="let me see", input_tokens=5, output_tokens=3),
        tool_call_reply("set_output", '{"x": "honey"}'),
    ]

    result = await bench.run(message="go")

    logs = bench.session_folder(result) / "logs"
    summary = json.loads((logs / "summary.json").read_text())
    details = [json.loads(line) for line in (logs / "details.jsonl").read_text().splitlines()]
    steps = [json.loads(line) for line in (logs / "tool_logs.jsonl").read_text().splitlines()]
    assert "completed" in json.dumps(summary)
    assert [(row["node_id"], row["outcome"], row["turns"]) for row in details] == [
        ("a", "done", 2),
        ("b", "done", 1),
    ]
    assert details[0]["verdicts"] == {"RETRY": 1, "ACCEPT": 1}
    assert [(row["node_id"], row["verdict"]) for row in steps] == [
        ("a", "RETRY"),
        ("a", "ACCEPT"),
        ("b", "ACCEPT"),
    ]
    assert (bench.path / "runtime_logs" / "executions.jsonl").read_text().count("\n") == 1


async def test_consecutive_nodes_share_one_conversation(bench: GraphBench) -> None:
    """Each node has its own prompt, and the second node sees the messages of the first."""
    await bench.load(
        NodeSpec(id="a", system_prompt="Find.", output_keys=("x",)),
        NodeSpec(id="b", system_prompt="Tell.", input_keys=("x",)),
        edges="a>b",
    )
    bench.model.replies = [tool_call_reply("set_output", '{"x": "honey"}'), ModelReply(text="It is honey.")]

    result = await bench.run(message="what is it?")

    assert result.outputs == {"text": "It is honey."}
    second_request = bench.model.requests[1]
    assert second_request[0].content == "Tell."
    assert [m.role for m in second_request[1:]] == ["user", "assistant", "tool", "user"]
    assert second_request[1].content == "what is it?"
    assert json.loads(second_request[-1].content) == {"x": "honey"}


async def test_run_events_cover_the_whole_run(bench: GraphBench) -> None:
    """B19, B63: starts are published before ends, and each event has its origin."""
    await bench.load(NodeSpec(id="a", system_prompt="Find."))
    bench.model.replies = [ModelReply(text="found")]

    result = await bench.run(message="go")

    assert [e.type for e in bench.events] == [
        EventType.EXECUTION_STARTED,
        EventType.NODE_LOOP_STARTED,
        EventType.STEP_STARTED,
        EventType.LLM_CALL_STARTED,
        EventType.LLM_TEXT_DELTA,
        EventType.LLM_CALL_COMPLETED,
        EventType.STEP_COMPLETED,
        EventType.NODE_LOOP_COMPLETED,
        EventType.CHECKPOINT_SAVED,
        EventType.EXECUTION_COMPLETED,
    ]
    assert {(e.agent_id, e.session_id, e.graph_id) for e in bench.events} == {("bee", result.session_id, "g")}


async def test_session_stays_claimed_until_the_thread_of_a_cancelled_run_ends(bench: GraphBench) -> None:
    """A thread cannot be killed, so the run ends immediately, but its session stays locked."""
    is_running, may_end = threading.Event(), threading.Event()

    def dig() -> str:
        is_running.set()
        may_end.wait(20)
        return "dug"

    await bench.load(function_node("a", output_keys="x"), functions={"a": dig})
    first_id = await bench.runtime.trigger("e", {})
    assert await asyncio.to_thread(is_running.wait, 20)
    [run_task] = bench.runtime.get_stream("e").executions

    assert await bench.runtime.cancel_execution(first_id)
    second_id = await bench.runtime.trigger("e", {}, session_id=run_task.session_id)
    await bench.time.settle()
    assert bench.runtime.get_execution_result(second_id) is None
    assert run_task.result is not None
    assert run_task.result.status is SessionStatus.CANCELLED

    may_end.set()
    assert (await bench.runtime.wait(second_id)).outputs == {"x": "dug"}


async def test_session_stays_claimed_if_stopping_is_cancelled_while_its_thread_runs(
    bench: GraphBench,
) -> None:
    is_running, may_end = threading.Event(), threading.Event()

    def dig() -> None:
        is_running.set()
        may_end.wait(20)

    await bench.load(function_node("a"), functions={"a": dig})
    await bench.runtime.trigger("e", {})
    assert await asyncio.to_thread(is_running.wait, 20)
    stream = bench.runtime.get_stream("e")
    [execution] = stream.executions
    assert execution.session_id is not None
    store = bench.runtime.session_store()

    stop_task = asyncio.create_task(stream.stop())
    await bench.time.settle()
    stop_task.cancel()
    await asyncio.wait([stop_task])
    with pytest.raises(SessionBusyError):
        store.claim(store.open(execution.session_id))

    may_end.set()


class SlowDisk(Disk):
    """A disk whose work can be delayed."""

    def __init__(self) -> None:
        super().__init__()
        self.release: asyncio.Event | None = None
        self.is_waiting = asyncio.Event()

    async def run(self, work: Callable[[], Any]) -> Any:
        if self.release is not None:
            self.is_waiting.set()
            await asyncio.shield(asyncio.ensure_future(self.release.wait()))
        return await super().run(work)


@pytest.mark.parametrize("stop_method", ["cancel", "stop"])
async def test_run_stopped_while_ending_keeps_its_outcome(
    tmp_path: Path, fake_time: FakeTime, stop_method: str
) -> None:
    """The end of the run is recorded and reported once, despite a late cancellation."""
    fake_time.disk = disk = SlowDisk()
    bench = GraphBench(tmp_path, fake_time)

    async def end_slowly() -> int:
        disk.release = asyncio.Event()
        return 1

    await bench.load(function_node("a", output_keys="x"), functions={"a": end_slowly})
    execution = await bench.runtime.trigger("e", {})
    await disk.is_waiting.wait()
    assert disk.release is not None
    stop_coroutine = (
        bench.runtime.cancel_execution(execution) if stop_method == "cancel" else bench.runtime.stop()
    )
    stop_task = asyncio.create_task(stop_coroutine)
    for _ in range(20):
        await asyncio.sleep(0)
    disk.release.set()
    disk.release = None
    await stop_task
    result = bench.runtime.get_execution_result(execution)
    await bench.bus.drain()

    assert result is not None
    state = bench.load_state(result)
    assert result.status is state.status
    assert result.path == ("a",)
    assert len(bench.list_events(EventType.CHECKPOINT_SAVED)) == 1
    ends = bench.list_events(
        EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED, EventType.EXECUTION_PAUSED
    )
    assert len(ends) == 1
    details = (bench.session_folder(result) / "logs" / "details.jsonl").read_text()
    assert details.count('"node_id"') == 1
    assert (bench.session_folder(result) / "logs" / "summary.json").exists()
    await bench.runtime.stop()


async def test_restoring_checkpoint_restores_memory_and_conversation(bench: GraphBench) -> None:
    await bench.load(
        NodeSpec(id="a", system_prompt="Find.", output_keys=("x",)),
        NodeSpec(id="b", system_prompt="Tell.", input_keys=("x",), output_keys=("y",)),
        edges="a>b",
    )
    bench.model.replies = [
        tool_call_reply("set_output", '{"x": "honey"}'),
        tool_call_reply("set_output", '{"y": "first answer"}'),
        tool_call_reply("set_output", '{"y": "second answer"}'),
    ]
    first_result = await bench.run(message="go")
    oldest = CheckpointStore(
        bench.session_folder(first_result) / "checkpoints", clock=bench.time, ids=lambda: ""
    ).list_checkpoints()[-1]

    restored_id = await bench.runtime.resume(first_result.session_id, checkpoint_id=oldest.checkpoint_id)
    second_result = await bench.runtime.wait(restored_id)

    assert second_result.outputs == {"y": "second answer"}
    assert bench.load_state(second_result).memory == {"message": "go", "x": "honey", "y": "second answer"}
    texts = [m.content for m in bench.model.requests[2]]
    assert bench.model.requests[2] == bench.model.requests[1]
    assert not any("first answer" in content for content in texts)


async def test_missing_checkpoint_is_named(bench: GraphBench) -> None:
    await bench.load(function_node("a"), functions={"a": lambda: None})
    result = await bench.run()

    with pytest.raises(CheckpointNotFoundError, match="0000000099-x"):
        await bench.runtime.resume(result.session_id, checkpoint_id="0000000099-x")


async def test_checkpoint_resumes_its_own_run(bench: GraphBench) -> None:
    """Another run may have used the session since."""
    spec = GraphSpec(
        id="g",
        nodes=(
            function_node("a", output_keys="x"),
            function_node("b", output_keys="y"),
            function_node("o", output_keys="z"),
        ),
        edges=(EdgeSpec(source="a", target="b"),),
        entry_points=(EntryPointSpec(id="e", node_id="a"), EntryPointSpec(id="other", node_id="o")),
    )
    functions = {"a": lambda: 1, "b": lambda: 2, "o": lambda: 3}
    bench.runtime.add_graph(spec, functions=functions, agent_id="bee", primary=True)
    await bench.runtime.start()
    first_result = await bench.run()
    store = CheckpointStore(
        bench.session_folder(first_result) / "checkpoints", clock=bench.time, ids=lambda: ""
    )
    oldest = store.list_checkpoints()[-1]
    other_id = await bench.runtime.trigger("other", session_id=first_result.session_id)
    await bench.runtime.wait(other_id)

    resumed_id = await bench.runtime.resume(first_result.session_id, checkpoint_id=oldest.checkpoint_id)
    result = await bench.runtime.wait(resumed_id)

    assert (resumed_id, result.entry_point, result.path) == (first_result.execution_id, "e", ("a", "b"))
    runs = bench.load_state(result).executions
    assert (runs["g::e"].execution_id, runs["g::other"].execution_id) == (first_result.execution_id, other_id)


@pytest.mark.parametrize(
    ("ending", "error_type", "waiting_reason"),
    [
        ("done", None, None),
        ("raises", "ValueError", None),
        ("cancel", "CancelledError", None),
        ("pause", None, "paused"),
    ],
)
async def test_span_carries_run_status(
    tmp_path: Path, fake_time: FakeTime, ending: str, error_type: str | None, waiting_reason: str | None
) -> None:
    """Telemetry and the bus have the same information."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    bench = GraphBench(tmp_path, fake_time, telemetry=Telemetry(tracer_provider=provider, records=False))

    async def work() -> None:
        if ending == "raises":
            raise ValueError("no nectar")
        if ending != "done":
            await asyncio.Event().wait()

    await bench.load(function_node("a"), functions={"a": work})
    execution = await bench.runtime.trigger("e", {})
    await fake_time.settle()
    if ending == "cancel":
        await bench.runtime.cancel_execution(execution)
    elif ending == "pause":
        await bench.runtime.pause_execution(execution)
    await bench.runtime.wait(execution)

    [root] = [span for span in exporter.get_finished_spans() if span.name == "invoke_agent bee"]
    assert root.attributes is not None
    assert root.attributes.get("error.type") == error_type
    assert root.attributes.get("queenright.waiting.reason") == waiting_reason
    await bench.runtime.stop()


async def test_returned_object_holds_outputs_by_key(bench: GraphBench) -> None:
    """Otherwise, an object with a misspelt key would silently become the value."""
    await bench.load(function_node("a", output_keys="words"), functions={"a": lambda: {"word": 1}})

    assert "did not return 'words'" in (await bench.run()).error


async def test_function_timeout_fails_the_node(bench: GraphBench) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    await bench.load(function_node("a", function_timeout_seconds=5), functions={"a": hang})
    execution = await bench.runtime.trigger("e", {})
    await bench.time.advance(6)
    result = await bench.runtime.wait(execution)

    assert (result.status, result.error_type) == (SessionStatus.FAILED, "TimeoutError")
    assert "5 s" in result.error


async def test_graph_of_functions_needs_no_model_and_others_require_one(bench: GraphBench) -> None:
    bench.model = None  # type: ignore[assignment]
    await bench.load(function_node("a", output_keys="x"), functions={"a": lambda: 1})
    assert (await bench.run()).outputs == {"x": 1}

    model_graph = GraphSpec(
        id="t",
        nodes=(NodeSpec(id="n", system_prompt="Talk."),),
        entry_points=(EntryPointSpec(id="e", node_id="n"),),
    )
    with pytest.raises(GraphError, match="node 'n' needs a model"):
        bench.runtime.add_graph(model_graph)


async def test_unbounded_loop_ends_at_the_default_limit(bench: GraphBench) -> None:
    loop_edge = EdgeSpec(source="a", target="a", when="expression", expression="True")
    node = function_node("a")
    await bench.load(node, edge_specs=(loop_edge,), functions={"a": lambda: None}, agent_id="")

    result = await bench.run()

    assert node.max_node_visits == 1000
    assert "limit of 1000 visits; raise max_node_visits" in result.error


@pytest.mark.parametrize(
    "fault", [SystemExit(3), KeyboardInterrupt(), BaseException("odd"), asyncio.CancelledError()]
)
@pytest.mark.parametrize("is_sync", [True, False])
async def test_any_function_exception_fails_only_its_node(
    bench: GraphBench, fault: BaseException, is_sync: bool
) -> None:
    def fail() -> None:
        raise fault

    async def fail_async() -> None:
        raise fault

    await bench.load(function_node("a"), functions={"a": fail if is_sync else fail_async})

    result = await bench.run()

    assert result.status is SessionStatus.FAILED
    assert type(fault).__name__ in result.error
    assert (await bench.run()).status is SessionStatus.FAILED


async def test_secret_in_unexpected_error_is_not_logged(
    bench: GraphBench, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ScriptedModel):
        @property
        def name(self) -> str:  # type: ignore[override]
            raise LookupError("token=s3cretvalue")

    bench.model = Broken()
    await bench.load(NodeSpec(id="a", system_prompt="Find."))

    result = await bench.run(message="x")

    assert result.status is SessionStatus.FAILED
    assert "s3cretvalue" not in result.error + caplog.text
    assert "LookupError" in caplog.text
