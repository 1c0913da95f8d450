from __future__ import annotations

import json

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind
from queenright.health.monitoring.worker_summary import summarise
from queenright.health.settings import HealthSettings
from queenright.health.vitals.resource_limits import CutAnswers, Resource
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_facts import McpLoss, McpServerState, OpenTool, Output, Refusal
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.health.vitals.vital_state import VitalState
from queenright.instrumentation.names import Phase, WaitingReason
from queenright.runtime.events import EventType
from tests.health.worker_script import START, WorkerScript


def make_worker() -> WorkerScript:
    return WorkerScript().start()


def test_continue_is_neither_good_nor_bad() -> None:
    """B9: ACCEPT, RETRY, CONTINUE, CONTINUE count 1; a hundred CONTINUE turns count 0."""
    script = make_worker()
    for verdict in ("ACCEPT", "RETRY", "CONTINUE", "CONTINUE"):
        script.report_step(verdict)
    chat_worker = make_worker()
    chat_worker.report_step("CONTINUE", times=100)

    assert script.health.vitals.steps_since_last_accept == 1
    assert chat_worker.health.vitals.steps_since_last_accept == 0


def test_bad_steps_of_the_whole_history_count() -> None:
    """B11: 200 RETRYs count 200."""
    script = make_worker()
    script.report_step("RETRY", times=200)

    assert script.health.vitals.steps_since_last_accept == 200
    assert script.health.vitals.recent_verdicts == ["RETRY"] * 20


def test_failed_step_counts_and_its_error_is_the_evidence() -> None:
    """B12: steps that fail without a verdict count, and their error is the evidence."""
    script = make_worker()
    script.report_step(error_type="ValueError", error="no such column: age", text="let me look")

    vitals = script.health.vitals
    assert vitals.steps_since_last_accept == 1
    assert vitals.evidence == "no such column: age"
    assert vitals.recent_verdicts == ["ERROR"]


def test_unjudged_step_is_not_bad() -> None:
    script = make_worker()
    script.report_step(times=30)

    assert script.health.vitals.steps_since_last_accept == 0
    assert script.state is HealthState.HEALTHY


def test_accept_and_a_new_visit_reset_the_count() -> None:
    """B13: the count resets on ACCEPT and on a new node visit."""
    accepted_worker, moved_worker, revisiting_worker = make_worker(), make_worker(), make_worker()
    for script in (accepted_worker, moved_worker, revisiting_worker):
        script.report_step("RETRY", times=7)

    accepted_worker.report_step("ACCEPT")
    moved_worker.node = "review"
    moved_worker.report_step("RETRY")
    revisiting_worker.report_event(EventType.NODE_LOOP_STARTED)

    counts = [
        script.health.vitals.steps_since_last_accept
        for script in (accepted_worker, moved_worker, revisiting_worker)
    ]
    assert counts == [0, 1, 0]
    assert accepted_worker.state is moved_worker.state is revisiting_worker.state is HealthState.HEALTHY


def test_evidence_is_a_tail_of_500_characters() -> None:
    """B16: evidence is the tail of the last error or text, at most 500 characters."""
    script = make_worker()
    script.report_step("RETRY", text="a word " * 100 + "the end")
    evidence = script.health.vitals.evidence

    assert 490 <= len(evidence) <= 500
    assert ("a word " * 100 + "the end").endswith(evidence)


def test_evidence_is_cut_at_word_boundaries() -> None:
    """B16: half of a secret would not be recognized and masked."""
    for size in range(470, 500):
        script = make_worker()
        script.report_step("RETRY", text="refused sk-abcdefghijklmnop1234 " + "." * size)

        assert "nop1234" not in json.dumps(summarise(script.health, script.now))


def test_evidence_without_spaces_is_kept() -> None:
    script = make_worker()
    script.report_step("RETRY", text="蜂" * 900)

    assert script.health.vitals.evidence == "蜂" * 500


def test_names_of_tools_and_errors_are_one_line_without_secrets() -> None:
    """B16: these texts reach findings, tickets and the event log."""
    script = make_worker()
    script.now += 121
    for turn in range(12):
        script.report_call(
            "fetch\n\nsk-abcdefghijklmnop1234",
            str(turn),
            None,
            outcome="error",
            error_type="E\nsk-abcdefghijklmnop1234",
        )
    events_text = json.dumps([event.data for event in script.monitor_events])

    assert "error_streak" in events_text
    assert "abcdefghijklmnop" not in events_text
    assert script.health.vitals.streak_tool == "fetch [redacted]"


def test_heartbeat_is_neither_activity_nor_progress() -> None:
    """B22: a worker that only sends heartbeats makes no progress."""
    script = make_worker()
    before = (script.health.vitals.last_activity, script.health.vitals.last_progress)
    for _ in range(5):
        script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 30}, after=30)

    vitals = script.health.vitals
    assert (vitals.last_activity, vitals.last_progress) == before
    assert vitals.last_heartbeat == script.now


def test_progress_is_an_accept_a_checkpoint_or_a_new_result() -> None:
    script = make_worker()
    script.report_call(result="one")
    first = script.health.vitals.last_progress
    script.report_call(result="one")
    assert first is not None
    assert script.health.vitals.last_progress == first

    script.report_call(result="two")
    assert script.health.vitals.last_progress == script.now
    script.report_event(EventType.CHECKPOINT_SAVED)
    assert script.health.vitals.last_progress == script.now
    script.report_step("ACCEPT")
    assert script.health.vitals.last_progress == script.now


def test_phase_is_that_of_the_last_start() -> None:
    script = make_worker()
    phases = [script.health.vitals.phase]
    tool = {"tool": "build", "call_id": "1", "timeout": 60}
    for type_, data in (
        (EventType.LLM_CALL_STARTED, {}),
        (EventType.LLM_CALL_COMPLETED, {}),
        (EventType.TOOL_CALL_STARTED, tool),
        (EventType.TOOL_CALL_COMPLETED, tool),
    ):
        script.report_event(type_, data)
        phases.append(script.health.vitals.phase)

    assert phases == [Phase.IDLE, Phase.LLM, Phase.IDLE, Phase.TOOL, Phase.IDLE]


def test_phase_is_unknown_without_start_records() -> None:
    script = WorkerScript()
    script.report_call()

    assert script.health.vitals.phase is Phase.UNKNOWN


def test_ending_step_closes_calls_without_an_end() -> None:
    script = make_worker()
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "1"})
    script.report_step("CONTINUE")

    assert script.health.vitals.phase is Phase.IDLE


@pytest.mark.parametrize("lag", [0.0, 86_400.0])
@pytest.mark.parametrize(
    ("started_at", "phase"),
    [(EventType.TOOL_CALL_STARTED, Phase.TOOL), (EventType.LLM_CALL_STARTED, Phase.LLM)],
)
def test_late_end_of_an_earlier_step_leaves_a_newer_call_open(
    started_at: EventType, phase: Phase, lag: float
) -> None:
    """Start records of a batch precede the spans that ended in it."""
    script = make_worker()
    script.lag = lag
    script.report_event(started_at, {"tool": "build", "call_id": "1", "timeout": 1200})
    script.lag = lag + 0.5
    script.report_step("CONTINUE", times=3, after=0.1)
    assert script.health.vitals.phase is phase

    script.lag = lag
    script.report_step("CONTINUE")
    assert script.health.vitals.phase is Phase.IDLE


def test_late_end_of_an_earlier_step_does_not_hide_a_declared_timeout() -> None:
    script = make_worker()
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "1", "timeout": 1200})
    script.lag = 0.5
    script.report_step("ACCEPT", times=3, after=0.1)

    script.stay_silent(1100)
    assert script.list_finding_kinds() == set()
    script.stay_silent(200)
    assert FindingKind.TOOL_TIMEOUT in script.list_finding_kinds()


def test_new_incarnation_starts_a_visit_and_drops_open_calls() -> None:
    script = make_worker()
    script.report_step("RETRY", times=12)
    script.report_event(EventType.LLM_CALL_STARTED)
    script.incarnation = "i2"
    script.start()

    vitals = script.health.vitals
    assert (vitals.incarnation_id, vitals.phase) == ("i2", Phase.IDLE)
    assert vitals.steps_since_last_accept == 0
    assert vitals.incarnation_started == script.now


def test_late_events_of_a_replaced_process_change_nothing() -> None:
    script = make_worker()
    script.incarnation = "i2"
    script.start()
    script.incarnation = "i1"
    script.report_step("RETRY", times=3)

    assert script.health.vitals.incarnation_id == "i2"
    assert script.health.vitals.steps_total == 0


def test_repeats_are_counted_across_a_restart() -> None:
    """B33: the counters survive a kill between call two and three."""
    script = make_worker()
    script.report_call()
    script.report_call()
    script.incarnation = "i2"
    script.start()
    assert script.get_finding(FindingKind.DOOM_LOOP) is None
    script.report_call()

    assert script.get_finding(FindingKind.DOOM_LOOP) is not None


def test_different_session_has_its_own_trend() -> None:
    """B5: a worker that changes session starts a new trend; a step count that went down is not a stall."""
    script = make_worker()
    script.report_step("RETRY", times=12)
    script.session = "other"
    script.report_step("RETRY")

    assert script.health.vitals.steps_total == 1
    assert script.state is HealthState.HEALTHY
    assert script.get_finding(FindingKind.STALL) is None


@pytest.mark.parametrize(
    ("type_", "data", "status"),
    [
        (EventType.STEP_COMPLETED, {}, WorkerStatus.ACTIVE),
        (EventType.EXECUTION_PAUSED, {}, WorkerStatus.PAUSED),
        (EventType.EXECUTION_COMPLETED, {}, WorkerStatus.COMPLETED),
        (EventType.EXECUTION_FAILED, {"error_type": "OSError"}, WorkerStatus.FAILED),
        (EventType.EXECUTION_FAILED, {"error_type": "CancelledError"}, WorkerStatus.CANCELLED),
        (EventType.AGENT_TERMINATED, {}, WorkerStatus.TERMINATED),
    ],
)
def test_every_status_is_distinct(type_: EventType, data: dict[str, object], status: WorkerStatus) -> None:
    """B4: active, paused, completed, failed and cancelled are each handled."""
    script = make_worker()
    script.report_event(type_, data)

    assert script.health.vitals.status is status


def test_unknown_status_is_unknown() -> None:
    """B4: an unknown status is ``unknown``."""
    assert WorkerStatus("zombie") is WorkerStatus.UNKNOWN


def test_late_report_does_not_reopen_a_session_and_a_new_one_does() -> None:
    script = make_worker()
    script.report_event(EventType.EXECUTION_COMPLETED)
    end_time = script.now
    script.report_event(EventType.STEP_COMPLETED, {"verdict": "RETRY"}, after=0.0)
    assert script.health.vitals.ended_at == end_time

    script.report_step("CONTINUE")
    assert not script.health.vitals.has_ended
    assert script.health.vitals.waiting is None


def test_start_of_work_ends_every_wait_except_a_pause() -> None:
    waiting_worker, paused_worker = make_worker(), make_worker()
    waiting_worker.report_wait("user_input")
    waiting_worker.report_event(EventType.STEP_STARTED)
    paused_worker.report_wait("paused")
    paused_worker.report_event(EventType.STEP_STARTED)

    assert waiting_worker.health.vitals.waiting is None
    assert paused_worker.health.vitals.waiting is WaitingReason.PAUSED


@pytest.mark.parametrize(
    "end",
    [
        {"outcome": "error"},
        {"outcome": "timeout"},
        {"outcome": "failed"},
        {"outcome": "ok", "error": "refused"},
        {"error": "refused"},
        {"error_type": "OSError"},
    ],
)
@pytest.mark.parametrize("tool", ["search", "probe"])
def test_failed_call_is_not_progress_in_any_report_format(tool: str, end: dict[str, str]) -> None:
    """An error, or an outcome other than ok, is a failure, even of an exempt tool."""
    settings = HealthSettings.model_validate({"loops": {"exempt_tools": ["probe"]}})
    script = WorkerScript(settings=settings).start()

    script.report_event(
        EventType.TOOL_CALL_COMPLETED, {"tool": tool, "args_hash": "a", "result_hash": "r", **end}
    )

    vitals = script.health.vitals
    assert (vitals.last_progress, vitals.error_share) == (None, 1.0)


@pytest.mark.parametrize("end", [{}, {"outcome": None}, {"outcome": "ok", "error": None, "error_type": ""}])
def test_call_without_an_error_is_progress(end: dict[str, str | None]) -> None:
    script = WorkerScript().start()

    script.report_event(
        EventType.TOOL_CALL_COMPLETED, {"tool": "search", "args_hash": "a", "result_hash": "r", **end}
    )

    assert script.health.vitals.last_progress == script.now


def test_call_later_reported_as_failed_counts_once() -> None:
    """B84, B89: a hook reports the end of the call, and a later log record its exit code."""
    script = WorkerScript().start()
    call = {"tool": "exec", "call_id": "c", "result_hash": "r"}
    script.report_event(EventType.TOOL_CALL_COMPLETED, {**call, "outcome": "ok"})
    failure = {"outcome": "error", "error_type": "exit_code_2", "amends": True}
    script.report_event(EventType.TOOL_CALL_COMPLETED, {**call, **failure})

    vitals = script.health.vitals
    assert (vitals.tool_calls_total, vitals.error_count, vitals.failed_calls) == (1, 1, 1)
    assert vitals.tools is not None
    exec_counts = vitals.tools.to_dict()["exec"]
    assert (exec_counts["calls"], exec_counts["errors"]) == (1, 1)


def test_results_of_exempt_tools_are_not_repeats_and_may_be_progress() -> None:
    settings = HealthSettings.model_validate({"loops": {"exempt_tools": ["poll"]}})
    script = WorkerScript(settings=settings).start()
    script.report_call("poll", result="one")

    assert script.health.vitals.last_progress == script.now
    assert script.health.vitals.calls is None


_NO_TIMES = {
    "counted_end",
    *(
        "_inputs",
        "_refused_turn",
        "_seen_digests",
        "_stale_turn",
        "_streak_turn",
        "clocks",
        "settings",
    ),
    # On the clock of their source, which changes of the service's clock do not move.
    *("_answer_end", "_llm_began", "_side_by_side", "_tool_ended", "active_for", "polls_from", "source"),
    *("beat", "breakers", "heartbeat_interval", "token_spike", "stale_results", "waiting"),
    "stale_results_since_gain",
    *("cost_usd", "unpriced_tokens"),
    # The number of a calendar day, regardless of the clock.
    "spent_today",
    # Times that are not compared with anything.
    *("calls", "tools"),
}
_MOMENTS = {
    *("bad_since", "breakers_since", "ended_at", "error_rate_since", "incarnation_started", "last_progress"),
    *("llm_error_since", "recovered_at", "recovery_failed_at", "runs_failed_since", "stale_since"),
    *(
        "fruitless_since",
        "last_gain_at",
        "idle_turns_since",
        "refusals",
        "started_at",
        "streak_since",
        "tokens_at",
    ),
}
_WITH_TIMES = {
    "away": (START, START),
    "cut_answers": CutAnswers(1, 1, 1, START),
    "mcp_servers": (McpServerState("m", "", (McpLoss(START, "failed"),), START),),
    "open_tools": [OpenTool("t", "search", "", START, 30.0)],
    "output": Output(1, None, None, since=START, reports=1),
    "refusals": (Refusal("not found", 1, START, 1, 1),),
    "resources": (Resource("memory", 1, 2, START),),
}


def list_times(vitals: VitalSigns, slot: str) -> set[float]:
    value = getattr(vitals, slot)
    if slot == "open_tools":
        return {tool.started for tool in value}
    if slot in ("output", "cut_answers"):
        return {value.since}
    if slot in ("refusals", "resources"):
        return {value[0].since}
    if slot == "mcp_servers":
        return {value[0].losses[0].at, value[0].connected_at}
    return set(value) if isinstance(value, tuple) else {value}


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_every_time_follows_the_clock(jump: float) -> None:
    """
    B23: clocks move with the jump, times of events are at most now, and a new attribute is a clock or not a
    time.
    """
    vitals = VitalSigns("agent", "session", START, HealthSettings())
    time_slots = {slot for slot in VitalState.__slots__ if not isinstance(getattr(vitals, slot), str | int)}
    slots = time_slots - _NO_TIMES
    for slot in slots:
        setattr(vitals, slot, _WITH_TIMES.get(slot, START))
    now = START + jump

    vitals.shift_clocks(jump, now)

    for slot in slots:
        should_stay = slot in _MOMENTS
        assert list_times(vitals, slot) == {min(START, now) if should_stay else now}, slot
