from __future__ import annotations

from dataclasses import replace

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind, Severity
from queenright.health.interventions.ladder import LadderInputs, next_step
from queenright.health.monitoring.monitor import ENDED_SESSION_SECONDS, MAX_ENDED_SESSIONS, HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.runtime.events import AgentEvent, EventType
from tests.health.worker_script import START, WorkerScript

STALL = FindingKind.STALL


def make_worker(**start: object) -> WorkerScript:
    return WorkerScript().start(**start)


def list_types(events: list[AgentEvent]) -> list[EventType]:
    return [event.type for event in events]


def test_no_ticket_in_the_start_grace_of_an_incarnation() -> None:
    """B1: no ticket is opened in a new incarnation's start grace; after it, the finding counts."""
    script = make_worker()
    for _ in range(20):
        script.report_call()
    loop = script.get_finding(FindingKind.DOOM_LOOP)
    assert loop is not None
    assert not loop.ticket

    events = script.stay_silent(100)

    opened_findings = [event.data for event in events if event.type is EventType.FINDING_OPENED]
    assert {"kind": "doom_loop", "ticket": True} in [
        {key: data[key] for key in ("kind", "ticket")} for data in opened_findings
    ]


def test_late_event_does_not_restart_the_start_grace() -> None:
    """B1, B118: otherwise the ticket would close, and another would open at the next check."""
    script = make_worker()
    for _ in range(20):
        script.report_call()
    script.stay_silent(100)
    script.lag = 3
    script.report_call()

    loop = script.get_finding(FindingKind.DOOM_LOOP)
    assert loop is not None
    assert loop.ticket


@pytest.mark.parametrize("outage", [0, 30])
def test_late_event_ends_only_a_silence_that_it_interrupts(outage: float) -> None:
    """Otherwise the next check would find the silence again."""
    script = make_worker()
    script.stay_silent(240)
    assert script.get_finding(STALL) is not None
    if outage:
        script.monitor.exclude_outage(script.now, script.now + outage)
        script.now += outage
    script.lag = 3
    script.report_event(EventType.RESOURCE_REPORTED, {"resource": "memory", "used": 1, "limit": 100})

    assert script.get_finding(STALL) is not None
    assert EventType.FINDING_CLEARED not in list_types(script.monitor_events)


@pytest.mark.parametrize("memory", [1, 99], ids=["healthy", "with a finding"])
@pytest.mark.parametrize("outage", [0, 30])
def test_batch_that_arrives_late_is_judged_at_its_own_times(outage: float, memory: int) -> None:
    """Events that follow in the batch break the silence, even if a check came before the batch."""
    script = make_worker(heartbeat_interval=10)
    script.report_event(EventType.RESOURCE_REPORTED, {"resource": "memory", "used": memory, "limit": 100})
    assert bool(script.monitor_events) is (memory == 99)
    script.monitor_events.clear()
    script.report_wait("user_input")
    script.now += 50 - outage
    script.monitor.sweep(script.now)
    if outage:
        script.monitor.exclude_outage(script.now, script.now + outage)
        script.now += outage
    script.lag = 50
    script.report_event(EventType.CLIENT_INPUT_RECEIVED)
    script.lag -= 1
    for _ in range(5):
        script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 10}, after=0)
        script.lag -= 10

    assert list_types(script.monitor_events) == []


@pytest.mark.parametrize("jump", [30.0, -30.0])
def test_late_event_after_a_clock_jump_does_not_end_a_silence(jump: float) -> None:
    """B23: the time of the last check moves with the clocks."""
    script = make_worker()
    script.stay_silent(240)
    script.now += jump
    script.monitor.handle_clock_jump(script.now)
    script.lag = 3
    script.report_event(EventType.RESOURCE_REPORTED, {"resource": "memory", "used": 1, "limit": 100})

    assert script.get_finding(STALL) is not None
    assert EventType.FINDING_CLEARED not in list_types(script.monitor_events)


def test_work_ends_a_stall_although_the_clock_was_set_back_since_the_last_check() -> None:
    """The event may arrive before the jump is noticed, and then is not an hour old."""
    script = make_worker()
    script.stay_silent(240)
    script.now -= 3600
    script.report_call()

    assert script.list_finding_kinds() == set()


@pytest.mark.parametrize("is_saved", [True, False])
def test_late_event_makes_no_finding_worse_before_the_next_check(is_saved: bool) -> None:
    """
    After the end of a tool, the checkpoint counts as stale since the last check, unless the next event saves
    one.
    """
    script = make_worker()
    script.report_event(EventType.CHECKPOINT_SAVED)
    for number in range(17):
        script.report_call(args=str(number), result=str(number), after=100)
    script.report_event(
        EventType.TOOL_CALL_STARTED, {"tool": "train", "call_id": "1", "timeout": 300}, after=60
    )
    script.stay_silent(180)
    stale = script.get_finding(FindingKind.CHECKPOINT_STALE)
    assert stale is not None
    assert (stale.severity, stale.ticket) == (Severity.LOW, False)
    script.monitor_events.clear()
    script.lag = 50
    script.report_call("train", call_id="1", after=0)
    assert script.monitor_events == []

    if is_saved:
        script.lag = 45
        script.report_event(EventType.CHECKPOINT_SAVED, after=0)
    script.stay_silent(0)

    change = EventType.FINDING_CLEARED if is_saved else EventType.FINDING_OPENED
    assert list_types(script.monitor_events) == [change, EventType.HEALTH_STATE_CHANGED]
    assert script.state is (HealthState.HEALTHY if is_saved else HealthState.STUCK)


def test_loop_in_a_batch_that_arrives_late_is_found_and_gets_worse_at_once() -> None:
    """Events cause the finding, rather than elapsed time."""
    script = make_worker()
    script.report_event(EventType.RESOURCE_REPORTED, {"resource": "memory", "used": 99, "limit": 100})
    script.stay_silent(100)
    script.monitor.sweep(script.now)
    script.lag = 3
    for _ in range(40):
        script.report_call(after=0)

    loops = [
        event.data["severity"] for event in script.monitor_events if event.data.get("kind") == "doom_loop"
    ]
    assert loops == ["medium", "high", "critical"]


def test_stall_is_counted_from_the_incarnations_own_events() -> None:
    """B1: after the grace, a stall is counted from the incarnation's own events."""
    script = make_worker()
    script.now += 200
    script.incarnation = "i2"
    script.start()
    script.stay_silent(239)
    assert script.get_finding(STALL) is None
    script.stay_silent(1)

    assert script.get_finding(STALL) is not None


def test_silence_of_exactly_the_threshold_is_a_stall() -> None:
    """B25: silence of exactly the threshold is a stall, and is critical."""
    script = make_worker()
    script.report_step("CONTINUE", after=300)
    script.stay_silent(239.999)
    assert script.get_finding(STALL) is None
    script.stay_silent(0.001)

    finding = script.get_finding(STALL)
    assert finding is not None
    assert (finding.severity, finding.ticket) == (Severity.CRITICAL, True)
    assert script.state is HealthState.STUCK


def test_user_wait_is_not_a_stall_and_clock_restarts_at_the_reply() -> None:
    """
    B17: three hours of waiting for a user are not a stall. After a reply, silence counts from the reply.
    """
    script = make_worker()
    script.report_event(EventType.CLIENT_INPUT_REQUESTED)
    script.stay_silent(3 * 3600)
    assert script.state is HealthState.HEALTHY

    script.report_event(EventType.CLIENT_INPUT_RECEIVED)
    script.stay_silent(239)
    assert script.get_finding(STALL) is None
    script.stay_silent(1)
    assert script.get_finding(STALL) is not None


@pytest.mark.parametrize("reason", ["paused", "children", "backoff", "done", "user_input"])
def test_waiting_worker_is_not_stalled(reason: str) -> None:
    """B18: a worker that is paused, waits for children or is in backoff is not stalled."""
    script = make_worker(heartbeat_interval=30)
    script.report_call()
    script.report_event(EventType.CHECKPOINT_SAVED)
    script.report_wait(reason)
    script.stay_silent(10_000)
    assert script.list_finding_kinds() == set()
    assert script.monitor.next_deadline() is None

    script.report_wait(None)
    script.stay_silent(240)
    assert STALL in script.list_finding_kinds()


def test_pause_ends_a_stall() -> None:
    script = make_worker()
    script.stay_silent(300)
    script.report_event(EventType.EXECUTION_PAUSED)

    assert script.state is HealthState.HEALTHY


def test_llm_call_hanging_before_the_first_step_is_found() -> None:
    """B19: an LLM call that hangs before the first step is detected."""
    silent_worker, hung_worker = make_worker(), make_worker()
    hung_worker.report_event(EventType.LLM_CALL_STARTED)
    for script in (silent_worker, hung_worker):
        script.stay_silent(240)

    assert silent_worker.get_finding(STALL) is not None
    finding = hung_worker.get_finding(STALL)
    assert finding is not None
    assert "in an LLM call" in finding.evidence


def test_slow_tool_calls_inside_one_step_are_activity() -> None:
    """B20: fifteen slow tool calls inside one step are activity."""
    script = make_worker()
    script.report_event(EventType.STEP_STARTED)
    for n in range(15):
        script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "crawl", "call_id": str(n)})
        script.stay_silent(500)
        script.report_call("crawl", args=str(n), result=str(n), call_id=str(n))

    assert EventType.FINDING_OPENED not in list_types(script.monitor_events)


def test_tool_may_run_for_its_declared_timeout() -> None:
    """B21: a tool with a declared timeout of 40 min may run 30; at 41 it is a stall."""
    script = make_worker()
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "train", "timeout": 2400})
    script.stay_silent(1800)
    assert script.list_finding_kinds() == set()
    script.stay_silent(660)

    finding = script.get_finding(STALL)
    assert finding is not None
    assert (finding.severity, finding.ticket) == (Severity.CRITICAL, True)
    assert "train" in finding.evidence


def test_tool_without_a_declared_time_may_run_ten_minutes() -> None:
    script = make_worker()
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "build"})
    script.stay_silent(599)
    assert script.list_finding_kinds() == set()
    script.stay_silent(1)

    assert script.get_finding(STALL) is not None


def test_exceeded_short_timeout_is_shown_and_has_a_ticket_after_the_general_limit() -> None:
    script = make_worker()
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "ping", "timeout": 5}, after=200)
    script.stay_silent(5)
    early_finding = script.get_finding(STALL)
    script.stay_silent(235)
    late_finding = script.get_finding(STALL)

    assert early_finding is not None
    assert late_finding is not None
    assert (early_finding.severity, early_finding.ticket) == (Severity.MEDIUM, False)
    assert (late_finding.severity, late_finding.ticket) == (Severity.CRITICAL, True)


def test_first_overdue_parallel_tool_is_the_stall() -> None:
    script = make_worker()
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "long", "call_id": "1", "timeout": 3600})
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "short", "call_id": "2", "timeout": 300})
    script.stay_silent(300)

    finding = script.get_finding(STALL)
    assert finding is not None
    assert "short" in finding.evidence


def test_overdue_tool_with_other_activity_is_not_a_stall() -> None:
    script = make_worker()
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "watch", "call_id": "1", "timeout": 60})
    for n in range(10):
        script.report_call("read", args=str(n), result=str(n), after=10)

    assert script.list_finding_kinds() == {FindingKind.TOOL_TIMEOUT}
    assert script.state is HealthState.DEGRADED


def test_silence_may_last_a_quarter_of_an_hour_without_start_records() -> None:
    script = WorkerScript()
    script.report_call()
    script.stay_silent(899)
    assert script.list_finding_kinds() == set()
    script.stay_silent(1)

    assert script.get_finding(STALL) is not None


def test_heartbeats_alone_do_not_prevent_a_stall() -> None:
    """B22: a worker that only sends heartbeats makes no progress."""
    script = make_worker(heartbeat_interval=30)
    for _ in range(8):
        script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 30}, after=30)
        script.stay_silent(0)

    assert script.list_finding_kinds() == {STALL}


@pytest.mark.parametrize("jump", [8 * 3600.0, 3600.0, -3600.0])
def test_stall_after_a_clock_jump_needs_a_full_interval(jump: float) -> None:
    """B23: after the host sleeps for 8 hours, or the clock jumps by an hour, a full interval must pass."""
    script = make_worker(heartbeat_interval=30)
    script.report_call()
    script.report_event(EventType.CHECKPOINT_SAVED)
    script.stay_silent(20)
    script.now += jump
    script.monitor.handle_clock_jump(script.now)
    assert script.stay_silent(59) == []

    script.stay_silent(181)
    assert STALL in script.list_finding_kinds()


@pytest.mark.parametrize("jump", [8 * 3600.0, -3600.0])
def test_jump_of_the_clock_ends_no_stall(jump: float) -> None:
    script = make_worker()
    script.stay_silent(300)
    script.now += jump
    script.monitor.handle_clock_jump(script.now)

    assert script.stay_silent(1) == []
    assert script.get_finding(STALL) is not None


@pytest.mark.parametrize("jump", [8 * 3600.0, -3600.0])
def test_state_keeps_its_age_when_the_clock_jumps(jump: float) -> None:
    """B23: displayed durations, and deadlines relative to the start of a state, do not jump."""
    script = make_worker()
    script.stay_silent(300)
    in_state, in_trouble = script.health.state_since, script.health.trouble_since
    assert in_trouble is not None
    script.now += jump
    script.monitor.handle_clock_jump(script.now)

    assert script.health.state_since == pytest.approx(in_state + jump)
    assert script.health.trouble_since == pytest.approx(in_trouble + jump)


def test_state_does_not_begin_in_the_future_when_the_clock_is_set_back() -> None:
    script = make_worker()
    script.report_event(EventType.CHECKPOINT_SAVED)
    script.now -= 3600
    script.monitor.handle_clock_jump(script.now)

    assert script.health.state_since <= script.now


def test_reading_does_not_change_vital_signs() -> None:
    """B24: reading a worker's state changes no clock."""
    script = make_worker()
    for _ in range(24):
        script.now += 10
        list(script.monitor.workers())
        script.monitor.get("agent")
        script.monitor.next_deadline()
    script.stay_silent(0)

    assert script.get_finding(STALL) is not None


def test_silent_process_is_degraded_after_two_intervals() -> None:
    script = make_worker(heartbeat_interval=30)
    script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 30})
    script.stay_silent(59)
    assert script.list_finding_kinds() == set()
    script.stay_silent(1)

    assert script.list_finding_kinds() == {FindingKind.HEARTBEAT_MISSING}
    assert script.state is HealthState.DEGRADED


def test_old_checkpoint_makes_a_worker_degraded_then_stuck() -> None:
    script = make_worker()
    script.report_event(EventType.CHECKPOINT_SAVED)
    states = []
    for n in range(31):
        script.report_call(args=str(n), result=str(n), after=60)
        script.stay_silent(0)
        states.append(script.state)

    assert states[8:10] == [HealthState.HEALTHY, HealthState.DEGRADED]
    assert states[28:30] == [HealthState.DEGRADED, HealthState.STUCK]


def test_fifteen_minutes_without_a_tool_call_are_stuck() -> None:
    script = make_worker()
    script.report_call()
    for _ in range(15):
        script.report_event(EventType.LLM_TEXT_DELTA, after=60)
        script.stay_silent(0)

    assert script.list_finding_kinds() == {FindingKind.NO_TOOL_CALLS}
    assert script.state is HealthState.STUCK


def test_time_without_a_tool_call_raises_severity() -> None:
    script = make_worker()
    script.report_call()
    severities = []
    for _ in range(60):
        script.report_event(EventType.LLM_TEXT_DELTA, after=60)
        script.stay_silent(0)
        finding = script.get_finding(FindingKind.NO_TOOL_CALLS)
        severities.append(finding.severity if finding else None)

    assert [severities[n] for n in (13, 14, 28, 29, 58, 59)] == [
        None,
        Severity.MEDIUM,
        Severity.MEDIUM,
        Severity.HIGH,
        Severity.HIGH,
        Severity.CRITICAL,
    ]


def test_conversation_with_its_user_needs_no_tool_call() -> None:
    script = make_worker()
    script.report_call()
    for minute in range(120):
        script.report_event(EventType.LLM_TEXT_DELTA, after=60)
        if minute % 10 == 0:
            script.report_event(EventType.CLIENT_INPUT_RECEIVED, after=0)
        script.stay_silent(0)
        assert script.list_finding_kinds() == set(), minute


def test_deadline_is_met_without_polling() -> None:
    delays: list[tuple[FindingKind, float]] = []
    monitor = HealthMonitor(HealthSettings(), on_delay=lambda kind, seconds: delays.append((kind, seconds)))
    script = WorkerScript(monitor=monitor).start()
    script.report_step("CONTINUE", after=130)

    while script.get_finding(STALL) is None:
        deadline = monitor.next_deadline()
        assert deadline is not None
        script.now = deadline
        script.stay_silent(0)

    assert script.now == START + 130 + 240
    assert delays == [(STALL, 0.0)]


def test_event_does_not_hide_an_unchecked_silence() -> None:
    script = make_worker()
    script.report_step("CONTINUE", after=400)

    assert list_types(script.monitor_events)[:2] == [EventType.FINDING_OPENED, EventType.HEALTH_STATE_CHANGED]
    assert list_types(script.monitor_events)[2:] == [
        EventType.FINDING_CLEARED,
        EventType.HEALTH_STATE_CHANGED,
    ]
    assert script.state is HealthState.HEALTHY


def test_state_change_has_from_to_and_reason() -> None:
    script = make_worker()
    script.report_event(EventType.STEP_COMPLETED, {"verdict": "CONTINUE"})
    events = script.stay_silent(240)

    [opening, state_change] = events
    assert opening.data["kind"] == "stall"
    assert {key: state_change.data[key] for key in ("from", "to")} == {"from": "healthy", "to": "stuck"}
    assert state_change.data["reason"] == opening.data["evidence"]
    assert (
        state_change.agent_id,
        state_change.session_id,
        state_change.incarnation_id,
        state_change.node_id,
    ) == (
        "agent",
        "session",
        "i1",
        "work",
    )


def test_reason_of_failed_steps_names_their_number_and_last_error() -> None:
    script = WorkerScript().start()

    script.report_step(times=4, error_type="ValueError", error="no such\ncolumn: age")

    assert script.state is HealthState.FAILING
    assert script.health.reason == "4 steps failed in a row, last with no such column: age"
    assert script.monitor_events[-1].data["reason"] == script.health.reason


def test_finding_is_published_once_and_again_when_worse() -> None:
    script = make_worker()
    script.now += 200
    for _ in range(20):
        script.report_call()
    severities = [
        event.data["severity"] for event in script.monitor_events if event.data.get("kind") == "doom_loop"
    ]

    assert severities == ["medium", "high", "critical"]


def test_implausible_clock_is_ignored() -> None:
    monitor = HealthMonitor(HealthSettings())
    for index, skew in enumerate((-3600.0, 3600.0, -30.0)):
        event = AgentEvent(
            type=EventType.STEP_COMPLETED, time=START + skew, agent_id="a", session_id=str(index)
        )
        monitor.apply(event, START)

    last_activities = [worker.vitals.last_activity for worker in monitor.workers()]
    assert last_activities == [START, START, START - 30]


@pytest.mark.parametrize(
    ("kind", "data", "outcome", "reason"),
    [
        (EventType.EXECUTION_COMPLETED, {}, "completed", "the session is completed"),
        (EventType.EXECUTION_FAILED, {"error_type": "ValueError"}, "failed", "the session has failed"),
        (
            EventType.EXECUTION_FAILED,
            {"error_type": "CancelledError"},
            "cancelled",
            "the session was cancelled",
        ),
        (
            EventType.EXECUTION_FAILED,
            {"error_type": "input_refused", "error": "no folder 'x'"},
            "cancelled",
            "the input was refused: no folder 'x'",
        ),
    ],
)
def test_state_change_at_the_end_names_the_outcome(
    kind: EventType, data: dict[str, str], outcome: str, reason: str
) -> None:
    script = make_worker()
    script.stay_silent(900)
    assert script.state is HealthState.STUCK

    script.report_event(kind, dict(data))

    change = [event for event in script.monitor_events if event.type is EventType.HEALTH_STATE_CHANGED][-1]
    assert (change.data["from"], change.data["outcome"]) == ("stuck", outcome)
    assert change.data["reason"] == reason


def test_ended_session_raises_nothing_and_is_forgotten() -> None:
    script = make_worker()
    for _ in range(5):
        script.report_call()
    script.report_event(EventType.EXECUTION_COMPLETED)
    assert script.health.findings == ()
    assert script.state is HealthState.HEALTHY

    script.stay_silent(ENDED_SESSION_SECONDS - 1)
    assert script.monitor.get("agent") is not None
    script.stay_silent(1)
    assert script.monitor.get("agent") is None
    assert list(script.monitor.workers()) == []


def test_ended_sessions_are_bounded() -> None:
    monitor = HealthMonitor(HealthSettings())
    for n in range(MAX_ENDED_SESSIONS + 50):
        script = WorkerScript(monitor=monitor, session=str(n))
        script.report_event(EventType.EXECUTION_COMPLETED)
    monitor.advance(START + 2)

    assert len(list(monitor.workers())) == MAX_ENDED_SESSIONS


def test_failed_run_is_an_outcome_and_a_terminated_one_terminated() -> None:
    """B103: health describes running sessions; one failed run does not make an agent failing."""
    failed_worker, terminated_worker = make_worker(), make_worker()
    failed_worker.report_event(EventType.EXECUTION_FAILED, {"error_type": "OSError"})
    terminated_worker.report_event(EventType.AGENT_TERMINATED)
    terminated_worker.report_step("CONTINUE")

    assert failed_worker.state is HealthState.HEALTHY
    assert failed_worker.health.vitals.status is WorkerStatus.FAILED
    assert failed_worker.health.fleet_state is None
    assert terminated_worker.state is HealthState.TERMINATED


@pytest.mark.parametrize("sign", ["call", "heartbeat"])
@pytest.mark.parametrize("lag", [0.0, 8.0])
@pytest.mark.parametrize("number", ["", "one"])
def test_restarted_terminated_session_lives_despite_a_slow_clock(sign: str, lag: float, number: str) -> None:
    """
    The end has the time of the service's clock, and the new start that of the worker's.

    A start that seems older may have been on its way; what follows after the end shows that it was not.
    """
    script = make_worker(heartbeat_interval=30)
    script.incarnation = number
    script.report_call(after=60)
    script.report_event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    end_time, script.lag = script.now, lag
    script.incarnation = number and "two"
    script.report_event(EventType.EXECUTION_STARTED, {"start_records": True}, after=3)
    while script.now <= end_time + lag:
        if sign == "heartbeat":
            script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 30})
        else:
            script.report_call()

    assert script.health.vitals.status is WorkerStatus.ACTIVE


def test_late_first_start_does_not_revive_a_terminated_session() -> None:
    """The start belongs to an incarnation before the current one."""
    script = WorkerScript()
    script.incarnation = ""
    script.report_call()
    script.report_event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    script.lag = 5.0
    script.start()
    script.lag = 0.0
    script.report_call()

    assert script.health.vitals.status is WorkerStatus.TERMINATED


@pytest.mark.parametrize("kind", [EventType.STEP_COMPLETED, EventType.LLM_CALL_STARTED])
@pytest.mark.parametrize("lag", [-50.0, 0.0, 50.0])
def test_terminated_worker_that_continues_is_watched_again(kind: EventType, lag: float) -> None:
    """Work that is later than the termination by more than the clocks may differ shows that it continues."""
    script = WorkerScript().start()
    for _ in range(12):
        script.report_call()
    assert script.state is HealthState.STUCK
    script.report_event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    script.lag = lag
    script.report_event(kind, {"duration": 1.0}, after=50 + min(lag, 0.0))
    assert script.health.state is HealthState.TERMINATED

    script.report_event(kind, {"duration": 1.0}, after=111)

    assert script.state is HealthState.STUCK
    assert script.health.vitals.status is WorkerStatus.ACTIVE
    assert FindingKind.DOOM_LOOP in {finding.kind for finding in script.health.findings}


def test_late_telemetry_does_not_revive_a_terminated_worker() -> None:
    """B85: an exporter may send earlier telemetry for minutes after the end."""
    script = WorkerScript().start()
    script.report_call()
    script.report_event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    for age in range(1, 600, 7):
        script.lag = float(age)
        script.now += 6
        script.report_call(duration=1.0)

    assert script.state is HealthState.TERMINATED


@pytest.mark.parametrize("kind", [EventType.TOOL_CALL_COMPLETED, EventType.LLM_CALL_COMPLETED])
def test_call_open_at_termination_does_not_revive_the_worker(kind: EventType) -> None:
    """The call began before the end, and its thread may not have been stopped."""
    script = WorkerScript().start()
    script.report_event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    script.report_event(kind, {"duration": 130.0}, after=120)
    script.report_event(EventType.STEP_COMPLETED, {"duration": 131.0})
    script.report_event(EventType.CHECKPOINT_SAVED)
    script.report_event(EventType.EXECUTION_COMPLETED)

    assert script.state is HealthState.TERMINATED
    assert script.health.vitals.status is WorkerStatus.TERMINATED


@pytest.mark.parametrize("recalled", [False, True])
def test_end_of_a_worker_that_outlived_its_termination_is_not_a_completion(recalled: bool) -> None:
    """The worker stopped late and its work is not complete, so it may be recovered."""
    script = WorkerScript().start()
    script.report_event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    at = script.now + 120
    for kind in (EventType.LLM_CALL_STARTED, EventType.EXECUTION_COMPLETED):
        event = replace(script.worker_events[-1], type=kind, time=at, data={})
        script.monitor.replay(event, at) if recalled else script.monitor.apply(event, at)

    assert script.health.vitals.status is WorkerStatus.TERMINATED


def test_terminated_worker_with_failed_runs_has_its_end_reason() -> None:
    """Earlier failed runs of the agent are not the reason."""
    script = WorkerScript()
    for number in range(4):
        script.session = f"session-{number}"
        script.start()
        script.report_event(EventType.EXECUTION_FAILED, {"error_type": "OSError"})
    script.incarnation = "i2"
    script.start()
    for _ in range(12):
        script.report_call()
    script.report_event(EventType.AGENT_TERMINATED, {"reason": "loop"})

    last_change = [event for event in script.monitor_events if event.type is EventType.HEALTH_STATE_CHANGED][
        -1
    ]
    assert last_change.data["to"] == "terminated"


@pytest.mark.parametrize(
    "kind", [EventType.AGENT_HEARTBEAT, EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED]
)
def test_activity_without_work_does_not_revive_a_terminated_worker(kind: EventType) -> None:
    """The process of a stopped worker may end much later."""
    script = WorkerScript().start(heartbeat_interval=30)
    script.report_event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    for _ in range(20):
        script.report_event(kind, {"interval": 30}, after=30)

    assert script.state is HealthState.TERMINATED


def restart_after_outage(script: WorkerScript, seconds: float) -> None:
    outage_start, script.now = script.now, script.now + seconds
    script.monitor.exclude_outage(outage_start, script.now)


def test_worker_silent_since_a_service_outage_is_not_critical() -> None:
    """
    B125: the worker's end may have been lost: severity is at most medium, nothing acts, and the worker ends
    as ``unknown``.
    """
    script = make_worker(heartbeat_interval=30)
    script.report_step("ACCEPT", after=200)
    script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 30})
    restart_after_outage(script, 420)
    script.stay_silent(700)

    findings = {finding.kind: finding for finding in script.health.findings if finding.ticket}
    assert set(findings) == {FindingKind.STALL, FindingKind.HEARTBEAT_MISSING}
    assert {finding.severity for finding in findings.values()} == {Severity.MEDIUM}
    for listed_finding in findings.values():
        assert "no events since Queenright was away from " in listed_finding.evidence
    settings = script.monitor.settings
    assert next_step(None, LadderInputs.of(script.health, settings), settings).action is None
    script.stay_silent(settings.tickets.dead_worker_seconds)
    assert script.health.vitals.status is WorkerStatus.UNKNOWN


@pytest.mark.parametrize(
    "kind", [FindingKind.NO_TOOL_CALLS, FindingKind.CHECKPOINT_STALE, FindingKind.NO_TOKENS]
)
@pytest.mark.parametrize("case", ["unheard", "heard", "before"])
def test_worker_silent_since_a_service_outage_is_not_stuck(kind: FindingKind, case: str) -> None:
    """
    B125: missing calls, tokens and checkpoints prove no more than silence, unless the
    finding is older than the outage.
    """
    settings = HealthSettings.model_validate(
        {
            "stall": {"idle_seconds": 90_000, "unknown_seconds": 90_000},
            "heartbeat": {"timeout_seconds": 90_000},
        }
    )
    script = WorkerScript(monitor=HealthMonitor(settings)).start(heartbeat_interval=30)
    script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 30})
    if kind is FindingKind.CHECKPOINT_STALE:
        script.report_event(EventType.CHECKPOINT_SAVED)
    else:
        if kind is FindingKind.NO_TOOL_CALLS:
            script.report_call()
            script.stay_silent(1)
        script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 100, "output_tokens": 10})
    if case == "before":
        script.stay_silent(7200)
    restart_after_outage(script, 420)
    if case == "heard":
        script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 30})
    script.stay_silent(7200)

    finding = script.get_finding(kind)
    assert finding is not None
    assert finding.ticket is (case != "unheard")
    assert (script.state is HealthState.STUCK) is (case != "unheard")
    assert ("no events since Queenright was away" in finding.evidence) is (case != "heard")


@pytest.mark.parametrize("case", ["heard", "before", "short", "no heartbeats"])
def test_certain_silence_is_critical_despite_a_service_outage(case: str) -> None:
    """
    B125: the worker sent an event since, the finding is older, the outage was short, or the worker sends no
    heartbeats.
    """
    script = make_worker(**({} if case == "no heartbeats" else {"heartbeat_interval": 30}))
    script.report_step("ACCEPT", after=200)
    if case == "before":
        script.stay_silent(300)
    restart_after_outage(script, 4 if case == "short" else 420)
    if case == "heard":
        script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 30})
    script.stay_silent(700)

    stall = script.get_finding(FindingKind.STALL)
    assert stall is not None
    assert stall.severity is Severity.CRITICAL
    assert script.state is HealthState.STUCK


@pytest.mark.parametrize("jump", [600.0, -3600.0])
@pytest.mark.parametrize("case", ["may have ended", "certain", "not found yet"])
def test_clock_jump_does_not_change_the_certainty_of_silence(case: str, jump: float) -> None:
    """B23, B125: the times of the outage move with the clocks that are compared with them."""
    script = make_worker(heartbeat_interval=30)
    script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 30})
    if case == "certain":
        script.stay_silent(300)
    restart_after_outage(script, 60)
    if case != "not found yet":
        script.stay_silent(700)

    script.now += jump
    script.monitor.handle_clock_jump(script.now)
    script.monitor.sweep(script.now)
    script.stay_silent(700)

    stall = script.get_finding(STALL)
    assert stall is not None
    assert stall.severity is (Severity.CRITICAL if case == "certain" else Severity.MEDIUM)


def test_ended_session_begins_again_after_the_clock_is_set_back() -> None:
    """B23: the session's end is not later than its next execution, and the session is removed in time."""
    script, other_monitor = make_worker(), HealthMonitor(HealthSettings())
    script.report_event(EventType.EXECUTION_COMPLETED)
    ended_script = WorkerScript(monitor=other_monitor).start()
    ended_script.report_event(EventType.EXECUTION_COMPLETED)
    for worker_script in (script, ended_script):
        worker_script.now -= 3600
        worker_script.monitor.handle_clock_jump(worker_script.now)

    script.report_event(EventType.EXECUTION_STARTED, {"start_records": True})
    ended_script.stay_silent(ENDED_SESSION_SECONDS)

    assert script.health.vitals.status is WorkerStatus.ACTIVE
    assert other_monitor.get("agent") is None


def report_run(monitor: HealthMonitor, number: int, type_: EventType, error: str = "OSError") -> WorkerScript:
    """Report a run of the agent in its own session, from start to end."""
    script = WorkerScript(monitor=monitor, session=f"s{number}", at=START + 10 * number).start()
    script.report_event(type_, {"error_type": error} if type_ is EventType.EXECUTION_FAILED else {})
    return script


def test_four_consecutive_failed_runs_are_failing_until_one_completes() -> None:
    """Only the fourth has a finding, so people are notified once. A running session has its own state."""
    monitor = HealthMonitor(HealthSettings())
    runs = [report_run(monitor, number, EventType.EXECUTION_FAILED) for number in range(3)]
    assert {event.state for event in runs} == {HealthState.HEALTHY}

    runs += [report_run(monitor, number, EventType.EXECUTION_FAILED) for number in range(3, 5)]
    running_session = WorkerScript(monitor=monitor, session="running", at=START + 60).start()
    assert [event.state for event in runs] == [
        *[HealthState.HEALTHY] * 3,
        HealthState.FAILING,
        HealthState.HEALTHY,
    ]
    [finding] = runs[3].health.findings
    assert (finding.kind, finding.severity, finding.ticket) == (FindingKind.RUNS_FAILED, Severity.HIGH, True)
    assert finding.evidence.startswith("5 runs")
    assert finding.since == runs[0].now
    assert (runs[3].health.fleet_state, runs[4].health.fleet_state) == (HealthState.FAILING, None)
    assert running_session.state is HealthState.HEALTHY

    script = report_run(monitor, 7, EventType.EXECUTION_COMPLETED)
    assert runs[3].state is HealthState.HEALTHY
    assert not runs[3].health.findings
    [state_change] = [
        event for event in script.monitor_events if event.type is EventType.HEALTH_STATE_CHANGED
    ]
    assert (state_change.session_id, state_change.data["from"], state_change.data["to"]) == (
        "s3",
        "failing",
        "healthy",
    )
    assert report_run(monitor, 8, EventType.EXECUTION_FAILED).state is HealthState.HEALTHY


def test_each_failed_incarnation_of_a_session_counts_once() -> None:
    script = make_worker()
    states = []
    for incarnation_number in range(4):
        script.incarnation = f"life{incarnation_number}"
        script.start()
        for _ in range(2):
            script.report_event(EventType.EXECUTION_FAILED, {"error_type": "OSError"})
        states.append(script.state)

    assert states == [HealthState.HEALTHY] * 3 + [HealthState.FAILING]
    script.incarnation = "next"
    script.now += 1
    assert script.start().state is HealthState.DEGRADED
    [finding] = script.health.findings
    assert (finding.kind, finding.ticket) == (FindingKind.RUNS_FAILED, True)
    script.report_event(EventType.EXECUTION_COMPLETED)
    assert script.health.findings == ()


def test_settled_failed_runs_restart_the_count() -> None:
    monitor = HealthMonitor(HealthSettings())
    runs = [report_run(monitor, number, EventType.EXECUTION_FAILED) for number in range(4)]

    runs[3].report_event(EventType.TICKET_RESOLVED, {"status": "resolved", "by": "ada", "worker_dead": True})
    assert runs[3].health.fleet_state is None
    later_runs = [report_run(monitor, number, EventType.EXECUTION_FAILED) for number in range(5, 9)]
    assert [bool(later_run.health.findings) for later_run in later_runs] == [False, False, False, True]


@pytest.mark.parametrize("mode", ["shadow", "off"])
def test_consecutive_failed_runs_are_the_reason_without_a_finding(mode: str) -> None:
    settings = HealthSettings.model_validate({"detectors": {"runs_failed": mode}})
    monitor = HealthMonitor(settings)
    runs = [report_run(monitor, number, EventType.EXECUTION_FAILED) for number in range(4)]
    assert runs[3].health.findings == ()
    assert (runs[3].state, runs[3].health.reason[:6]) == (HealthState.FAILING, "4 runs")


def test_cancelled_run_neither_counts_nor_resets_failed_runs() -> None:
    monitor = HealthMonitor(HealthSettings())
    for number in range(3):
        report_run(monitor, number, EventType.EXECUTION_FAILED)
    assert report_run(monitor, 3, EventType.EXECUTION_FAILED, "cancelled").state is HealthState.HEALTHY
    assert report_run(monitor, 4, EventType.EXECUTION_FAILED).state is HealthState.FAILING


def test_active_session_is_preferred_to_a_newer_ended_one() -> None:
    """
    B3: an active session precedes a completed one; of two active ones, the one with the newest event is
    first.
    """
    monitor = HealthMonitor(HealthSettings())
    older_run = WorkerScript(monitor=monitor, session="old").start()
    ended_run = WorkerScript(monitor=monitor, session="over", at=START + 100).start()
    ended_run.report_event(EventType.EXECUTION_COMPLETED)
    assert monitor.get("agent") is older_run.health

    newer_run = WorkerScript(monitor=monitor, session="new", at=START + 50).start()
    assert monitor.get("agent") is newer_run.health
    older_run.report_step("CONTINUE", after=90)
    assert monitor.get("agent") is older_run.health
    assert monitor.get("nobody") is None


def test_both_sessions_of_an_agent_are_monitored() -> None:
    """B3: two active sessions are both monitored."""
    monitor = HealthMonitor(HealthSettings())
    first = WorkerScript(monitor=monitor, session="first").start()
    second = WorkerScript(monitor=monitor, session="second").start()
    monitor.advance(START + 240)

    assert first.state is second.state is HealthState.STUCK


def test_sweep_evaluates_every_worker() -> None:
    monitor = HealthMonitor(HealthSettings())
    for n in range(7):
        WorkerScript(monitor=monitor, session=str(n)).start()
    evaluated, events = monitor.sweep(START + 240)

    assert evaluated == 7
    assert list_types(events).count(EventType.FINDING_OPENED) == 7
    assert monitor.sweep(START + 241) == (7, [])


def test_sweep_does_not_count_ended_workers() -> None:
    """B75: ended workers must not hide that no worker is monitored."""
    monitor = HealthMonitor(HealthSettings())
    script = WorkerScript(monitor=monitor, session="s").start()
    script.report_event(EventType.EXECUTION_COMPLETED)

    assert monitor.sweep(START + 2)[0] == 0


def test_monitor_ignores_its_own_events() -> None:
    script = make_worker()
    script.stay_silent(240)
    echo = [
        event
        for monitor_event in script.monitor_events
        for event in script.monitor.apply(monitor_event, script.now)
    ]

    assert echo == []
    assert script.state is HealthState.STUCK


def test_split_sweep_evaluates_every_worker_once() -> None:
    monitor = HealthMonitor(HealthSettings())
    for n in range(7):
        WorkerScript(monitor=monitor, session=str(n)).start()
    first = monitor.sweep_part(START + 240, 3)
    late_worker = WorkerScript(monitor=monitor, session="late", at=START + 240).start()
    monitor.forget(("agent", "0"))
    second = monitor.sweep_part(START + 240, 3)
    third = monitor.sweep_part(START + 240, 3)

    parts = [first, second, third]
    assert [(part.worker_count, part.is_last) for part in parts] == [(3, False), (3, False), (0, True)]
    assert [list_types(part.events).count(EventType.FINDING_OPENED) for part in parts] == [3, 3, 0]
    assert late_worker.list_finding_kinds() == set()


def test_sweep_returns_the_number_of_evaluated_workers() -> None:
    """B75: if the service evaluates none of its workers, the count that the alert uses is 0."""
    monitor = HealthMonitor(HealthSettings())
    for n in range(3):
        script = WorkerScript(monitor=monitor, session=str(n)).start()
        script.health.vitals.llm_errors = None  # type: ignore[assignment]  # whatever breaks a detector
    part = monitor.sweep_part(START + 240, 10)

    assert (part.worker_count, part.is_last) == (0, True)
    assert len(part.faults) == 3
    assert "session '0'" in "".join(part.faults)
    assert monitor.sweep(START + 241)[0] == 0


def test_failing_evaluation_of_one_worker_does_not_stop_the_sweep() -> None:
    monitor = HealthMonitor(HealthSettings())
    scripts = [WorkerScript(monitor=monitor, session=str(n)).start() for n in range(3)]
    scripts[1].health.vitals.llm_errors = None  # type: ignore[assignment]
    part = monitor.sweep_part(START + 240, 10)

    assert (part.worker_count, len(part.faults)) == (2, 1)
    assert scripts[0].state is scripts[2].state is HealthState.STUCK


def test_worker_is_counted_from_its_start_to_its_end() -> None:
    """002 §11: a worker is counted from its start to its termination, and the totals agree."""
    monitor = HealthMonitor(HealthSettings())
    assert list(monitor.workers()) == []
    healthy_worker = WorkerScript(monitor=monitor, session="well").start()
    stuck_worker = WorkerScript(monitor=monitor, session="stuck").start()
    waiting_worker = WorkerScript(monitor=monitor, agent="other", session="asking").start()
    waiting_worker.report_wait("user_input")
    terminated_worker = WorkerScript(monitor=monitor, session="dead").start()
    terminated_worker.report_event(EventType.AGENT_TERMINATED)
    stuck_worker.stay_silent(240)
    healthy_worker.report_step("ACCEPT", after=240)

    assert {worker.vitals.session_id: worker.fleet_state for worker in monitor.workers()} == {
        "well": HealthState.HEALTHY,
        "stuck": HealthState.STUCK,
        "asking": HealthState.HEALTHY,
        "dead": None,
    }


def test_limit_leaves_other_workers_due() -> None:
    """B131: workers whose deadlines pass together are evaluated in batches, and none is omitted."""
    monitor = HealthMonitor(HealthSettings())
    for number in range(5):
        WorkerScript(monitor=monitor, agent=f"bee{number}").report_event(EventType.EXECUTION_STARTED)
    now = START + 7200

    agent_groups = []
    while (deadline := monitor.next_deadline()) is not None and deadline <= now:
        events = monitor.advance(now, 2)
        agent_groups.append({event.agent_id for event in events})

    assert [len(agents) for agents in agent_groups[:3]] == [2, 2, 1]
    assert set().union(*agent_groups) == {f"bee{number}" for number in range(5)}


def test_host_sleep_during_a_long_tool_makes_no_checkpoint_stale() -> None:
    """B23: the tool's declared time since the host woke up is excluded."""
    script = make_worker(heartbeat_interval=300)
    script.report_event(EventType.CHECKPOINT_SAVED)
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "1", "timeout": 3600})
    for _ in range(4):
        script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 300}, after=225)
    script.now += 3_000
    script.monitor.handle_clock_jump(script.now)
    for _ in range(8):
        script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 300}, after=255)
    script.report_call("build", call_id="1")

    assert script.get_finding(FindingKind.CHECKPOINT_STALE) is None
    assert script.get_finding(FindingKind.NO_TOKENS) is None
