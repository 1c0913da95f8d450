from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind, Severity
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.monitoring.worker_summary import summarise
from queenright.health.settings import HealthSettings
from queenright.instrumentation.names import WaitingReason
from queenright.judge import ticket_policy
from queenright.judge.stack.reading import build_events, build_health, ended_health
from queenright.judge.stack.traces import TraceSpan, read_otlp, to_hexadecimal
from queenright.judge.stack.workers import Sighting
from queenright.runtime.events import EventType
from tests.judge.stack_parts import make_loop_trace, make_otlp_span, make_tempo_trace

NOW = 1_800_000_000.0
TRACE = "0af7651916cd43dd8448eb211c80319c"


def make_sighting(**changes: Any) -> Sighting:
    """Return an agent that has worked for an hour, with activity and progress ten seconds ago."""
    sighting = Sighting(
        "researcher",
        "workers/host:9464",
        process_started=NOW - 3600,
        last_heartbeat=NOW - 20,
        last_activity=NOW - 10,
        last_progress=NOW - 10,
        steps=100,
        tool_calls={"search": (80, 2)},
        recent_calls={"search": (20.0, 0.0)},
    )
    return replace(sighting, **changes)


def read_health(sighting: Sighting, **options: Any) -> WorkerHealth:
    return build_health(sighting, HealthSettings(), NOW, **options)


def find_severities(sighting: Sighting, **options: Any) -> dict[FindingKind, Severity]:
    return {
        finding.kind: finding.severity
        for finding in read_health(sighting, **options).findings
        if finding.ticket
    }


def test_progressing_worker_is_healthy() -> None:
    health = read_health(make_sighting())

    assert health.state is HealthState.HEALTHY
    assert health.findings == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bad_steps": 9}, {}),
        ({"bad_steps": 14}, {}),
        ({"bad_steps": 14, "last_progress": NOW - 1000}, "medium"),
        ({"bad_steps": 15}, "high"),
        ({"bad_steps": 20}, "critical"),
    ],
)
def test_bad_steps_are_judged_by_the_bands(changes: dict[str, Any], expected: str) -> None:
    severity = find_severities(make_sighting(**changes)).get(FindingKind.RETRY_STORM)

    assert severity == (Severity(expected) if expected else None)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "160 bad steps since the last ACCEPT"),
        (
            {"last_progress": NOW - 1000},
            "160 bad steps since the last ACCEPT, 160 of them repeats",
        ),
    ],
)
def test_repeats_are_stated_only_if_known(changes: dict[str, Any], expected: str) -> None:
    [evidence] = [
        finding.evidence
        for finding in read_health(make_sighting(bad_steps=160, **changes)).findings
        if finding.kind is FindingKind.RETRY_STORM
    ]

    assert evidence == expected


@pytest.mark.parametrize(
    ("changes", "is_stalled"),
    [
        ({"last_activity": NOW - 899}, False),
        ({"last_activity": NOW - 900}, True),
        ({"last_activity": NOW - 900, "waiting": WaitingReason.USER_INPUT}, False),
        # For a process that is down, the time before its last heartbeat counts.
        ({"last_activity": NOW - 900, "last_heartbeat": NOW - 890, "is_down": True}, False),
        ({"last_activity": NOW - 1800, "last_heartbeat": NOW - 890, "is_down": True}, True),
        # The worker reported the phase in which it stalled.
        ({"last_activity": NOW - 240, "stalled_in": "llm"}, True),
        ({"last_activity": NOW - 240, "stalled_in": "idle"}, True),
        ({"last_activity": NOW - 599, "stalled_in": "tool"}, False),
        ({"last_activity": NOW - 239, "stalled_in": "llm"}, False),
    ],
)
def test_silence_beyond_the_limit_of_its_phase_is_a_stall(changes: dict[str, Any], is_stalled: bool) -> None:
    severity = find_severities(make_sighting(**changes)).get(FindingKind.STALL)

    assert severity is (Severity.CRITICAL if is_stalled else None)


def test_fifteen_minutes_of_calls_without_new_results_are_zero_progress() -> None:
    sighting = make_sighting(last_progress=NOW - 901, recent_calls={"search": (6.4, 0.0), "read": (3.2, 0.0)})

    assert find_severities(sighting) == {FindingKind.ZERO_PROGRESS: Severity.HIGH}
    assert find_severities(replace(sighting, last_progress=NOW - 899)) == {}
    assert find_severities(replace(sighting, recent_calls={"search": (3.9, 0.0)})) == {}


def test_share_of_failed_calls_is_a_finding_without_a_ticket() -> None:
    health = read_health(make_sighting(recent_calls={"search": (10.0, 6.0)}))

    assert [(finding.kind, finding.ticket) for finding in health.findings] == [
        (FindingKind.ERROR_RATE, False)
    ]
    assert "search 10 (6 failed)" in health.vitals.evidence


def test_missing_heartbeat_is_found_only_after_earlier_heartbeats() -> None:
    sighting = make_sighting(last_heartbeat=NOW - 600, last_activity=NOW - 600, waiting=None)

    assert FindingKind.HEARTBEAT_MISSING in find_severities(sighting)
    assert FindingKind.HEARTBEAT_MISSING not in find_severities(replace(sighting, last_heartbeat=None))


def test_new_process_has_its_start_grace() -> None:
    sighting = make_sighting(bad_steps=30)

    assert find_severities(replace(sighting, process_started=NOW - 60)) == {}
    assert find_severities(replace(sighting, process_started=None, is_in_grace=True)) == {}
    assert find_severities(replace(sighting, process_started=NOW - 121)) != {}


def test_known_worker_without_a_start_time_is_past_its_grace() -> None:
    recent_sighting = dict.fromkeys(("last_heartbeat", "last_activity"), NOW - 5)
    sighting = make_sighting(bad_steps=30, process_started=None, last_progress=None, **recent_sighting)

    assert find_severities(sighting) == {FindingKind.RETRY_STORM: Severity.CRITICAL}
    assert find_severities(replace(sighting, is_down=True)) == {FindingKind.RETRY_STORM: Severity.CRITICAL}
    assert find_severities(replace(sighting, is_in_grace=True)) == {}


def test_values_unknown_to_metrics_are_null() -> None:
    summary = summarise(read_health(make_sighting(bad_steps=15)), NOW)

    unknown_keys = {key for key, value in summary.items() if value is None}
    assert unknown_keys >= {"node_id", "recent_verdicts", "incarnation_id", "tool", "open_breakers"}
    assert summary["phase"] == "unknown"
    assert summary["total_steps"] == 100
    assert summary["steps_since_last_accept"] == 15
    assert summary["tool_calls_total"] == 80


def test_rules_write_a_ticket_from_a_summary_with_nulls() -> None:
    summary = summarise(read_health(make_sighting(bad_steps=15)), NOW)

    draft = ticket_policy.draft_ticket(summary)

    assert draft is not None
    assert draft.severity == "high"
    assert "calls in the last 15 min: search 20" in draft.evidence_snippet


def test_worker_without_metrics_has_ended() -> None:
    health = ended_health("researcher", "workers/host:9464", HealthSettings(), NOW)

    assert health.vitals.has_ended
    assert health.findings == ()


def test_times_in_the_future_are_tolerated() -> None:
    sighting = make_sighting(last_activity=NOW + 500, last_progress=NOW + 500, last_heartbeat=NOW + 500)

    assert read_health(sighting).state is HealthState.HEALTHY


@given(
    times=st.lists(st.none() | st.floats(0, 4e9), min_size=5, max_size=5),
    bad_steps=st.integers(0, 10**6),
    calls=st.floats(0, 1e6),
    error_share=st.floats(0, 1),
    phase=st.sampled_from(["", "idle", "llm", "tool", "unknown", "rubbish"]),
    waiting_reason=st.none() | st.sampled_from(list(WaitingReason)),
)
def test_any_metrics_are_accepted(
    times: list[float | None],
    bad_steps: int,
    calls: float,
    error_share: float,
    phase: str,
    waiting_reason: WaitingReason | None,
) -> None:
    names = ("process_started", "last_heartbeat", "last_activity", "last_progress", "last_checkpoint")
    sighting = make_sighting(
        **dict(zip(names, times, strict=True)),
        bad_steps=bad_steps,
        recent_calls={"t": (calls, calls * error_share)},
        stalled_in=phase,
        waiting=waiting_reason,
    )

    health = read_health(sighting)

    assert summarise(health, NOW)["state"] == health.state.value
    if waiting_reason not in (None, WaitingReason.HELD):
        assert FindingKind.STALL not in {finding.kind for finding in health.findings}


# -- traces -----------------------------------------------------------------------------------------


def test_loop_invisible_in_metrics_is_found_in_the_trace() -> None:
    sighting = make_sighting(bad_steps=6)
    spans = read_otlp(make_loop_trace("researcher", begin=NOW - 30, calls=11))

    health = read_health(sighting, spans=spans, trace_id=TRACE)

    assert find_severities(sighting) == {}
    assert {finding.kind: finding.severity for finding in health.findings}[
        FindingKind.DOOM_LOOP
    ] is Severity.HIGH
    summary = summarise(health, NOW)
    assert summary["node_id"] == "search_node"
    assert summary["trace_id"] == TRACE
    assert summary["recent_verdicts"] == ["CONTINUE"] * 11


def test_trace_of_an_earlier_session_is_ignored() -> None:
    spans = read_otlp(make_loop_trace("researcher", begin=NOW - 900, calls=11))

    assert find_severities(make_sighting(bad_steps=6), spans=spans, trace_id=TRACE) == {}


def test_spans_of_another_agent_in_the_trace_are_ignored() -> None:
    spans = read_otlp(make_loop_trace("somebody_else", begin=NOW - 30, calls=11))

    assert build_events(spans, "researcher") == []


def test_parallel_calls_are_one_turn_and_sequential_calls_are_not() -> None:
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
    chat = {"gen_ai.operation.name": "chat"}

    def find_turns(*spans: dict[str, Any]) -> list[Any]:
        events = build_events(read_otlp(make_tempo_trace(*spans)), "researcher")
        return [event.data["turn"] for event in events if event.type is EventType.TOOL_CALL_COMPLETED]

    parallel = find_turns(
        make_otlp_span("execute_tool search", 1, 3, span_id="1" * 16, **tool),
        make_otlp_span("execute_tool search", 2, 4, span_id="2" * 16, **tool),
    )
    sequential = find_turns(
        make_otlp_span("execute_tool search", 1, 2, span_id="1" * 16, **tool),
        make_otlp_span("execute_tool search", 3, 4, span_id="2" * 16, **tool),
    )
    after_model_call = find_turns(
        make_otlp_span("chat m", 0, 1, span_id="c" * 16, **chat),
        make_otlp_span("execute_tool search", 1, 2, span_id="1" * 16, **tool),
        make_otlp_span("execute_tool search", 3, 4, span_id="2" * 16, **tool),
    )

    assert len(set(parallel)) == 1
    assert len(set(sequential)) == 2
    assert set(after_model_call) == {"c" * 16}


def test_both_trace_apis_of_tempo_and_both_encodings_of_ids_are_read() -> None:
    batches = make_loop_trace("researcher", begin=NOW, calls=1)
    resource_spans = {"trace": {"resourceSpans": batches["batches"]}}

    assert read_otlp(batches) == read_otlp(resource_spans)
    assert [span.span_id for span in read_otlp(batches)] == [f"{1000:016x}", f"{1:016x}"]
    assert to_hexadecimal("B7AD6B7169203331") == "b7ad6b7169203331"
    assert to_hexadecimal("t61rcWkgMzE=") == "b7ad6b7169203331"


def test_failed_span_has_its_error_message() -> None:
    trace = make_tempo_trace(make_otlp_span("execute_tool search", 1, 2, error="no such host"))

    [span] = read_otlp(trace)

    assert span.error == "no such host"


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "batches",
                        "resourceSpans",
                        "trace",
                        "scopeSpans",
                        "spans",
                        "attributes",
                        "key",
                        "value",
                        "resource",
                        "status",
                        "events",
                        "name",
                        "intValue",
                        "startTimeUnixNano",
                    ]
                ),
                inner,
            )
        ),
    )
)
def test_invalid_trace_raises_only_value_error(answer: Any) -> None:
    try:
        spans = read_otlp(answer)
    except ValueError:
        return
    assert all(isinstance(span, TraceSpan) for span in spans)
