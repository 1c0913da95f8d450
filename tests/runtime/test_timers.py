import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from queenright.runtime.timers import Tick, iterate_cron_ticks, iterate_interval_ticks
from tests.runtime.conftest import FakeTime

FiredTicks = list[tuple[float, Tick]]


@asynccontextmanager
async def follow_ticks(ticks: AsyncIterator[Tick], clock: Callable[[], float]) -> AsyncIterator[FiredTicks]:
    fired_ticks: FiredTicks = []

    async def record_ticks() -> None:
        async for tick in ticks:
            fired_ticks.append((clock(), tick))

    task = asyncio.create_task(record_ticks())
    yield fired_ticks
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def parse_time(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def format_times(fired_ticks: FiredTicks, zone: str = "UTC") -> list[str]:
    return [
        f"{datetime.fromtimestamp(t, UTC).astimezone(ZoneInfo(zone)):%m-%d %H:%M}" for t, _ in fired_ticks
    ]


async def test_interval_does_not_drift(fake_time: FakeTime) -> None:
    """B56: ticks are at t0 + k * interval."""
    t0 = fake_time.now
    async with follow_ticks(
        iterate_interval_ticks(0.1, monotonic=fake_time, sleep=fake_time.sleep), fake_time
    ) as fired_ticks:
        await fake_time.advance(100)

    assert len(fired_ticks) in (999, 1000)
    assert all(abs(fired_at - (t0 + tick.number * 0.1)) < 1e-6 for fired_at, tick in fired_ticks)


async def test_missed_intervals_are_counted_and_not_repeated(fake_time: FakeTime) -> None:
    """B55: after a block, the timer fires once and returns to its grid."""
    async with follow_ticks(
        iterate_interval_ticks(10, monotonic=fake_time, sleep=fake_time.sleep), fake_time
    ) as fired_ticks:
        await fake_time.advance(10)
        fake_time.now += 57
        await fake_time.advance(13)

    assert [(tick.number, tick.skipped_ticks) for _, tick in fired_ticks] == [(1, 0), (2, 0), (7, 4), (8, 0)]


async def test_cron_fires_at_the_named_minutes(fake_time: FakeTime) -> None:
    fake_time.now = parse_time("2026-03-02 08:50")
    ticks = iterate_cron_ticks("*/15 9 * * *", "UTC", clock=fake_time, sleep=fake_time.sleep)
    async with follow_ticks(ticks, fake_time) as fired_ticks:
        await fake_time.advance(2 * 3600)

    assert format_times(fired_ticks) == ["03-02 09:00", "03-02 09:15", "03-02 09:30", "03-02 09:45"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (
            "2026-03-28 12:00",
            ["03-29 03:00", "03-30 02:30"],
        ),  # 02:30 does not exist, so it fires right after the jump
        ("2026-10-24 12:00", ["10-25 02:30", "10-26 02:30"]),  # 02:30 occurs twice, and it fires once
    ],
)
async def test_cron_keeps_to_its_zone_through_summer_time(
    fake_time: FakeTime, start: str, expected: list[str]
) -> None:
    fake_time.now = parse_time(start, "Europe/Vienna")
    ticks = iterate_cron_ticks("30 2 * * *", "Europe/Vienna", clock=fake_time, sleep=fake_time.sleep)
    async with follow_ticks(ticks, fake_time) as fired_ticks:
        await fake_time.advance(40 * 3600)

    assert format_times(fired_ticks, "Europe/Vienna") == expected


async def test_suspended_machine_fires_one_cron_tick(fake_time: FakeTime) -> None:
    """B23, B55: one tick replaces the missed ticks, which are counted."""
    fake_time.now = parse_time("2026-03-02 08:00")
    ticks = iterate_cron_ticks("* * * * *", "UTC", clock=fake_time, sleep=fake_time.sleep)
    async with follow_ticks(ticks, fake_time) as fired_ticks:
        await fake_time.advance(60)
        fake_time.now += 8 * 3600
        await fake_time.advance(60)

    assert [tick.skipped_ticks for _, tick in fired_ticks] == [0, 479, 0]


async def test_clock_set_back_repeats_no_tick(fake_time: FakeTime) -> None:
    fake_time.now = parse_time("2026-03-02 08:59")
    ticks = iterate_cron_ticks("0 * * * *", "UTC", clock=fake_time, sleep=fake_time.sleep)
    async with follow_ticks(ticks, fake_time) as fired_ticks:
        await fake_time.advance(120)
        fake_time.now = parse_time("2026-03-02 08:30")
        await fake_time.advance(3600)

    assert format_times(fired_ticks) == ["03-02 09:00"]
