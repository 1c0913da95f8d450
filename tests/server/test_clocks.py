"""Restarts, slow databases and wrong clocks do not change the states of workers."""

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
from queenright.health.recovery.starter import Stop
from queenright.health.settings import HealthSettings
from queenright.health.store.store import Store, StoreError
from queenright.health.store.tables import SNAPSHOT_PARTS
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.monitoring import remediation, scheduler
from queenright.server.ops import arrivals
from queenright.server.ops.arrivals import ArrivalLog, ArrivalMark, Gap
from queenright.server.ops.rebuild import ArrivalBounds, rebuild_workers
from queenright.server.service import Service
from queenright.server.settings import Settings
from tests.waiting import until

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
IN_2099 = 4_070_908_800.0
START_TIME = 1_700_000_000.0


class Clock:
    """The clock of the service. It also selects whether a restart finds a snapshot or replays the log."""

    def __init__(self, *, keeps_snapshots: bool = True) -> None:
        self.now = START_TIME
        self.keeps_snapshots = keeps_snapshots

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["snapshot", "log"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return Clock(keeps_snapshots=request.param == "snapshot")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(storage=tmp_path / "storage")


def make_event(kind: EventType, timestamp: float, agent: str = "bee", **data: object) -> AgentEvent:
    return AgentEvent(
        type=kind,
        time=timestamp,
        agent_id=agent,
        session_id=f"{agent}-1",
        incarnation_id="one",
        node_id="search",
        data=data,
    )


def make_start_event(timestamp: float, agent: str = "bee", **data: object) -> AgentEvent:
    return make_event(EventType.EXECUTION_STARTED, timestamp, agent, start_records=True, **data)


def make_heartbeat(timestamp: float, agent: str = "bee") -> AgentEvent:
    return make_event(EventType.AGENT_HEARTBEAT, timestamp, agent, interval=300)


class ServiceRun:
    """
    A service that starts at the current time of the clock, on a storage that earlier services may have used.
    """

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


def advance_clock(service: Service, clock: Clock, seconds: float) -> None:
    """Advance time without the loop that would take this for a clock jump."""
    clock.now += seconds
    service.pipeline.arrivals.write_alive(clock.now)
    service.pipeline.pending += service.monitor.advance(clock.now)


def list_states(service: Service) -> dict[str, str]:
    return {health.vitals.agent_id: health.state.value for health in service.workers()}


# -- wrong clocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [-30 * DAY, -600.0, 600.0, IN_2099 - START_TIME])
async def test_wrong_clock_of_one_worker_does_not_make_others_stuck_after_a_restart(
    settings: Settings, clock: Clock, skew: float
) -> None:
    """B23: an event from a wrong clock arrives, and the service restarts."""
    fleet = [f"w{number}" for number in range(5)]
    async with ServiceRun(settings, clock) as service:
        await service.ingest([make_start_event(clock.now, agent) for agent in fleet])
        advance_clock(service, clock, 30)
        await service.ingest(
            [make_start_event(clock.now + skew, "odd"), make_heartbeat(clock.now + skew, "odd")]
        )
        advance_clock(service, clock, 30)
    clock.now += 30 * MINUTE
    async with ServiceRun(settings, clock) as service:
        state_after = list_states(service)
        advance_clock(service, clock, 60)
        later_states = list_states(service)

    assert set(state_after.values()) == set(later_states.values()) == {"healthy"}
    assert set(state_after) == {*fleet, "odd"}


@pytest.mark.parametrize("skew", [-30 * DAY, -600.0, 600.0, IN_2099 - START_TIME])
def test_event_from_a_wrong_clock_does_not_affect_other_workers(skew: float) -> None:
    monitor = HealthMonitor(HealthSettings())
    monitor.apply(make_start_event(START_TIME), START_TIME)

    monitor.apply(make_start_event(START_TIME + skew, "odd"), START_TIME + 1)
    monitor.apply(make_heartbeat(START_TIME + 2 + skew, "odd"), START_TIME + 2)

    assert monitor.advance(START_TIME + 3) == []
    assert monitor.next_deadline() == pytest.approx(START_TIME + 240)
    wrong_clock_event = monitor.get("odd")
    assert wrong_clock_event is not None
    assert START_TIME <= wrong_clock_event.vitals.last_event <= START_TIME + 2


async def test_without_notes_the_services_own_events_give_the_time(
    settings: Settings, clock: Clock, tmp_path: Path
) -> None:
    async with ServiceRun(settings, clock) as service:
        await service.ingest([make_start_event(clock.now), make_start_event(clock.now + 20 * MINUTE, "fast")])
        clock.now += 60
        await service.ingest([make_event(EventType.AGENT_TERMINATED, clock.now, "gone", by="ann")])
    (settings.storage / "arrivals").unlink()
    clock.now += HOUR
    async with ServiceRun(settings, clock) as service:
        assert list_states(service) == {"bee": "healthy", "fast": "healthy", "gone": "terminated"}


# -- restarts ---------------------------------------------------------------------------------------


async def test_restart_keeps_the_duration_of_a_workers_silence(settings: Settings, clock: Clock) -> None:
    async with ServiceRun(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        advance_clock(service, clock, 200)
    clock.now += 2
    async with ServiceRun(settings, clock) as service:
        advance_clock(service, clock, 39)
        assert list_states(service) == {"bee": "healthy"}
        advance_clock(service, clock, 2)
        assert list_states(service) == {"bee": "stuck"}


async def test_repeatedly_restarted_service_finds_a_stall(settings: Settings, clock: Clock) -> None:
    async with ServiceRun(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
    findings = []
    for _ in range(5):
        clock.now += 5
        async with ServiceRun(settings, clock) as service:
            advance_clock(service, clock, 55)
            findings.append(list_states(service)["bee"])

    assert findings == ["healthy", "healthy", "healthy", "healthy", "stuck"]


async def test_downtime_of_the_service_does_not_count_as_silence(settings: Settings, clock: Clock) -> None:
    """B23: the service is down for an hour, twice. Telemetry in between is lost."""
    async with ServiceRun(settings, clock) as service:
        await service.ingest(
            [make_start_event(clock.now), make_event(EventType.TOOL_CALL_STARTED, clock.now, timeout=300)]
        )
        advance_clock(service, clock, 60)
    for _ in range(2):
        clock.now += HOUR
        async with ServiceRun(settings, clock) as service:
            assert list_states(service) == {"bee": "healthy"}
            advance_clock(service, clock, 60)
            assert list_states(service) == {"bee": "healthy"}
    clock.now += HOUR
    async with ServiceRun(settings, clock) as service:
        advance_clock(service, clock, 125)
        assert list_states(service) == {"bee": "stuck"}


async def test_restarts_and_clock_jumps_do_not_count_as_progress(settings: Settings, clock: Clock) -> None:
    """
    B66: a worker without progress before a restart is still without progress after it.

    Downtime is excluded from silence, and does not move the time of the last progress.
    """
    progress_time = START_TIME
    async with ServiceRun(settings, clock) as service:
        await service.ingest(
            [
                make_start_event(clock.now),
                make_event(EventType.STEP_COMPLETED, progress_time, verdict="ACCEPT"),
            ]
        )
        advance_clock(service, clock, 60)
        service.scheduler.handle_clock_jump(clock.now, MINUTE)
        worker = service.monitor.get("bee")
        assert worker is not None
        assert worker.vitals.last_progress == progress_time
    for downtime in (17.0, HOUR):
        clock.now += downtime
        async with ServiceRun(settings, clock) as service:
            worker = service.monitor.get("bee")
            assert worker is not None
            assert worker.vitals.last_progress == progress_time
            assert worker.vitals.progress_from == pytest.approx(clock.now - 60, abs=5)


async def test_clock_jump_is_also_ignored_after_a_restart(settings: Settings, clock: Clock) -> None:
    """B23: the host slept for eight hours, and the service restarts a minute later."""
    async with ServiceRun(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        advance_clock(service, clock, 100)
        clock.now += 8 * HOUR
        service.scheduler.handle_clock_jump(clock.now, 8 * HOUR)
        advance_clock(service, clock, 60)
    async with ServiceRun(settings, clock) as service:
        assert list_states(service) == {"bee": "healthy"}
        advance_clock(service, clock, 185)
        assert list_states(service) == {"bee": "stuck"}


class Outage:
    """Tells the service whether telemetry can arrive, and counts the checks."""

    def __init__(self) -> None:
        self.is_over = True
        self.checks = 0

    def __call__(self) -> bool:
        self.checks += 1
        return self.is_over

    async def start_and_wait(self, service: Service, clock: Clock, seconds: float) -> None:
        """Start the outage, and let time pass."""
        service.pipeline.can_receive = self
        assert service.pipeline.check_listening(clock.now)
        self.is_over = False
        clock.now += seconds
        assert not service.pipeline.check_listening(clock.now)


async def test_silence_while_no_telemetry_can_arrive_is_not_judged(settings: Settings, clock: Clock) -> None:
    """
    B119: NATS was unavailable for an hour, and clients were told to retry. This also holds after a restart.
    """
    outage = Outage()
    async with ServiceRun(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        advance_clock(service, clock, 100)
        await outage.start_and_wait(service, clock, HOUR)
        outage.is_over = True
        assert service.pipeline.check_listening(clock.now)
        advance_clock(service, clock, 60)
        assert list_states(service) == {"bee": "healthy"}
    async with ServiceRun(settings, clock) as service:
        advance_clock(service, clock, 75)
        assert list_states(service) == {"bee": "healthy"}
        advance_clock(service, clock, 10)
        assert list_states(service) == {"bee": "stuck"}


async def test_restart_while_no_telemetry_can_arrive_counts_no_silence(
    settings: Settings, clock: Clock
) -> None:
    """B119: the service stops before NATS is back."""
    async with ServiceRun(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        advance_clock(service, clock, 100)
        await Outage().start_and_wait(service, clock, HOUR)
    async with ServiceRun(settings, clock) as service:
        advance_clock(service, clock, 135)
        assert list_states(service) == {"bee": "healthy"}
        advance_clock(service, clock, 10)
        assert list_states(service) == {"bee": "stuck"}


async def test_first_telemetry_after_an_outage_ends_the_outage(settings: Settings, clock: Clock) -> None:
    """B119: the first worker that reports is not stalled because of the age of its open call either."""
    outage = Outage()
    async with ServiceRun(settings, clock) as service:
        await service.ingest(
            [make_start_event(clock.now), make_event(EventType.TOOL_CALL_STARTED, clock.now, timeout=300)]
        )
        advance_clock(service, clock, 100)
        await outage.start_and_wait(service, clock, HOUR)
        outage.is_over = True
        await service.ingest([make_heartbeat(clock.now)])
        assert list_states(service) == {"bee": "healthy"}


async def test_unavailable_database_is_an_outage(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    B119: PostgreSQL was unavailable for ten minutes, and telemetry was refused. No worker is late because of
    this.
    """
    async with ServiceRun(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        advance_clock(service, clock, 200)
        assert service.pipeline.check_listening(clock.now)
        with monkeypatch.context() as outage:
            outage.setattr(Store, "is_writable", False)
            clock.now += 10 * MINUTE
            assert not service.pipeline.check_listening(clock.now)
        await service.ingest([make_heartbeat(clock.now)])
        await service.scheduler.sweep()
        assert list_states(service) == {"bee": "healthy"}


async def test_outage_extends_the_deadlines_of_actions(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    B119: a worker that was nudged before the outage has its whole time to respond. No action follows
    immediately.
    """
    outage = Outage()
    extensions: list[tuple[str, float]] = []
    async with ServiceRun(settings, clock) as service:
        monkeypatch.setattr(
            service.interventions, "handle_clock_jump", lambda now: extensions.append(("i", now))
        )
        monkeypatch.setattr(
            service.remediation.recovery, "handle_clock_jump", lambda by: extensions.append(("r", by))
        )
        await outage.start_and_wait(service, clock, HOUR)
        outage.is_over = True
        assert service.pipeline.check_listening(clock.now)

    assert extensions == [("i", clock.now), ("r", HOUR)]


async def test_deadlines_and_sweeps_wait_until_telemetry_can_arrive(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B119: the running loops judge nothing during an outage, and check all workers after it."""
    outage = Outage()
    monkeypatch.setattr(scheduler, "_MAX_SLEEP_SECONDS", 0.001)
    async with ServiceRun(settings, clock) as service:
        for name in ("deadlines", "sweep"):
            service.tasks[name].cancel()
        await service.ingest([make_start_event(clock.now)])
        await outage.start_and_wait(service, clock, HOUR)
        outage.checks = 0
        async with asyncio.TaskGroup() as loops:
            deadlines = loops.create_task(service.scheduler.run_deadlines())
            sweeps = loops.create_task(service.scheduler.run_sweeps())
            await until(lambda: outage.checks > 20, "both loops have checked")
            assert list_states(service) == {"bee": "healthy"}
            checks = service.metrics.evaluated_workers
            outage.is_over = True
            await until(lambda: service.metrics.evaluated_workers > checks, "a sweep has started")
            deadlines.cancel()
            sweeps.cancel()
        assert list_states(service) == {"bee": "healthy"}


async def test_worker_waiting_for_days_is_not_stuck_after_a_restart(settings: Settings, clock: Clock) -> None:
    settings.storage.mkdir()
    store = Store.open(settings.database_url)
    start_time = clock.now - 26 * HOUR
    await store.append(
        [make_start_event(start_time), make_event(EventType.CLIENT_INPUT_REQUESTED, start_time + 1)]
    )
    await store.append([make_heartbeat(start_time + 300 * number) for number in range(1, 312)])
    await store.close()
    async with ServiceRun(settings, clock) as service:
        [health] = service.workers()
        assert health.vitals.waiting is not None
        for _ in range(4):
            clock.now += 300
            await service.ingest([make_heartbeat(clock.now)])
            advance_clock(service, clock, 0)
        assert list_states(service) == {"bee": "healthy"}


async def test_steps_since_the_last_accept_include_those_before_the_replayed_day(
    settings: Settings, clock: Clock
) -> None:
    settings.storage.mkdir()
    store = Store.open(settings.database_url)
    start_time = clock.now - 26 * HOUR
    steps = [
        make_event(EventType.STEP_COMPLETED, start_time + number, verdict="RETRY") for number in range(200)
    ]
    accepted_event = make_event(EventType.STEP_COMPLETED, start_time + 49.5, verdict="ACCEPT")
    await store.append([make_start_event(start_time), *steps[:50], accepted_event, *steps[50:]])
    await store.append([make_heartbeat(clock.now - 60)])
    await store.close()
    async with ServiceRun(settings, clock) as service:
        [health] = service.workers()

    assert health.vitals.steps_since_last_accept == 150
    assert health.vitals.start_records


async def test_stuck_worker_with_a_ticket_is_known_after_days_of_silence(
    settings: Settings, clock: Clock
) -> None:
    async with ServiceRun(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        advance_clock(service, clock, 400)
        await service.pipeline.publish_pending()
        await until(lambda: bool(service.tickets.open_tickets()), "a ticket is open")
    clock.now += 2 * DAY
    async with ServiceRun(settings, clock) as service:
        assert list_states(service) == {"bee": "stuck"}


# -- unpublished events ---------------------------------------------------------------------------


async def test_events_that_a_kill_left_unpublished_are_published_after_it(
    settings: Settings, clock: Clock
) -> None:
    """B77: the service is killed between a worker's event and the monitor's events about it."""
    async with ServiceRun(settings, clock) as service:
        await service.ingest([make_start_event(clock.now), make_start_event(clock.now, "other")])
    store = Store.open(settings.database_url)
    await store.append([make_event(EventType.AGENT_TERMINATED, clock.now + 1, by="ann")])
    await store.close()
    clock.now += 5
    for _ in range(2):
        async with ServiceRun(settings, clock) as service:
            await until(lambda: bool(service.recent) or not service.pipeline.pending, "the event is applied")
            clock.now += 1
            events = await service.store.history(types={EventType.HEALTH_STATE_CHANGED})
            history = await service.health.get_health_history("bee", HOUR)

    assert [(item.agent_id, item.data["from"], item.data["to"]) for item in events] == [
        ("bee", "healthy", "terminated")
    ]
    assert history[-1].state is HealthState.TERMINATED


async def test_published_events_are_not_published_again(settings: Settings, clock: Clock) -> None:
    async with ServiceRun(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        advance_clock(service, clock, 300)
        await service.pipeline.publish_pending()
        events_before = await service.store.history(limit=1000)
    async with ServiceRun(settings, clock) as service:
        assert list_states(service) == {"bee": "stuck"}
        assert service.pipeline.pending == []
        events_after = await service.store.history(limit=1000, types={item.type for item in events_before})

    types = {EventType.HEALTH_STATE_CHANGED, EventType.FINDING_OPENED}
    assert [item.id for item in events_after if item.type in types] == [
        item.id for item in events_before if item.type in types
    ]


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
        monkeypatch.setattr(service.scheduler, "_compute_pause", lambda: 0.0)

        async def check_slowly(now: float) -> None:
            nonlocal steady, turns
            steady, clock.now, turns = steady + 45, clock.now + 45, turns + 1

        monkeypatch.setattr(service.remediation, "advance", check_slowly)
        deadline_task = asyncio.create_task(service.scheduler.run_deadlines())
        await until(lambda: turns >= 3, "three turns")
        assert jumps == []
        clock.now += HOUR
        await until(lambda: bool(jumps), "a clock jump is handled")
        deadline_task.cancel()

    assert jumps == [pytest.approx(HOUR)]


async def test_clock_jump_renews_pending_deadlines(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServiceRun(settings, clock) as service:
        renewals: list[tuple[str, float]] = []
        monkeypatch.setattr(
            service.interventions, "handle_clock_jump", lambda now: renewals.append(("i", now))
        )
        monkeypatch.setattr(
            service.remediation.recovery, "handle_clock_jump", lambda by: renewals.append(("r", by))
        )
        clock.now += HOUR
        service.scheduler.handle_clock_jump(clock.now, HOUR)

    assert renewals == [("i", clock.now), ("r", HOUR)]


async def test_recovery_waits_for_the_grace_period(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[bool] = []

    async def record_request(now: float, *, stop: Stop, begin: bool) -> None:
        requests.append(begin)

    grace_end = settings.health_monitoring.intervention.quiet_seconds
    async with ServiceRun(settings, clock) as service:
        monkeypatch.setattr(service.remediation.recovery, "advance", record_request)
        monkeypatch.setattr(service.remediation.recovery, "next_deadline", lambda: clock.now - 1)
        assert service.remediation.next_deadline() == clock.now + grace_end
        await service.remediation.advance(clock.now + grace_end - 0.1)
        await service.remediation.advance(clock.now + grace_end)
        await asyncio.sleep(0)

    assert requests[:2] == [False, True]


async def test_housekeeping_continues_after_a_failed_write(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    async def fail_write(now: float) -> None:
        calls.append(now)
        raise StoreError("the database is unavailable")

    monkeypatch.setattr(remediation, "_EXPIRY_CHECK_SECONDS", 0.001)
    async with ServiceRun(settings, clock) as service:
        monkeypatch.setattr(service.instructions, "expire", fail_write)
        await until(lambda: len(calls) >= 3, "three calls")
        assert service.ready() == []


# -- the notes file -------------------------------------------------------------------------------


def test_notes_round_trip(tmp_path: Path) -> None:
    file = ArrivalLog(tmp_path / "arrivals")
    file.start([Gap("away", START_TIME, START_TIME + 5)], START_TIME + 5)
    first_event, second_event = make_heartbeat(START_TIME + 6), make_heartbeat(START_TIME + 7)
    file.record_events([first_event], START_TIME + 6)
    file.record_events([second_event], START_TIME + 7)
    file.write_alive(START_TIME + 8)
    assert ArrivalLog(file.path).read(START_TIME) == [Gap("away", START_TIME, START_TIME + 5)]
    file.record_gap(Gap("jump", START_TIME + 9, START_TIME + HOUR))
    file.close()

    reopened = ArrivalLog(file.path)
    assert reopened.read(START_TIME) == [
        Gap("away", START_TIME, START_TIME + 5),
        ArrivalMark(START_TIME + 6, first_event.id),
        ArrivalMark(START_TIME + 7, second_event.id),
        Gap("jump", START_TIME + 9, START_TIME + HOUR),
    ]
    assert reopened.alive_until == START_TIME + HOUR
    assert reopened.read(START_TIME + 8) == [Gap("jump", START_TIME + 9, START_TIME + HOUR)]


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
    file.start([], START_TIME)
    first_event, second_event = make_heartbeat(START_TIME), make_heartbeat(START_TIME)
    file.record_events(
        [first_event, second_event, AgentEvent(type=EventType.LLM_TEXT_DELTA, time=START_TIME, data={})],
        START_TIME,
    )
    file.write_alive(START_TIME, at_once=True)
    file.close()

    assert file.read(START_TIME) == [
        ArrivalMark(START_TIME, first_event.id),
        ArrivalMark(START_TIME, second_event.id),
    ]


def test_failed_compaction_leaves_the_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ArrivalLog(tmp_path / "arrivals")
    file.start([], START_TIME)
    obstacle = tmp_path / "arrivals.new"
    obstacle.mkdir()
    monkeypatch.setattr(arrivals, "_MAX_NOTES", 0)
    gaps = [Gap("jump", START_TIME, START_TIME + 1), Gap("jump", START_TIME + 2, START_TIME + 3)]
    file.record_gap(gaps[0])
    obstacle.rmdir()
    file.record_gap(gaps[1])
    file.close()

    assert file.read(START_TIME) == gaps


def test_disk_errors_of_the_notes_do_not_stop_the_service(tmp_path: Path) -> None:
    file = ArrivalLog(tmp_path / "not there" / "arrivals")
    file.start([], START_TIME)
    file.record_events([make_heartbeat(START_TIME)], START_TIME)
    file.write_alive(START_TIME + 20)

    assert file.alive_until == START_TIME + 20


def test_time_of_a_row_is_bounded_by_later_rows() -> None:
    timeline = ArrivalBounds(
        [(2, START_TIME + 10), (4, START_TIME + 5), (6, START_TIME + 20)], [], START_TIME + 30
    )

    assert [
        timeline.find_arrival_time(seq, START_TIME + HOUR) - START_TIME for seq in (1, 2, 3, 4, 5, 6, 7)
    ] == [*(5, 5, 5, 5, 20, 20, 30)]


def test_clock_that_is_set_back_bounds_only_later_rows() -> None:
    timeline = ArrivalBounds(
        [(2, START_TIME), (4, START_TIME - HOUR + 9)],
        [(2, Gap("jump", START_TIME, START_TIME - HOUR))],
        START_TIME - HOUR + 10,
    )

    assert timeline.find_arrival_time(1, START_TIME - 5) == START_TIME - 5
    assert timeline.find_arrival_time(2, START_TIME) == START_TIME
    assert list(timeline.take_gaps_before(3)) == [Gap("jump", START_TIME, START_TIME - HOUR)]
    assert timeline.find_arrival_time(3, START_TIME) == START_TIME - HOUR + 9


# -- fleets ---------------------------------------------------------------------------------------


def make_fleet(sessions: int, events: int) -> Iterator[list[AgentEvent]]:
    """Return the last events of sessions that started more than a day ago."""
    names = [f"w{number}" for number in range(sessions)]
    yield [make_start_event(START_TIME - 30 * HOUR, name) for name in names]
    yield [
        make_event(EventType.STEP_COMPLETED, START_TIME - 29 * HOUR + index, name, verdict="RETRY")
        for name in names
        for index in range(30)
    ]
    for index in range(events // sessions):
        yield [make_heartbeat(START_TIME - 20 * HOUR + 600 * index, name) for name in names]


async def test_fleet_that_started_before_the_replayed_day_is_known(database_url: str) -> None:
    store = Store.open(database_url)
    for batch in make_fleet(sessions=50, events=2000):
        await store.append(batch)
    monitor = HealthMonitor(HealthSettings())

    def read(conn: Connection) -> int:
        return rebuild_workers(conn, monitor, since=START_TIME - DAY, now=START_TIME).events

    assert await store.read(read) == 2000
    await store.close()
    step_counts = {health.vitals.steps_since_last_accept for health in monitor.workers()}
    assert step_counts == {30}
    assert all(
        FindingKind.RETRY_STORM in {finding.kind for finding in health.findings}
        for health in monitor.workers()
    )
