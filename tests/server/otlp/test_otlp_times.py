"""Spans and records with impossible times are dated by their arrival, and no data is lost."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.server.telemetry.advice import list_advice
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.intake import Intake
from tests.server.otlp.framework_spans import NOW, agent_span, chat_span, decode, get_event, tool_span

YEAR_SECONDS = 366 * 86_400.0


@pytest.mark.parametrize(
    ("start_time", "end_time", "event_time", "duration"),
    [
        (74 * YEAR_SECONDS, 74 * YEAR_SECONDS + 2, NOW, 2.0),
        (-50 * YEAR_SECONDS, -50 * YEAR_SECONDS + 2, NOW, 2.0),
        (-1.0, 74 * YEAR_SECONDS, NOW, None),
        (0.0, 100 * 86_400.0, NOW, None),
        (-50 * YEAR_SECONDS, 0.0, NOW - 100, None),
        (50.0, 20.0, NOW - 50, None),
        (104.0, 20.0, NOW, None),
    ],
)
def test_call_with_an_impossible_time_is_recorded(
    start_time: float, end_time: float, event_time: float, duration: float | None
) -> None:
    call = tool_span(2, 1, start=start_time, end=end_time, attributes={"gen_ai.tool.call.arguments": "{}"})
    decoded = decode(call)

    event = get_event(decoded, "tool_call_completed")
    assert event.time == event_time
    assert event.data["tool"] == "search"
    assert event.data["duration"] == duration
    assert get_event(decoded, "execution_started").time <= event_time


def test_work_after_a_span_from_the_future_is_recorded() -> None:
    memory = Assembler()
    decode(
        chat_span(2, 1, start=74 * YEAR_SECONDS, end=74 * YEAR_SECONDS),
        agent_span(1, "a", start=-1, end=74 * YEAR_SECONDS),
        memory=memory,
    )
    later_batch = decode(chat_span(4, 3, start=150.0, end=160.0), memory=memory)

    assert get_event(later_batch, "execution_started")
    assert get_event(later_batch, "llm_call_completed").time == NOW + 60


def test_impossible_times_do_not_hide_a_stall() -> None:
    monitor = HealthMonitor(HealthSettings())
    for event in decode(chat_span(2, 1, start=74 * YEAR_SECONDS, end=74 * YEAR_SECONDS)).events:
        monitor.apply(event, NOW)

    monitor.advance(NOW + 901)

    [worker] = monitor.workers()
    assert [finding.kind for finding in worker.findings] == ["stall"]


def test_impossible_times_are_counted_and_reported_to_the_sender_once() -> None:
    intake = Intake(CollectorRegistry())
    spans = [tool_span(index, 1, start=74 * YEAR_SECONDS, end=74 * YEAR_SECONDS) for index in (2, 3)]

    notices = intake.add(decode(*spans).sources, NOW)
    later_notices = intake.add(decode(tool_span(4, 1, start=9.0, end=5.0)).sources, NOW + 10)

    [notice] = notices
    assert "'svc'" in notice
    assert "span 0000000000000002 of scope 'framework' ends at 2101-" in notice
    assert later_notices == []
    [source] = intake.sources
    assert (source.wrong_times, source.used_records) == (3, 3)
    [advice] = [notice for notice in list_advice(source) if "times" in notice.missing]
    assert advice.missing.startswith("impossible times in 3 records; the last: span 0000000000000004")
    assert "clock" in advice.remedy
