"""Limits of a worker's process: resources, its model's context, and its own breakers."""

from __future__ import annotations

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind, Severity
from queenright.runtime.events import EventType
from tests.health.worker_script import WorkerScript

RESOURCE_LIMIT = FindingKind.RESOURCE_LIMIT
CONTEXT_EXHAUSTED = FindingKind.CONTEXT_EXHAUSTED


def make_worker() -> WorkerScript:
    script = WorkerScript().start()
    script.report_step("ACCEPT", after=130)
    return script


def report_resource(script: WorkerScript, used_amount: float, resource: str = "memory") -> None:
    script.report_event(
        EventType.RESOURCE_REPORTED, {"resource": resource, "used": used_amount, "limit": 1000.0}
    )


def test_resource_near_its_limit_is_shown_and_beyond_it_has_a_ticket() -> None:
    """A later report also ends the finding."""
    script = make_worker()
    report_resource(script, 899)
    before = script.get_finding(RESOURCE_LIMIT)
    report_resource(script, 900)
    near_finding = script.get_finding(RESOURCE_LIMIT)
    report_resource(script, 1000)
    beyond = script.get_finding(RESOURCE_LIMIT)
    state = script.state
    report_resource(script, 100)

    assert before is None
    assert near_finding is not None
    assert beyond is not None
    assert (near_finding.severity, near_finding.ticket) == (Severity.LOW, False)
    assert (beyond.severity, beyond.ticket) == (Severity.HIGH, True)
    assert beyond.evidence == "memory 100% used (1000 of 1000)"
    assert beyond.since == near_finding.since + 1
    assert state is HealthState.DEGRADED
    assert script.get_finding(RESOURCE_LIMIT) is None


def test_worst_resources_are_named_and_a_new_incarnation_has_none() -> None:
    script = make_worker()
    for number, amount in enumerate([950, 1200, 10]):
        report_resource(script, amount, f"disk {number}")
    finding = script.get_finding(RESOURCE_LIMIT)
    script.report_event(EventType.EXECUTION_COMPLETED)
    script.report_event(EventType.EXECUTION_STARTED)

    assert finding is not None
    assert finding.evidence == "disk 1 120% used (1200 of 1000), disk 0 95% used (950 of 1000)"
    assert script.health.vitals.resources == ()


@pytest.mark.parametrize("limit", [0, -1, None, "1000", True, float("inf"), float("nan")])
def test_report_without_a_limit_is_not_a_finding(limit: object) -> None:
    script = make_worker()

    script.report_event(EventType.RESOURCE_REPORTED, {"resource": "memory", "used": 5.0, "limit": limit})

    assert script.health.vitals.resources == ()


def report_answer(script: WorkerScript, tokens: int, *, truncated: bool = True) -> None:
    data = {"input_tokens": tokens, "output_tokens": 50} | ({"truncated": True} if truncated else {})
    script.report_event(EventType.LLM_CALL_COMPLETED, data)


def test_answers_cut_off_while_the_input_grows_are_an_exhausted_context() -> None:
    """This is found before the provider refuses a call."""
    script = make_worker()
    report_answer(script, 1000)
    report_answer(script, 1400)
    before = script.get_finding(CONTEXT_EXHAUSTED)
    report_answer(script, 1900)
    finding = script.get_finding(CONTEXT_EXHAUSTED)
    report_answer(script, 2000, truncated=False)

    assert before is None
    assert finding is not None
    assert (finding.severity, finding.ticket) == (Severity.MEDIUM, True)
    assert all(part in finding.evidence for part in ("3 answers", "1,000", "1,900"))
    assert script.get_finding(CONTEXT_EXHAUSTED) is None


def test_answers_cut_off_by_an_output_limit_are_not_exhausted_context() -> None:
    """The input does not grow."""
    script = make_worker()

    for _ in range(9):
        report_answer(script, 1000)

    assert script.get_finding(CONTEXT_EXHAUSTED) is None


@pytest.mark.parametrize("growth", [0, 100])
def test_answers_cut_off_with_a_long_input_get_worse(growth: int) -> None:
    """A harness may repeat the input, or append the answer that was cut off."""
    script = make_worker()
    severities = []

    for n in range(20):
        report_answer(script, 199_000 + n * growth)
        finding = script.get_finding(CONTEXT_EXHAUSTED)
        severities.append(finding.severity if finding else None)

    levels = [None, None, Severity.MEDIUM, Severity.MEDIUM, Severity.HIGH]
    assert severities[:5] == levels
    assert severities[-1] is Severity.CRITICAL


def test_answers_cut_off_with_a_short_input_never_page() -> None:
    """The agent may ask for short answers about texts that happen to get longer."""
    script = make_worker()

    for n in range(30):
        report_answer(script, 300 + n)

    finding = script.get_finding(CONTEXT_EXHAUSTED)
    assert finding is not None
    assert finding.severity is Severity.MEDIUM


def test_open_process_breaker_is_shown_until_it_closes_or_the_process_ends() -> None:
    script = make_worker()
    script.report_event(EventType.BREAKER_REPORTED, {"name": "maps", "to": "open"})
    finding = script.get_finding(FindingKind.CIRCUIT_BREAKER_OPEN)
    state = script.state
    script.report_event(EventType.BREAKER_REPORTED, {"name": "maps", "to": "closed"})
    finding_after_close = script.get_finding(FindingKind.CIRCUIT_BREAKER_OPEN)
    script.report_event(EventType.BREAKER_REPORTED, {"name": "maps", "to": "open"})
    script.report_event(EventType.EXECUTION_COMPLETED)
    script.report_event(EventType.EXECUTION_STARTED)

    assert finding is not None
    assert finding.evidence == "circuit breaker open: process maps"
    assert state is HealthState.FAILING
    assert finding_after_close is None
    assert script.get_finding(FindingKind.CIRCUIT_BREAKER_OPEN) is None
