import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from queenright.runtime.agent_runtime import MAX_KEPT_RESULTS, AgentRuntime, GraphError
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.execution import Execution, ExecutionResult, Trigger
from queenright.runtime.graphs.goal import Goal, SuccessCriterion
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import ModelReply, ToolCall
from queenright.runtime.nodes.event_loop import QuestionAnsweredError
from queenright.runtime.storage.runtime_logger import RuntimeLogger
from queenright.runtime.storage.session_state import SessionStatus
from queenright.runtime.storage.session_store import SessionStore
from queenright.runtime.stream import ExecutionStream, RunNode, TooManyWaitingError
from queenright.runtime.tooling.approval import ApprovalRequest
from queenright.runtime.tooling.tools import Tool
from tests.runtime.conftest import FakeTime, ScriptedModel, tool_call_reply

TICKET = EventType.WORKER_ESCALATION_TICKET


class Fetch(BaseModel):
    what: str


class HangingModel(ScriptedModel):
    async def complete(self, *_: Any) -> ModelReply:
        await asyncio.Event().wait()
        raise AssertionError


def make_graph(graph_id: str = "g", node: str = "judge", **entry: Any) -> GraphSpec:
    return GraphSpec(
        id=graph_id,
        nodes=(NodeSpec(id=node, system_prompt="Judge."),),
        entry_points=(EntryPointSpec(id="e", node_id=node, **{"isolation_level": "isolated", **entry}),),
    )


def timer_spec(seconds: float) -> dict[str, Any]:
    return {"trigger_type": "timer", "interval_seconds": seconds}


def make_runtime(bus: EventBus, path: Path, time: FakeTime) -> AgentRuntime:
    return AgentRuntime(bus=bus, storage=path, clock=time, monotonic=time, sleep=time.sleep, disk=time.disk)


async def run_message(runtime: AgentRuntime, message: str, **options: Any) -> ExecutionResult:
    return await runtime.wait(await runtime.trigger("e", {"message": message}, **options))


async def test_interval_ticks_fire_on_time(tmp_path: Path, fake_time: FakeTime) -> None:
    """B56: ticks are at t0 + k * interval, however long each run takes."""
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runs: list[float] = []

    async def entry(trigger: Trigger, run_message: RunNode) -> None:
        runs.append(fake_time.now)
        await fake_time.sleep(7.3)

    runtime.add_graph(make_graph(**timer_spec(120)), model=ScriptedModel(), entries={"e": entry})
    t0 = fake_time.now
    await runtime.start()
    await fake_time.advance(30 * 120)

    assert runs == [t0 + k * 120 for k in range(1, 31)]
    assert runtime.get_stream("e").ticks_skipped == 0
    await runtime.stop()


async def test_run_longer_than_its_interval_skips_and_counts_ticks(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    """B55: at most one run at a time, the next tick is on the grid, and a run can be cancelled."""
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runs: list[int | None] = []
    running_count = max_running = 0

    async def entry(trigger: Trigger, run_message: RunNode) -> None:
        nonlocal running_count, max_running
        runs.append(trigger.tick)
        running_count += 1
        max_running = max(max_running, running_count)
        try:
            await fake_time.sleep(25)
        finally:
            running_count -= 1

    runtime.add_graph(make_graph(**timer_spec(10)), model=ScriptedModel(), entries={"e": entry})
    await runtime.start()
    await fake_time.advance(70)

    assert runs == [1, 4, 7]
    assert max_running == 1
    assert runtime.get_stream("e").ticks_skipped == 4
    await runtime.stop()
    assert running_count == 0


async def test_blocked_process_counts_missed_ticks_and_fires_once(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    """B55: late ticks do not fire in a burst."""
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runs: list[int | None] = []

    async def entry(trigger: Trigger, run_message: RunNode) -> None:
        runs.append(trigger.tick)

    runtime.add_graph(make_graph(**timer_spec(10)), model=ScriptedModel(), entries={"e": entry})
    await runtime.start()
    await fake_time.advance(0)
    fake_time.now += 57
    await fake_time.advance(13)

    assert runs == [1, 6, 7]
    assert runtime.get_stream("e").ticks_skipped == 4
    await runtime.stop()


async def test_events_during_a_run_are_not_lost(tmp_path: Path, fake_time: FakeTime) -> None:
    """B45: events are handled in order, one at a time."""
    bus = EventBus()
    runtime = make_runtime(bus, tmp_path, fake_time)
    handled: list[str] = []

    async def entry(trigger: Trigger, run_message: RunNode) -> None:
        assert trigger.event is not None
        await fake_time.sleep(5)
        handled.append(trigger.event.agent_id)

    spec = make_graph(trigger_type="event", event_types={TICKET})
    runtime.add_graph(spec, model=ScriptedModel(), entries={"e": entry})
    await runtime.start()
    await bus.publish(*(AgentEvent(type=TICKET, time=0.0, agent_id=str(n)) for n in range(20)))
    await fake_time.advance(100)

    assert handled == [str(n) for n in range(20)]
    await runtime.stop()


async def test_graph_is_not_started_by_its_own_events(tmp_path: Path, fake_time: FakeTime) -> None:
    """B63: an event of another graph starts a run and carries that graph's id."""
    bus = EventBus()
    runtime = make_runtime(bus, tmp_path, fake_time)
    handled: list[str] = []

    async def entry(trigger: Trigger, run_message: RunNode) -> None:
        assert trigger.event is not None
        handled.append(trigger.event.graph_id)
        await run_message("go")

    spec = make_graph("own", trigger_type="event", event_types={EventType.NODE_LOOP_STARTED})
    runtime.add_graph(spec, model=ScriptedModel(), entries={"e": entry})
    runtime.add_graph(make_graph("other"), model=ScriptedModel())
    await runtime.start()
    await runtime.trigger("e", {"message": "hi"}, graph_id="other")
    await fake_time.settle()

    assert handled == ["other"]
    await runtime.stop()


async def test_graph_events_carry_their_origin_and_no_worker(tmp_path: Path, fake_time: FakeTime) -> None:
    """B50, B63: events carry graph, stream and session; without a worker they have no agent_id."""
    bus = EventBus()
    events: list[AgentEvent] = []
    bus.subscribe(events.append, name="reader")
    runtime = make_runtime(bus, tmp_path, fake_time)
    runtime.add_graph(make_graph("left"), model=ScriptedModel())
    runtime.add_graph(make_graph("right"), model=ScriptedModel())
    await runtime.start()

    result = await run_message(runtime, "hi", graph_id="right")
    await bus.drain()

    assert {(e.graph_id, e.stream_id, e.agent_id, e.session_id, e.execution_id) for e in events} == {
        ("right", "right::e", "", result.session_id, result.execution_id)
    }
    assert {e.node_id for e in events if "node" in e.type or "step" in e.type} == {"judge"}
    await runtime.stop()


async def test_worker_events_have_its_name_and_one_incarnation(tmp_path: Path, fake_time: FakeTime) -> None:
    """B63: runs of one process share an incarnation; another process has another."""
    events: list[AgentEvent] = []
    for _ in range(2):
        bus = EventBus()
        bus.subscribe(events.append, name="reader")
        runtime = make_runtime(bus, tmp_path, fake_time)
        runtime.add_graph(make_graph(), model=ScriptedModel(), agent_id="bee")
        await runtime.start()
        await run_message(runtime, "one")
        await run_message(runtime, "two")
        await bus.drain()
        await runtime.stop()

    assert {e.agent_id for e in events} == {"bee"}
    assert len({e.incarnation_id for e in events}) == 2


async def test_run_after_a_restart_continues_the_conversation(tmp_path: Path, fake_time: FakeTime) -> None:
    """B54: the session keeps its conversation."""
    ids = []
    prompts: list[list[str]] = []
    for message in ("first check", "second check"):
        model = ScriptedModel([ModelReply(text=f"did the {message}")])
        runtime = make_runtime(EventBus(), tmp_path, fake_time)
        runtime.add_graph(make_graph(), model=model)
        await runtime.start()
        ids.append((await run_message(runtime, message)).session_id)
        prompts.append([m.content for m in model.requests[0]])
        await runtime.stop()
        fake_time.now += 60

    assert ids[0] == ids[1]
    assert prompts[1] == ["Judge.", "first check", "did the first check", "second check"]


async def test_fresh_conversation_starts_empty(tmp_path: Path, fake_time: FakeTime) -> None:
    model = ScriptedModel()
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_graph(conversation_mode="fresh"), model=model)
    await runtime.start()

    await run_message(runtime, "one")
    await run_message(runtime, "two")

    assert [m.content for m in model.requests[1]] == ["Judge.", "two"]
    await runtime.stop()


@pytest.mark.parametrize(("isolation", "sessions"), [("isolated", 1), ("per_run", 3)])
async def test_isolation_level_determines_sessions(
    tmp_path: Path, fake_time: FakeTime, isolation: str, sessions: int
) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_graph(isolation_level=isolation), model=ScriptedModel())
    await runtime.start()

    results = [await run_message(runtime, str(n)) for n in range(3)]

    assert len({r.session_id for r in results}) == sessions
    assert len(runtime.session_store().list_sessions()) == sessions
    await runtime.stop()


async def test_entry_points_of_one_graph_have_their_own_sessions(tmp_path: Path, fake_time: FakeTime) -> None:
    node = NodeSpec(id="judge", system_prompt="Judge.")
    entries = tuple(EntryPointSpec(id=i, node_id="judge", isolation_level="isolated") for i in ("a", "b"))
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(GraphSpec(id="g", nodes=(node,), entry_points=entries), model=ScriptedModel())
    await runtime.start()

    results = [await runtime.wait(await runtime.trigger(i, {"message": "x"})) for i in ("a", "b")]

    assert results[0].session_id != results[1].session_id
    await runtime.stop()


async def test_runs_in_one_session_take_turns(tmp_path: Path, fake_time: FakeTime) -> None:
    """A session has one writer, at any concurrency and for all triggers."""
    max_running = running_count = 0

    class Slow(ScriptedModel):
        async def complete(self, *_: Any) -> ModelReply:
            nonlocal max_running, running_count
            running_count += 1
            max_running = max(max_running, running_count)
            await fake_time.sleep(1)
            running_count -= 1
            return ModelReply(text="done")

    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_graph(isolation_level="per_run", max_concurrent=8), model=Slow())
    await runtime.start()
    first_run = await runtime.trigger("e", {"message": "one"})
    await fake_time.advance(2)
    session = (await runtime.wait(first_run)).session_id

    runs = [await runtime.trigger("e", {"message": str(n)}, session_id=session) for n in range(5)]
    await fake_time.advance(10)
    results = [await runtime.wait(r) for r in runs]

    assert [r.status for r in results] == [SessionStatus.COMPLETED] * 5
    assert max_running == 1
    await runtime.stop()


async def test_queue_rejects_runs_beyond_max_waiting(tmp_path: Path, fake_time: FakeTime) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_graph(isolation_level="per_run", max_waiting=2), model=HangingModel())
    await runtime.start()
    running_id, *queued_ids = [await runtime.trigger("e", {"message": "hi"}) for _ in range(3)]

    with pytest.raises(
        TooManyWaitingError, match=r"2 runs of entry point 'e' of graph 'g' are queued.* max_waiting"
    ):
        await runtime.trigger("e", {"message": "hi"})
    await fake_time.settle()
    await runtime.cancel_execution(running_id)
    await fake_time.settle()

    assert await runtime.trigger("e", {"message": "hi"}) not in queued_ids
    await runtime.stop()


def make_question_graph(**entry: Any) -> GraphSpec:
    """Return a graph that asks its user a question."""
    node = NodeSpec(id="chat", system_prompt="Talk.", client_facing=True, output_keys=("name",))
    return GraphSpec(id="g", nodes=(node,), entry_points=(EntryPointSpec(id="e", node_id="chat", **entry),))


class QuestionModel(ScriptedModel):
    """A model that asks one question and accepts the answer."""

    async def complete(self, messages: Any, tools: Any, on_text: Any = None) -> ModelReply:
        if messages[-1].content == "Ada":
            return ModelReply(tool_calls=(ToolCall("c1", "set_output", '{"name": "Ada"}'),))
        return ModelReply(text="Who are you?")


async def test_run_waiting_for_user_takes_no_slot(tmp_path: Path, fake_time: FakeTime) -> None:
    """B109: the graph runs one run at a time, but a conversation that waits for its user takes no slot."""
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_question_graph(), model=QuestionModel())
    await runtime.start()
    runs = [await runtime.trigger("e", {"message": "hi"}) for _ in range(3)]
    await fake_time.settle()
    waiting_sessions = {node.execution_id: node.session_id for node in runtime.list_waiting_nodes()}
    for session in waiting_sessions.values():
        await runtime.inject_input("chat", "Ada", session_id=session)
    results = [await runtime.wait(run_message) for run_message in runs]

    assert list(waiting_sessions) == runs
    assert [result.outputs for result in results] == [{"name": "Ada"}] * 3
    await runtime.stop()


async def test_step_numbers_continue_after_a_resume(tmp_path: Path, fake_time: FakeTime) -> None:
    """A run resumed in another process continues its step count in events and step log."""
    steps: list[AgentEvent] = []
    session = ""
    for _ in range(2):
        bus = EventBus()
        bus.subscribe(steps.append, name="reader", types={EventType.STEP_COMPLETED})
        runtime = make_runtime(bus, tmp_path, fake_time)
        runtime.add_graph(make_question_graph(), model=QuestionModel(), agent_id="bee", primary=True)
        await runtime.start()
        if session:
            await runtime.resume(session)
        else:
            await runtime.trigger("e", {"message": "hi"})
        await fake_time.settle()
        [waiting_node] = runtime.list_waiting_nodes()
        session = waiting_node.session_id
        await runtime.inject_input("chat", "Bob")
        await fake_time.settle()
        await runtime.bus.drain()
        store = runtime.session_store()
        await runtime.stop()
    logged_steps = RuntimeLogger(store.open(session), tmp_path / "runtime_logs").read_steps()

    assert [event.data["index"] for event in steps] == [0, 1, 2]
    assert [row["step_index"] for row in logged_steps] == [0, 1, 2]


@pytest.mark.parametrize(
    ("answer", "has_run"), [(True, ["nectar"]), (False, []), (OSError("no terminal"), [])]
)
async def test_approval_callback_decides_whether_a_tool_runs(
    tmp_path: Path, fake_time: FakeTime, answer: bool | Exception, has_run: list[str]
) -> None:
    """003: a callback approves tool calls. A refused call does not run, and the model receives an error."""
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    prompts: list[str] = []
    approvals: list[tuple[str, str, str, list[str | None]]] = []
    waits: list[str | None] = []
    runtime.subscribe_to_events({EventType.WORKER_WAITING}, lambda e: waits.append(e.data["reason"]))

    async def approve(request: ApprovalRequest) -> bool:
        await fake_time.sleep(3600)
        approvals.append((request.tool, request.arguments, request.node_id, list(waits)))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def fetch(arguments: Fetch) -> str:
        prompts.append(arguments.what)
        return "here"

    node = NodeSpec(id="n", system_prompt="Work.", tools=("fetch",), output_keys=("done",))
    spec = GraphSpec(id="g", nodes=(node,), entry_points=(EntryPointSpec(id="e", node_id="n"),))
    model = ScriptedModel(
        [
            ModelReply(tool_calls=(ToolCall("c1", "fetch", '{"what": "nectar"}'),)),
            ModelReply(tool_calls=(ToolCall("c2", "set_output", '{"done": "yes"}'),)),
        ]
    )
    tool = Tool("fetch", "Fetch.", Fetch, fetch, timeout_seconds=5)
    runtime.add_graph(spec, model=model, tools=[tool], agent_id="bee")
    runtime.set_approval_callback(approve)
    await runtime.start()
    execution_id = await runtime.trigger("e", {"message": "go"})
    await fake_time.advance(3601)
    result = await runtime.wait(execution_id)
    await runtime.stop()

    assert (result.outputs, prompts) == ({"done": "yes"}, has_run)
    assert approvals == [("fetch", '{"what": "nectar"}', "n", ["user_input"])]
    text = model.requests[1][-1].content
    assert text == "here" if has_run else "fetch" in text


async def test_run_waiting_for_session_takes_no_slot(tmp_path: Path, fake_time: FakeTime) -> None:
    """B109: a run queued behind a waiting conversation does not delay other sessions."""
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_question_graph(), model=QuestionModel())
    await runtime.start()
    await runtime.trigger("e", {"message": "hi"})
    await fake_time.settle()
    [waiting_node] = runtime.list_waiting_nodes()
    queued_id = await runtime.trigger("e", {"message": "and?"}, session_id=waiting_node.session_id)
    await fake_time.settle()
    other_id = await runtime.trigger("e", {"message": "hi"})
    await fake_time.settle()

    assert runtime.get_execution(queued_id).is_queued
    assert [node.execution_id for node in runtime.list_waiting_nodes()] == [
        waiting_node.execution_id,
        other_id,
    ]
    await runtime.stop()


async def test_conversations_that_wait_are_bounded(tmp_path: Path, fake_time: FakeTime) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_question_graph(max_waiting=2), model=QuestionModel())
    await runtime.start()
    for _ in range(5):
        await runtime.trigger("e", {"message": "hi"})
        await fake_time.settle()

    assert len(runtime.list_waiting_nodes()) == 3
    with pytest.raises(TooManyWaitingError, match="2 runs of entry point 'e' of graph 'g' are queued"):
        await runtime.trigger("e", {"message": "hi"})
    await runtime.stop()


async def test_session_claimed_by_another_process_is_rejected(tmp_path: Path, fake_time: FakeTime) -> None:
    bus = EventBus()
    failures: list[AgentEvent] = []
    bus.subscribe(failures.append, name="reader", types={EventType.EXECUTION_FAILED})
    runtime = make_runtime(bus, tmp_path, fake_time)
    runtime.add_graph(make_graph(), model=ScriptedModel())
    await runtime.start()
    session_id = (await run_message(runtime, "one")).session_id
    store = runtime.session_store()
    foreign_claim = store.claim(store.open(session_id))

    rejected_run = await run_message(runtime, "two")
    foreign_claim.release()
    later_run = await run_message(runtime, "three")
    await bus.drain()

    assert rejected_run.status is SessionStatus.FAILED
    assert rejected_run.error_type == "SessionBusyError"
    assert session_id in rejected_run.error
    assert later_run.succeeded
    assert [e.data["error_type"] for e in failures] == ["SessionBusyError"]
    await runtime.stop()


@pytest.mark.parametrize("is_added_before", [True, False])
async def test_graph_added_before_the_start_behaves_as_one_added_after(
    tmp_path: Path, fake_time: FakeTime, is_added_before: bool
) -> None:
    """B57: timers run after the start, and nothing before it."""
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runs: list[float] = []

    async def entry(trigger: Trigger, run_message: RunNode) -> None:
        runs.append(fake_time.now)

    def add() -> None:
        runtime.add_graph(make_graph(**timer_spec(10)), model=ScriptedModel(), entries={"e": entry})

    if is_added_before:
        add()
        await fake_time.advance(100)
    await runtime.start()
    if not is_added_before:
        add()
    t0 = fake_time.now
    await fake_time.advance(25)

    assert runs == [t0 + 10, t0 + 20]
    await runtime.stop()


async def test_graph_removed_during_a_tick_leaves_no_task_or_subscription(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    """B57: this is so even if the model of the graph hangs."""
    bus = EventBus()
    runtime = make_runtime(bus, tmp_path, fake_time)
    await runtime.start()
    tasks_before = asyncio.all_tasks()
    entries = (
        EntryPointSpec(id="t", node_id="judge", trigger_type="timer", interval_seconds=10),
        EntryPointSpec(id="e", node_id="judge", trigger_type="event", event_types=frozenset({TICKET})),
    )
    nodes = (NodeSpec(id="judge", system_prompt="Judge."),)
    runtime.add_graph(GraphSpec(id="g", nodes=nodes, entry_points=entries), model=HangingModel())
    await fake_time.advance(10)
    bus.fan_out(AgentEvent(type=TICKET, time=0.0))
    await fake_time.settle()
    queued_id = await runtime.trigger("t", {"message": "queued behind the hanging run"})
    assert len(asyncio.all_tasks() - tasks_before) >= 3

    await runtime.remove_graph("g")
    await fake_time.settle()

    assert asyncio.all_tasks() == tasks_before
    assert bus.subscriptions == ()
    assert (await runtime.wait(queued_id)).status is SessionStatus.CANCELLED
    assert runtime.list_graphs() == []


async def test_failed_run_is_reported_and_next_one_starts(
    tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    bus = EventBus()
    failures: list[AgentEvent] = []
    bus.subscribe(failures.append, name="reader", types={EventType.EXECUTION_FAILED})
    runtime = make_runtime(bus, tmp_path, fake_time)

    async def entry(trigger: Trigger, run_message: RunNode) -> str:
        if trigger.input_data.get("bad"):
            raise LookupError("no such bee")
        return "fine"

    runtime.add_graph(make_graph(), model=ScriptedModel(), entries={"e": entry})
    await runtime.start()
    failed_id = await runtime.trigger("e", {"bad": True})
    next_id = await runtime.trigger("e", {})

    assert (await runtime.wait(failed_id)).error == "no such bee"
    assert (await runtime.wait(next_id)).value == "fine"
    await bus.drain()
    assert [(e.agent_id, e.data["error"]) for e in failures] == [("", "no such bee")]
    await runtime.stop()


async def test_failing_event_log_does_not_fail_the_run(
    tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    class FullDisk:
        async def append(self, events: Any) -> None:
            raise OSError("disk full")

        async def history(self, **_: Any) -> list[AgentEvent]:
            return []

    runtime = make_runtime(EventBus(log=FullDisk()), tmp_path, fake_time)
    runtime.add_graph(make_graph(), model=ScriptedModel([ModelReply(text="fine")]))
    await runtime.start()

    result = await run_message(runtime, "hi")

    assert result.outputs == {"text": "fine"}
    assert "disk full" in caplog.text
    await runtime.stop()


async def test_thousands_of_queued_runs_are_visited_a_few_times_each(
    tmp_path: Path, fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a whole fleet stalls, each ticket queues a run, and stopping must not take minutes."""
    bus, visits, count = EventBus(), 0, 2 * MAX_KEPT_RESULTS
    runtime = make_runtime(bus, tmp_path, fake_time)
    runtime.add_graph(
        make_graph(trigger_type="event", event_types=(TICKET,), max_concurrent=1), model=HangingModel()
    )
    is_done: Callable[[Execution], bool] = vars(Execution)["done"].fget
    list_executions: Callable[[ExecutionStream], list[Execution]] = vars(ExecutionStream)["executions"].fget

    def count_done(execution: Execution) -> bool:
        nonlocal visits
        visits += 1
        return is_done(execution)

    def count_executions(stream: ExecutionStream) -> list[Execution]:
        nonlocal visits
        result = list_executions(stream)
        visits += len(result)
        return result

    monkeypatch.setattr(Execution, "done", property(count_done))
    monkeypatch.setattr(ExecutionStream, "executions", property(count_executions))

    await runtime.start()
    for _ in range(count):
        bus.fan_out(AgentEvent(type=TICKET, time=fake_time.now))
    await fake_time.advance(0)
    assert runtime.get_stream("e").pending == count
    await runtime.stop()

    assert runtime.get_stream("e").pending == 0
    assert visits <= 10 * count


async def test_last_runs_are_kept(tmp_path: Path, fake_time: FakeTime) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)

    async def entry(trigger: Trigger, run_message: RunNode) -> None:
        pass

    runtime.add_graph(make_graph(), model=ScriptedModel(), entries={"e": entry})
    await runtime.start()
    ids = []
    for _ in range(MAX_KEPT_RESULTS + 10):
        ids.append(await runtime.trigger("e"))
        await runtime.wait(ids[-1])
    last_id = await runtime.trigger("e")

    assert (await runtime.wait(last_id)).succeeded
    assert (await runtime.wait(ids[-1])).succeeded
    with pytest.raises(GraphError, match="only the last"):
        await runtime.wait(ids[0])
    await runtime.stop()


async def test_stopped_runtime_can_be_restarted(tmp_path: Path, fake_time: FakeTime) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runs: list[float] = []

    async def entry(trigger: Trigger, run_message: RunNode) -> None:
        runs.append(fake_time.now)

    runtime.add_graph(make_graph(**timer_spec(10)), model=ScriptedModel(), entries={"e": entry})
    await runtime.start()
    await fake_time.advance(10)
    await runtime.stop()
    await fake_time.advance(100)
    await runtime.start()
    await fake_time.advance(10)

    assert len(runs) == 2
    await runtime.stop()


async def test_cancelled_run_has_ended(tmp_path: Path, fake_time: FakeTime) -> None:
    """B55: a hanging run and one queued behind it can be cancelled."""
    bus = EventBus()
    ends: list[AgentEvent] = []
    bus.subscribe(ends.append, name="reader", types={EventType.EXECUTION_FAILED})
    runtime = make_runtime(bus, tmp_path, fake_time)
    runtime.add_graph(make_graph(), model=HangingModel())
    await runtime.start()
    running_id, queued_id = [await runtime.trigger("e", {"message": m}) for m in ("one", "two")]
    await fake_time.settle()
    assert runtime.get_execution_result(running_id) is None

    assert await runtime.cancel_execution(queued_id)
    assert await runtime.cancel_execution(running_id)
    await bus.drain()

    for execution in (running_id, queued_id):
        result = runtime.get_execution_result(execution)
        assert result is not None
        assert (result.status, result.error_type) == (SessionStatus.CANCELLED, "cancelled")
    assert [e.data["error_type"] for e in ends] == ["cancelled"]
    assert not await runtime.cancel_execution(running_id)
    assert runtime.get_stream("e").pending == 0
    await runtime.stop()


@pytest.mark.parametrize("how", ["pause", "cancel"])
async def test_function_node_cancelled_from_outside_has_not_failed(
    tmp_path: Path, fake_time: FakeTime, how: str
) -> None:
    """A node that is paused or cancelled has not failed."""
    bus = EventBus()
    visits: list[AgentEvent] = []
    kinds = {EventType.NODE_LOOP_STARTED, EventType.NODE_LOOP_COMPLETED}
    bus.subscribe(visits.append, name="reader", types=kinds)
    runtime = make_runtime(bus, tmp_path, fake_time)

    async def hang() -> None:
        await asyncio.Event().wait()

    node = NodeSpec(id="n", node_type="function", function="hang")
    entry_point = EntryPointSpec(id="e", node_id="n")
    runtime.add_graph(
        GraphSpec(id="g", nodes=(node,), entry_points=(entry_point,)), functions={"hang": hang}, primary=True
    )
    await runtime.start()
    execution_id = await runtime.trigger("e", {})
    await fake_time.settle()
    if how == "cancel":
        assert await runtime.cancel_execution(execution_id)
    await runtime.stop()
    await bus.drain()

    assert [event.type for event in visits] == [EventType.NODE_LOOP_STARTED]


async def test_invalid_use_is_an_error(tmp_path: Path, fake_time: FakeTime) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    with pytest.raises(GraphError, match="there is no graph None; available: none"):
        runtime.get_stream("e")
    runtime.add_graph(make_graph(), model=ScriptedModel(), primary=True)

    with pytest.raises(GraphError, match="graph 'g' already exists"):
        runtime.add_graph(make_graph(), model=ScriptedModel())
    with pytest.raises(GraphError, match="graph 'h' cannot be primary: 'g' already is"):
        runtime.add_graph(make_graph("h"), model=ScriptedModel(), primary=True)
    with pytest.raises(GraphError, match="graph 'h' has no entry point 'x'"):
        runtime.add_graph(make_graph("h"), model=ScriptedModel(), entries={"x": lambda t, r: r("")})
    with pytest.raises(GraphError, match="has no entry point 'x'; it has: e"):
        runtime.get_stream("x")
    with pytest.raises(GraphError, match="there is no graph 'h'; available: g"):
        await runtime.remove_graph("h")
    with pytest.raises(GraphError, match="'g' is primary and cannot be removed"):
        await runtime.remove_graph("g")
    with pytest.raises(GraphError, match="not started"):
        await runtime.trigger("e", {})
    with pytest.raises(GraphError, match="run 'nobody' is unknown"):
        await runtime.wait("nobody")
    with pytest.raises(GraphError, match="there is no graph 'h'"):
        runtime.active_graph_id = "h"


@pytest.mark.parametrize(
    ("node", "missing"),
    [
        ({"system_prompt": "x", "tools": ("fly",)}, "tool 'fly'"),
        ({"system_prompt": "x", "model": "large"}, "model 'large'"),
        ({"system_prompt": "x", "conversation_judge": "strict"}, "judge 'strict'"),
        ({"node_type": "function", "function": "buzz"}, "function 'buzz'"),
    ],
)
async def test_missing_tool_or_model_is_named(
    tmp_path: Path, fake_time: FakeTime, node: dict[str, Any], missing: str
) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    spec = GraphSpec(
        id="t", nodes=(NodeSpec(id="n", **node),), entry_points=(EntryPointSpec(id="e", node_id="n"),)
    )

    with pytest.raises(GraphError, match=f"node 'n' uses {missing}, which was not passed"):
        runtime.add_graph(spec, model=ScriptedModel())


async def test_active_graph_is_the_selected_then_the_primary_then_the_first(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_graph("first"), model=ScriptedModel())
    assert runtime.active_graph_id == "first"

    runtime.add_graph(make_graph("main"), model=ScriptedModel(), primary=True)
    assert runtime.active_graph_id == "main"

    runtime.active_graph_id = "first"
    assert runtime.get_active_graph().id == "first"
    assert runtime.get_entry_points() == runtime.get_entry_points("first")

    await runtime.remove_graph("first")
    assert runtime.active_graph_id == "main"


async def test_sessions_of_secondary_graphs_have_their_own_folder(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_graph("main"), model=ScriptedModel(), primary=True, agent_id="bee")
    runtime.add_graph(make_graph("second"), model=ScriptedModel())
    await runtime.start()

    main_run, second_run = (
        await run_message(runtime, "x", graph_id="main"),
        await run_message(runtime, "x", graph_id="second"),
    )

    assert (tmp_path / "sessions" / main_run.session_id / "state.json").is_file()
    second_folder = tmp_path / "graphs" / "second" / "sessions" / second_run.session_id
    assert (second_folder / "state.json").is_file()
    assert (second_folder / "conversations" / "judge" / "cursor.json").is_file()
    assert (second_folder / "logs" / "tool_logs.jsonl").is_file()
    await runtime.stop()


async def test_shared_session_shares_memory_but_not_the_conversation(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_graph("main", isolation_level="per_run"), model=ScriptedModel(), primary=True)
    guardian = GraphSpec(
        id="guardian",
        nodes=(NodeSpec(id="judge", system_prompt="Guard.", input_keys=("hive",)),),
        entry_points=(EntryPointSpec(id="e", node_id="judge", isolation_level="shared"),),
    )
    model = ScriptedModel()
    runtime.add_graph(guardian, model=model)
    await runtime.start()
    main_run = await runtime.wait(await runtime.trigger("e", {"hive": "north"}, graph_id="main"))

    guardian_run = await runtime.wait(await runtime.trigger("e", {"message": "failed"}, graph_id="guardian"))

    assert guardian_run.session_id == main_run.session_id
    assert "north" in model.requests[0][1].content
    session = tmp_path / "sessions" / main_run.session_id
    assert (session / "conversations" / "judge").is_dir()
    assert (session / "graphs" / "guardian" / "conversations" / "judge").is_dir()
    state = runtime.session_store("main").read_state(main_run.session_id)
    assert state.memory == {"hive": "north", "message": "failed"}
    assert set(state.executions) == {"main::e", "guardian::e"}
    await runtime.stop()


async def test_user_is_present_after_recent_input(tmp_path: Path, fake_time: FakeTime) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_graph(), model=ScriptedModel())
    await runtime.start()
    assert math.isinf(runtime.user_idle_seconds)
    assert not runtime.is_user_present

    assert not await runtime.inject_input("judge", "hello?")

    fake_time.now += 119
    assert runtime.is_user_present
    assert runtime.user_idle_seconds == 119
    fake_time.now += 1
    assert not runtime.is_user_present
    await runtime.stop()


async def test_question_accepts_one_answer(tmp_path: Path, fake_time: FakeTime) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    model = ScriptedModel([ModelReply(text="Who are you?"), ModelReply(text="Are you sure?")])
    node = NodeSpec(id="chat", system_prompt="Talk.", client_facing=True, output_keys=("name",))
    entry = EntryPointSpec(id="e", node_id="chat")
    runtime.add_graph(GraphSpec(id="hive", nodes=(node,), entry_points=(entry,)), model=model)
    await runtime.start()
    await runtime.trigger("e", {"message": "hi"})
    await fake_time.settle()
    [first_question] = runtime.list_waiting_nodes()

    answers = await asyncio.gather(
        *(runtime.inject_input("chat", name) for name in ("Ada", "Bob")), return_exceptions=True
    )
    await fake_time.settle()
    [second_question] = runtime.list_waiting_nodes()
    with pytest.raises(QuestionAnsweredError, match="was answered already: 'Ada'"):
        await runtime.inject_input("chat", "Bob", question_id=first_question.question_id)

    assert [type(answer) for answer in answers] == [bool, QuestionAnsweredError]
    assert second_question.question == "Are you sure?"
    assert [m.content for m in model.requests[1]][-1] == "Ada"
    assert await runtime.inject_input("chat", "yes", question_id=second_question.question_id)
    await runtime.stop()


async def test_user_input_is_routed_to_the_active_graph_first(tmp_path: Path, fake_time: FakeTime) -> None:
    """B62: two graphs have the same node id, and input reaches the right graph."""
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    models = {name: ScriptedModel([ModelReply(text="Who are you?")]) for name in ("left", "right")}
    for name, model in models.items():
        spec = GraphSpec(
            id=name,
            nodes=(NodeSpec(id="chat", system_prompt="Talk.", client_facing=True, output_keys=("name",)),),
            entry_points=(EntryPointSpec(id="e", node_id="chat", max_concurrent=2),),
        )
        runtime.add_graph(spec, model=model)
    await runtime.start()
    for name in models:
        await runtime.trigger("e", {"message": "hi"}, graph_id=name)
    await fake_time.settle()
    assert [(w.graph_id, w.node_id, w.question) for w in runtime.list_waiting_nodes()] == [
        ("left", "chat", "Who are you?"),
        ("right", "chat", "Who are you?"),
    ]

    runtime.active_graph_id = "right"
    assert await runtime.inject_input("chat", "a drone")
    await fake_time.settle()

    assert [m.content for m in models["right"].requests[1]][-1] == "a drone"
    assert len(models["left"].requests) == 1
    second_run = await runtime.trigger("e", {"message": "hi"}, graph_id="left")
    await fake_time.settle()
    with pytest.raises(GraphError, match="several sessions; pass one"):
        await runtime.inject_input("chat", "me", graph_id="left")
    session = next(w.session_id for w in runtime.list_waiting_nodes() if w.execution_id == second_run)
    assert await runtime.inject_input("chat", "me", graph_id="left", session_id=session)
    await runtime.stop()


async def test_subscription_can_filter_by_graph(tmp_path: Path, fake_time: FakeTime) -> None:
    """B62: events are routed by graph and node."""
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    events: list[AgentEvent] = []
    for name in ("left", "right"):
        runtime.add_graph(make_graph(name), model=ScriptedModel())
    subscription = runtime.subscribe_to_events(
        {EventType.STEP_COMPLETED}, events.append, filter_graph="left", filter_node="judge"
    )
    await runtime.start()

    await run_message(runtime, "x", graph_id="left")
    await run_message(runtime, "x", graph_id="right")
    await runtime.bus.drain()

    assert [e.graph_id for e in events] == ["left"]
    subscription.cancel()
    await runtime.stop()


def make_sharing_graph(graph_id: str) -> GraphSpec:
    """Return a graph with a node that asks its user, in the primary graph's session."""
    node = NodeSpec(
        id="judge", system_prompt="Guard.", client_facing=True, output_keys=("x",), input_keys=("hive",)
    )
    entry = EntryPointSpec(id="e", node_id="judge", isolation_level="shared")
    return GraphSpec(id=graph_id, nodes=(node,), entry_points=(entry,))


async def test_run_in_a_shared_session_is_resumed_there_after_a_restart(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    """Graphs that share a session share its memory, and run independently."""
    replies = [ModelReply(text="What now?"), tool_call_reply("set_output", '{"x": "rest"}')]
    sessions = []
    for runtime_number in range(2):
        runtime = make_runtime(EventBus(), tmp_path, fake_time)
        main_graph = make_graph("main", isolation_level="per_run")
        runtime.add_graph(main_graph, model=ScriptedModel(), primary=True, agent_id="bee")
        runtime.add_graph(
            make_sharing_graph("side"), model=ScriptedModel(replies[runtime_number:]), agent_id="drone"
        )
        await runtime.start()
        if runtime_number == 0:
            main_run = await runtime.wait(await runtime.trigger("e", {"hive": "north"}, graph_id="main"))
            sessions.append(main_run.session_id)
            await runtime.trigger("e", graph_id="side")
            await fake_time.settle()
            assert [w.session_id for w in runtime.list_waiting_nodes()] == sessions
            await runtime.stop()
            continue
        run_id = await runtime.resume(sessions[0], "side")
        await fake_time.settle()
        assert [w.question for w in runtime.list_waiting_nodes()] == ["What now?"]
        assert await runtime.inject_input("judge", "rest")
        result = await runtime.wait(run_id)
        await runtime.stop()

    assert (result.session_id, result.outputs) == (sessions[0], {"x": "rest"})
    state = SessionStore(tmp_path, clock=fake_time).read_state(sessions[0])
    assert state.memory == {"hive": "north", "x": "rest"}


async def test_shared_session_is_requested_or_newest(tmp_path: Path, fake_time: FakeTime) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_graph("main", isolation_level="per_run"), model=ScriptedModel(), primary=True)
    await runtime.start()
    session_ids = []
    for _ in range(2):
        session_ids.append((await run_message(runtime, "x", graph_id="main")).session_id)
        fake_time.now += 5
    await runtime.stop()

    other_runtime = make_runtime(EventBus(), tmp_path, fake_time)
    other_runtime.add_graph(
        make_graph("main", isolation_level="per_run"), model=ScriptedModel(), primary=True
    )
    other_runtime.add_graph(make_graph("side", isolation_level="shared"), model=ScriptedModel())
    await other_runtime.start()

    assert (await run_message(other_runtime, "x", graph_id="side")).session_id == session_ids[1]
    assert (
        await run_message(other_runtime, "x", graph_id="side", session_id=session_ids[0])
    ).session_id == session_ids[0]
    failed_run = await run_message(other_runtime, "x", graph_id="side", session_id="session_of_nobody")
    assert failed_run.error_type == "SessionNotFoundError"
    await other_runtime.stop()


async def test_deleted_persistent_session_is_recreated(tmp_path: Path, fake_time: FakeTime) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_graph(), model=ScriptedModel())
    await runtime.start()
    first_run = await run_message(runtime, "one")

    runtime.session_store().delete_session(first_run.session_id)
    second_run = await run_message(runtime, "two")

    assert second_run.succeeded
    assert second_run.session_id != first_run.session_id
    await runtime.stop()


async def test_automatically_triggered_runs_are_listed(tmp_path: Path, fake_time: FakeTime) -> None:
    bus = EventBus()
    events: list[AgentEvent] = []
    bus.subscribe(events.append, name="reader", types={EventType.EXECUTION_COMPLETED})
    runtime = make_runtime(bus, tmp_path, fake_time)
    goal = Goal(id="g", success_criteria=(SuccessCriterion(id="tick", expression="tick > 0"),))
    runtime.add_graph(make_graph(**timer_spec(10)), model=ScriptedModel(), goal=goal)
    await runtime.start()

    await fake_time.advance(10)

    result = runtime.get_execution_result(events[0].execution_id, "g")
    assert result is not None
    assert result.succeeded
    progress = runtime.get_goal_progress("g")
    assert progress is not None
    assert progress.achieved
    with pytest.raises(GraphError, match="is in graph 'g', not 'other'"):
        runtime.get_execution_result(events[0].execution_id, "other")
    await runtime.stop()


async def test_resuming_a_removed_node_is_an_error(tmp_path: Path, fake_time: FakeTime) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_graph(node="old"), model=HangingModel())
    await runtime.start()
    execution = await runtime.trigger("e", {"message": "x"})
    await fake_time.settle()
    await runtime.remove_graph("g")
    session = (await runtime.wait(execution)).session_id
    runtime.add_graph(make_graph(node="new"), model=ScriptedModel())

    with pytest.raises(GraphError, match="it stopped in node 'old', which graph 'g' no longer has"):
        await runtime.resume(session)
    await runtime.stop()


async def test_isolated_session_is_not_shared(tmp_path: Path, fake_time: FakeTime) -> None:
    """This is so after a restart too."""
    for attempt in range(2):
        runtime = make_runtime(EventBus(), tmp_path, fake_time)
        nodes = (NodeSpec(id="judge", system_prompt="Judge."),)
        entries = (
            EntryPointSpec(id="e", node_id="judge"),
            EntryPointSpec(id="t", node_id="judge", isolation_level="isolated"),
        )
        main_graph = GraphSpec(id="main", nodes=nodes, entry_points=entries)
        runtime.add_graph(main_graph, model=ScriptedModel(), primary=True)
        runtime.add_graph(make_graph("side", isolation_level="shared"), model=ScriptedModel())
        await runtime.start()
        if attempt == 0:
            main_run = await run_message(runtime, "x", graph_id="main")
            fake_time.now += 5
            await runtime.wait(await runtime.trigger("t", {"message": "tick"}, graph_id="main"))

        side_run = await run_message(runtime, "x", graph_id="side")
        await runtime.stop()

        assert side_run.session_id == main_run.session_id


@pytest.mark.parametrize("input_data", [[1], [], "words", 7])
async def test_input_that_is_not_a_mapping_is_rejected(
    tmp_path: Path, fake_time: FakeTime, input_data: Any
) -> None:
    runtime = make_runtime(EventBus(), tmp_path, fake_time)
    runtime.add_graph(make_graph(), model=ScriptedModel())
    await runtime.start()

    with pytest.raises(TypeError, match=r"input_data of 'g::e' must be a mapping .* not (list|str|int)"):
        await runtime.trigger("e", input_data)

    await runtime.stop()


@pytest.mark.parametrize("storage", ["there", "a_file"])
async def test_fixable_error_is_logged_in_one_line(
    tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture, storage: str
) -> None:
    (tmp_path / "a_file").write_text("", encoding="utf-8")
    runtime = make_runtime(EventBus(), tmp_path / storage, fake_time)
    runtime.add_graph(make_graph(isolation_level="per_run"), model=ScriptedModel(), primary=True)
    await runtime.start()

    result = await run_message(runtime, "hi", session_id="nosuch" if storage == "there" else None)
    await runtime.stop()

    assert result.status is SessionStatus.FAILED
    [record] = caplog.records
    assert record.exc_info is None
    assert record.getMessage().endswith(f"g::e failed: {result.error}")
