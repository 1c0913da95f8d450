"""Work of healthy agents that repeats something and is no loop."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from queenright.health.findings import FindingKind, Severity
from queenright.instrumentation.effects import effect_facts
from queenright.instrumentation.fingerprint import arguments_fingerprint, result_fingerprint
from queenright.runtime.events import EventType
from tests.health.test_detectors import worker
from tests.health.worker_script import WorkerScript

LOOP = FindingKind.DOOM_LOOP


def call(script: WorkerScript, tool: str, arguments: object, result: object, **data: Any) -> None:
    """Report a call after a model's answer, as OTLP spans do."""
    script.event(EventType.LLM_CALL_COMPLETED, {"output_tokens": 9})
    script.call(
        tool,
        args=arguments_fingerprint(arguments),
        result=result_fingerprint(result, arguments),
        **{**effect_facts(tool, arguments), **data},
    )


def assert_is_healthy(script: WorkerScript) -> None:
    assert [finding for finding in script.health.findings if finding.ticket] == []


def uuid_of(n: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, str(n)))


# -- one item after another ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        ("archive_email", lambda n: {"message_id": 1001 + n}, "archived"),
        ("cancel_run", lambda n: {"run_id": 50 + n}, "cancelled"),
        ("accept_invite", lambda n: {"event_id": f"evt-{n}"}, "accepted"),
        ("delete_message", lambda n: {"channel": "C1", "ts": f"1512085950.{n:06}"}, "ok"),
        ("approve_invoice", lambda n: {"invoice_id": uuid_of(n)}, "approved"),
        ("approve_invoice", lambda n: {"invoice_id": uuid.UUID(uuid_of(n)).hex[:24]}, "approved"),
        ("approve_request", lambda n: {"request_id": uuid_of(n)}, "approved"),
        ("approve_request", lambda n: {"request_id": n, "decision": "yes"}, "approved"),
        ("check_order", lambda n: {"order": uuid_of(n)}, "shipped"),
        ("list_orders", lambda n: {"created_at": f"2026-01-05T10:00:{n + 1:02}Z"}, "[]"),
        ("bash", lambda n: {"command": f"curl -X DELETE https://x.example/users/{uuid_of(n)}"}, ""),
        (
            "bash",
            lambda n: {
                "command": f"aws ec2 terminate-instances --id i-{uuid.UUID(uuid_of(n)).hex[:17]}",
            },
            "terminated",
        ),
    ],
)
def test_equal_answers_for_different_ids_are_work(tool: str, arguments: Any, result: str) -> None:
    script = worker()
    for n in range(25):
        call(script, tool, arguments(n), result)

    assert_is_healthy(script)
    assert script.finding(LOOP) is None


@pytest.mark.parametrize("job", [lambda n: {"job": uuid_of(n), "n": n}, lambda n: {"job": uuid_of(n)}])
def test_queue_of_jobs_never_pages(job: Any) -> None:
    script = worker()
    for n in range(25):
        call(script, "get_next_job", {}, job(n))
        call(script, "complete_job", {"job": uuid_of(n)}, "done")
        assert all(finding.severity.rank <= Severity.MEDIUM.rank for finding in script.health.findings)


# -- answers of a person ------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["ask_user", "AskUserQuestion", "mcp__ui__ask_human"])
def test_equal_answers_of_a_person_are_no_loop(tool: str) -> None:
    script = worker()
    for n in range(25):
        call(script, tool, {"question": "Continue?"}, "yes")
        call(script, "read_file", {"path": f"{n}.py"}, f"text {n}")

    assert_is_healthy(script)
    assert script.finding(LOOP) is None


def test_answer_of_a_person_ends_a_repeat() -> None:
    script = worker()
    for _ in range(6):
        call(script, "read_file", {"path": "a.py"}, "text")
    assert script.finding(LOOP) is not None
    call(script, "ask_user", {"question": "Continue?"}, "yes")

    assert script.finding(LOOP) is None


def test_failed_question_does_not_end_a_repeat() -> None:
    script = worker()
    for _ in range(6):
        call(script, "read_file", {"path": "a.py"}, "text")
    call(script, "ask_user", {"question": "Continue?"}, "no user", outcome="error", error_type="no_user")

    assert script.finding(LOOP) is not None
