"""Healthy work with repeats that are not a loop."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from queenright.health.findings import FindingKind, Severity
from queenright.instrumentation.effects import get_effect_facts
from queenright.instrumentation.fingerprint import arguments_fingerprint, result_fingerprint
from queenright.runtime.events import EventType
from tests.health.test_detectors import start_worker
from tests.health.worker_script import WorkerScript

LOOP = FindingKind.DOOM_LOOP


def report_call(script: WorkerScript, tool: str, arguments: object, result: object, **data: Any) -> None:
    """Report a call after a model's answer, as OTLP spans do."""
    script.report_event(EventType.LLM_CALL_COMPLETED, {"output_tokens": 9})
    script.report_call(
        tool,
        args=arguments_fingerprint(arguments),
        result=result_fingerprint(result, arguments),
        **{**get_effect_facts(tool, arguments), **data},
    )


def assert_is_healthy(script: WorkerScript) -> None:
    assert [finding for finding in script.health.findings if finding.ticket] == []


def make_uuid(n: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, str(n)))


# -- one item after another ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        ("archive_email", lambda n: {"message_id": 1001 + n}, "archived"),
        ("cancel_run", lambda n: {"run_id": 50 + n}, "cancelled"),
        ("accept_invite", lambda n: {"event_id": f"evt-{n}"}, "accepted"),
        ("delete_message", lambda n: {"channel": "C1", "ts": f"1512085950.{n:06}"}, "ok"),
        ("approve_invoice", lambda n: {"invoice_id": make_uuid(n)}, "approved"),
        ("approve_invoice", lambda n: {"invoice_id": uuid.UUID(make_uuid(n)).hex[:24]}, "approved"),
        ("approve_request", lambda n: {"request_id": make_uuid(n)}, "approved"),
        ("approve_request", lambda n: {"request_id": n, "decision": "yes"}, "approved"),
        ("check_order", lambda n: {"order": make_uuid(n)}, "shipped"),
        ("list_orders", lambda n: {"created_at": f"2026-01-05T10:00:{n + 1:02}Z"}, "[]"),
        ("bash", lambda n: {"command": f"curl -X DELETE https://x.example/users/{make_uuid(n)}"}, ""),
        (
            "bash",
            lambda n: {
                "command": f"aws ec2 terminate-instances --id i-{uuid.UUID(make_uuid(n)).hex[:17]}",
            },
            "terminated",
        ),
    ],
)
def test_equal_answers_for_different_ids_are_work(tool: str, arguments: Any, result: str) -> None:
    script = start_worker()
    for n in range(25):
        report_call(script, tool, arguments(n), result)

    assert_is_healthy(script)
    assert script.get_finding(LOOP) is None


@pytest.mark.parametrize("job", [lambda n: {"job": make_uuid(n), "n": n}, lambda n: {"job": make_uuid(n)}])
def test_queue_of_jobs_never_pages(job: Any) -> None:
    script = start_worker()
    for n in range(25):
        report_call(script, "get_next_job", {}, job(n))
        report_call(script, "complete_job", {"job": make_uuid(n)}, "done")
        assert all(finding.severity.rank <= Severity.MEDIUM.rank for finding in script.health.findings)


# -- answers of a person ------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["ask_user", "AskUserQuestion", "mcp__ui__ask_human"])
def test_equal_answers_of_a_person_are_not_a_loop(tool: str) -> None:
    script = start_worker()
    for n in range(25):
        report_call(script, tool, {"question": "Continue?"}, "yes")
        report_call(script, "read_file", {"path": f"{n}.py"}, f"text {n}")

    assert_is_healthy(script)
    assert script.get_finding(LOOP) is None


def test_answer_of_a_person_ends_a_repeat() -> None:
    script = start_worker()
    for _ in range(6):
        report_call(script, "read_file", {"path": "a.py"}, "text")
    assert script.get_finding(LOOP) is not None
    report_call(script, "ask_user", {"question": "Continue?"}, "yes")

    assert script.get_finding(LOOP) is None


def test_failed_question_does_not_end_a_repeat() -> None:
    script = start_worker()
    for _ in range(6):
        report_call(script, "read_file", {"path": "a.py"}, "text")
    report_call(
        script, "ask_user", {"question": "Continue?"}, "no user", outcome="error", error_type="no_user"
    )

    assert script.get_finding(LOOP) is not None


def test_answer_of_a_harness_does_not_end_a_repeat() -> None:
    """A person does not answer within 10 ms."""
    script = start_worker()
    for _ in range(12):
        report_call(script, "read_file", {"path": "a.py"}, "text")
        report_call(
            script, "ask_user", {"question": "Continue?"}, "No user is here; continue.", duration=0.01
        )

    assert script.get_finding(LOOP) is not None


# -- actions and observations -----------------------------------------------------------------------

STEPS = [
    ("click", {"selector": "#next"}, "Clicked", "get_page", {}),
    ("browser_scroll", {"by": 400}, "ok", "extract_text", {}),
    ("scroll", {"direction": "down"}, "scrolled", "screenshot", {}),
    ("send_keys", {"keys": "Enter"}, "sent", "read_screen", {}),
    ("browser_click", {"ref": "e12"}, "Clicked", "browser_snapshot", {"full": True}),
    ("next_page", {}, "ok", "read_table", {"table": 1}),
]


@pytest.mark.parametrize(("action_tool", "arguments", "answer", "observation_tool", "index"), STEPS)
@pytest.mark.parametrize("times", [1, 2])
def test_action_that_shows_something_new_each_time_is_work(
    action_tool: str, arguments: object, answer: str, observation_tool: str, index: object, times: int
) -> None:
    script = start_worker()
    for n in range(25):
        for _ in range(times):
            report_call(script, action_tool, arguments, answer)
        report_call(script, observation_tool, index, f"chapter {n} of the book")
        # Two parallel calls may be a repeat until the second observation.
        assert all(finding.severity.rank <= Severity.MEDIUM.rank for finding in script.health.findings)

    assert_is_healthy(script)


@pytest.mark.parametrize(("action_tool", "arguments", "answer", "observation_tool", "index"), STEPS)
def test_action_that_cycles_through_the_same_pages_is_a_loop(
    action_tool: str, arguments: object, answer: str, observation_tool: str, index: object
) -> None:
    script = start_worker()
    for n in range(12):
        report_call(script, action_tool, arguments, answer)
        report_call(script, observation_tool, index, f"chapter {n % 2} of the book")

    finding = script.get_finding(LOOP)
    assert finding is not None
    assert finding.severity.rank >= Severity.HIGH.rank


def test_failing_action_is_a_loop_whatever_is_shown() -> None:
    script = start_worker()
    for n in range(6):
        report_call(
            script, "click", {"selector": "#next"}, "no such element", outcome="error", error_type="missing"
        )
        report_call(script, "get_page", {}, f"advertisement {n}")

    finding = script.get_finding(LOOP)
    assert finding is not None
    assert finding.severity is Severity.HIGH


# -- failures that are reported as text ----------------------------------------------------------------------

FAILURES = [
    ("http_get", {"url": "https://x.example"}, "Error: connection refused (attempt {n})"),
    ("http_get", {"url": "https://x.example"}, "request to port 80 refused after 2 tries [{n}]"),
    ("bash", "python train.py", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.{n} GiB"),
    (
        "bash",
        "python train.py",
        'Traceback (most recent call last):\n  File "a.py"\nTried to allocate 2.{n} GiB',
    ),
    ("bash", "docker compose up -d", " Network a  Created\n Container db  Error 1{n}.{n}s\nunhealthy"),
]


@pytest.mark.parametrize(("tool", "arguments", "result"), FAILURES)
def test_failure_in_words_with_other_numbers_is_the_same_failure(
    tool: str, arguments: object, result: str
) -> None:
    script = start_worker()
    for n in range(6):
        report_call(script, tool, arguments, result.format(n=n))

    finding = script.get_finding(LOOP)
    assert finding is not None
    assert finding.severity is Severity.HIGH


@pytest.mark.parametrize(
    "result",
    [
        "Error: {n} of 90 tests failed",
        "Error summary: {n} errors",
        "Error: tests: {n}",
        "Error in an earlier part, {n}/90 done",
        "Error in an earlier part, {n}% done",
        "error rate now {n}.2",
        "row {n}",
    ],
)
def test_counts_and_progress_differ(result: str) -> None:
    first_fingerprint, second_fingerprint = (
        result_fingerprint(result.format(n=n), {"path": "a"}) for n in (1, 2)
    )

    assert first_fingerprint != second_fingerprint


@pytest.mark.parametrize(("tool", "arguments", "result"), FAILURES[1:])
def test_numbers_of_failures_differ_for_other_arguments(tool: str, arguments: object, result: str) -> None:
    """An attempt number is ignored, because it does not describe the failure."""
    first_fingerprint, second_fingerprint = (
        result_fingerprint(result.format(n=n), f"{arguments} {n}") for n in (1, 2)
    )

    assert first_fingerprint != second_fingerprint


# -- several traces of one session ----------------------------------------------------------------------


def test_equal_calls_of_parallel_traces_are_not_in_a_row() -> None:
    script = start_worker()
    for n in range(8):
        for trace in range(6):
            script.trace = f"{trace + 1:032x}"
            report_call(script, "read_file", {"path": f"{n}.py"}, f"text {n}", after=0.1, duration=8.0)
        script.now += 10

    assert_is_healthy(script)
    assert script.get_finding(LOOP) is None


@pytest.mark.parametrize("duration", [0.5, 1.0])
def test_loop_beside_another_trace_is_found(duration: float) -> None:
    script = start_worker()
    for n in range(8):
        script.trace = "1" * 32
        report_call(script, "read_file", {"path": "a.py"}, "text", duration=duration)
        script.trace = "2" * 32
        report_call(script, "read_file", {"path": f"{n}.py"}, f"text {n}", duration=3.0)

    finding = script.get_finding(LOOP)
    assert finding is not None
    assert finding.severity is Severity.HIGH


def test_loop_of_one_trace_after_another_is_found() -> None:
    script = start_worker()
    for n in range(6):
        script.trace = f"{n + 1:032x}"
        report_call(script, "read_file", {"path": "a.py"}, "text", duration=0.5)

    finding = script.get_finding(LOOP)
    assert finding is not None
    assert finding.severity is Severity.HIGH
