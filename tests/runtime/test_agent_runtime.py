import asyncio
from pathlib import Path
from typing import Any

import pytest

from queenright.runtime.agent_runtime import AgentRuntime, GraphError
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.graph import EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.model import ModelReply
from queenright.runtime.stream import Failed, RunNode, Trigger
from tests.runtime.conftest import FakeTime, ScriptedModel

TICKET = EventType.WORKER_ESCALATION_TICKET


def graph(graph_id: str = "g", node: str = "judge", **entry: Any) -> GraphSpec:
    return GraphSpec(
        id=graph_id,
        nodes=(NodeSpec(id=node, system_prompt="Judge."),),
        entry_points=(EntryPointSpec(id="e", node_id=node, **entry),),
    )


def timer(seconds: float) -> dict[str, Any]:
    return {"trigger_type": "timer", "interval_seconds": seconds}


def runtime_on(bus: EventBus, path: Path, time: FakeTime) -> AgentRuntime:
    return AgentRuntime(bus=bus, storage=path, clock=time, monotonic=time, sleep=time.sleep)


def kept_messages(sessions: Path, conversation: str) -> int:
    return len(list(sessions.glob(f"session_*/{conversation}/*.json")))


async def test_thirty_ticks_fire_on_the_dot(tmp_path: Path, fake_time: FakeTime) -> None:
    """B56: at t0 + k * interval, however long each run takes."""
    runtime = runtime_on(EventBus(), tmp_path, fake_time)
    fired: list[float] = []

    async def entry(trigger: Trigger, run: RunNode) -> None:
        fired.append(fake_time.now)
        await fake_time.sleep(7.3)

    runtime.add_graph(graph(**timer(120)), model=ScriptedModel(), entries={"e": entry})
    t0 = fake_time.now
    await runtime.start()
    await fake_time.advance(30 * 120)

    assert fired == [t0 + k * 120 for k in range(1, 31)]
    assert runtime.get_stream("e").ticks_skipped == 0
    await runtime.stop()


async def test_a_run_longer_than_its_interval_skips_ticks_and_counts_them(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    """B55: one in flight at most, the next tick is on the grid again, and a run can be cancelled."""
    runtime = runtime_on(EventBus(), tmp_path, fake_time)
    fired: list[int | None] = []
    running = at_once = 0

    async def entry(trigger: Trigger, run: RunNode) -> None:
        nonlocal running, at_once
        fired.append(trigger.tick)
        running += 1
        at_once = max(at_once, running)
        try:
            await fake_time.sleep(25)
        finally:
            running -= 1

    runtime.add_graph(graph(**timer(10)), model=ScriptedModel(), entries={"e": entry})
    await runtime.start()
    await fake_time.advance(70)

    assert fired == [1, 4, 7]
    assert at_once == 1
    assert runtime.get_stream("e").ticks_skipped == 4
    await runtime.stop()
    assert running == 0


async def test_a_process_held_up_past_whole_intervals_counts_them_and_fires_once(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    """B55: no burst of late ticks."""
    runtime = runtime_on(EventBus(), tmp_path, fake_time)
    fired: list[int | None] = []

    async def entry(trigger: Trigger, run: RunNode) -> None:
        fired.append(trigger.tick)

    runtime.add_graph(graph(**timer(10)), model=ScriptedModel(), entries={"e": entry})
    await runtime.start()
    await fake_time.advance(0)
    fake_time.now += 57
    await fake_time.advance(13)

    assert fired == [1, 5, 6, 7]
    assert runtime.get_stream("e").ticks_skipped == 3
    await runtime.stop()


async def test_no_event_is_lost_while_a_run_is_going_on(tmp_path: Path, fake_time: FakeTime) -> None:
    """B45: each is handled, in order, one at a time."""
    bus = EventBus()
    runtime = runtime_on(bus, tmp_path, fake_time)
    seen: list[str] = []

    async def entry(trigger: Trigger, run: RunNode) -> None:
        assert trigger.event is not None
        await fake_time.sleep(5)
        seen.append(trigger.event.agent_id)

    spec = graph(trigger_type="event", event_types={TICKET})
    runtime.add_graph(spec, model=ScriptedModel(), entries={"e": entry})
    await runtime.start()
    await bus.publish(*(AgentEvent(type=TICKET, time=0.0, agent_id=str(n)) for n in range(20)))
    await fake_time.advance(100)

    assert seen == [str(n) for n in range(20)]
    await runtime.stop()


async def test_a_graph_is_not_started_by_its_own_events(tmp_path: Path, fake_time: FakeTime) -> None:
    """B63: what another graph emitted starts it, and carries that graph's id."""
    bus = EventBus()
    runtime = runtime_on(bus, tmp_path, fake_time)
    seen: list[str] = []

    async def entry(trigger: Trigger, run: RunNode) -> None:
        assert trigger.event is not None
        seen.append(trigger.event.graph_id)
        await run("go")

    spec = graph("own", trigger_type="event", event_types={EventType.NODE_LOOP_STARTED})
    runtime.add_graph(spec, model=ScriptedModel(), entries={"e": entry})
    runtime.add_graph(graph("other"), model=ScriptedModel())
    await runtime.start()
    await runtime.trigger("e", {"message": "hi"}, graph_id="other")
    await fake_time.settle()

    assert seen == ["other"]
    await runtime.stop()


async def test_events_of_a_graph_carry_where_they_come_from_and_no_worker(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    """B50, B63: graph, stream, node and session are on every event; agent_id is not."""
    bus = EventBus()
    seen: list[AgentEvent] = []
    bus.subscribe(seen.append, name="reader")
    runtime = runtime_on(bus, tmp_path, fake_time)
    runtime.add_graph(graph("left"), model=ScriptedModel())
    runtime.add_graph(graph("right"), model=ScriptedModel())
    await runtime.start()

    await runtime.trigger("e", {"message": "hi"}, graph_id="right")
    await bus.drain()

    assert {(e.graph_id, e.stream_id, e.node_id, e.agent_id) for e in seen} == {
        ("right", "right::e", "judge", "")
    }
    assert {e.session_id for e in seen} == {runtime.get_stream("e", graph_id="right").session.id}
    assert len({e.execution_id for e in seen}) == 1
    await runtime.stop()


async def test_after_a_restart_the_second_run_still_knows_the_first(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    """B54: same session, same conversation."""
    ids = []
    shown: list[list[str]] = []
    for message in ("first check", "second check"):
        model = ScriptedModel([ModelReply(text=f"did the {message}")])
        runtime = runtime_on(EventBus(), tmp_path, fake_time)
        runtime.add_graph(graph(), model=model)
        await runtime.start()
        await runtime.trigger("e", {"message": message})
        ids.append(runtime.get_stream("e").session.id)
        shown.append([m.content for m in model.shown[0]])
        await runtime.stop()
        fake_time.now += 60

    assert ids[0] == ids[1]
    assert shown[1] == ["Judge.", "first check", "did the first check", "second check"]
    assert kept_messages(tmp_path / "graphs/g/sessions", "conversations/judge") == 4


async def test_a_fresh_conversation_knows_nothing_of_the_run_before(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    model = ScriptedModel()
    runtime = runtime_on(EventBus(), tmp_path, fake_time)
    runtime.add_graph(graph(conversation_mode="fresh"), model=model)
    await runtime.start()

    await runtime.trigger("e", {"message": "one"})
    await runtime.trigger("e", {"message": "two"})

    assert [m.content for m in model.shown[1]] == ["Judge.", "two"]
    await runtime.stop()


async def test_entry_points_of_one_graph_have_sessions_of_their_own(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    node = NodeSpec(id="judge", system_prompt="Judge.")
    entries = tuple(EntryPointSpec(id=i, node_id="judge") for i in ("a", "b"))
    runtime = runtime_on(EventBus(), tmp_path, fake_time)
    runtime.add_graph(GraphSpec(id="g", nodes=(node,), entry_points=entries), model=ScriptedModel())

    assert runtime.get_stream("a").session.id != runtime.get_stream("b").session.id


@pytest.mark.parametrize("before", [True, False])
async def test_a_graph_added_before_the_start_behaves_as_one_added_after(
    tmp_path: Path, fake_time: FakeTime, before: bool
) -> None:
    """B57: timers run, and nothing ran before the start."""
    runtime = runtime_on(EventBus(), tmp_path, fake_time)
    fired: list[float] = []

    async def entry(trigger: Trigger, run: RunNode) -> None:
        fired.append(fake_time.now)

    def add() -> None:
        runtime.add_graph(graph(**timer(10)), model=ScriptedModel(), entries={"e": entry})

    if before:
        add()
        await fake_time.advance(100)
    await runtime.start()
    if not before:
        add()
    t0 = fake_time.now
    await fake_time.advance(25)

    assert fired == [t0 + 10, t0 + 20]
    await runtime.stop()


async def test_a_graph_removed_in_the_middle_of_a_tick_leaves_no_task_and_no_subscription(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    """B57: also when its model hangs."""

    class Hanging(ScriptedModel):
        async def complete(self, *_: Any) -> ModelReply:
            await asyncio.Event().wait()
            raise AssertionError

    bus = EventBus()
    runtime = runtime_on(bus, tmp_path, fake_time)
    await runtime.start()
    before = asyncio.all_tasks()
    spec = GraphSpec(
        id="g",
        nodes=(NodeSpec(id="judge", system_prompt="Judge."),),
        entry_points=(
            EntryPointSpec(id="t", node_id="judge", trigger_type="timer", interval_seconds=10),
            EntryPointSpec(id="e", node_id="judge", trigger_type="event", event_types=frozenset({TICKET})),
        ),
    )
    runtime.add_graph(spec, model=Hanging())
    await fake_time.advance(10)
    bus.fan_out(AgentEvent(type=TICKET, time=0.0))
    await fake_time.settle()
    waiting = runtime.trigger("t", {"message": "behind the hanging one"})
    assert len(asyncio.all_tasks() - before) >= 3

    await runtime.remove_graph("g")
    await fake_time.settle()

    assert asyncio.all_tasks() == before
    assert bus.subscriptions == ()
    assert waiting.cancelled()
    assert runtime.list_graphs() == []


async def test_a_run_that_raises_is_told_and_the_next_one_runs(
    tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    bus = EventBus()
    failures: list[AgentEvent] = []
    bus.subscribe(failures.append, name="reader", types={EventType.EXECUTION_FAILED})
    runtime = runtime_on(bus, tmp_path, fake_time)

    async def entry(trigger: Trigger, run: RunNode) -> str:
        if trigger.input_data.get("bad"):
            raise LookupError("no such bee")
        return "fine"

    runtime.add_graph(graph(), model=ScriptedModel(), entries={"e": entry})
    await runtime.start()
    first, second = runtime.trigger("e", {"bad": True}), runtime.trigger("e", {})

    assert isinstance(await first, Failed)
    assert await second == "fine"
    await bus.drain()
    assert [(e.agent_id, e.data["error"]) for e in failures] == [("", "no such bee")]
    await runtime.stop()


async def test_a_log_that_fails_does_not_fail_the_run(
    tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    class FullDisk:
        async def append(self, events: Any) -> None:
            raise OSError("disk full")

    runtime = runtime_on(EventBus(log=FullDisk()), tmp_path, fake_time)
    runtime.add_graph(graph(), model=ScriptedModel([ModelReply(text="fine")]))
    await runtime.start()

    result = await runtime.trigger("e", {"message": "hi"})

    assert result.text == "fine"
    assert "disk full" in caplog.text
    await runtime.stop()


async def test_a_runtime_that_was_stopped_starts_again(tmp_path: Path, fake_time: FakeTime) -> None:
    runtime = runtime_on(EventBus(), tmp_path, fake_time)
    fired: list[float] = []

    async def entry(trigger: Trigger, run: RunNode) -> None:
        fired.append(fake_time.now)

    runtime.add_graph(graph(**timer(10)), model=ScriptedModel(), entries={"e": entry})
    await runtime.start()
    await fake_time.advance(10)
    await runtime.stop()
    await fake_time.advance(100)
    await runtime.start()
    await fake_time.advance(10)

    assert len(fired) == 2
    await runtime.stop()


async def test_misuse_is_named(tmp_path: Path, fake_time: FakeTime) -> None:
    runtime = runtime_on(EventBus(), tmp_path, fake_time)
    with pytest.raises(GraphError, match="there is no graph None; there are: none"):
        runtime.get_stream("e")
    runtime.add_graph(graph(), model=ScriptedModel())

    with pytest.raises(GraphError, match="graph 'g' is there already"):
        runtime.add_graph(graph(), model=ScriptedModel())
    with pytest.raises(GraphError, match="graph 'h' has no entry point 'x'"):
        runtime.add_graph(graph("h"), model=ScriptedModel(), entries={"x": lambda t, r: r("")})
    with pytest.raises(GraphError, match="has no entry point 'x'; it has: e"):
        runtime.get_stream("x")
    with pytest.raises(GraphError, match="there is no graph 'h'; there are: g"):
        await runtime.remove_graph("h")
    with pytest.raises(GraphError, match="not started"):
        runtime.trigger("e", {})
    tooled = GraphSpec(
        id="t",
        nodes=(NodeSpec(id="n", system_prompt="x", tools=("fly",)),),
        entry_points=(EntryPointSpec(id="e", node_id="n"),),
    )
    with pytest.raises(GraphError, match="node 'n' uses tool 'fly', which is not given"):
        runtime.add_graph(tooled, model=ScriptedModel())
