"""What restarts, slow databases and wrong clocks must not do to workers and to those who watch them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.store.store import Store, StoreError
from queenright.health.store.tables import SNAPSHOT_PARTS
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.monitoring import remediation, scheduler
from queenright.server.ops import arrivals
from queenright.server.ops.arrivals import ArrivalLog, ArrivalMark, Gap
from queenright.server.ops.rebuild import ArrivalBounds, rebuild
from queenright.server.service import Service
from queenright.server.settings import Settings
from tests.waiting import until

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
IN_2099 = 4_070_908_800.0
T = 1_700_000_000.0


class Clock:
    """The time that the service gets, and whether a restart finds a snapshot or reads the log."""

    def __init__(self, *, keeps_snapshots: bool = True) -> None:
        self.now = T
        self.keeps_snapshots = keeps_snapshots

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["snapshot", "log"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return Clock(keeps_snapshots=request.param == "snapshot")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(storage=tmp_path / "storage")


def event(kind: EventType, at: float, agent: str = "bee", **data: object) -> AgentEvent:
    return AgentEvent(
        type=kind,
        time=at,
        agent_id=agent,
        session_id=f"{agent}-1",
        incarnation_id="one",
        node_id="search",
        data=data,
    )


def start_event(at: float, agent: str = "bee", **data: object) -> AgentEvent:
    return event(EventType.EXECUTION_STARTED, at, agent, start_records=True, **data)


def beat(at: float, agent: str = "bee") -> AgentEvent:
    return event(EventType.AGENT_HEARTBEAT, at, agent, interval=300)


class ServiceRun:
    """Services that follow one another on one storage, each with its own life in the same time."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    async def __aenter__(self) -> Service:
        self.service = await build(self._settings, clock=self._clock)
        await self.service.start()
        return self.service

    async def __aexit__(self, *_: object) -> None:
        await self.service.stop()
        if not self._clock.keeps_snapshots:
            store = Store.open(self._settings.database_url)
            await store.transact(lambda connection: connection.execute(delete(SNAPSHOT_PARTS)))
            await store.close()


def look(service: Service, clock: Clock, seconds: float) -> None:
    """Let time pass without the loop that would take it for a jump of the clock."""
    clock.now += seconds
    service.pipeline.arrivals.write_alive(clock.now)
    service.pipeline.pending += service.monitor.advance(clock.now)


def states(service: Service) -> dict[str, str]:
    return {health.vitals.agent_id: health.state.value for health in service.workers()}


# -- one clock moves nobody else's ------------------------------------------------------------------


@pytest.mark.parametrize("skew", [-30 * DAY, -600.0, 600.0, IN_2099 - T])
async def test_wrong_clock_of_one_worker_makes_no_other_stuck_after_a_restart(
    settings: Settings, clock: Clock, skew: float
) -> None:
    """B23: one event from a wrong clock, then a restart."""
    fleet = [f"w{number}" for number in range(5)]
    async with ServiceRun(settings, clock) as service:
        await service.ingest([start_event(clock.now, agent) for agent in fleet])
        look(service, clock, 30)
        await service.ingest([start_event(clock.now + skew, "odd"), beat(clock.now + skew, "odd")])
        look(service, clock, 30)
    clock.now += 30 * MINUTE
    async with ServiceRun(settings, clock) as service:
        after = states(service)
        look(service, clock, 60)
        later = states(service)

    assert set(after.values()) == set(later.values()) == {"healthy"}
    assert set(after) == {*fleet, "odd"}


@pytest.mark.parametrize("skew", [-30 * DAY, -600.0, 600.0, IN_2099 - T])
def test_event_from_a_wrong_clock_moves_no_other_worker(skew: float) -> None:
    monitor = HealthMonitor(HealthSettings())
    monitor.apply(start_event(T), T)

    monitor.apply(start_event(T + skew, "odd"), T + 1)
    monitor.apply(beat(T + 2 + skew, "odd"), T + 2)

    assert monitor.advance(T + 3) == []
    assert monitor.next_deadline() == pytest.approx(T + 240)
    odd = monitor.get("odd")
    assert odd is not None
    assert T <= odd.vitals.last_event <= T + 2


async def test_without_notes_events_are_timed_by_the_services_own_events(
    settings: Settings, clock: Clock, tmp_path: Path
) -> None:
    async with ServiceRun(settings, clock) as service:
        await service.ingest([start_event(clock.now), start_event(clock.now + 20 * MINUTE, "fast")])
        clock.now += 60
        await service.ingest([event(EventType.AGENT_TERMINATED, clock.now, "gone", by="ann")])
    (settings.storage / "arrivals").unlink()
    clock.now += HOUR
    async with ServiceRun(settings, clock) as service:
        assert states(service) == {"bee": "healthy", "fast": "healthy", "gone": "terminated"}


# -- restarts ---------------------------------------------------------------------------------------


async def test_restart_keeps_how_long_a_worker_has_been_silent(settings: Settings, clock: Clock) -> None:
    async with ServiceRun(settings, clock) as service:
        await service.ingest([start_event(clock.now)])
        look(service, clock, 200)
    clock.now += 2
    async with ServiceRun(settings, clock) as service:
        look(service, clock, 39)
        assert states(service) == {"bee": "healthy"}
        look(service, clock, 2)
        assert states(service) == {"bee": "stuck"}


async def test_repeatedly_restarted_service_finds_a_stall(settings: Settings, clock: Clock) -> None:
    async with ServiceRun(settings, clock) as service:
        await service.ingest([start_event(clock.now)])
    found = []
    for _ in range(5):
        clock.now += 5
        async with ServiceRun(settings, clock) as service:
            look(service, clock, 55)
            found.append(states(service)["bee"])

    assert found == ["healthy", "healthy", "healthy", "healthy", "stuck"]


async def test_downtime_of_the_service_is_not_silence(settings: Settings, clock: Clock) -> None:
    """B23: away for an hour, twice; what workers told meanwhile is lost."""
    async with ServiceRun(settings, clock) as service:
        await service.ingest(
            [start_event(clock.now), event(EventType.TOOL_CALL_STARTED, clock.now, timeout=300)]
        )
        look(service, clock, 60)
    for _ in range(2):
        clock.now += HOUR
        async with ServiceRun(settings, clock) as service:
            assert states(service) == {"bee": "healthy"}
            look(service, clock, 60)
            assert states(service) == {"bee": "healthy"}
    clock.now += HOUR
    async with ServiceRun(settings, clock) as service:
        look(service, clock, 125)
        assert states(service) == {"bee": "stuck"}


async def test_restarts_and_clock_jumps_are_not_progress(settings: Settings, clock: Clock) -> None:
    """
    B66: what was climbed because a worker got no further is climbed after it, too.

    Silences are counted on a clock that leaves out the time away; when it got further is not moved by that.
    """
    reached = T
    async with ServiceRun(settings, clock) as service:
        await service.ingest(
            [start_event(clock.now), event(EventType.STEP_COMPLETED, reached, verdict="ACCEPT")]
        )
        look(service, clock, 60)
        service.scheduler.handle_clock_jump(clock.now, MINUTE)
        worker = service.monitor.get("bee")
        assert worker is not None
        assert worker.vitals.last_progress == reached
    for away in (17.0, HOUR):
        clock.now += away
        async with ServiceRun(settings, clock) as service:
            worker = service.monitor.get("bee")
            assert worker is not None
            assert worker.vitals.last_progress == reached
            assert worker.vitals.progress_from == pytest.approx(clock.now - 60, abs=5)


async def test_clock_jump_is_also_ignored_after_a_restart(settings: Settings, clock: Clock) -> None:
    """B23: the host slept for eight hours, and the service starts again a minute later."""
    async with ServiceRun(settings, clock) as service:
        await service.ingest([start_event(clock.now)])
        look(service, clock, 100)
        clock.now += 8 * HOUR
        service.scheduler.handle_clock_jump(clock.now, 8 * HOUR)
        look(service, clock, 60)
    async with ServiceRun(settings, clock) as service:
        assert states(service) == {"bee": "healthy"}
        look(service, clock, 185)
        assert states(service) == {"bee": "stuck"}


class Outage:
    """Whether telemetry can arrive."""

    def __init__(self) -> None:
        self.is_over = True
        self.looks = 0

    def __call__(self) -> bool:
        self.looks += 1
        return self.is_over

    async def last(self, service: Service, clock: Clock, seconds: float) -> None:
        """Let time pass in which nothing can arrive."""
        service.pipeline.can_receive = self
        assert service.pipeline.check_listening(clock.now)
        self.is_over = False
        clock.now += seconds
        assert not service.pipeline.check_listening(clock.now)


async def test_silence_while_nothing_can_arrive_is_not_judged(settings: Settings, clock: Clock) -> None:
    """B119: NATS was away for an hour, and senders were told to retry; also after a restart."""
    outage = Outage()
    async with ServiceRun(settings, clock) as service:
        await service.ingest([start_event(clock.now)])
        look(service, clock, 100)
        await outage.last(service, clock, HOUR)
        outage.is_over = True
        assert service.pipeline.check_listening(clock.now)
        look(service, clock, 60)
        assert states(service) == {"bee": "healthy"}
    async with ServiceRun(settings, clock) as service:
        look(service, clock, 75)
        assert states(service) == {"bee": "healthy"}
        look(service, clock, 10)
        assert states(service) == {"bee": "stuck"}


async def test_restart_while_nothing_can_arrive_counts_no_silence(settings: Settings, clock: Clock) -> None:
    """B119: the service is stopped before NATS is back."""
    async with ServiceRun(settings, clock) as service:
        await service.ingest([start_event(clock.now)])
        look(service, clock, 100)
        await Outage().last(service, clock, HOUR)
    async with ServiceRun(settings, clock) as service:
        look(service, clock, 135)
        assert states(service) == {"bee": "healthy"}
        look(service, clock, 10)
        assert states(service) == {"bee": "stuck"}


async def test_first_telemetry_after_an_outage_ends_it(settings: Settings, clock: Clock) -> None:
    """B119: the worker that is heard first is not judged by the age of its open call either."""
    outage = Outage()
    async with ServiceRun(settings, clock) as service:
        await service.ingest(
            [start_event(clock.now), event(EventType.TOOL_CALL_STARTED, clock.now, timeout=300)]
        )
        look(service, clock, 100)
        await outage.last(service, clock, HOUR)
        outage.is_over = True
        await service.ingest([beat(clock.now)])
        assert states(service) == {"bee": "healthy"}


async def test_database_that_is_away_is_an_outage(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B119: PostgreSQL away for ten minutes: what agents sent was refused; nobody is late for that."""
    async with ServiceRun(settings, clock) as service:
        await service.ingest([start_event(clock.now)])
        look(service, clock, 200)
        assert service.pipeline.check_listening(clock.now)
        with monkeypatch.context() as away:
            away.setattr(Store, "is_writable", False)
            clock.now += 10 * MINUTE
            assert not service.pipeline.check_listening(clock.now)
        await service.ingest([beat(clock.now)])
        await service.scheduler.sweep()
        assert states(service) == {"bee": "healthy"}


async def test_outage_extends_the_waits_of_actions(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B119: a worker that was nudged before it has its whole time to answer, and nothing is done at once."""
    outage = Outage()
    moved: list[tuple[str, float]] = []
    async with ServiceRun(settings, clock) as service:
        monkeypatch.setattr(service.interventions, "handle_clock_jump", lambda now: moved.append(("i", now)))
        monkeypatch.setattr(
            service.remediation.recovery, "handle_clock_jump", lambda by: moved.append(("r", by))
        )
        await outage.last(service, clock, HOUR)
        outage.is_over = True
        assert service.pipeline.check_listening(clock.now)

    assert moved == [("i", clock.now), ("r", HOUR)]


async def test_deadlines_and_sweeps_wait_until_telemetry_can_arrive(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B119: the running loops judge nothing during an outage, and sweep again after it."""
    outage = Outage()
    monkeypatch.setattr(scheduler, "_MAX_SLEEP_SECONDS", 0.001)
    async with ServiceRun(settings, clock) as service:
        for name in ("deadlines", "sweep"):
            service.tasks[name].cancel()
        await service.ingest([start_event(clock.now)])
        await outage.last(service, clock, HOUR)
        outage.looks = 0
        async with asyncio.TaskGroup() as loops:
            deadlines = loops.create_task(service.scheduler.run_deadlines())
            sweeps = loops.create_task(service.scheduler.run_sweeps())
            await until(lambda: outage.looks > 20, "looks of both loops")
            assert states(service) == {"bee": "healthy"}
            checks = service.metrics.evaluated_workers
            outage.is_over = True
            await until(lambda: service.metrics.evaluated_workers > checks, "a sweep")
            deadlines.cancel()
            sweeps.cancel()
        assert states(service) == {"bee": "healthy"}


async def test_worker_waiting_for_days_is_not_stuck_after_a_restart(settings: Settings, clock: Clock) -> None:
    settings.storage.mkdir()
    store = Store.open(settings.database_url)
    began = clock.now - 26 * HOUR
    await store.append([start_event(began), event(EventType.CLIENT_INPUT_REQUESTED, began + 1)])
    await store.append([beat(began + 300 * n) for n in range(1, 312)])
    await store.close()
    async with ServiceRun(settings, clock) as service:
        [health] = service.workers()
        assert health.vitals.waiting is not None
        for _ in range(4):
            clock.now += 300
            await service.ingest([beat(clock.now)])
            look(service, clock, 0)
        assert states(service) == {"bee": "healthy"}


async def test_steps_since_accept_include_those_before_the_replayed_day(
    settings: Settings, clock: Clock
) -> None:
    settings.storage.mkdir()
    store = Store.open(settings.database_url)
    began = clock.now - 26 * HOUR
    steps = [event(EventType.STEP_COMPLETED, began + n, verdict="RETRY") for n in range(200)]
    accepted = event(EventType.STEP_COMPLETED, began + 49.5, verdict="ACCEPT")
    await store.append([start_event(began), *steps[:50], accepted, *steps[50:]])
    await store.append([beat(clock.now - 60)])
    await store.close()
    async with ServiceRun(settings, clock) as service:
        [health] = service.workers()

    assert health.vitals.steps_since_last_accept == 150
    assert health.vitals.start_records


async def test_stuck_worker_with_a_ticket_is_known_after_days_of_silence(
    settings: Settings, clock: Clock
) -> None:
    async with ServiceRun(settings, clock) as service:
        await service.ingest([start_event(clock.now)])
        look(service, clock, 400)
        await service.pipeline.publish_pending()
        await until(lambda: bool(service.tickets.open_tickets()), "a ticket")
    clock.now += 2 * DAY
    async with ServiceRun(settings, clock) as service:
        assert states(service) == {"bee": "stuck"}


# -- what nobody said -------------------------------------------------------------------------------


async def test_events_missing_before_a_kill_are_published_after_it(settings: Settings, clock: Clock) -> None:
    """B77: killed between what a worker did and what the monitor says of it."""
    async with ServiceRun(settings, clock) as service:
        await service.ingest([start_event(clock.now), start_event(clock.now, "other")])
    store = Store.open(settings.database_url)
    await store.append([event(EventType.AGENT_TERMINATED, clock.now + 1, by="ann")])
    await store.close()
    clock.now += 5
    for _ in range(2):
        async with ServiceRun(settings, clock) as service:
            await until(lambda: bool(service.recent) or not service.pipeline.pending, "it is heard")
            clock.now += 1
            events = await service.store.history(types={EventType.HEALTH_STATE_CHANGED})
            history = await service.health.get_health_history("bee", HOUR)

    assert [(one.agent_id, one.data["from"], one.data["to"]) for one in events] == [
        ("bee", "healthy", "terminated")
    ]
    assert history[-1].state is HealthState.TERMINATED


async def test_published_events_are_not_repeated(settings: Settings, clock: Clock) -> None:
    async with ServiceRun(settings, clock) as service:
        await service.ingest([start_event(clock.now)])
        look(service, clock, 300)
        await service.pipeline.publish_pending()
        before = await service.store.history(limit=1000)
    async with ServiceRun(settings, clock) as service:
        assert states(service) == {"bee": "stuck"}
        assert service.pipeline.pending == []
        after = await service.store.history(limit=1000, types={one.type for one in before})

    types = {EventType.HEALTH_STATE_CHANGED, EventType.FINDING_OPENED}
    assert [one.id for one in after if one.type in types] == [one.id for one in before if one.type in types]


# -- the service's own clock ------------------------------------------------------------------------


async def test_slow_database_is_not_a_jump_of_the_clock(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps, turns = [], 0
    async with ServiceRun(settings, clock) as service:
        service.tasks["deadlines"].cancel()
        steady = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: steady)
        monkeypatch.setattr(service.scheduler, "handle_clock_jump", lambda now, by: jumps.append(by))
        monkeypatch.setattr(service.scheduler, "_pause", lambda: 0.0)

        async def slow(now: float) -> None:
            nonlocal steady, turns
            steady, clock.now, turns = steady + 45, clock.now + 45, turns + 1

        monkeypatch.setattr(service.remediation, "advance", slow)
        watching = asyncio.create_task(service.scheduler.run_deadlines())
        await until(lambda: turns >= 3, "three turns")
        assert jumps == []
        clock.now += HOUR
        await until(lambda: bool(jumps), "a jump of the clock")
        watching.cancel()

    assert jumps == [pytest.approx(HOUR)]


async def test_clock_jump_renews_pending_deadlines(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServiceRun(settings, clock) as service:
        moved: list[tuple[str, float]] = []
        monkeypatch.setattr(service.interventions, "handle_clock_jump", lambda now: moved.append(("i", now)))
        monkeypatch.setattr(
            service.remediation.recovery, "handle_clock_jump", lambda by: moved.append(("r", by))
        )
        clock.now += HOUR
        service.scheduler.handle_clock_jump(clock.now, HOUR)

    assert moved == [("i", clock.now), ("r", HOUR)]


async def test_recovery_waits_for_the_quiet_time(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[bool] = []

    async def advance(now: float, *, begin: bool) -> None:
        requested.append(begin)

    quiet = settings.health_monitoring.intervention.quiet_seconds
    async with ServiceRun(settings, clock) as service:
        monkeypatch.setattr(service.remediation.recovery, "advance", advance)
        monkeypatch.setattr(service.remediation.recovery, "next_deadline", lambda: clock.now - 1)
        assert service.remediation.next_deadline() == clock.now + quiet
        await service.remediation.advance(clock.now + quiet - 0.1)
        await service.remediation.advance(clock.now + quiet)
        await asyncio.sleep(0)

    assert requested[:2] == [False, True]


async def test_housekeeping_continues_after_a_failed_write(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    async def refused(now: float) -> None:
        calls.append(now)
        raise StoreError("database is away")

    monkeypatch.setattr(remediation, "_EXPIRE_SECONDS", 0.001)
    async with ServiceRun(settings, clock) as service:
        monkeypatch.setattr(service.instructions, "expire", refused)
        await until(lambda: len(calls) >= 3, "three calls")
        assert service.ready() == []


# -- the file ---------------------------------------------------------------------------------------


def test_notes_round_trip(tmp_path: Path) -> None:
    file = ArrivalLog(tmp_path / "arrivals")
    file.start([Gap("away", T, T + 5)], T + 5)
    first, last = beat(T + 6), beat(T + 7)
    file.record_events([first], T + 6)
    file.record_events([last], T + 7)
    file.write_alive(T + 8)
    assert ArrivalLog(file.path).read(T) == [Gap("away", T, T + 5)]
    file.record_gap(Gap("jump", T + 9, T + HOUR))
    file.close()

    again = ArrivalLog(file.path)
    assert again.read(T) == [
        Gap("away", T, T + 5),
        ArrivalMark(T + 6, first.id),
        ArrivalMark(T + 7, last.id),
        Gap("jump", T + 9, T + HOUR),
    ]
    assert again.alive_until == T + HOUR
    assert again.read(T + 8) == [Gap("jump", T + 9, T + HOUR)]


@pytest.mark.parametrize(
    "content", ["", "alive_until", "\x00\xff" * 40, "alive_until x\nat 1 2\naway 1.0 nan\njump  \n"]
)
def test_damaged_notes_file_is_ignored(tmp_path: Path, content: str) -> None:
    path = tmp_path / "arrivals"
    path.write_text(content, "latin-1")
    file = ArrivalLog(path)

    assert file.read(0.0) == []
    assert file.alive_until is None


def test_last_logged_event_of_a_batch_is_noted(tmp_path: Path) -> None:
    file = ArrivalLog(tmp_path / "arrivals")
    file.start([], T)
    first, last = beat(T), beat(T)
    file.record_events([first, last, AgentEvent(type=EventType.LLM_TEXT_DELTA, time=T, data={})], T)
    file.write_alive(T, at_once=True)
    file.close()

    assert file.read(T) == [ArrivalMark(T, first.id), ArrivalMark(T, last.id)]


def test_failed_compaction_keeps_the_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ArrivalLog(tmp_path / "arrivals")
    file.start([], T)
    blocking = tmp_path / "arrivals.new"
    blocking.mkdir()
    monkeypatch.setattr(arrivals, "_MAX_NOTES", 0)
    gaps = [Gap("jump", T, T + 1), Gap("jump", T + 2, T + 3)]
    file.record_gap(gaps[0])
    blocking.rmdir()
    file.record_gap(gaps[1])
    file.close()

    assert file.read(T) == gaps


def test_disk_errors_do_not_stop_the_service(tmp_path: Path) -> None:
    file = ArrivalLog(tmp_path / "not there" / "arrivals")
    file.start([], T)
    file.record_events([beat(T)], T)
    file.write_alive(T + 20)

    assert file.alive_until == T + 20


def test_row_time_is_bounded_by_later_rows() -> None:
    timeline = ArrivalBounds([(2, T + 10), (4, T + 5), (6, T + 20)], [], T + 30)

    assert [timeline.at(seq, T + HOUR) for seq in (1, 2, 3, 4, 5, 6, 7)] == [
        T + 5, T + 5, T + 5, T + 5, T + 20, T + 20, T + 30
    ]  # fmt: skip


def test_clock_set_back_bounds_only_later_rows() -> None:
    timeline = ArrivalBounds([(2, T), (4, T - HOUR + 9)], [(2, Gap("jump", T, T - HOUR))], T - HOUR + 10)

    assert timeline.at(1, T - 5) == T - 5
    assert timeline.at(2, T) == T
    assert list(timeline.gaps_before(3)) == [Gap("jump", T, T - HOUR)]
    assert timeline.at(3, T) == T - HOUR + 9


# -- fleets ---------------------------------------------------------------------------------------


def fleet_of(sessions: int, events: int) -> Iterator[list[AgentEvent]]:
    """A day of sessions that began before it, and a little of what they did then."""
    names = [f"w{number}" for number in range(sessions)]
    yield [start_event(T - 30 * HOUR, name) for name in names]
    yield [
        event(EventType.STEP_COMPLETED, T - 29 * HOUR + n, name, verdict="RETRY")
        for name in names
        for n in range(30)
    ]
    for n in range(events // sessions):
        yield [beat(T - 20 * HOUR + 600 * n, name) for name in names]


async def test_fleet_started_before_the_replayed_day_is_known(database_url: str) -> None:
    store = Store.open(database_url)
    for batch in fleet_of(sessions=50, events=2000):
        await store.append(batch)
    monitor = HealthMonitor(HealthSettings())

    def read(conn: Connection) -> int:
        return rebuild(conn, monitor, since=T - DAY, now=T).events

    assert await store.read(read) == 2000
    await store.close()
    counted = {health.vitals.steps_since_last_accept for health in monitor.workers()}
    assert counted == {30}
    assert all(FindingKind.RETRY_STORM in {f.kind for f in h.findings} for h in monitor.workers())
