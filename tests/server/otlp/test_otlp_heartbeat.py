"""Attributes of heartbeats and counters. Valid values become events, and impossible values are dropped."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from queenright.instrumentation import names
from queenright.runtime.events import AgentEvent
from queenright.server.otlp.decode import decode_logs
from queenright.server.telemetry.assembler import Assembler

NOW = 1_767_225_600.0


def decode(event: str, **attributes: AnyValue) -> AgentEvent:
    """
    Decode one record of ``event``, and return its event. Attribute names are given without ``queenright.``.
    """
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.event_name = event
    record.time_unix_nano = int(NOW * 1e9)
    for key, content in ((names.GEN_AI_AGENT_NAME, "bee"), (names.GEN_AI_CONVERSATION_ID, "s")):
        record.attributes.append(KeyValue(key=key, value=AnyValue(string_value=content)))
    for key, value in attributes.items():
        record.attributes.append(KeyValue(key="queenright." + key.replace("__", "."), value=value))
    [decoded] = decode_logs(request, Assembler(), NOW).events
    return decoded


def make_text(value: str) -> AnyValue:
    return AnyValue(string_value=value)


def test_every_heartbeat_attribute_is_decoded() -> None:
    event = decode(
        names.EVENT_HEARTBEAT,
        heartbeat__interval=AnyValue(double_value=300),
        heartbeat__phase=make_text("tool"),
        heartbeat__last_tool_call=AnyValue(double_value=NOW - 2.5),
        heartbeat__token_count=AnyValue(int_value=1200),
        heartbeat__error_count=AnyValue(int_value=0),
        heartbeat__progress=make_text("3 of 7"),
        task__id=make_text("forage"),
    )

    assert event.data == {
        "interval": 300.0,
        "phase": "tool",
        "last_tool_call": NOW - 2.5,
        "token_count": 1200,
        "error_count": 0,
        "progress_indicator": "3 of 7",
        "task_id": "forage",
    }


@pytest.mark.parametrize(
    "value",
    [
        AnyValue(),
        make_text(""),
        make_text("many"),
        make_text("nan"),
        AnyValue(int_value=-1),
        AnyValue(double_value=float("inf")),
        AnyValue(bytes_value=b"\x00"),
        AnyValue(bool_value=True),
    ],
)
def test_impossible_values_are_dropped(value: AnyValue) -> None:
    """B68: a damaged heartbeat shows that the process is alive, but adds no wrong numbers."""
    event = decode(
        names.EVENT_HEARTBEAT,
        heartbeat__last_tool_call=value,
        heartbeat__token_count=value,
        heartbeat__error_count=value,
    )

    assert event.data == {}


@pytest.mark.parametrize("seconds", [0.0, NOW + 2 * 86_400, 1e300])
def test_tool_call_with_an_impossible_time_is_ignored(seconds: float) -> None:
    assert decode(names.EVENT_HEARTBEAT, heartbeat__last_tool_call=AnyValue(double_value=seconds)).data == {}


def test_output_counts_are_the_reported_counts() -> None:
    event = decode(
        names.EVENT_OUTPUT,
        output__files_changed=AnyValue(int_value=4),
        output__tests_passed=AnyValue(int_value=0),
        output__tests_failed=AnyValue(int_value=-3),
    )

    assert (event.type, event.data) == ("output_reported", {"files_changed": 4, "tests_passed": 0})


def test_resource_and_circuit_breaker_records_are_events() -> None:
    resource = decode(
        names.EVENT_RESOURCE,
        resource__name=make_text("memory"),
        resource__used=AnyValue(int_value=9),
        resource__limit=AnyValue(double_value=10),
    )
    breaker = decode(
        names.EVENT_BREAKER, circuit_breaker__name=make_text("maps"), circuit_breaker__state=make_text("open")
    )

    assert (resource.type, resource.data) == (
        "resource_reported",
        {"resource": "memory", "used": 9.0, "limit": 10.0},
    )
    assert (breaker.type, breaker.data) == ("breaker_reported", {"name": "maps", "to": "open"})


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        (AnyValue(bool_value=True), {"control": True}),
        (make_text("true"), {"control": True}),
        (AnyValue(bool_value=False), {}),
        (make_text("perhaps"), {}),
    ],
)
def test_start_reports_whether_the_worker_accepts_instructions(
    flag: AnyValue, expected: dict[str, Any]
) -> None:
    event = decode(names.EVENT_AGENT_STARTED, control=flag, task__id=make_text("forage"))

    assert event.data == {"start_records": True, "task_id": "forage", **expected}
