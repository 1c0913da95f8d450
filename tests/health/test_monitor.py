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


def worker(**start: object) -> WorkerScript:
    return WorkerScript().start(**start)


def types(events: list[AgentEvent]) -> list[EventType]:
    return [event.type for event in events]


def test_no_ticket_in_the_start_grace_of_an_incarnation() -> None:
    """B1: no ticket is opened in a new incarnation's start grace; after it, the finding counts."""
    script = worker()
    for _ in range(20):
        script.call()
    loop = script.finding(FindingKind.DOOM_LOOP)
    assert loop is not None
    assert not loop.ticket

    emitted = script.silence(100)

    opened = [event.data for event in emitted if event.type is EventType.FINDING_OPENED]
    assert {"kind": "doom_loop", "ticket": True} in [{k: d[k] for k in ("kind", "ticket")} for d in opened]


def test_event_that_arrives_late_does_not_begin_the_start_grace_again() -> None:
    """B1, B118: otherwise the ticket would close, and another would open at the next check."""
    script = worker()
    for _ in range(20):
        script.call()
    script.silence(100)
    script.lag = 3
    script.call()

    loop = script.finding(FindingKind.DOOM_LOOP)
    assert loop is not None
    assert loop.ticket


@pytest.mark.parametrize("outage", [0, 30])
def test_event_that_arrives_late_does_not_end_a_silence_that_it_does_not_break(outage: float) -> None:
    """Otherwise the silence would be found again at the next check."""
    script = worker()
    script.silence(240)
    assert script.finding(STALL) is not None
    if outage:
        script.monitor.exclude_outage(script.now, script.now + outage)
        script.now += outage
    script.lag = 3
    script.event(EventType.RESOURCE_REPORTED, {"resource": "memory", "used": 1, "limit": 100})

    assert script.finding(STALL) is not None
    assert EventType.FINDING_CLEARED not in types(script.said)


@pytest.mark.parametrize("memory", [1, 99], ids=["healthy", "with a finding"])
@pytest.mark.parametrize("outage", [0, 30])
def test_batch_that_arrives_late_is_judged_at_its_own_times(outage: float, memory: int) -> None:
    """Events that follow in the batch break the silence, even if a check came before the batch."""
    script = worker(heartbeat_interval=10)
    script.event(EventType.RESOURCE_REPORTED, {"resource": "memory", "used": memory, "limit": 100})
    assert bool(script.said) is (memory == 99)
    script.said.clear()
    script.wait("user_input")
    script.now += 50 - outage
    script.monitor.sweep(script.now)
    if outage:
        script.monitor.exclude_outage(script.now, script.now + outage)
        script.now += outage
    script.lag = 50
    script.event(EventType.CLIENT_INPUT_RECEIVED)
    script.lag -= 1
    for _ in range(5):
        script.event(EventType.AGENT_HEARTBEAT, {"interval": 10}, after=0)
        script.lag -= 10

    assert types(script.said) == []


@pytest.mark.parametrize("jump", [30.0, -30.0])
def test_event_that_arrives_late_after_a_jump_of_the_clock_does_not_end_a_silence(jump: float) -> None:
    """B23: the time of the last check moves with the clocks."""
    script = worker()
    script.silence(240)
    script.now += jump
    script.monitor.handle_clock_jump(script.now)
    script.lag = 3
    script.event(EventType.RESOURCE_REPORTED, {"resource": "memory", "used": 1, "limit": 100})

    assert script.finding(STALL) is not None
    assert EventType.FINDING_CLEARED not in types(script.said)


def test_work_ends_a_stall_although_the_clock_was_set_back_since_the_last_check() -> None:
    """The event may arrive before the jump is noticed, and then is not an hour old."""
    script = worker()
    script.silence(240)
    script.now -= 3600
    script.call()

    assert script.kinds() == set()


@pytest.mark.parametrize("is_saved", [True, False])
def test_event_that_arrives_late_makes_no_finding_worse_before_the_next_check(is_saved: bool) -> None:
    """
    After the end of a tool, the checkpoint counts as stale since the last check, unless the next event saves
    one.
    """
    script = worker()
    script.event(EventType.CHECKPOINT_SAVED)
    for number in range(17):
        script.call(args=str(number), result=str(number), after=100)
    script.event(EventType.TOOL_CALL_STARTED, {"tool": "train", "call_id": "1", "timeout": 300}, after=60)
    script.silence(180)
    stale = script.finding(FindingKind.CHECKPOINT_STALE)
    assert stale is not None
    assert (stale.severity, stale.ticket) == (Severity.LOW, False)
    script.said.clear()
    script.lag = 50
    script.call("train", call_id="1", after=0)
    assert script.said == []

    if is_saved:
        script.lag = 45
        script.event(EventType.CHECKPOINT_SAVED, after=0)
    script.silence(0)

    change = EventType.FINDING_CLEARED if is_saved else EventType.FINDING_OPENED
    assert types(script.said) == [change, EventType.HEALTH_STATE_CHANGED]
    assert script.state is (HealthState.HEALTHY if is_saved else HealthState.STUCK)


def test_loop_in_a_batch_that_arrives_late_is_found_and_gets_worse_at_once() -> None:
    """Events cause the finding, rather than elapsed time."""
    script = worker()
    script.event(EventType.RESOURCE_REPORTED, {"resource": "memory", "used": 99, "limit": 100})
    script.silence(100)
    script.monitor.sweep(script.now)
    script.lag = 3
    for _ in range(40):
        script.call(after=0)

    loops = [event.data["severity"] for event in script.said if event.data.get("kind") == "doom_loop"]
    assert loops == ["medium", "high", "critical"]


def test_stall_is_counted_from_the_incarnations_own_events() -> None:
    """B1: after the grace, a stall is counted from the incarnation's own events."""
    script = worker()
    script.now += 200
    script.incarnation = "i2"
    script.start()
    script.silence(239)
    assert script.finding(STALL) is None
    script.silence(1)

    assert script.finding(STALL) is not None


def test_stall_of_exactly_the_threshold_is_one() -> None:
    """B25: silence of exactly the threshold is a stall, and is critical."""
    script = worker()
    script.step("CONTINUE", after=300)
    script.silence(239.999)
    assert script.finding(STALL) is None
    script.silence(0.001)

    finding = script.finding(STALL)
    assert finding is not None
    assert (finding.severity, finding.ticket) == (Severity.CRITICAL, True)
    assert script.state is HealthState.STUCK


def test_user_wait_is_not_a_stall_and_clock_restarts_at_the_reply() -> None:
    """
    B17: three hours of waiting for a user are not a stall. After a reply, silence counts from the reply.
    """
    script = worker()
    script.event(EventType.CLIENT_INPUT_REQUESTED)
    script.silence(3 * 3600)
    assert script.state is HealthState.HEALTHY

    script.event(EventType.CLIENT_INPUT_RECEIVED)
    script.silence(239)
    assert script.finding(STALL) is None
    script.silence(1)
    assert script.finding(STALL) is not None


@pytest.mark.parametrize("reason", ["paused", "children", "backoff", "done", "user_input"])
def test_waiting_worker_is_not_stalled(reason: str) -> None:
    """B18: a worker that is paused, waits for children or is in backoff is not stalled."""
    script = worker(heartbeat_interval=30)
    script.call()
    script.event(EventType.CHECKPOINT_SAVED)
    script.wait(reason)
    script.silence(10_000)
    assert script.kinds() == set()
    assert script.monitor.next_deadline() is None

    script.wait(None)
    script.silence(240)
    assert STALL in script.kinds()


def test_pause_ends_a_stall() -> None:
    script = worker()
    script.silence(300)
    script.event(EventType.EXECUTION_PAUSED)

    assert script.state is HealthState.HEALTHY


def test_llm_call_hanging_before_the_first_step_is_found() -> None:
    """B19: an LLM call that hangs before the first step is detected."""
    silent, hung = worker(), worker()
    hung.event(EventType.LLM_CALL_STARTED)
    for script in (silent, hung):
        script.silence(240)

    assert silent.finding(STALL) is not None
    finding = hung.finding(STALL)
    assert finding is not None
    assert "in an LLM call" in finding.evidence


def test_slow_tool_calls_inside_one_step_are_activity() -> None:
    """B20: fifteen slow tool calls inside one step are activity."""
    script = worker()
    script.event(EventType.STEP_STARTED)
    for n in range(15):
        script.event(EventType.TOOL_CALL_STARTED, {"tool": "crawl", "call_id": str(n)})
        script.silence(500)
        script.call("crawl", args=str(n), result=str(n), call_id=str(n))

    assert EventType.FINDING_OPENED not in types(script.said)


def test_tool_may_run_for_its_declared_timeout() -> None:
    """B21: a tool with a declared timeout of 40 min may run 30; at 41 it is a stall."""
    script = worker()
    script.event(EventType.TOOL_CALL_STARTED, {"tool": "train", "timeout": 2400})
    script.silence(1800)
    assert script.kinds() == set()
    script.silence(660)

    finding = script.finding(STALL)
    assert finding is not None
    assert (finding.severity, finding.ticket) == (Severity.CRITICAL, True)
    assert "train" in finding.evidence


def test_tool_without_a_declared_time_may_run_ten_minutes() -> None:
    script = worker()
    script.event(EventType.TOOL_CALL_STARTED, {"tool": "build"})
    script.silence(599)
    assert script.kinds() == set()
    script.silence(1)

    assert script.finding(STALL) is not None


def test_exceeded_short_timeout_is_shown_and_has_a_ticket_after_the_general_limit() -> None:
    script = worker()
    script.event(EventType.TOOL_CALL_STARTED, {"tool": "ping", "timeout": 5}, after=200)
    script.silence(5)
    early = script.finding(STALL)
    script.silence(235)
    late = script.finding(STALL)

    assert early is not None
    assert late is not None
    assert (early.severity, early.ticket) == (Severity.MEDIUM, False)
    assert (late.severity, late.ticket) == (Severity.CRITICAL, True)


def test_first_overdue_parallel_tool_is_the_stall() -> None:
    script = worker()
    script.event(EventType.TOOL_CALL_STARTED, {"tool": "long", "call_id": "1", "timeout": 3600})
    script.event(EventType.TOOL_CALL_STARTED, {"tool": "short", "call_id": "2", "timeout": 300})
    script.silence(300)

    finding = script.finding(STALL)
    assert finding is not None
    assert "short" in finding.evidence


def test_overdue_tool_with_other_activity_is_not_a_stall() -> None:
    script = worker()
    script.event(EventType.TOOL_CALL_STARTED, {"tool": "watch", "call_id": "1", "timeout": 60})
    for n in range(10):
        script.call("read", args=str(n), result=str(n), after=10)

    assert script.kinds() == {FindingKind.TOOL_TIMEOUT}
    assert script.state is HealthState.DEGRADED


def test_without_start_records_silence_may_last_a_quarter_of_an_hour() -> None:
    script = WorkerScript()
    script.call()
    script.silence(899)
    assert script.kinds() == set()
    script.silence(1)

    assert script.finding(STALL) is not None


def test_heartbeats_alone_do_not_prevent_a_stall() -> None:
    """B22: a worker that only sends heartbeats makes no progress."""
    script = worker(heartbeat_interval=30)
    for _ in range(8):
        script.event(EventType.AGENT_HEARTBEAT, {"interval": 30}, after=30)
        script.silence(0)

    assert script.kinds() == {STALL}


@pytest.mark.parametrize("jump", [8 * 3600.0, 3600.0, -3600.0])
def test_after_a_jump_of_the_clock_a_fresh_interval_has_to_pass(jump: float) -> None:
    """B23: after the host sleeps for 8 hours, or the clock jumps by an hour, a full interval must pass."""
    script = worker(heartbeat_interval=30)
    script.call()
    script.event(EventType.CHECKPOINT_SAVED)
    script.silence(20)
    script.now += jump
    script.monitor.handle_clock_jump(script.now)
    assert script.silence(59) == []

    script.silence(181)
    assert STALL in script.kinds()


@pytest.mark.parametrize("jump", [8 * 3600.0, -3600.0])
def test_jump_of_the_clock_ends_no_stall(jump: float) -> None:
    script = worker()
    script.silence(300)
    script.now += jump
    script.monitor.handle_clock_jump(script.now)

    assert script.silence(1) == []
    assert script.finding(STALL) is not None


@pytest.mark.parametrize("jump", [8 * 3600.0, -3600.0])
def test_state_keeps_its_age_when_the_clock_jumps(jump: float) -> None:
    """B23: displayed durations, and deadlines relative to the start of a state, do not jump."""
    script = worker()
    script.silence(300)
    in_state, in_trouble = script.health.state_since, script.health.trouble_since
    assert in_trouble is not None
    script.now += jump
    script.monitor.handle_clock_jump(script.now)

    assert script.health.state_since == pytest.approx(in_state + jump)
    assert script.health.trouble_since == pytest.approx(in_trouble + jump)


def test_state_does_not_begin_in_the_future_when_the_clock_is_set_back() -> None:
    script = worker()
    script.event(EventType.CHECKPOINT_SAVED)
    script.now -= 3600
    script.monitor.handle_clock_jump(script.now)

    assert script.health.state_since <= script.now


def test_reading_does_not_change_vital_signs() -> None:
    """B24: reading moves no clock."""
    script = worker()
    for _ in range(24):
        script.now += 10
        list(script.monitor.workers())
        script.monitor.get("agent")
        script.monitor.next_deadline()
    script.silence(0)

    assert script.finding(STALL) is not None


def test_silent_process_is_degraded_after_two_intervals() -> None:
    script = worker(heartbeat_interval=30)
    script.event(EventType.AGENT_HEARTBEAT, {"interval": 30})
    script.silence(59)
    assert script.kinds() == set()
    script.silence(1)

    assert script.kinds() == {FindingKind.HEARTBEAT_MISSING}
    assert script.state is HealthState.DEGRADED


def test_age_of_a_checkpoint_degrades_then_sticks() -> None:
    script = worker()
    script.event(EventType.CHECKPOINT_SAVED)
    states = []
    for n in range(31):
        script.call(args=str(n), result=str(n), after=60)
        script.silence(0)
        states.append(script.state)

    assert states[8:10] == [HealthState.HEALTHY, HealthState.DEGRADED]
    assert states[28:30] == [HealthState.DEGRADED, HealthState.STUCK]


def test_fifteen_minutes_without_a_tool_call_are_stuck() -> None:
    script = worker()
    script.call()
    for _ in range(15):
        script.event(EventType.LLM_TEXT_DELTA, after=60)
        script.silence(0)

    assert script.kinds() == {FindingKind.NO_TOOL_CALLS}
    assert script.state is HealthState.STUCK


def test_time_without_a_tool_call_raises_severity() -> None:
    script = worker()
    script.call()
    severities = []
    for _ in range(60):
        script.event(EventType.LLM_TEXT_DELTA, after=60)
        script.silence(0)
        finding = script.finding(FindingKind.NO_TOOL_CALLS)
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
    script = worker()
    script.call()
    for minute in range(120):
        script.event(EventType.LLM_TEXT_DELTA, after=60)
        if minute % 10 == 0:
            script.event(EventType.CLIENT_INPUT_RECEIVED, after=0)
        script.silence(0)
        assert script.kinds() == set(), minute


def test_deadline_is_met_without_polling() -> None:
    delays: list[tuple[FindingKind, float]] = []
    monitor = HealthMonitor(HealthSettings(), on_delay=lambda kind, seconds: delays.append((kind, seconds)))
    script = WorkerScript(monitor=monitor).start()
    script.step("CONTINUE", after=130)

    while script.finding(STALL) is None:
        due = monitor.next_deadline()
        assert due is not None
        script.now = due
        script.silence(0)

    assert script.now == START + 130 + 240
    assert delays == [(STALL, 0.0)]


def test_event_does_not_hide_an_unchecked_silence() -> None:
    script = worker()
    script.step("CONTINUE", after=400)

    assert types(script.said)[:2] == [EventType.FINDING_OPENED, EventType.HEALTH_STATE_CHANGED]
    assert types(script.said)[2:] == [EventType.FINDING_CLEARED, EventType.HEALTH_STATE_CHANGED]
    assert script.state is HealthState.HEALTHY


def test_state_change_has_from_to_and_reason() -> None:
    script = worker()
    script.event(EventType.STEP_COMPLETED, {"verdict": "CONTINUE"})
    emitted = script.silence(240)

    [opened, changed] = emitted
    assert opened.data["kind"] == "stall"
    assert {key: changed.data[key] for key in ("from", "to")} == {"from": "healthy", "to": "stuck"}
    assert changed.data["reason"] == opened.data["evidence"]
    assert (changed.agent_id, changed.session_id, changed.incarnation_id, changed.node_id) == (
        "agent",
        "session",
        "i1",
        "work",
    )


def test_reason_of_failed_steps_names_their_number_and_last_error() -> None:
    script = WorkerScript().start()

    script.step(times=4, error_type="ValueError", error="no such\ncolumn: age")

    assert script.state is HealthState.FAILING
    assert script.health.reason == "4 steps failed in a row, last with no such column: age"
    assert script.said[-1].data["reason"] == script.health.reason


def test_finding_is_published_once_and_again_when_worse() -> None:
    script = worker()
    script.now += 200
    for _ in range(20):
        script.call()
    emitted = [e.data["severity"] for e in script.said if e.data.get("kind") == "doom_loop"]

    assert emitted == ["medium", "high", "critical"]


def test_implausible_clock_is_ignored() -> None:
    monitor = HealthMonitor(HealthSettings())
    for index, skew in enumerate((-3600.0, 3600.0, -30.0)):
        event = AgentEvent(
            type=EventType.STEP_COMPLETED, time=START + skew, agent_id="a", session_id=str(index)
        )
        monitor.apply(event, START)

    activity = [worker.vitals.last_activity for worker in monitor.workers()]
    assert activity == [START, START, START - 30]


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
    script = worker()
    script.silence(900)
    assert script.state is HealthState.STUCK

    script.event(kind, dict(data))

    change = [event for event in script.said if event.type is EventType.HEALTH_STATE_CHANGED][-1]
    assert (change.data["from"], change.data["outcome"]) == ("stuck", outcome)
    assert change.data["reason"] == reason


def test_ended_session_raises_nothing_and_is_forgotten() -> None:
    script = worker()
    for _ in range(5):
        script.call()
    script.event(EventType.EXECUTION_COMPLETED)
    assert script.health.findings == ()
    assert script.state is HealthState.HEALTHY

    script.silence(ENDED_SESSION_SECONDS - 1)
    assert script.monitor.get("agent") is not None
    script.silence(1)
    assert script.monitor.get("agent") is None
    assert list(script.monitor.workers()) == []


def test_ended_sessions_are_bounded() -> None:
    monitor = HealthMonitor(HealthSettings())
    for n in range(MAX_ENDED_SESSIONS + 50):
        script = WorkerScript(monitor=monitor, session=str(n))
        script.event(EventType.EXECUTION_COMPLETED)
    monitor.advance(START + 2)

    assert len(list(monitor.workers())) == MAX_ENDED_SESSIONS


def test_failed_run_is_an_outcome_and_a_terminated_one_terminated() -> None:
    """B103: health describes running sessions; one failed run does not make an agent failing."""
    failed, terminated = worker(), worker()
    failed.event(EventType.EXECUTION_FAILED, {"error_type": "OSError"})
    terminated.event(EventType.AGENT_TERMINATED)
    terminated.step("CONTINUE")

    assert failed.state is HealthState.HEALTHY
    assert failed.health.vitals.status is WorkerStatus.FAILED
    assert failed.health.fleet_state is None
    assert terminated.state is HealthState.TERMINATED


@pytest.mark.parametrize("sign", ["call", "heartbeat"])
@pytest.mark.parametrize("lag", [0.0, 8.0])
@pytest.mark.parametrize("number", ["", "one"])
def test_restarted_terminated_session_lives_despite_a_slow_clock(sign: str, lag: float, number: str) -> None:
    """
    The end has the time of the service's clock, and the new start that of the worker's.

    A start that seems older may have been on its way; what follows after the end shows that it was not.
    """
    script = worker(heartbeat_interval=30)
    script.incarnation = number
    script.call(after=60)
    script.event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    ended, script.lag = script.now, lag
    script.incarnation = number and "two"
    script.event(EventType.EXECUTION_STARTED, {"start_records": True}, after=3)
    while script.now <= ended + lag:
        if sign == "heartbeat":
            script.event(EventType.AGENT_HEARTBEAT, {"interval": 30})
        else:
            script.call()

    assert script.health.vitals.status is WorkerStatus.ACTIVE


def test_late_first_start_does_not_revive_a_terminated_session() -> None:
    """The start is older than the known incarnation."""
    script = WorkerScript()
    script.incarnation = ""
    script.call()
    script.event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    script.lag = 5.0
    script.start()
    script.lag = 0.0
    script.call()

    assert script.health.vitals.status is WorkerStatus.TERMINATED


@pytest.mark.parametrize("kind", [EventType.STEP_COMPLETED, EventType.LLM_CALL_STARTED])
@pytest.mark.parametrize("lag", [-50.0, 0.0, 50.0])
def test_terminated_worker_that_works_on_is_watched_again(kind: EventType, lag: float) -> None:
    """Work that is later than the termination by more than the clocks may differ shows that it continues."""
    script = WorkerScript().start()
    for _ in range(12):
        script.call()
    assert script.state is HealthState.STUCK
    script.event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    script.lag = lag
    script.event(kind, {"duration": 1.0}, after=50 + min(lag, 0.0))
    assert script.health.state is HealthState.TERMINATED

    script.event(kind, {"duration": 1.0}, after=111)

    assert script.state is HealthState.STUCK
    assert script.health.vitals.status is WorkerStatus.ACTIVE
    assert FindingKind.DOOM_LOOP in {finding.kind for finding in script.health.findings}


def test_late_telemetry_does_not_revive_a_terminated_worker() -> None:
    """B85: an exporter may send earlier telemetry for minutes after the end."""
    script = WorkerScript().start()
    script.call()
    script.event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    for late in range(1, 600, 7):
        script.lag = float(late)
        script.now += 6
        script.call(duration=1.0)

    assert script.state is HealthState.TERMINATED


@pytest.mark.parametrize("kind", [EventType.TOOL_CALL_COMPLETED, EventType.LLM_CALL_COMPLETED])
def test_call_open_at_termination_does_not_revive_the_worker(kind: EventType) -> None:
    """The call began before the end, and its thread may not have been stopped."""
    script = WorkerScript().start()
    script.event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    script.event(kind, {"duration": 130.0}, after=120)
    script.event(EventType.STEP_COMPLETED, {"duration": 131.0})
    script.event(EventType.CHECKPOINT_SAVED)
    script.event(EventType.EXECUTION_COMPLETED)

    assert script.state is HealthState.TERMINATED
    assert script.health.vitals.status is WorkerStatus.TERMINATED


@pytest.mark.parametrize("recalled", [False, True])
def test_end_of_a_worker_that_outlived_its_termination_is_not_a_completion(recalled: bool) -> None:
    """It stopped late and its work is not complete, so it may be recovered."""
    script = WorkerScript().start()
    script.event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    at = script.now + 120
    for kind in (EventType.LLM_CALL_STARTED, EventType.EXECUTION_COMPLETED):
        event = replace(script.heard[-1], type=kind, time=at, data={})
        script.monitor.replay(event, at) if recalled else script.monitor.apply(event, at)

    assert script.health.vitals.status is WorkerStatus.TERMINATED


def test_terminated_worker_with_failed_runs_has_its_end_reason() -> None:
    """Earlier failed runs of the agent are not the reason."""
    script = WorkerScript()
    for number in range(4):
        script.session = f"session-{number}"
        script.start()
        script.event(EventType.EXECUTION_FAILED, {"error_type": "OSError"})
    script.incarnation = "i2"
    script.start()
    for _ in range(12):
        script.call()
    script.event(EventType.AGENT_TERMINATED, {"reason": "loop"})

    last = [one for one in script.said if one.type is EventType.HEALTH_STATE_CHANGED][-1]
    assert last.data["to"] == "terminated"


@pytest.mark.parametrize(
    "kind", [EventType.AGENT_HEARTBEAT, EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED]
)
def test_activity_without_work_does_not_revive_a_terminated_worker(kind: EventType) -> None:
    """The process of a stopped worker may end much later."""
    script = WorkerScript().start(heartbeat_interval=30)
    script.event(EventType.AGENT_TERMINATED, {"reason": "loop"})
    for _ in range(20):
        script.event(kind, {"interval": 30}, after=30)

    assert script.state is HealthState.TERMINATED


def away_for(script: WorkerScript, seconds: float) -> None:
    since, script.now = script.now, script.now + seconds
    script.monitor.exclude_outage(since, script.now)


def test_worker_silent_since_a_service_outage_is_not_critical() -> None:
    """
    B125: its end may have been lost: severity is at most medium, nothing acts, and it ends as ``unknown``.
    """
    script = worker(heartbeat_interval=30)
    script.step("ACCEPT", after=200)
    script.event(EventType.AGENT_HEARTBEAT, {"interval": 30})
    away_for(script, 420)
    script.silence(700)

    findings = {finding.kind: finding for finding in script.health.findings if finding.ticket}
    assert set(findings) == {FindingKind.STALL, FindingKind.HEARTBEAT_MISSING}
    assert {finding.severity for finding in findings.values()} == {Severity.MEDIUM}
    for one in findings.values():
        assert "no events since Queenright was away from " in one.evidence
    settings = script.monitor.settings
    assert next_step(None, LadderInputs.of(script.health, settings), settings).action is None
    script.silence(settings.tickets.dead_worker_seconds)
    assert script.health.vitals.status is WorkerStatus.UNKNOWN


@pytest.mark.parametrize(
    "kind", [FindingKind.NO_TOOL_CALLS, FindingKind.CHECKPOINT_STALE, FindingKind.NO_TOKENS]
)
@pytest.mark.parametrize("case", ["unheard", "heard", "before"])
def test_worker_silent_since_a_service_outage_is_not_stuck(kind: FindingKind, case: str) -> None:
    """
    B125: missing calls, tokens and checkpoints prove no more than silence, unless found before the outage.
    """
    settings = HealthSettings.model_validate(
        {
            "stall": {"idle_seconds": 90_000, "unknown_seconds": 90_000},
            "heartbeat": {"timeout_seconds": 90_000},
        }
    )
    script = WorkerScript(monitor=HealthMonitor(settings)).start(heartbeat_interval=30)
    script.event(EventType.AGENT_HEARTBEAT, {"interval": 30})
    if kind is FindingKind.CHECKPOINT_STALE:
        script.event(EventType.CHECKPOINT_SAVED)
    else:
        if kind is FindingKind.NO_TOOL_CALLS:
            script.call()
            script.silence(1)
        script.event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 100, "output_tokens": 10})
    if case == "before":
        script.silence(7200)
    away_for(script, 420)
    if case == "heard":
        script.event(EventType.AGENT_HEARTBEAT, {"interval": 30})
    script.silence(7200)

    finding = script.finding(kind)
    assert finding is not None
    assert finding.ticket is (case != "unheard")
    assert (script.state is HealthState.STUCK) is (case != "unheard")
    assert ("no events since Queenright was away" in finding.evidence) is (case != "heard")


@pytest.mark.parametrize("case", ["heard", "before", "short", "no heartbeats"])
def test_certain_silence_is_critical_despite_a_service_outage(case: str) -> None:
    """B125: it sent an event since, was found before, the outage was short, or it sends no heartbeats."""
    script = worker(**({} if case == "no heartbeats" else {"heartbeat_interval": 30}))
    script.step("ACCEPT", after=200)
    if case == "before":
        script.silence(300)
    away_for(script, 4 if case == "short" else 420)
    if case == "heard":
        script.event(EventType.AGENT_HEARTBEAT, {"interval": 30})
    script.silence(700)

    stall = script.finding(FindingKind.STALL)
    assert stall is not None
    assert stall.severity is Severity.CRITICAL
    assert script.state is HealthState.STUCK


@pytest.mark.parametrize("jump", [600.0, -3600.0])
@pytest.mark.parametrize("case", ["may have ended", "certain", "not found yet"])
def test_jump_of_the_clock_makes_silence_neither_more_nor_less_certain(case: str, jump: float) -> None:
    """B23, B125: the times of the outage move with the clocks that are compared with them."""
    script = worker(heartbeat_interval=30)
    script.event(EventType.AGENT_HEARTBEAT, {"interval": 30})
    if case == "certain":
        script.silence(300)
    away_for(script, 60)
    if case != "not found yet":
        script.silence(700)

    script.now += jump
    script.monitor.handle_clock_jump(script.now)
    script.monitor.sweep(script.now)
    script.silence(700)

    stall = script.finding(STALL)
    assert stall is not None
    assert stall.severity is (Severity.CRITICAL if case == "certain" else Severity.MEDIUM)


def test_session_that_ended_begins_again_after_the_clock_is_set_back() -> None:
    """B23: its end is not in the future of its next execution, and the session is removed in time."""
    script, over = worker(), HealthMonitor(HealthSettings())
    script.event(EventType.EXECUTION_COMPLETED)
    ended = WorkerScript(monitor=over).start()
    ended.event(EventType.EXECUTION_COMPLETED)
    for one in (script, ended):
        one.now -= 3600
        one.monitor.handle_clock_jump(one.now)

    script.event(EventType.EXECUTION_STARTED, {"start_records": True})
    ended.silence(ENDED_SESSION_SECONDS)

    assert script.health.vitals.status is WorkerStatus.ACTIVE
    assert over.get("agent") is None


def run(monitor: HealthMonitor, number: int, type_: EventType, error: str = "OSError") -> WorkerScript:
    """Report a run of the agent in its own session, from start to end."""
    script = WorkerScript(monitor=monitor, session=f"s{number}", at=START + 10 * number).start()
    script.event(type_, {"error_type": error} if type_ is EventType.EXECUTION_FAILED else {})
    return script


def test_four_consecutive_failed_runs_are_failing_until_one_completes() -> None:
    """The fourth represents all, so that people are notified once. A running session has its own state."""
    monitor = HealthMonitor(HealthSettings())
    runs = [run(monitor, number, EventType.EXECUTION_FAILED) for number in range(3)]
    assert {one.state for one in runs} == {HealthState.HEALTHY}

    runs += [run(monitor, number, EventType.EXECUTION_FAILED) for number in range(3, 5)]
    running = WorkerScript(monitor=monitor, session="running", at=START + 60).start()
    assert [one.state for one in runs] == [
        *[HealthState.HEALTHY] * 3,
        HealthState.FAILING,
        HealthState.HEALTHY,
    ]
    [finding] = runs[3].health.findings
    assert (finding.kind, finding.severity, finding.ticket) == (FindingKind.RUNS_FAILED, Severity.HIGH, True)
    assert finding.evidence.startswith("5 runs")
    assert finding.since == runs[0].now
    assert (runs[3].health.fleet_state, runs[4].health.fleet_state) == (HealthState.FAILING, None)
    assert running.state is HealthState.HEALTHY

    script = run(monitor, 7, EventType.EXECUTION_COMPLETED)
    assert runs[3].state is HealthState.HEALTHY
    assert not runs[3].health.findings
    [changed] = [one for one in script.said if one.type is EventType.HEALTH_STATE_CHANGED]
    assert (changed.session_id, changed.data["from"], changed.data["to"]) == ("s3", "failing", "healthy")
    assert run(monitor, 8, EventType.EXECUTION_FAILED).state is HealthState.HEALTHY


def test_each_failed_incarnation_of_a_session_counts_once() -> None:
    script = worker()
    states = []
    for life in range(4):
        script.incarnation = f"life{life}"
        script.start()
        for _ in range(2):
            script.event(EventType.EXECUTION_FAILED, {"error_type": "OSError"})
        states.append(script.state)

    assert states == [HealthState.HEALTHY] * 3 + [HealthState.FAILING]
    script.incarnation = "next"
    script.now += 1
    assert script.start().state is HealthState.DEGRADED
    [finding] = script.health.findings
    assert (finding.kind, finding.ticket) == (FindingKind.RUNS_FAILED, True)
    script.event(EventType.EXECUTION_COMPLETED)
    assert script.health.findings == ()


def test_settled_failed_runs_restart_the_count() -> None:
    monitor = HealthMonitor(HealthSettings())
    runs = [run(monitor, number, EventType.EXECUTION_FAILED) for number in range(4)]

    runs[3].event(EventType.TICKET_RESOLVED, {"status": "resolved", "by": "ada", "worker_dead": True})
    assert runs[3].health.fleet_state is None
    later = [run(monitor, number, EventType.EXECUTION_FAILED) for number in range(5, 9)]
    assert [bool(one.health.findings) for one in later] == [False, False, False, True]


@pytest.mark.parametrize("mode", ["shadow", "off"])
def test_consecutive_failed_runs_are_the_reason_without_a_finding(mode: str) -> None:
    settings = HealthSettings.model_validate({"detectors": {"runs_failed": mode}})
    monitor = HealthMonitor(settings)
    runs = [run(monitor, number, EventType.EXECUTION_FAILED) for number in range(4)]
    assert runs[3].health.findings == ()
    assert (runs[3].state, runs[3].health.reason[:6]) == (HealthState.FAILING, "4 runs")


def test_cancelled_run_neither_counts_nor_resets_failed_runs() -> None:
    monitor = HealthMonitor(HealthSettings())
    for number in range(3):
        run(monitor, number, EventType.EXECUTION_FAILED)
    assert run(monitor, 3, EventType.EXECUTION_FAILED, "cancelled").state is HealthState.HEALTHY
    assert run(monitor, 4, EventType.EXECUTION_FAILED).state is HealthState.FAILING


def test_active_session_is_preferred_to_a_newer_ended_one() -> None:
    """
    B3: an active session precedes a completed one; of two active ones, the one with the newest event is
    first.
    """
    monitor = HealthMonitor(HealthSettings())
    old = WorkerScript(monitor=monitor, session="old").start()
    over = WorkerScript(monitor=monitor, session="over", at=START + 100).start()
    over.event(EventType.EXECUTION_COMPLETED)
    assert monitor.get("agent") is old.health

    new = WorkerScript(monitor=monitor, session="new", at=START + 50).start()
    assert monitor.get("agent") is new.health
    old.step("CONTINUE", after=90)
    assert monitor.get("agent") is old.health
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
    looked, emitted = monitor.sweep(START + 240)

    assert looked == 7
    assert types(emitted).count(EventType.FINDING_OPENED) == 7
    assert monitor.sweep(START + 241) == (7, [])


def test_sweep_does_not_count_ended_workers() -> None:
    """B75: ended workers must not hide that no worker is monitored."""
    monitor = HealthMonitor(HealthSettings())
    script = WorkerScript(monitor=monitor, session="s").start()
    script.event(EventType.EXECUTION_COMPLETED)

    assert monitor.sweep(START + 2)[0] == 0


def test_monitor_ignores_its_own_events() -> None:
    script = worker()
    script.silence(240)
    echo = [event for emitted in script.said for event in script.monitor.apply(emitted, script.now)]

    assert echo == []
    assert script.state is HealthState.STUCK


def test_split_sweep_evaluates_every_worker_once() -> None:
    monitor = HealthMonitor(HealthSettings())
    for n in range(7):
        WorkerScript(monitor=monitor, session=str(n)).start()
    first = monitor.sweep_part(START + 240, 3)
    late = WorkerScript(monitor=monitor, session="late", at=START + 240).start()
    monitor.forget(("agent", "0"))
    second = monitor.sweep_part(START + 240, 3)
    third = monitor.sweep_part(START + 240, 3)

    parts = [first, second, third]
    assert [(part.worker_count, part.is_last) for part in parts] == [(3, False), (3, False), (0, True)]
    assert [types(part.events).count(EventType.FINDING_OPENED) for part in parts] == [3, 3, 0]
    assert late.kinds() == set()


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
    well = WorkerScript(monitor=monitor, session="well").start()
    stuck = WorkerScript(monitor=monitor, session="stuck").start()
    asking = WorkerScript(monitor=monitor, agent="other", session="asking").start()
    asking.wait("user_input")
    dead = WorkerScript(monitor=monitor, session="dead").start()
    dead.event(EventType.AGENT_TERMINATED)
    stuck.silence(240)
    well.step("ACCEPT", after=240)

    assert {worker.vitals.session_id: worker.fleet_state for worker in monitor.workers()} == {
        "well": HealthState.HEALTHY,
        "stuck": HealthState.STUCK,
        "asking": HealthState.HEALTHY,
        "dead": None,
    }


def test_limit_leaves_the_rest_due() -> None:
    """B131: workers whose deadlines pass together are evaluated in batches, and none is omitted."""
    monitor = HealthMonitor(HealthSettings())
    for number in range(5):
        WorkerScript(monitor=monitor, agent=f"bee{number}").event(EventType.EXECUTION_STARTED)
    now = START + 7200

    looked = []
    while (due := monitor.next_deadline()) is not None and due <= now:
        emitted = monitor.advance(now, 2)
        looked.append({event.agent_id for event in emitted})

    assert [len(agents) for agents in looked[:3]] == [2, 2, 1]
    assert set().union(*looked) == {f"bee{number}" for number in range(5)}


def test_host_sleep_during_a_long_tool_makes_no_checkpoint_stale() -> None:
    """B23: the tool's declared time since the host woke up is excluded."""
    script = worker(heartbeat_interval=300)
    script.event(EventType.CHECKPOINT_SAVED)
    script.event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "1", "timeout": 3600})
    for _ in range(4):
        script.event(EventType.AGENT_HEARTBEAT, {"interval": 300}, after=225)
    script.now += 3_000
    script.monitor.handle_clock_jump(script.now)
    for _ in range(8):
        script.event(EventType.AGENT_HEARTBEAT, {"interval": 300}, after=255)
    script.call("build", call_id="1")

    assert script.finding(FindingKind.CHECKPOINT_STALE) is None
    assert script.finding(FindingKind.NO_TOKENS) is None
