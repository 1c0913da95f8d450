"""While a tool asks the user a question, the worker waits until the call ends."""

from __future__ import annotations

import pytest

from queenright.health.findings import FindingKind, Severity
from queenright.instrumentation.names import WaitingReason
from queenright.runtime.events import EventType
from tests.health.worker_script import WorkerScript


def make_worker_with_open_question(*tools: str) -> WorkerScript:
    script = WorkerScript().start()
    for tool in tools:
        script.report_event(EventType.TOOL_CALL_STARTED, {"tool": tool, "call_id": f"of {tool}"})
    return script


def get_stall(script: WorkerScript) -> Severity | None:
    finding = script.get_finding(FindingKind.STALL)
    return finding.severity if finding else None


@pytest.mark.parametrize("tool", ["AskUserQuestion", "ask_user", "request_user_input", "ExitPlanMode"])
def test_open_question_is_not_a_stall(tool: str) -> None:
    script = make_worker_with_open_question(tool)

    script.stay_silent(4 * 3600.0)

    assert script.health.vitals.waiting is WaitingReason.USER_INPUT
    assert script.health.vitals.question == tool
    assert get_stall(script) is None


def test_open_question_outlasts_parallel_calls() -> None:
    script = make_worker_with_open_question("AskUserQuestion", "Read")
    script.report_call("Read", call_id="of Read")

    script.stay_silent(3600.0)

    assert get_stall(script) is None


def test_tool_without_a_question_stalls() -> None:
    script = make_worker_with_open_question("Bash")

    script.stay_silent(3600.0)

    assert get_stall(script) is Severity.CRITICAL


def test_worker_silent_after_the_answer_stalls() -> None:
    script = make_worker_with_open_question("AskUserQuestion")
    script.report_call("AskUserQuestion", call_id="of AskUserQuestion", after=600.0)

    script.stay_silent(3600.0)

    assert script.health.vitals.waiting is None
    assert get_stall(script) is Severity.CRITICAL


def test_worker_that_continues_without_the_answer_stalls() -> None:
    script = make_worker_with_open_question("AskUserQuestion")
    script.report_event(EventType.LLM_CALL_STARTED)

    script.stay_silent(3600.0)

    assert get_stall(script) is Severity.CRITICAL


def test_answer_to_one_of_two_questions_leaves_the_other_open() -> None:
    script = make_worker_with_open_question("AskUserQuestion", "ask_user")
    script.report_call("AskUserQuestion", call_id="of AskUserQuestion")

    script.stay_silent(3600.0)

    assert get_stall(script) is None


def test_repeated_wait_without_its_question_keeps_it() -> None:
    """A node of the runtime asks its user, then reports that it waits."""
    script = WorkerScript().start()
    script.report_event(EventType.CLIENT_INPUT_REQUESTED, {"question": "Which branch?"})
    script.report_event(EventType.WORKER_WAITING, {"reason": "user_input"})
    assert script.health.vitals.question == "Which branch?"

    script.report_event(EventType.WORKER_WAITING, {"reason": None})
    script.report_event(EventType.WORKER_WAITING, {"reason": "user_input"})
    assert script.health.vitals.question == ""
