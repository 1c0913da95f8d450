import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.bus import EventBus, Subscription
from queenright.runtime.events import ALERT_CLASS, AgentEvent, EventType
from tests.runtime.conftest import FakeTime

DELTA = EventType.LLM_TEXT_DELTA
TICKET = EventType.WORKER_ESCALATION_TICKET


def make_event(event_type: EventType = DELTA, **fields: str) -> AgentEvent:
    return AgentEvent(type=event_type, time=0.0, **fields)  # type: ignore[arg-type]


class Gate:
    """A subscriber that blocks until it is released."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.received: list[AgentEvent] = []

    async def __call__(self, event: AgentEvent) -> None:
        await self.is_open.wait()
        self.received.append(event)


class ListLog:
    def __init__(self) -> None:
        self.rows: list[AgentEvent] = []
        self.queries: list[dict[str, Any]] = []

    async def history(self, **filters: Any) -> list[AgentEvent]:
        self.queries.append(filters)
        return list(self.rows)

    async def append(self, events: Sequence[AgentEvent]) -> None:
        await asyncio.sleep(0)
        self.rows.extend(events)


async def test_blocked_subscriber_does_not_slow_publisher_or_lose_tickets() -> None:
    """B58: the queue is bounded, dropped events are counted, and tickets are never dropped."""
    drops: list[tuple[str, int]] = []
    bus = EventBus(on_drop=lambda name, count: drops.append((name, count)))
    blocked = Gate()
    received: list[AgentEvent] = []
    slow = bus.subscribe(blocked, name="slow", capacity=100)
    bus.subscribe(received.append, name="awake")

    for n in range(1000):
        await bus.publish(make_event(TICKET if n % 100 == 0 else DELTA, node_id=str(n)))
    await asyncio.sleep(0)
    assert slow.pending <= 100

    blocked.is_open.set()
    await bus.drain()

    assert len(received) == 1000
    assert [e.node_id for e in blocked.received if e.type is TICKET] == [str(n) for n in range(0, 1000, 100)]
    assert slow.dropped_count == 1000 - len(blocked.received) > 0
    assert sum(count for _, count in drops) == slow.dropped_count
    assert {name for name, _ in drops} == {"slow"}


async def test_oldest_events_are_dropped_and_the_rest_stay_in_order() -> None:
    """B58: the newest events are kept."""
    bus = EventBus()
    gate = Gate()
    bus.subscribe(gate, name="slow", capacity=3)

    bus.fan_out(*(make_event(node_id=str(n)) for n in range(10)))
    gate.is_open.set()
    await bus.drain()

    assert [e.node_id for e in gate.received] == ["7", "8", "9"]


async def test_queue_full_of_tickets_takes_more_tickets_and_refuses_deltas() -> None:
    """B61: a flood of text does not displace a ticket."""
    bus = EventBus()
    gate = Gate()
    subscription = bus.subscribe(gate, name="slow", capacity=2)

    bus.fan_out(*(make_event(TICKET, node_id=str(n)) for n in range(5)))
    bus.fan_out(*(make_event() for _ in range(100_000)))
    gate.is_open.set()
    await bus.drain()

    assert [e.node_id for e in gate.received] == ["0", "1", "2", "3", "4"]
    assert subscription.dropped_count == 100_000


@given(
    kinds=st.lists(st.sampled_from([DELTA, TICKET, EventType.AGENT_HEARTBEAT]), max_size=60),
    capacity=st.integers(min_value=1, max_value=20),
)
def test_order_is_preserved_and_no_alert_is_lost(kinds: list[EventType], capacity: int) -> None:
    """B58: this holds for any mix of events and any queue size."""

    async def scenario() -> tuple[list[int], int]:
        bus = EventBus()
        gate = Gate()
        subscription = bus.subscribe(gate, name="slow", capacity=capacity)
        bus.fan_out(*(make_event(kind, node_id=str(n)) for n, kind in enumerate(kinds)))
        gate.is_open.set()
        await bus.drain()
        return [int(e.node_id) for e in gate.received], subscription.dropped_count

    received, dropped = asyncio.run(scenario())

    assert received == sorted(received)
    assert {n for n, kind in enumerate(kinds) if kind in ALERT_CLASS} <= set(received)
    assert len(received) + dropped == len(kinds)
    assert dropped == 0 or len(kinds) > capacity


async def test_handler_that_publishes_a_hundred_deep_does_not_deadlock() -> None:
    """B59: this holds even with a log and with queues for one event."""
    bus = EventBus(log=ListLog())
    is_done = asyncio.Event()
    depth = 0

    async def publish_next(_: AgentEvent) -> None:
        nonlocal depth
        depth += 1
        if depth == 100:
            is_done.set()
        else:
            await bus.publish(make_event())

    bus.subscribe(publish_next, name="again", capacity=1)

    await bus.publish(make_event())
    await asyncio.wait_for(is_done.wait(), 5)

    assert depth == 100


async def test_failing_handler_is_reported_and_isolated() -> None:
    """B60: the publisher and other handlers are not affected, and the handler gets the next event."""
    errors: list[tuple[str, BaseException]] = []
    bus = EventBus(on_error=lambda name, error: errors.append((name, error)))
    received: list[AgentEvent] = []

    def fail(_: AgentEvent) -> None:
        raise LookupError("no such bee")

    bus.subscribe(fail, name="broken")
    bus.subscribe(received.append, name="fine")

    await bus.publish(make_event(), make_event())
    await bus.drain()

    assert len(received) == 2
    assert [(name, str(error)) for name, error in errors] == [("broken", "no such bee")] * 2


async def test_failing_handler_is_logged_without_on_error(caplog: pytest.LogCaptureFixture) -> None:
    """B60: errors are not swallowed silently."""
    bus = EventBus()

    async def fail(_: AgentEvent) -> None:
        raise LookupError("no such bee")

    bus.subscribe(fail, name="broken")
    bus.fan_out(make_event())
    await bus.drain()

    assert "broken" in caplog.text
    assert "no such bee" in caplog.text


async def test_events_of_graphs_with_equal_node_ids_are_routed_separately() -> None:
    """B62: routing is by graph and node."""
    bus = EventBus()
    left: list[AgentEvent] = []
    right: list[AgentEvent] = []
    bus.subscribe(left.append, name="left", filter_graph="left", filter_node="judge")
    bus.subscribe(right.append, name="right", filter_graph="right", filter_node="judge")

    bus.fan_out(
        make_event(graph_id="left", node_id="judge", stream_id="1"),
        make_event(graph_id="right", node_id="judge", stream_id="2"),
        make_event(graph_id="right", node_id="other", stream_id="3"),
    )
    await bus.drain()

    assert [e.stream_id for e in left] == ["1"]
    assert [e.stream_id for e in right] == ["2"]


async def test_filters_on_type_agent_and_stream_are_combined() -> None:
    bus = EventBus()
    received: list[AgentEvent] = []
    bus.subscribe(received.append, name="narrow", types={TICKET}, filter_agent="a", filter_stream="s")

    bus.fan_out(
        make_event(TICKET, agent_id="a", stream_id="s", node_id="yes"),
        make_event(TICKET, agent_id="b", stream_id="s"),
        make_event(TICKET, agent_id="a", stream_id="t"),
        make_event(DELTA, agent_id="a", stream_id="s"),
    )
    await bus.drain()

    assert [e.node_id for e in received] == ["yes"]


async def test_events_are_durable_before_delivery() -> None:
    log = ListLog()
    bus = EventBus(log=log)
    row_counts: list[int] = []
    bus.subscribe(lambda _: row_counts.append(len(log.rows)), name="reader")

    await bus.publish(make_event(), make_event())
    await bus.drain()

    assert row_counts == [2, 2]


async def test_unlogged_event_is_not_delivered() -> None:
    class FullDisk(ListLog):
        async def append(self, events: Sequence[AgentEvent]) -> None:
            raise OSError("disk full")

    bus = EventBus(log=FullDisk())
    received: list[AgentEvent] = []
    bus.subscribe(received.append, name="reader")

    with pytest.raises(OSError, match="disk full"):
        await bus.publish(make_event())
    await bus.drain()

    assert received == []


async def test_publish_listener_gets_every_event() -> None:
    published: list[AgentEvent] = []
    bus = EventBus()
    bus.on_publish(published.extend)

    await bus.publish(make_event(), make_event(TICKET))
    bus.fan_out(make_event())

    assert [e.type for e in published] == [DELTA, TICKET, DELTA]


async def test_cancelled_subscription_leaves_no_task() -> None:
    bus = EventBus()
    gate = Gate()
    tasks_before = asyncio.all_tasks()
    subscription = bus.subscribe(gate, name="gate")
    bus.fan_out(make_event(), make_event())
    await asyncio.sleep(0)

    subscription.cancel()
    bus.fan_out(make_event())
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert bus.subscriptions == ()
    assert asyncio.all_tasks() == tasks_before
    assert gate.received == []


async def test_subscription_may_cancel_itself_in_its_handler() -> None:
    bus = EventBus()
    received: list[AgentEvent] = []

    async def cancel_itself(event: AgentEvent) -> None:
        subscription.cancel()
        await asyncio.sleep(0)
        received.append(event)

    subscription = bus.subscribe(cancel_itself, name="once")
    bus.fan_out(make_event(node_id="1"), make_event(node_id="2"))
    await asyncio.sleep(0)
    await bus.drain()
    await asyncio.sleep(0)

    assert [e.node_id for e in received] == ["1"]


async def test_drain_inside_a_handler_is_an_error() -> None:
    errors: list[BaseException] = []
    bus = EventBus(on_error=lambda _, error: errors.append(error))
    bus.subscribe(lambda _: bus.drain(), name="greedy")

    bus.fan_out(make_event())
    await bus.drain()

    assert len(errors) == 1
    assert "'greedy'" in str(errors[0])


async def test_closed_bus_has_no_tasks_and_no_subscribers() -> None:
    bus = EventBus()
    tasks_before = asyncio.all_tasks()
    bus.subscribe(Gate(), name="gate")
    bus.fan_out(make_event())
    await asyncio.sleep(0)

    await bus.close()
    bus.fan_out(make_event())

    assert asyncio.all_tasks() == tasks_before
    with pytest.raises(RuntimeError, match="'late'"):
        bus.subscribe(Gate(), name="late")


async def test_other_thread_can_publish_through_the_loop() -> None:
    bus = EventBus()
    received: list[AgentEvent] = []
    bus.subscribe(received.append, name="reader")
    loop = asyncio.get_running_loop()

    await asyncio.to_thread(loop.call_soon_threadsafe, bus.fan_out, make_event(node_id="far"))
    await asyncio.sleep(0)
    await bus.drain()

    assert [e.node_id for e in received] == ["far"]


def test_capacity_must_be_positive() -> None:
    with pytest.raises(ValueError, match="got 0"):
        EventBus().subscribe(lambda _: None, name="x", capacity=0)


# -- arbitrary subscribers ------------------------------------------------------------------------


class RecordingSubscriber:
    """A subscriber that records its alerts, and is slow, raises errors or cancels itself."""

    def __init__(self, behaviour: str) -> None:
        self.behaviour = behaviour
        self.received: list[str] = []
        self.subscription: Subscription | None = None

    async def __call__(self, event: AgentEvent) -> None:
        if event.type in ALERT_CLASS:
            self.received.append(event.node_id)
        match self.behaviour:
            case "slow":
                for _ in range(3):
                    await asyncio.sleep(0)
            case "raising":
                raise LookupError("no such flower")
            case "cancelling" if len(self.received) == 2:
                assert self.subscription is not None
                self.subscription.cancel()


@given(
    bees=st.lists(
        st.tuples(
            st.sampled_from(["fast", "slow", "raising", "cancelling"]),
            st.sampled_from([None, "left", "right"]),
            st.integers(min_value=1, max_value=5),
        ),
        min_size=1,
        max_size=5,
    ),
    events=st.lists(
        st.tuples(st.sampled_from([DELTA, TICKET]), st.sampled_from(["left", "right"]), st.booleans()),
        max_size=40,
    ),
)
def test_every_alert_reaches_each_matching_subscriber_once_and_in_order(
    bees: list[tuple[str, str | None, int]], events: list[tuple[EventType, str, bool]]
) -> None:
    """B58, B60, B61, B62: other subscribers and full queues do not matter."""

    async def scenario() -> list[tuple[RecordingSubscriber, str | None]]:
        bus = EventBus(on_error=lambda _name, _error: None)
        listeners = []
        for behaviour, graph, capacity in bees:
            subscriber = RecordingSubscriber(behaviour)
            subscriber.subscription = bus.subscribe(
                subscriber, name=behaviour, filter_graph=graph, capacity=capacity
            )
            listeners.append((subscriber, graph))
        for number, (kind, graph_id, pause) in enumerate(events):
            await bus.publish(make_event(kind, graph_id=graph_id, node_id=str(number)))
            if pause:
                await asyncio.sleep(0)
        await bus.drain()
        await bus.close()
        return listeners

    for subscriber, graph in asyncio.run(scenario()):
        expected = [
            str(n) for n, (kind, to, _) in enumerate(events) if kind is TICKET and graph in (None, to)
        ]
        assert subscriber.received == (expected[:2] if subscriber.behaviour == "cancelling" else expected)


async def test_tickets_are_readable_after_a_million_deltas() -> None:
    """B61: a subscriber that was blocked and a waiter both receive their tickets."""
    bus = EventBus()
    gate = Gate()
    bus.subscribe(gate, name="slow", capacity=100)
    deltas = [make_event() for _ in range(1000)]

    with bus.expect(TICKET, filter_node="999") as expected:
        for number in range(1000):
            bus.fan_out(make_event(TICKET, node_id=str(number)), *deltas)
        last_ticket = await expected
    gate.is_open.set()
    await bus.drain()

    assert last_ticket.node_id == "999"
    assert [e.node_id for e in gate.received if e.type is TICKET] == [str(n) for n in range(1000)]


async def test_event_keeps_its_graph_through_the_bus() -> None:
    """B63: subscribers, the log and the wire format have the graph."""
    log = ListLog()
    bus = EventBus(log=log)
    received: list[AgentEvent] = []
    bus.subscribe(received.append, name="reader")
    event = make_event(TICKET, graph_id="worker_health_judge", stream_id="worker_health_judge::health_check")

    await bus.publish(event)
    await bus.drain()

    assert [e.graph_id for e in (*received, *log.rows)] == ["worker_health_judge"] * 2
    assert received[0].to_dict()["graph_id"] == "worker_health_judge"


def test_subscription_exposes_its_filter() -> None:
    subscription = EventBus().subscribe(
        lambda _: None,
        name="x",
        types=[TICKET],
        filter_graph="g",
        filter_stream="g::s",
        filter_node="n",
        filter_agent="a",
    )

    assert subscription.event_filter.types == frozenset({TICKET})
    assert subscription.event_filter.filters == {
        "filter_graph": "g",
        "filter_stream": "g::s",
        "filter_node": "n",
        "filter_agent": "a",
    }
    assert EventBus().subscribe(lambda _: None, name="y").event_filter.types is None


# -- waiting for an event -------------------------------------------------------------------------


async def test_expectation_catches_event_before_await() -> None:
    bus = EventBus()

    with bus.expect(TICKET, filter_graph="g", where=lambda e: e.node_id == "b") as expected:
        bus.fan_out(
            make_event(graph_id="g"), make_event(TICKET), make_event(TICKET, graph_id="g", node_id="a")
        )
        bus.fan_out(
            make_event(TICKET, graph_id="g", node_id="b"), make_event(TICKET, graph_id="g", node_id="b")
        )

        event = await expected

        assert (event.graph_id, event.node_id) == ("g", "b")
        assert await expected.within(5) is event


async def test_awaited_event_is_durable() -> None:
    log = ListLog()
    bus = EventBus(log=log)
    waiter = asyncio.ensure_future(bus.wait_for(TICKET, DELTA, timeout=None))
    await asyncio.sleep(0)

    await bus.publish(make_event(EventType.STEP_STARTED))
    assert not waiter.done()
    await bus.publish(make_event(node_id="n"))

    assert await waiter is log.rows[-1]


async def test_wait_for_without_types_matches_any_event() -> None:
    bus = EventBus()

    with bus.expect() as expected:
        bus.fan_out(make_event(EventType.GOAL_PROGRESS))

        assert (await expected).type is EventType.GOAL_PROGRESS


async def test_wait_for_times_out_and_names_the_event(fake_time: FakeTime) -> None:
    bus = EventBus()
    waiter = asyncio.ensure_future(
        bus.wait_for(TICKET, filter_node="judge", timeout=30, sleep=fake_time.sleep)
    )
    await fake_time.advance(29)
    assert not waiter.done()

    await fake_time.advance(1)

    with pytest.raises(
        TimeoutError,
        match=r"within 30 s: worker_escalation_ticket with node_id 'judge'$",
    ):
        await waiter
    assert bus._listeners == []


async def test_expectation_survives_a_timeout(fake_time: FakeTime) -> None:
    bus = EventBus()
    with bus.expect(TICKET) as expected:
        first_wait = asyncio.ensure_future(expected.within(1, sleep=fake_time.sleep))
        await fake_time.advance(1)
        assert isinstance(first_wait.exception(), TimeoutError)

        bus.fan_out(make_event(TICKET))

        assert (await expected.within(1, sleep=fake_time.sleep)).type is TICKET


async def test_finished_expectation_is_unsubscribed() -> None:
    bus = EventBus()
    tasks_before = asyncio.all_tasks()

    with bus.expect(TICKET) as expected:
        assert "done=False" in repr(expected)
    bus.fan_out(make_event(TICKET))

    assert bus._listeners == []
    assert asyncio.all_tasks() == tasks_before
    with pytest.raises(asyncio.CancelledError):
        await expected


async def test_failing_condition_raises_in_waiter_not_publisher() -> None:
    """B60: an error of a condition is treated like an error of a handler."""
    bus = EventBus()
    received: list[AgentEvent] = []

    def fail(_: AgentEvent) -> bool:
        raise LookupError("no such bee")

    with bus.expect(TICKET, where=fail) as expected:
        bus.subscribe(received.append, name="fine")
        bus.fan_out(make_event(TICKET))
        await bus.drain()

        assert len(received) == 1
        with pytest.raises(LookupError, match="no such bee"):
            await expected


async def test_condition_can_cancel_the_next_subscription() -> None:
    bus = EventBus()
    received: list[AgentEvent] = []
    later_subscriptions: list[Subscription] = []

    def cancel_other(_: AgentEvent) -> bool:
        later_subscriptions[0].cancel()
        return True

    tasks_before = asyncio.all_tasks()
    with bus.expect(TICKET, where=cancel_other):
        later_subscriptions.append(bus.subscribe(received.append, name="later"))
        bus.fan_out(make_event(TICKET), make_event(TICKET))

    assert asyncio.all_tasks() == tasks_before
    assert received == []


async def test_closing_the_bus_fails_waiters() -> None:
    bus = EventBus()
    waiter = asyncio.ensure_future(bus.wait_for(TICKET, timeout=None))
    await asyncio.sleep(0)

    await bus.close()

    with pytest.raises(RuntimeError, match="the bus was closed while waiting for worker_escalation_ticket"):
        await waiter
    with pytest.raises(RuntimeError, match="the bus is closed"):
        bus.expect(TICKET)


async def test_cancelled_waiter_is_removed() -> None:
    bus = EventBus()
    tasks_before = asyncio.all_tasks()
    waiter = asyncio.ensure_future(bus.wait_for(TICKET, timeout=60))
    await asyncio.sleep(0)

    waiter.cancel()
    await asyncio.wait([waiter])

    assert bus._listeners == []
    assert asyncio.all_tasks() == tasks_before


# -- history --------------------------------------------------------------------------------------


async def test_without_a_log_there_is_no_history() -> None:
    assert await EventBus().history() == []


async def test_history_comes_from_the_log() -> None:
    log = ListLog()
    bus = EventBus(log=log)
    await bus.publish(make_event(TICKET))

    history = await bus.history(types=[TICKET], filter_graph="g", session_id="s", after="id", limit=5)

    assert history == log.rows
    assert log.queries == [
        {
            "types": [TICKET],
            "filter_graph": "g",
            "session_id": "s",
            "after": "id",
            "limit": 5,
            "newest": True,
        }
    ]


async def test_empty_history_page_is_refused() -> None:
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        await EventBus().history(limit=0)
