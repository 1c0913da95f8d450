"""Spans and records with impossible times are dated by their arrival, and no data is lost."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.server.telemetry.advice import list_advice
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.intake import Intake
from tests.server.otlp.framework_spans import NOW, chat, decode, get_event, invoke, tool

YEAR = 366 * 86_400.0


@pytest.mark.parametrize(
    ("start", "end", "at", "duration"),
    [
        (74 * YEAR, 74 * YEAR + 2, NOW, 2.0),
        (-50 * YEAR, -50 * YEAR + 2, NOW, 2.0),
        (-1.0, 74 * YEAR, NOW, None),
        (0.0, 100 * 86_400.0, NOW, None),
        (-50 * YEAR, 0.0, NOW - 100, None),
        (50.0, 20.0, NOW - 80, None),
    ],
)
def test_call_with_an_impossible_time_is_used(
    start: float, end: float, at: float, duration: float | None
) -> None:
    call = tool(2, 1, start=start, end=end, attributes={"gen_ai.tool.call.arguments": "{}"})
    decoded = decode(call)

    event = get_event(decoded, "tool_call_completed")
    assert event.time == at
    assert event.data["tool"] == "search"
    assert event.data["duration"] == duration
    assert get_event(decoded, "execution_started").time <= at


def test_work_after_a_span_from_the_future_is_recorded() -> None:
    memory = Assembler()
    decode(chat(2, 1, start=74 * YEAR, end=74 * YEAR), invoke(1, "a", start=-1, end=74 * YEAR), memory=memory)
    later = decode(chat(4, 3, start=150.0, end=160.0), memory=memory)

    assert get_event(later, "execution_started")
    assert get_event(later, "llm_call_completed").time == NOW + 60


def test_impossible_times_do_not_hide_a_stall() -> None:
    monitor = HealthMonitor(HealthSettings())
    for event in decode(chat(2, 1, start=74 * YEAR, end=74 * YEAR)).events:
        monitor.apply(event, NOW)

    monitor.advance(NOW + 901)

    [worker] = monitor.workers()
    assert [finding.kind for finding in worker.findings] == ["stall"]


def test_impossible_times_are_counted_and_reported_to_the_sender_once() -> None:
    intake = Intake(CollectorRegistry())
    spans = [tool(n, 1, start=74 * YEAR, end=74 * YEAR) for n in (2, 3)]

    notices = intake.add(decode(*spans).sources, NOW)
    later_notices = intake.add(decode(tool(4, 1, start=9.0, end=5.0)).sources, NOW + 10)

    [notice] = notices
    assert "'svc'" in notice
    assert "span 0000000000000002 of scope 'framework' ends at 2101-" in notice
    assert later_notices == []
    [source] = intake.sources
    assert (source.wrong_times, source.used_records) == (3, 3)
    [advice] = [notice for notice in list_advice(source) if "times" in notice.missing]
    assert advice.missing.startswith("impossible times in 3 records; the last: span 0000000000000004")
    assert "clock" in advice.remedy
