import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.bus import EventBus
from queenright.runtime.events import ALERT_CLASS, AgentEvent, EventType

DELTA = EventType.LLM_TEXT_DELTA
TICKET = EventType.WORKER_ESCALATION_TICKET


def event(event_type: EventType = DELTA, **fields: str) -> AgentEvent:
    return AgentEvent(type=event_type, time=0.0, **fields)  # type: ignore[arg-type]


class Gate:
    """A subscriber that sleeps until it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.seen: list[AgentEvent] = []

    async def __call__(self, event: AgentEvent) -> None:
        await self.opened.wait()
        self.seen.append(event)


class ListLog:
    def __init__(self) -> None:
        self.rows: list[AgentEvent] = []

    async def append(self, events: Sequence[AgentEvent]) -> None:
        await asyncio.sleep(0)
        self.rows.extend(events)


async def test_a_sleeping_subscriber_neither_slows_the_publisher_nor_loses_a_ticket() -> None:
    """B58: the queue is bounded, drops are counted, tickets are never dropped."""
    drops: list[tuple[str, int]] = []
    bus = EventBus(on_drop=lambda name, count: drops.append((name, count)))
    asleep = Gate()
    awake: list[AgentEvent] = []
    slow = bus.subscribe(asleep, name="slow", capacity=100)
    bus.subscribe(awake.append, name="awake")

    for n in range(1000):
        await bus.publish(event(TICKET if n % 100 == 0 else DELTA, node_id=str(n)))
    await asyncio.sleep(0)
    assert slow.pending <= 100

    asleep.opened.set()
    await bus.drain()

    assert len(awake) == 1000
    assert [e.node_id for e in asleep.seen if e.type is TICKET] == [str(n) for n in range(0, 1000, 100)]
    assert slow.dropped == 1000 - len(asleep.seen) > 0
    assert sum(count for _, count in drops) == slow.dropped
    assert {name for name, _ in drops} == {"slow"}


async def test_the_oldest_events_are_dropped_and_the_rest_stay_in_order() -> None:
    """B58: what is kept is the newest."""
    bus = EventBus()
    gate = Gate()
    bus.subscribe(gate, name="slow", capacity=3)

    bus.fan_out(*(event(node_id=str(n)) for n in range(10)))
    gate.opened.set()
    await bus.drain()

    assert [e.node_id for e in gate.seen] == ["7", "8", "9"]


async def test_a_queue_full_of_tickets_takes_more_tickets_and_refuses_deltas() -> None:
    """B61: no flood of text pushes a ticket out."""
    bus = EventBus()
    gate = Gate()
    subscription = bus.subscribe(gate, name="slow", capacity=2)

    bus.fan_out(*(event(TICKET, node_id=str(n)) for n in range(5)))
    bus.fan_out(*(event() for _ in range(100_000)))
    gate.opened.set()
    await bus.drain()

    assert [e.node_id for e in gate.seen] == ["0", "1", "2", "3", "4"]
    assert subscription.dropped == 100_000


@given(
    kinds=st.lists(st.sampled_from([DELTA, TICKET, EventType.AGENT_HEARTBEAT]), max_size=60),
    capacity=st.integers(min_value=1, max_value=20),
)
def test_whatever_is_published_order_holds_and_no_alert_is_lost(
    kinds: list[EventType], capacity: int
) -> None:
    """B58: for any mix of events and any queue size."""

    async def scenario() -> tuple[list[int], int]:
        bus = EventBus()
        gate = Gate()
        subscription = bus.subscribe(gate, name="slow", capacity=capacity)
        bus.fan_out(*(event(kind, node_id=str(n)) for n, kind in enumerate(kinds)))
        gate.opened.set()
        await bus.drain()
        return [int(e.node_id) for e in gate.seen], subscription.dropped

    seen, dropped = asyncio.run(scenario())

    assert seen == sorted(seen)
    assert {n for n, kind in enumerate(kinds) if kind in ALERT_CLASS} <= set(seen)
    assert len(seen) + dropped == len(kinds)
    assert dropped == 0 or len(kinds) > capacity


async def test_a_handler_that_publishes_a_hundred_deep_does_not_deadlock() -> None:
    """B59: also with a log in between and a queue of one."""
    bus = EventBus(log=ListLog())
    done = asyncio.Event()
    depth = 0

    async def again(_: AgentEvent) -> None:
        nonlocal depth
        depth += 1
        if depth == 100:
            done.set()
        else:
            await bus.publish(event())

    bus.subscribe(again, name="again", capacity=1)

    await bus.publish(event())
    await asyncio.wait_for(done.wait(), 5)

    assert depth == 100


async def test_a_failing_handler_is_reported_and_reaches_nobody_else() -> None:
    """B60: neither the publisher nor other handlers hear of it; it goes on with the next event."""
    errors: list[tuple[str, BaseException]] = []
    bus = EventBus(on_error=lambda name, error: errors.append((name, error)))
    seen: list[AgentEvent] = []

    def broken(_: AgentEvent) -> None:
        raise LookupError("no such bee")

    bus.subscribe(broken, name="broken")
    bus.subscribe(seen.append, name="fine")

    await bus.publish(event(), event())
    await bus.drain()

    assert len(seen) == 2
    assert [(name, str(error)) for name, error in errors] == [("broken", "no such bee")] * 2


async def test_a_failing_handler_is_logged_where_nobody_asked(caplog: pytest.LogCaptureFixture) -> None:
    """B60: silence is not an option either."""
    bus = EventBus()

    async def broken(_: AgentEvent) -> None:
        raise LookupError("no such bee")

    bus.subscribe(broken, name="broken")
    bus.fan_out(event())
    await bus.drain()

    assert "broken" in caplog.text
    assert "no such bee" in caplog.text


async def test_events_of_two_graphs_with_one_node_id_go_where_they_belong() -> None:
    """B62: routing is by graph and node."""
    bus = EventBus()
    left: list[AgentEvent] = []
    right: list[AgentEvent] = []
    bus.subscribe(left.append, name="left", graph_id="left", node_id="judge")
    bus.subscribe(right.append, name="right", graph_id="right", node_id="judge")

    bus.fan_out(
        event(graph_id="left", node_id="judge", stream_id="1"),
        event(graph_id="right", node_id="judge", stream_id="2"),
        event(graph_id="right", node_id="other", stream_id="3"),
    )
    await bus.drain()

    assert [e.stream_id for e in left] == ["1"]
    assert [e.stream_id for e in right] == ["2"]


async def test_filters_on_type_agent_and_stream_all_hold_at_once() -> None:
    bus = EventBus()
    seen: list[AgentEvent] = []
    bus.subscribe(seen.append, name="narrow", types={TICKET}, agent_id="a", stream_id="s")

    bus.fan_out(
        event(TICKET, agent_id="a", stream_id="s", node_id="yes"),
        event(TICKET, agent_id="b", stream_id="s"),
        event(TICKET, agent_id="a", stream_id="t"),
        event(DELTA, agent_id="a", stream_id="s"),
    )
    await bus.drain()

    assert [e.node_id for e in seen] == ["yes"]


async def test_events_are_durable_before_anyone_sees_them() -> None:
    log = ListLog()
    bus = EventBus(log=log)
    durable: list[int] = []
    bus.subscribe(lambda _: durable.append(len(log.rows)), name="reader")

    await bus.publish(event(), event())
    await bus.drain()

    assert durable == [2, 2]


async def test_what_could_not_be_made_durable_reaches_nobody() -> None:
    class FullDisk:
        async def append(self, events: Sequence[AgentEvent]) -> None:
            raise OSError("disk full")

    bus = EventBus(log=FullDisk())
    seen: list[AgentEvent] = []
    bus.subscribe(seen.append, name="reader")

    with pytest.raises(OSError, match="disk full"):
        await bus.publish(event())
    await bus.drain()

    assert seen == []


async def test_everything_fanned_out_is_shown_to_on_publish() -> None:
    shown: list[AgentEvent] = []
    bus = EventBus(on_publish=shown.extend)

    await bus.publish(event(), event(TICKET))
    bus.fan_out(event())

    assert [e.type for e in shown] == [DELTA, TICKET, DELTA]


async def test_a_cancelled_subscription_leaves_no_task_and_gets_nothing_more() -> None:
    bus = EventBus()
    gate = Gate()
    before = asyncio.all_tasks()
    subscription = bus.subscribe(gate, name="gate")
    bus.fan_out(event(), event())
    await asyncio.sleep(0)

    subscription.cancel()
    bus.fan_out(event())
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert bus.subscriptions == ()
    assert asyncio.all_tasks() == before
    assert gate.seen == []


async def test_a_subscription_may_cancel_itself_in_its_handler() -> None:
    bus = EventBus()
    seen: list[AgentEvent] = []

    async def once(event: AgentEvent) -> None:
        subscription.cancel()
        await asyncio.sleep(0)
        seen.append(event)

    subscription = bus.subscribe(once, name="once")
    bus.fan_out(event(node_id="1"), event(node_id="2"))
    await asyncio.sleep(0)
    await bus.drain()
    await asyncio.sleep(0)

    assert [e.node_id for e in seen] == ["1"]


async def test_a_handler_that_drains_is_told_that_it_would_wait_for_itself() -> None:
    errors: list[BaseException] = []
    bus = EventBus(on_error=lambda _, error: errors.append(error))
    bus.subscribe(lambda _: bus.drain(), name="greedy")

    bus.fan_out(event())
    await bus.drain()

    assert [str(e) for e in errors] == ["handler 'greedy' cannot drain the bus: it would wait for itself"]


async def test_a_closed_bus_has_no_tasks_and_no_subscribers() -> None:
    bus = EventBus()
    before = asyncio.all_tasks()
    bus.subscribe(Gate(), name="gate")
    bus.fan_out(event())
    await asyncio.sleep(0)

    await bus.close()
    bus.fan_out(event())

    assert asyncio.all_tasks() == before
    with pytest.raises(RuntimeError, match="'late'"):
        bus.subscribe(Gate(), name="late")


async def test_another_thread_publishes_through_the_loop() -> None:
    bus = EventBus()
    seen: list[AgentEvent] = []
    bus.subscribe(seen.append, name="reader")
    loop = asyncio.get_running_loop()

    await asyncio.to_thread(loop.call_soon_threadsafe, bus.fan_out, event(node_id="far"))
    await asyncio.sleep(0)
    await bus.drain()

    assert [e.node_id for e in seen] == ["far"]


def test_a_queue_must_have_room() -> None:
    with pytest.raises(ValueError, match="got 0"):
        EventBus().subscribe(lambda _: None, name="x", capacity=0)
