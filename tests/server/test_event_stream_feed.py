"""The feed gives every reader the log in order, at the reader's pace."""

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
from queenright.server.routes.events import Shares
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


async def start_feed(store: Store, **how: Any) -> Feed:
    feed = Feed(store, batch_seconds=0.0, **how)
    await feed.start()
    return feed


async def read_all(reader: Reader) -> list[Block]:
    """Read until no more blocks arrive."""
    blocks: list[Block] = []
    while True:
        task = asyncio.ensure_future(reader.read())
        while not task.done() and not reader.is_waiting:  # noqa: ASYNC110  # the reader is somebody else's
            await asyncio.sleep(0)
        # Committed events are passed on in a later turn of the loop.
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

    def fails(conn: Any) -> None:
        append_events(conn, [make_event(1)])
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await store.transact(fails)
    await store.append([make_event(2)])
    twice = make_event(3)
    await store.append([twice])
    await store.append([twice, make_event(4)])
    assert [block.data["data"]["n"] for block in await read_all(reader)] == [2, 3, 4]


async def test_distant_reader_reads_the_database_then_memory(store: Store) -> None:
    feed = await start_feed(store, max_recent=10)
    reader = feed.open(StreamFilter())
    for start in range(0, 1500, 50):
        await store.append([make_event(n) for n in range(start, start + 50)])
    assert [block.data["data"]["n"] for block in await read_all(reader)] == list(range(1500))
    await store.append([make_event(1500)])
    assert [block.data["data"]["n"] for block in await read_all(reader)] == [1500]


async def test_text_deltas_keep_their_position_and_have_no_id(store: Store) -> None:
    feed = await start_feed(store)
    reader = feed.open(StreamFilter())
    await store.append([make_event(1)])
    feed.add_transient([make_event(2, EventType.LLM_TEXT_DELTA)])
    logged = make_event(3, EventType.LLM_TEXT_DELTA)
    await store.append([logged])
    feed.add_transient([logged])
    feed.add_transient([make_event(4, EventType.CLIENT_OUTPUT_DELTA)])
    await store.append([make_event(5)])
    found = await read_all(reader)
    assert [block.data["data"]["n"] for block in found] == [1, 2, 3, 4, 5]
    assert [block.id is None for block in found] == [False, True, False, True, False]


async def test_text_deltas_are_dropped_counted_and_reported(store: Store) -> None:
    drops: list[tuple[str, int]] = []
    feed = await start_feed(store, on_drop=lambda name, count: drops.append((name, count)))
    slow = feed.open(StreamFilter(), capacity=3)
    other = feed.open(StreamFilter(agent="another"), capacity=3)
    for n in range(10):
        feed.add_transient([make_event(n, EventType.LLM_TEXT_DELTA)])
        await store.append([make_event(100 + n)])
    found = await read_all(slow)
    assert [block.data["count"] for block in found if block.event == "dropped"] == [7]
    assert [block.data["data"]["n"] for block in found if block.event == "llm_text_delta"] == [7, 8, 9]
    assert [block.data["data"]["n"] for block in found if block.id] == list(range(100, 110))
    assert sum(count for _, count in drops) == 7
    assert {name for name, _ in drops} == {"event-stream"}
    assert await read_all(other) == []


async def test_silent_stream_sends_keep_alives_with_an_id(store: Store) -> None:
    time = FakeTime()
    feed = await start_feed(store, clock=time, sleep=time.sleep)
    reader = feed.open(StreamFilter(types=frozenset({EventType.NUDGE_SENT})))
    unwanted = make_event(1)
    await store.append([unwanted])
    assert await read_all(reader) == []
    time.now = 14.0
    feed.check_readers()
    assert await read_all(reader) == []
    time.now = 15.0
    feed.check_readers()
    (alive,) = await read_all(reader)
    assert (alive.event, alive.id, alive.data) == ("alive", unwanted.id, {})


async def test_stalled_client_is_disconnected_after_thirty_seconds(store: Store) -> None:
    time = FakeTime()
    feed = await start_feed(store, clock=time, sleep=time.sleep)
    reader, disconnected = feed.open(StreamFilter()), []
    reader.on_disconnect = lambda: disconnected.append(True)
    reader.mark_sending()
    time.now = 29.0
    feed.check_readers()
    assert not disconnected
    time.now = 30.0
    feed.check_readers()
    feed.check_readers()
    assert disconnected == [True]
    assert await reader.read() is None


async def test_all_streams_end_when_the_service_stops(store: Store) -> None:
    time = FakeTime()
    feed = await start_feed(store, clock=time, sleep=time.sleep)
    stopping = asyncio.Event()
    running = asyncio.create_task(feed.run(stopping))
    reader = feed.open(StreamFilter())
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    stopping.set()
    await running
    assert await reading is None
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
    await store.append([make_event(n) for n in range(10)])
    position = await feed.find_position((await store.history(limit=10))[0].id)
    assert position is not None

    def forget(conn: Any) -> None:
        conn.exec_driver_sql("UPDATE event_log_head SET base_length = 5")
        conn.exec_driver_sql("DELETE FROM events WHERE seq <= 5")

    await store.transact(forget)
    found = await read_all(feed.open(StreamFilter(), after=position))
    assert found[0].event == "reset"
    assert [block.data["data"]["n"] for block in found[1:]] == [5, 6, 7, 8, 9]


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


@given(acts=_ACTIONS, max_recent=st.integers(1, 12), few=st.booleans())
def test_slow_and_resumed_readers_get_the_log_in_order_without_gaps(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int]], max_recent: int, few: bool
) -> None:
    """B64: no reader is skipped silently; after resuming from the last id nothing is missing."""
    folder = tmp_path_factory.mktemp("feed")
    asyncio.run(_run_actions(folder, acts, max_recent, few))


async def _run_actions(folder: Path, acts: list[tuple[str, int]], max_recent: int, few: bool) -> None:
    store = Store.open(f"sqlite:///{folder / 'feed.db'}")
    wanted = StreamFilter(agent="bee") if few else StreamFilter()
    written: list[AgentEvent] = []
    try:
        feed = await start_feed(store, max_recent=max_recent)
        readers = [feed.open(wanted) for _ in range(3)]
        received: list[list[str]] = [[] for _ in readers]

        async def read(which: int) -> None:
            received[which] += [
                block.id for block in await read_all(readers[which]) if block.id and block.data
            ]

        for act, number in acts:
            new = [make_event(n, agent="bee" if n % 3 else "wasp") for n in range(number)]
            match act:
                case "append":
                    await store.append(new)
                    written += new
                case "transact":
                    await store.transact(lambda conn, new=new: append_events(conn, new))  # type: ignore[misc]
                    written += new
                case "text":
                    feed.add_transient([make_event(n, EventType.LLM_TEXT_DELTA) for n in range(number)])
                case "read":
                    await read(number)
                case "again":
                    readers[number].close()
                    last_ids = received[number][-1] if received[number] else None
                    if last_ids is None:
                        # As in the first block of a stream: the position where the reader starts.
                        received[number] = []
                        place = type(feed.head)(0, "")
                    else:
                        place = await feed.find_position(last_ids)  # type: ignore[assignment]
                    readers[number] = feed.open(wanted, after=place)
        for which in range(3):
            await read(which)
        expected = [one.id for one in written if not few or one.agent_id == "bee"]
        assert received == [expected] * 3
    finally:
        await store.close()


async def test_many_readers_leave_the_event_loop_to_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = await start_feed(store)
    wake_all = feed._wake_all
    rounds: list[float] = []

    def wake_timed() -> None:
        rounds.append(time.monotonic())
        wake_all()

    with contextlib.ExitStack() as stack:
        for _ in range(17):  # waking takes more than one turn of the loop
            reader = feed.open(StreamFilter())
            stack.callback(reader.close)
            reader._waiting = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(Reader, "wake", lambda reader: time.sleep(0.002))
        monkeypatch.setattr(feed, "_wake_all", wake_timed)
        await store.append([make_event(0)])
        await until(lambda: rounds, "the first round")
        await store.append([make_event(1)])
        await until(lambda: len(rounds) > 1, "the second round")

    assert rounds[1] - rounds[0] >= 5 * 16 * 0.002


def test_one_caller_has_a_quarter_of_the_streams_except_on_loopback() -> None:
    shares = Shares(8)
    bot, other, local = (
        Caller(Role.VIEWER, "192.0.2.7", "bot", "1"),
        Caller(Role.VIEWER, "192.0.2.7", "other", "2"),
        Caller(Role.ADMIN, "127.0.0.1"),
    )
    with contextlib.ExitStack() as stack:
        for caller in (bot, bot, local, local):
            assert not shares.is_used_up(caller)
            stack.enter_context(shares.count_stream(caller))

        assert [shares.is_used_up(caller) for caller in (bot, other, local)] == [True, False, False]

    assert not shares.is_used_up(bot)
