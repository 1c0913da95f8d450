"""The feed gives each reader the log in order, at the reader's own speed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.store.event_log import append_events
from queenright.health.store.store import Store
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.access.caller import Caller
from queenright.server.access.roles import Role
from queenright.server.routes.events import StreamQuota
from queenright.server.stream.feed import Feed, Reader
from queenright.server.stream.lines import StreamFilter
from tests.server.streams import Block, parse_blocks
from tests.waiting import until


def make_event(number: int, kind: EventType = EventType.STEP_COMPLETED, agent: str = "bee") -> AgentEvent:
    return AgentEvent(type=kind, time=1000.0 + number, agent_id=agent, data={"n": number})


class FakeTime:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store.open(f"sqlite:///{tmp_path / 'feed.db'}")
    yield store
    await store.close()


async def start_feed(store: Store, **options: Any) -> Feed:
    feed = Feed(store, batch_seconds=0.0, **options)
    await feed.start()
    return feed


async def read_all(reader: Reader) -> list[Block]:
    """Read until no more blocks arrive, and return them."""
    blocks: list[Block] = []
    while True:
        task = asyncio.ensure_future(reader.read())
        # The feed wakes the reader, so there is no event to wait for.
        while not task.done() and not reader.is_waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        # Committed events are passed on in a later iteration of the event loop.
        for _ in range(4):
            await asyncio.sleep(0)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return blocks
        piece = task.result()
        if piece is None:
            return blocks
        blocks += parse_blocks(piece.decode())


async def test_reader_starts_at_the_end_of_the_log(store: Store) -> None:
    feed = await start_feed(store)
    await store.append([make_event(0)])
    reader = feed.open(StreamFilter())
    await store.append([make_event(1), make_event(2)])
    await store.transact(lambda conn: append_events(conn, [make_event(3)]))
    assert [block.data["data"]["n"] for block in await read_all(reader)] == [1, 2, 3]


async def test_rolled_back_events_are_not_streamed(store: Store) -> None:
    feed = await start_feed(store)
    reader = feed.open(StreamFilter())

    def fail_after_insert(conn: Any) -> None:
        append_events(conn, [make_event(1)])
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await store.transact(fail_after_insert)
    await store.append([make_event(2)])
    retried_event = make_event(3)
    await store.append([retried_event])
    await store.append([retried_event, make_event(4)])
    assert [block.data["data"]["n"] for block in await read_all(reader)] == [2, 3, 4]


async def test_reader_that_is_far_behind_reads_the_database_and_then_memory(store: Store) -> None:
    feed = await start_feed(store, max_recent=10)
    reader = feed.open(StreamFilter())
    for offset in range(0, 1500, 50):
        await store.append([make_event(number) for number in range(offset, offset + 50)])
    assert [block.data["data"]["n"] for block in await read_all(reader)] == list(range(1500))
    await store.append([make_event(1500)])
    assert [block.data["data"]["n"] for block in await read_all(reader)] == [1500]


async def test_text_deltas_are_streamed_in_order_and_without_an_id(store: Store) -> None:
    feed = await start_feed(store)
    reader = feed.open(StreamFilter())
    await store.append([make_event(1)])
    feed.add_transient([make_event(2, EventType.LLM_TEXT_DELTA)])
    logged_event = make_event(3, EventType.LLM_TEXT_DELTA)
    await store.append([logged_event])
    feed.add_transient([logged_event])
    feed.add_transient([make_event(4, EventType.CLIENT_OUTPUT_DELTA)])
    await store.append([make_event(5)])
    blocks = await read_all(reader)
    assert [block.data["data"]["n"] for block in blocks] == [1, 2, 3, 4, 5]
    assert [block.id is None for block in blocks] == [False, True, False, True, False]


async def test_text_deltas_are_dropped_counted_and_reported_to_a_slow_reader(store: Store) -> None:
    drops: list[tuple[str, int]] = []
    feed = await start_feed(store, on_drop=lambda name, count: drops.append((name, count)))
    slow_reader = feed.open(StreamFilter(), capacity=3)
    other_reader = feed.open(StreamFilter(agent="another"), capacity=3)
    for number in range(10):
        feed.add_transient([make_event(number, EventType.LLM_TEXT_DELTA)])
        await store.append([make_event(100 + number)])
    blocks = await read_all(slow_reader)
    assert [block.data["count"] for block in blocks if block.event == "dropped"] == [7]
    assert [block.data["data"]["n"] for block in blocks if block.event == "llm_text_delta"] == [7, 8, 9]
    assert [block.data["data"]["n"] for block in blocks if block.id] == list(range(100, 110))
    assert sum(count for _, count in drops) == 7
    assert {name for name, _ in drops} == {"event-stream"}
    assert await read_all(other_reader) == []


async def test_silent_stream_sends_keep_alives_with_an_id(store: Store) -> None:
    time = FakeTime()
    feed = await start_feed(store, clock=time, sleep=time.sleep)
    reader = feed.open(StreamFilter(types=frozenset({EventType.NUDGE_SENT})))
    filtered_event = make_event(1)
    await store.append([filtered_event])
    assert await read_all(reader) == []
    time.now = 14.0
    feed.check_readers()
    assert await read_all(reader) == []
    time.now = 15.0
    feed.check_readers()
    (keep_alive,) = await read_all(reader)
    assert (keep_alive.event, keep_alive.id, keep_alive.data) == ("alive", filtered_event.id, {})


async def test_stalled_client_is_disconnected_after_thirty_seconds(store: Store) -> None:
    time = FakeTime()
    feed = await start_feed(store, clock=time, sleep=time.sleep)
    reader, disconnects = feed.open(StreamFilter()), []
    reader.on_disconnect = lambda: disconnects.append(True)
    reader.mark_sending()
    time.now = 29.0
    feed.check_readers()
    assert not disconnects
    time.now = 30.0
    feed.check_readers()
    feed.check_readers()
    assert disconnects == [True]
    assert await reader.read() is None


async def test_all_streams_end_when_the_service_stops(store: Store) -> None:
    time = FakeTime()
    feed = await start_feed(store, clock=time, sleep=time.sleep)
    is_stopping = asyncio.Event()
    running = asyncio.create_task(feed.run(is_stopping))
    reader = feed.open(StreamFilter())
    read_task = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    is_stopping.set()
    await running
    assert await read_task is None
    assert await feed.open(StreamFilter()).read() is None


async def test_feed_without_readers_keeps_no_events(store: Store) -> None:
    feed = await start_feed(store)
    reader = feed.open(StreamFilter())
    await store.append([make_event(1)])
    assert len(feed.recent) == 1
    reader.close()
    await store.append([make_event(2)])
    assert (len(feed.recent), feed.head.seq) == (0, 2)


async def test_expired_events_reset_the_stream(store: Store) -> None:
    feed = await start_feed(store, max_recent=2)
    await store.append([make_event(number) for number in range(10)])
    position = await feed.find_position((await store.history(limit=10))[0].id)
    assert position is not None

    def delete_events(conn: Any) -> None:
        conn.exec_driver_sql("UPDATE event_log_head SET base_length = 5")
        conn.exec_driver_sql("DELETE FROM events WHERE seq <= 5")

    await store.transact(delete_events)
    blocks = await read_all(feed.open(StreamFilter(), after=position))
    assert blocks[0].event == "reset"
    assert [block.data["data"]["n"] for block in blocks[1:]] == [5, 6, 7, 8, 9]


_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 8)),
        st.tuples(st.just("transact"), st.integers(1, 3)),
        st.tuples(st.just("read"), st.integers(0, 2)),
        st.tuples(st.just("again"), st.integers(0, 2)),
        st.tuples(st.just("text"), st.integers(1, 3)),
    ),
    max_size=40,
)


@given(actions=_ACTIONS, max_recent=st.integers(1, 12), is_filtered=st.booleans())
def test_slow_and_resumed_readers_get_the_log_in_order_without_gaps(
    tmp_path_factory: pytest.TempPathFactory,
    actions: list[tuple[str, int]],
    max_recent: int,
    is_filtered: bool,
) -> None:
    """B64: no reader is skipped without notice, and nothing is missing after resuming from the last id."""
    folder = tmp_path_factory.mktemp("feed")
    asyncio.run(_run_actions(folder, actions, max_recent, is_filtered))


async def _run_actions(
    folder: Path, actions: list[tuple[str, int]], max_recent: int, is_filtered: bool
) -> None:
    store = Store.open(f"sqlite:///{folder / 'feed.db'}")
    stream_filter = StreamFilter(agent="bee") if is_filtered else StreamFilter()
    written_events: list[AgentEvent] = []
    try:
        feed = await start_feed(store, max_recent=max_recent)
        readers = [feed.open(stream_filter) for _ in range(3)]
        received_ids: list[list[str]] = [[] for _ in readers]

        async def read(reader_index: int) -> None:
            received_ids[reader_index] += [
                block.id for block in await read_all(readers[reader_index]) if block.id and block.data
            ]

        for action, number in actions:
            new_events = [make_event(index, agent="bee" if index % 3 else "wasp") for index in range(number)]
            match action:
                case "append":
                    await store.append(new_events)
                    written_events += new_events
                case "transact":
                    await store.transact(lambda conn, new_events=new_events: append_events(conn, new_events))  # type: ignore[misc]  # mypy cannot infer a lambda's default
                    written_events += new_events
                case "text":
                    feed.add_transient(
                        [make_event(index, EventType.LLM_TEXT_DELTA) for index in range(number)]
                    )
                case "read":
                    await read(number)
                case "again":
                    readers[number].close()
                    last_id = received_ids[number][-1] if received_ids[number] else None
                    if last_id is None:
                        # As in the first block of a stream, this is the position where the reader starts.
                        received_ids[number] = []
                        start_position = type(feed.head)(0, "")
                    else:
                        start_position = await feed.find_position(last_id)  # type: ignore[assignment]
                    readers[number] = feed.open(stream_filter, after=start_position)
        for reader_index in range(3):
            await read(reader_index)
        expected_ids = [event.id for event in written_events if not is_filtered or event.agent_id == "bee"]
        assert received_ids == [expected_ids] * 3
    finally:
        await store.close()


async def test_many_readers_do_not_block_the_event_loop(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = await start_feed(store)
    wake_all = feed._wake_all
    durations: list[float] = []

    def wake_and_measure() -> None:
        durations.append(time.monotonic())
        wake_all()

    with contextlib.ExitStack() as stack:
        for _ in range(17):  # Waking all readers takes more than one iteration of the event loop.
            reader = feed.open(StreamFilter())
            stack.callback(reader.close)
            reader._waiting = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(Reader, "wake", lambda reader: time.sleep(0.002))
        monkeypatch.setattr(feed, "_wake_all", wake_and_measure)
        await store.append([make_event(0)])
        await until(lambda: durations, "the first round has ended")
        await store.append([make_event(1)])
        await until(lambda: len(durations) > 1, "the second round has ended")

    assert durations[1] - durations[0] >= 5 * 16 * 0.002


def test_remote_caller_may_have_a_quarter_of_the_streams() -> None:
    shares = StreamQuota(8)
    remote_caller, other_caller, local_caller = (
        Caller(Role.VIEWER, "192.0.2.7", "bot", "1"),
        Caller(Role.VIEWER, "192.0.2.7", "other", "2"),
        Caller(Role.ADMIN, "127.0.0.1"),
    )
    with contextlib.ExitStack() as stack:
        for caller in (remote_caller, remote_caller, local_caller, local_caller):
            assert not shares.is_used_up(caller)
            stack.enter_context(shares.count_stream(caller))

        assert [shares.is_used_up(caller) for caller in (remote_caller, other_caller, local_caller)] == [
            True,
            False,
            False,
        ]

    assert not shares.is_used_up(remote_caller)
