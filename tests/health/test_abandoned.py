"""B88: a run whose process is gone ends as ``unknown``; one that hangs in a live process is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.detection.deadlines import ProcessSign, find_end_time
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind
from queenright.health.monitoring.monitor import MAX_PROCESSES, HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.runtime.events import AgentEvent, EventType

SETTINGS = HealthSettings()
STALL = SETTINGS.stall.unknown_seconds
BEAT = 30.0
SILENT_SECONDS = SETTINGS.heartbeat.limit(BEAT)


class Process:
    """A process of another framework, which sends no heartbeats, and the monitor that observes its runs."""

    def __init__(self) -> None:
        self.monitor = HealthMonitor(SETTINGS)
        self.now = 1_800_000_000.0
        self.monitor.listening_since = self.now
        self.has_ever_stalled = False

    def report_event(self, session: str, kind: EventType, **data: object) -> None:
        event = AgentEvent(
            type=kind, time=self.now, agent_id="porter", session_id=session, incarnation_id="p", data=data
        )
        self.monitor.apply(event, self.now)
        self.monitor.record_process_alive("p", self.now)

    def report_turn(self, session: str) -> None:
        """Report a turn of the model when it has ended, as spans do."""
        self.report_event(session, EventType.EXECUTION_STARTED, start_records=False)
        self.report_event(session, EventType.LLM_CALL_COMPLETED)
        self.report_event(session, EventType.STEP_COMPLETED, is_model_turn=True)

    def open_tool(self, session: str) -> None:
        self.report_event(session, EventType.TOOL_CALL_STARTED, tool="look", call_id="c")

    def pass_time(self, seconds: float, *, beats: float | None = None, sends_records: bool = False) -> None:
        """Advance the clock while the process reports its open work, or sends records that name no agent."""
        end_time = self.now + seconds
        while self.now < end_time:
            self.now = min(end_time, self.now + 10)
            if beats is not None and self.now % beats < 10:
                self.monitor.record_process_alive("p", self.now, beats)
            elif sends_records:
                self.monitor.record_process_alive("p", self.now)
            events = self.monitor.advance(self.now)
            self.has_ever_stalled |= any(event.type is EventType.FINDING_OPENED for event in events)

    def get_status(self, session: str) -> WorkerStatus:
        worker = self.monitor.get("porter", session)
        assert worker is not None
        return worker.vitals.status

    def has_stalled(self, session: str) -> bool:
        worker = self.monitor.get("porter", session)
        assert worker is not None
        return any(finding.kind is FindingKind.STALL and finding.ticket for finding in worker.findings)


def test_run_of_a_stopped_process_is_abandoned_before_a_ticket() -> None:
    """B88: killing the process during a call opens no ticket."""
    process = Process()
    process.report_turn("a")
    process.open_tool("a")
    process.pass_time(120, beats=BEAT)
    last = process.now
    process.pass_time(SETTINGS.stall.tool_seconds + 60)

    worker = process.monitor.get("porter", "a")
    assert worker is not None
    assert worker.vitals.status is WorkerStatus.UNKNOWN
    assert worker.vitals.ended_at == pytest.approx(last + SILENT_SECONDS, abs=BEAT)
    assert not process.has_ever_stalled


def test_hanging_call_in_a_reporting_process_stays_a_finding() -> None:
    """B88: the finding comes within the limit and stays for as long as the call hangs."""
    process = Process()
    process.report_turn("a")
    process.open_tool("a")
    process.pass_time(SETTINGS.stall.tool_seconds + 60, beats=BEAT)
    assert process.has_stalled("a")
    process.pass_time(2 * SETTINGS.tickets.dead_worker_seconds, beats=BEAT)

    assert process.has_stalled("a")
    assert process.get_status("a") is WorkerStatus.ACTIVE


@pytest.mark.parametrize("is_open", [False, True])
def test_run_without_reports_stalls_first_and_ends_when_its_process_stays_silent(is_open: bool) -> None:
    """B88: a laptop may be closed; a run with an open call ends later."""
    process = Process()
    process.report_turn("a")
    if is_open:
        process.open_tool("a")
    process.pass_time(max(STALL, SETTINGS.stall.tool_seconds) + 60)
    assert process.has_stalled("a")
    process.pass_time(SETTINGS.heartbeat.timeout_seconds + SETTINGS.tickets.abandoned_run_seconds + 60)
    assert process.has_stalled("a") is is_open
    if is_open:
        process.pass_time(SETTINGS.tickets.dead_worker_seconds - SETTINGS.tickets.abandoned_run_seconds)

    assert process.get_status("a") is WorkerStatus.UNKNOWN
    assert not process.has_stalled("a")


def test_silent_run_of_a_live_process_stays_stalled() -> None:
    """B88: metrics and other spans show that the process runs."""
    process = Process()
    process.report_turn("a")
    process.pass_time(3 * SETTINGS.tickets.abandoned_run_seconds, sends_records=True)
    assert process.has_stalled("a")
    process.pass_time(SETTINGS.tickets.abandoned_run_seconds + 60)

    assert process.get_status("a") is WorkerStatus.UNKNOWN


def test_next_run_of_a_process_ends_the_previous_one() -> None:
    """B88: a framework may send no root span when it fails, and a process may be restarted."""
    process = Process()
    process.report_turn("a")
    process.pass_time(60)
    process.report_turn("b")
    process.pass_time(STALL)

    assert process.get_status("a") is WorkerStatus.UNKNOWN
    process.pass_time(60)
    assert process.get_status("b") is WorkerStatus.ACTIVE
    assert process.has_stalled("b")


def test_parallel_runs_do_not_end_each_other() -> None:
    """B88: one of several parallel runs of a service may hang."""
    process = Process()
    process.report_turn("a")
    process.pass_time(10)
    process.report_turn("b")
    process.pass_time(10)
    process.report_turn("a")
    process.pass_time(STALL + 60)

    assert process.has_stalled("a")
    assert process.has_stalled("b")


def test_open_call_is_not_an_earlier_run() -> None:
    """B88: a call may still be open when the next run begins."""
    process = Process()
    process.report_turn("a")
    process.open_tool("a")
    process.pass_time(10)
    process.report_turn("b")
    process.pass_time(max(STALL, SETTINGS.stall.tool_seconds) + 60)

    assert process.has_stalled("a")


def test_abandoned_run_is_watched_again_when_it_resumes() -> None:
    process = Process()
    process.report_turn("a")
    process.open_tool("a")
    process.pass_time(60, beats=BEAT)
    process.pass_time(600)
    process.report_turn("a")

    assert process.get_status("a") is WorkerStatus.ACTIVE
    worker = process.monitor.get("porter", "a")
    assert worker is not None
    assert worker.state is HealthState.HEALTHY


def test_late_end_sets_the_outcome() -> None:
    process = Process()
    process.report_turn("a")
    process.open_tool("a")
    process.pass_time(60, beats=BEAT)
    process.pass_time(600)
    process.report_event("a", EventType.EXECUTION_COMPLETED)

    assert process.get_status("a") is WorkerStatus.COMPLETED


def test_clock_jump_is_not_silence() -> None:
    """A laptop that slept does not end the runs of its processes."""
    process = Process()
    process.report_turn("a")
    process.open_tool("a")
    process.pass_time(60, beats=BEAT)
    process.now += 8 * 3600
    process.monitor.handle_clock_jump(process.now)
    process.pass_time(120, beats=BEAT)

    assert process.get_status("a") is WorkerStatus.ACTIVE


def test_remembered_processes_are_bounded() -> None:
    monitor = HealthMonitor(SETTINGS)
    for number in range(MAX_PROCESSES + 10):
        monitor.record_process_alive(str(number), float(number))

    assert len(monitor._signs) == MAX_PROCESSES


@given(
    seen_after=st.floats(0, 1e6),
    later_by=st.floats(0, 1e6),
    is_open=st.booleans(),
    interval=st.none() | st.floats(1, 600),
)
def test_sign_of_life_never_advances_the_end(
    seen_after: float, later_by: float, is_open: bool, interval: float | None
) -> None:
    """B88: any record of a process defers the end of its runs."""
    process = Process()
    process.report_turn("a")
    if is_open:
        process.open_tool("a")
    worker = process.monitor.get("porter", "a")
    assert worker is not None
    first_sign, second_sign = (
        ProcessSign(process.now + at, process.now + at, interval)
        for at in (seen_after, seen_after + later_by)
    )
    first_end_time, second_end_time = (
        find_end_time(worker.vitals, SETTINGS, sign) for sign in (first_sign, second_sign)
    )

    assert first_end_time is not None
    assert second_end_time is not None
    assert first_end_time <= second_end_time
