"""Behavior of real agents that are stuck, and similar behavior of healthy ones."""

from __future__ import annotations

from typing import Any

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.instrumentation.effects import get_effect_facts
from queenright.instrumentation.fingerprint import NOTHING_FOUND, NOTHING_NEW, fingerprint, result_fingerprint
from queenright.runtime.events import EventType
from tests.health.test_detectors import start_worker
from tests.health.worker_script import WorkerScript

LOOP, STREAK, IDLE = FindingKind.DOOM_LOOP, FindingKind.ERROR_STREAK, FindingKind.NO_TOOL_CALLS
NO_PROGRESS = FindingKind.ZERO_PROGRESS
NO_GRACE_BLOCK = {"judge": {"start_grace_seconds": 0}}


def build_effect_data(tool: str, arguments: object) -> dict[str, Any]:
    return dict(get_effect_facts(tool, arguments))


def report_answers(script: WorkerScript, times: int) -> None:
    for _ in range(times):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"output_tokens": 9})


def report_turns_with_reads(script: WorkerScript, times: int = 3) -> None:
    for n in range(times):
        report_answers(script, 1)
        script.report_call("read", args=f"file {n}", result=f"text {n}")


def get_required_finding(script: WorkerScript, kind: FindingKind) -> Finding:
    finding = script.get_finding(kind)
    assert finding is not None
    return finding


# -- turns without work -------------------------------------------------------------------------------


def test_eight_answers_without_a_tool_call_are_a_finding_of_rising_severity() -> None:
    """B96: the text of the answers does not matter."""
    script = start_worker()
    report_turns_with_reads(script)
    report_answers(script, 7)
    assert script.get_finding(IDLE) is None
    report_answers(script, 1)

    finding = get_required_finding(script, IDLE)
    assert (finding.severity, finding.ticket) == (Severity.MEDIUM, True)
    assert "8 answers" in finding.evidence
    report_answers(script, 4)
    assert get_required_finding(script, IDLE).severity is Severity.HIGH
    report_answers(script, 8)
    assert get_required_finding(script, IDLE).severity is Severity.CRITICAL
    script.report_call("read", args="another", result="more")
    assert script.get_finding(IDLE) is None


def test_user_message_restarts_the_count() -> None:
    """B96: an agent in a conversation answers with text."""
    script = start_worker()
    report_turns_with_reads(script)
    for _ in range(5):
        report_answers(script, 7)
        script.report_event(EventType.CLIENT_INPUT_RECEIVED)

    assert script.get_finding(IDLE) is None


def test_parallel_model_answers_are_one_turn() -> None:
    script = start_worker()
    report_turns_with_reads(script)
    for _ in range(20):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"duration": 30.0}, after=0.5)

    assert script.get_finding(IDLE) is None


def test_answers_that_are_judged_continue_are_counted() -> None:
    """B96: CONTINUE is neutral, and is not a tool call."""
    script = start_worker()
    report_turns_with_reads(script)
    for _ in range(8):
        report_answers(script, 1)
        script.report_step("CONTINUE")

    assert (get_required_finding(script, IDLE).severity, get_required_finding(script, IDLE).ticket) == (
        Severity.MEDIUM,
        True,
    )


@pytest.mark.parametrize("verdict", ["ACCEPT", "RETRY", "ESCALATE"])
def test_answers_with_another_verdict_count_by_that_verdict(verdict: str) -> None:
    script = start_worker()
    report_turns_with_reads(script)
    for _ in range(20):
        report_answers(script, 1)
        script.report_step(verdict)

    assert script.get_finding(IDLE) is None


def test_model_calls_of_a_judge_add_no_turn() -> None:
    script = start_worker()
    for n in range(20):
        report_answers(script, 1)
        script.report_call("read", args=f"file {n}", result=f"text {n}")
        report_answers(script, 1)
        script.report_step("CONTINUE")
    for _ in range(7):
        report_answers(script, 2)
        script.report_step("CONTINUE")
    assert script.get_finding(IDLE) is None
    report_answers(script, 2)
    script.report_step("CONTINUE")

    assert get_required_finding(script, IDLE).ticket


def test_chat_with_user_messages_is_healthy() -> None:
    """B9: a hundred CONTINUE turns, with and without tools."""
    for script in (chat_worker := start_worker(), helping_worker := start_worker()):
        for n in range(100):
            script.report_event(EventType.CLIENT_INPUT_RECEIVED)
            report_answers(script, 2)
            if script is helping_worker and n % 10 == 0:
                script.report_call("read", args=f"file {n}", result=f"text {n}")
            script.report_step("CONTINUE")

    assert (chat_worker.list_finding_kinds(), helping_worker.list_finding_kinds()) == (set(), set())


def test_worker_without_tools_or_with_messages_is_only_shown_first() -> None:
    """B96: a user whose messages are not in the telemetry may be talking to it."""
    chat_worker, talking_worker = start_worker(), start_worker()
    report_answers(chat_worker, 30)
    report_turns_with_reads(talking_worker)
    report_answers(talking_worker, 2)
    report_turns_with_reads(talking_worker, 1)
    report_answers(talking_worker, 8)

    assert (
        get_required_finding(chat_worker, IDLE).severity,
        get_required_finding(chat_worker, IDLE).ticket,
    ) == (Severity.LOW, False)
    assert (
        get_required_finding(talking_worker, IDLE).severity,
        get_required_finding(talking_worker, IDLE).ticket,
    ) == (Severity.LOW, False)
    report_answers(talking_worker, 8)
    assert get_required_finding(talking_worker, IDLE).ticket


def test_worker_with_old_messages_or_an_active_user_is_found_immediately() -> None:
    planned_worker, user_worker, judged_worker = start_worker(), start_worker(), start_worker()
    report_answers(planned_worker, 2)
    report_turns_with_reads(planned_worker)
    user_worker.report_event(EventType.CLIENT_INPUT_RECEIVED)
    report_answers(user_worker, 2)
    report_turns_with_reads(user_worker, 1)
    judged_worker.report_event(EventType.CLIENT_INPUT_RECEIVED)
    for script in (planned_worker, user_worker, judged_worker):
        for _ in range(8):
            report_answers(script, 1)
            script.report_step("CONTINUE")

    assert [
        get_required_finding(script, IDLE).ticket for script in (planned_worker, user_worker, judged_worker)
    ] == [True, True, True]


CHATS: list[dict[str, Any]] = [
    {"after": 70.0},
    {"after": 30.0, "duration": 20.0},
]


@pytest.mark.parametrize("chat", CHATS)
def test_answers_with_time_for_a_user_between_never_page(chat: dict[str, Any]) -> None:
    """The messages of the chat's user may not be recorded."""
    script = start_worker()
    report_turns_with_reads(script)
    data = dict(chat)
    after = data.pop("after")
    for n in range(80):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"answer_hash": f"{n}", **data}, after=after)

    assert (get_required_finding(script, IDLE).severity, get_required_finding(script, IDLE).ticket) == (
        Severity.LOW,
        False,
    )


def test_few_slow_answers_of_a_chat_never_page() -> None:
    script = start_worker()
    report_turns_with_reads(script)
    for _ in range(7):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"output_tokens": 9}, after=230)
    assert (get_required_finding(script, IDLE).severity, get_required_finding(script, IDLE).ticket) == (
        Severity.LOW,
        False,
    )


@pytest.mark.parametrize("chat", CHATS)
def test_equal_answers_page_however_slow(chat: dict[str, Any]) -> None:
    script = start_worker()
    report_turns_with_reads(script)
    data = dict(chat)
    after = data.pop("after")
    for _ in range(13):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"answer_hash": "finish", **data}, after=after)

    assert get_required_finding(script, IDLE).severity is Severity.HIGH


@pytest.mark.parametrize(
    ("pause", "data"), [(11.0, {"duration": 10.0}), (61.0, {"duration": 60.0}), (1.0, {}), (30.0, {})]
)
def test_slow_answers_without_a_pause_between_page(pause: float, data: dict[str, Any]) -> None:
    """If the duration of the model call is unknown, the time between two answers counts as the model's."""
    script = start_worker()
    report_turns_with_reads(script)
    for _ in range(12):
        script.report_event(EventType.LLM_CALL_COMPLETED, data, after=pause)

    assert get_required_finding(script, IDLE).severity is Severity.HIGH


def test_refused_submissions_page_however_slow() -> None:
    script = start_worker()
    report_turns_with_reads(script)
    for n in range(13):
        report_answers(script, 1)
        script.report_call("finish", args=f"{n}", result="rejected", outcome="error", after=40)

    assert get_required_finding(script, IDLE).severity is Severity.HIGH


@pytest.mark.parametrize("tool", ["respond", "say", "answer_is", "mcp__chat__tell_user"])
def test_unanswered_messages_by_tool_are_not_work(tool: str) -> None:
    """B97: this holds for any tool name, and for any text around the repeated message."""
    unanswered_worker, answered_worker = start_worker(), start_worker()
    for script in (unanswered_worker, answered_worker):
        report_turns_with_reads(script)
        for n in range(9):
            report_answers(script, 1)
            reply = "sent" if script is unanswered_worker else f"the user says {n}"
            script.report_call(tool, args=f"wording {n}", result=reply)

    assert get_required_finding(unanswered_worker, IDLE).ticket
    assert answered_worker.get_finding(IDLE) is None


@pytest.mark.parametrize(("tool", "result"), [("task_done", "noted"), ("say", NOTHING_NEW)])
def test_result_submitted_repeatedly_is_not_work(tool: str, result: str) -> None:
    """B97: the harness refuses the result each time, or the tool only echoes it."""
    script = start_worker()
    report_turns_with_reads(script)
    for n in range(8):
        report_answers(script, 1)
        script.report_call(tool, args=f"wording {n}", result=result)

    assert get_required_finding(script, IDLE).ticket


def test_echo_is_not_progress() -> None:
    """B97: even the first echo is not progress."""
    script = start_worker()
    script.report_call("say", args="one", result=NOTHING_NEW)

    assert script.health.vitals.last_progress is None


# -- repeats ------------------------------------------------------------------------------------------


def test_repeated_edit_is_a_loop_even_if_the_file_grows() -> None:
    script = start_worker()
    for n in range(5):
        script.report_call("insert_line", args="the same line", result=f"file of {n} lines")
        script.report_call("view_file", args="file", result=f"{n} lines")

    finding = get_required_finding(script, LOOP)
    assert (finding.severity, finding.ticket) == (Severity.HIGH, True)
    assert all(part in finding.evidence for part in ("insert_line", "5 times"))


def test_same_failure_despite_changes_is_found_and_never_pages() -> None:
    """The changes do not help, or concern something else, and the failure existed before."""
    script = start_worker()
    for n in range(7):
        script.report_call("edit", args=f"patch {n}", result=f"patched {n}")
        script.report_call("run_tests", result="1 failed", outcome="error", error_type="exit_code_1")
    assert script.get_finding(LOOP) is None
    for n in range(7, 30):
        script.report_call("edit", args=f"patch {n}", result=f"patched {n}")
        script.report_call("run_tests", result="1 failed", outcome="error", error_type="exit_code_1")

    finding = get_required_finding(script, LOOP)
    assert (finding.severity, finding.ticket) == (Severity.MEDIUM, True)
    assert "run_tests" in finding.evidence


def test_five_failures_without_a_change_are_high() -> None:
    script = start_worker()
    for n in range(5):
        script.report_call("read", args=f"file {n}", result=f"text {n}")
        script.report_call("run_tests", result="1 failed", outcome="error", error_type="exit_code_1")

    assert get_required_finding(script, LOOP).severity is Severity.HIGH


@pytest.mark.parametrize(
    ("tool", "change", "result"),
    [
        ("Edit", "{}.py", "ok"),
        ("bash", "sed -i 's/a/b/' {}.py", ""),
        ("bash", "python fix.py {}", ""),
        ("bash", "npx prettier --write {}.ts", "done"),
        ("bash", "jupytext --to py {}.ipynb", "done"),
        ("bash", "make fmt FILE={}", "done"),
        ("codemod", "{}.py", "done"),
        ("Task", "rename {}", "renamed"),
        ("codemod", "rename {}", "done"),
        ("Task", "fix {}", "fixed"),
    ],
)
@pytest.mark.parametrize(
    ("check", "answer", "data"),
    [
        ("ruff check .", "All checks passed!", {}),
        ("mypy .", "12 errors", {"outcome": "error", "error_type": "exit_code_1"}),
        ("mypy .", "12 errors", {}),
    ],
)
def test_one_check_after_each_change_never_pages(
    tool: str, change: str, result: str, check: str, answer: str, data: dict[str, Any]
) -> None:
    script = start_worker()
    for n in range(30):
        arguments = {"command": change.format(n)}
        effect = build_effect_data(tool, arguments)
        script.report_call(tool, args=fingerprint(arguments), result=result_fingerprint(result), **effect)
        check_data = data | build_effect_data("bash", check)
        script.report_call("bash", args=fingerprint(check), result=result_fingerprint(answer), **check_data)

    assert all(not finding.severity.rank > Severity.MEDIUM.rank for finding in script.health.findings)
    assert script.get_finding(NO_PROGRESS) is None or not get_required_finding(script, NO_PROGRESS).ticket


READ_PAIRS: list[tuple[tuple[str, Any], tuple[str, Any]]] = [
    (("act", "go {}"), ("inventory", {})),
    (("run_macro", "m{}"), ("get_range", {"range": "A1:A2"})),
    (("bash", "python gen.py {}"), ("bash", "git status --short")),
    (("bash", "docker exec app ./migrate {}"), ("bash", "docker logs app --tail 1")),
    (("execute_cell", "df = df.drop({})"), ("execute_cell", "df.isna().sum().sum()")),
]


def report_call_with_effect(
    script: WorkerScript, tool: str, arguments: object, result: str, **data: Any
) -> None:
    effect = build_effect_data(tool, arguments)
    script.report_call(tool, args=fingerprint(arguments), result=result_fingerprint(result), **data, **effect)


@pytest.mark.parametrize(("action_command", "read_command"), READ_PAIRS)
@pytest.mark.parametrize("answer", ["done {}", "ok"])
def test_read_after_each_unknown_call_is_found_late_and_never_pages(
    action_command: tuple[str, str], read_command: tuple[str, object], answer: str
) -> None:
    script = start_worker()
    for n in range(30):
        report_call_with_effect(script, action_command[0], action_command[1].format(n), answer.format(n))
        report_call_with_effect(script, read_command[0], read_command[1], "as before")
        if n < 7:
            assert all(not finding.ticket for finding in script.health.findings)

    assert all(finding.severity.rank <= Severity.MEDIUM.rank for finding in script.health.findings)
    assert script.get_finding(LOOP) is not None


@pytest.mark.parametrize(("action_command", "read_command"), READ_PAIRS)
@pytest.mark.parametrize("data", [{}, {"outcome": "error", "error_type": "exit_code_1"}])
def test_read_after_a_repeated_or_failing_unknown_call_pages(
    action_command: tuple[str, str], read_command: tuple[str, object], data: dict[str, Any]
) -> None:
    script = start_worker()
    for n in range(8):
        report_call_with_effect(
            script,
            action_command[0],
            action_command[1].format(n if data else 0),
            f"failed {n}" if data else "done",
            **data,
        )
        report_call_with_effect(script, read_command[0], read_command[1], "as before")

    assert get_required_finding(script, LOOP).severity is Severity.HIGH


def test_repeated_read_between_other_reads_pages() -> None:
    script = start_worker()
    for n in range(5):
        script.report_call("bash", args=f"cat {n}.py", result=f"r{n}", effect="reads")
        script.report_call("bash", args="cat a.py", result="text", effect="reads")

    assert get_required_finding(script, LOOP).severity is Severity.HIGH


@pytest.mark.parametrize(
    ("tool", "args", "between"),
    [
        ("ask_expert", "which hive?", "visit_page"),
        ("consult", "the oracle", "consult"),
        ("bash", "ruff", "bash"),
    ],
)
def test_unknown_call_after_other_unknown_calls_is_a_repeat(tool: str, args: str, between: str) -> None:
    """B29: not every unknown command changes something."""
    script = start_worker()
    for n in range(6):
        script.report_call(between, args=f"open {n}", result=f"text {n}")
        script.report_call(tool, args=args, result="the same")

    assert get_required_finding(script, LOOP).severity is Severity.HIGH


def test_check_after_the_same_command_again_is_a_repeat() -> None:
    script = start_worker()
    for _ in range(5):
        script.report_call("bash", args="make fmt", result="done", effect="runs")
        script.report_call("bash", args="pytest", result="10 passed", effect="runs")

    assert get_required_finding(script, LOOP).severity is Severity.HIGH


def test_test_tool_after_other_tests_is_a_repeat() -> None:
    script = start_worker()
    for n in range(5):
        script.report_call("run_tests", args=f"suite {n}", result=f"{n} passed")
        script.report_call("run_tests", args="all", result="10 passed")

    assert get_required_finding(script, LOOP).severity is Severity.HIGH


def test_consecutive_refused_edits_are_found_with_reads_between() -> None:
    script = start_worker()
    for n in range(5):
        script.report_call("read", args="file", result=f"text {n}")
        script.report_call("edit", args=f"old {n}", result=f"e{n}", outcome="error", error_type="not found")

    finding = get_required_finding(script, STREAK)
    assert (finding.severity, finding.ticket) == (Severity.MEDIUM, True)
    assert finding.evidence.startswith("5 ")
    assert "not found" in finding.evidence
    script.report_call("edit", args="new", result="ok")
    assert script.get_finding(STREAK) is None


@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        ("str_replace_editor", {"command": "insert", "path": "a.py", "new_str": "import os"}, "{} lines"),
        ("bash", {"command": "cat >> a.py <<'EOF'\nimport os\nEOF\ncat a.py"}, "import os, {} times"),
        ("Bash", {"command": "echo x >> a.py; wc -l a.py"}, "{} a.py"),
        ("exec_command", {"cmd": "sed -i '1i import os' a.py && cat a.py"}, "import os, {} times"),
        ("mcp__notes__append_note", {"text": "the same"}, "note {}"),
    ],
)
def test_equal_edit_by_any_means_is_a_loop_although_the_file_grows(
    tool: str, arguments: dict[str, str], result: str
) -> None:
    script = start_worker()
    for n in range(5):
        effect = build_effect_data(tool, arguments)
        script.report_call(tool, args=fingerprint(arguments), result=result.format(n), **effect)

    assert get_required_finding(script, LOOP).severity is Severity.HIGH


@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        ("add_page", {}, "page {} added"),
        ("get_next_page", {}, "page {}"),
        ("bash", {"command": "python bench.py > out; cat out"}, "took {} rounds"),
        ("browser_click", {"element": "Next"}, "page {}"),
    ],
)
def test_equal_call_with_advancing_results_is_not_a_loop(
    tool: str, arguments: dict[str, str], result: str
) -> None:
    script = start_worker()
    for n in range(12):
        effect = build_effect_data(tool, arguments)
        script.report_call(tool, args=fingerprint(arguments), result=result.format(n), **effect)

    assert script.list_finding_kinds() == set()


def test_saving_without_arguments_after_new_work_is_not_a_loop() -> None:
    """The saved work is not in the arguments; without new work since, the call is a repeat."""
    script = start_worker()
    for n in range(6):
        script.report_call("read_file", args=f"file {n}", result=f"text {n}")
        script.report_call("save_state", args=fingerprint({}), result="saved")
    assert script.list_finding_kinds() == set()
    for _ in range(4):
        script.report_call("save_state", args=fingerprint({}), result="saved")

    assert get_required_finding(script, LOOP).ticket


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("str_replace_editor", {"command": "str_replace", "path": "a.py"}),
        ("bash", {"command": "apply_patch <<'EOF'\n*** Begin Patch\nEOF"}),
        ("submit_answer", {}),
    ],
)
def test_refused_edit_or_submission_of_any_kind_is_found_with_reads_between(
    tool: str, arguments: dict[str, str]
) -> None:
    """A new read between two refusals is not a change."""
    script = start_worker()
    for n in range(5):
        script.report_call("read", args=f"part {n}", result=f"text {n}")
        effect = build_effect_data(tool, arguments)
        script.report_call(
            tool, args=f"{n}", result=f"e{n}", outcome="error", error_type="no match", **effect
        )

    assert get_required_finding(script, STREAK).ticket


def test_two_classes_of_refusal_that_take_turns_are_both_counted() -> None:
    script = start_worker()
    for n in range(9):
        script.report_call("read", args=f"part {n}", result=f"text {n}")
        error = "not found" if n % 2 else "not unique"
        script.report_call("edit", args=f"{n}", result=f"e{n}", outcome="error", error_type=error)

    assert get_required_finding(script, STREAK).evidence.startswith("5 ")
    assert "not unique" in get_required_finding(script, STREAK).evidence


def test_refusals_of_several_classes_are_found_together() -> None:
    script, less_refused_worker = start_worker(), start_worker()
    for n in range(12):
        error = ("not found", "not unique", "changed since read")[n % 3]
        data: dict[str, Any] = {"outcome": "error", "error_type": error}
        script.report_call("read", args=f"part {n}", result=f"text {n}")
        script.report_call("edit", args=f"{n}", result=f"e{n}", **data)
        less_refused_worker.report_call("edit", args=f"{n}", result=f"e{n}", **(data if n % 3 == 0 else {}))

    finding = get_required_finding(script, STREAK)
    assert (finding.severity, finding.ticket) == (Severity.MEDIUM, True)
    assert finding.evidence.startswith("10 ")
    assert less_refused_worker.get_finding(STREAK) is None


def report_refused_edit(script: WorkerScript, n: int) -> None:
    script.report_call("edit", args=f"old {n}", result=f"e{n}", outcome="error", error_type="not found")


@pytest.mark.parametrize("reads", [5, 20, 30])
def test_refusals_expire_with_the_window(reads: int) -> None:
    script = start_worker()
    for n in range(12):
        report_refused_edit(script, n)
        for part in range(reads):
            script.report_call("read", args=f"part {n}/{part}", result=f"text {n}/{part}")

    assert script.get_finding(STREAK) is None
    for n in range(5):
        report_refused_edit(script, 12 + n)
    assert get_required_finding(script, STREAK).severity is Severity.MEDIUM


def test_refusals_that_go_on_grow_beyond_the_window() -> None:
    script = start_worker()
    for n in range(20):
        script.report_call("read", args=f"part {n}", result=f"text {n}")
        report_refused_edit(script, n)

    assert get_required_finding(script, STREAK).severity is Severity.CRITICAL


@pytest.mark.parametrize("progress_kind", ["edit", "run", "user"])
def test_progress_ends_refusals(progress_kind: str) -> None:
    script = start_worker()
    for n in range(12):
        report_refused_edit(script, n)
        if n % 4:
            script.report_call("read", args=f"part {n}", result=f"text {n}")
        elif progress_kind == "edit":
            script.report_call("edit", args=f"new {n}", result="ok")
        elif progress_kind == "run":
            script.report_call("bash", args=f"python patch.py {n}", result=f"patched {n}", effect="runs")
        else:
            script.report_event(EventType.CLIENT_INPUT_RECEIVED)

    assert script.get_finding(STREAK) is None


def test_run_that_fails_or_repeats_ends_no_refusals() -> None:
    script = start_worker()
    for n in range(6):
        report_refused_edit(script, n)
        script.report_call("bash", args="pytest", result="1 failed", effect="runs")

    assert get_required_finding(script, STREAK).ticket


MISSES = [
    ("find_user", "Error: user not found", {}),
    ("read_file", "File not found", {}),
    ("get_order", "HTTP 404", {}),
    ("lookup_ticket", "The ticket does not exist", {}),
    ("bash", "cat: {}.py: No such file or directory", {"effect": "reads"}),
]


@pytest.mark.parametrize(("tool", "error", "data"), MISSES)
def test_missing_items_for_different_arguments_never_page(
    tool: str, error: str, data: dict[str, Any]
) -> None:
    script = start_worker()
    for n in range(30):
        text = error.format(n)
        script.report_call(tool, args=f"item {n}", result=text, outcome="error", error=text, **data)

    assert get_required_finding(script, STREAK).severity is Severity.MEDIUM
    assert all(finding.severity.rank <= Severity.MEDIUM.rank for finding in script.health.findings)
    assert script.health.vitals.failed_calls == script.health.vitals.stale_calls == 0


@pytest.mark.parametrize(("tool", "error", "data"), MISSES)
def test_missing_item_for_the_same_argument_is_a_loop(tool: str, error: str, data: dict[str, Any]) -> None:
    script = start_worker()
    for _ in range(8):
        script.report_call(tool, args="item", result=error, outcome="error", error=error, **data)

    assert get_required_finding(script, LOOP).severity is Severity.HIGH
    assert get_required_finding(script, STREAK).severity is Severity.HIGH


@pytest.mark.parametrize(
    "error",
    [
        "Request timed out",
        "503 Service Unavailable",
        "Permission denied: user not found in group",
        "Tool 'find_user' not found",
        "ModuleNotFoundError: No module named 'users'",
        "invalid argument",
    ],
)
def test_broken_search_pages(error: str) -> None:
    script = start_worker()
    for n in range(8):
        script.report_call("find_user", args=f"user {n}", result=error, outcome="error", error=error)

    assert get_required_finding(script, STREAK).severity is Severity.HIGH


def test_repeated_shell_not_found_error_is_stuck() -> None:
    script = start_worker()
    error = "find: '/data': No such file or directory"
    for n in range(7):
        attributes: dict[str, Any] = {"effect": "searches", "outcome": "error", "error": error}
        script.report_call("bash", args=f"find /data -maxdepth {n}", result=error, **attributes)

    assert get_required_finding(script, NO_PROGRESS).severity is Severity.HIGH


def test_most_calls_repeated_or_failed_since_the_last_change_is_high() -> None:
    """
    A new answer between two repeats does not hide a standstill, although no call is frequent or consecutive.
    """
    script = start_worker()
    for n in range(3):
        script.report_call("read", args=f"{n}", result=f"text {n}")
    for n in range(3):
        script.report_call("read", args=f"{n}", result=f"text {n}")
        script.report_call("run_checks", args=f"{n}", result=f"e{n}", outcome="error", error_type=f"Error{n}")
        script.report_call("read", args=f"{(n + 1) % 3}", result=f"text {(n + 1) % 3}")

    finding = get_required_finding(script, NO_PROGRESS)
    assert (finding.severity, finding.ticket) == (Severity.HIGH, True)
    assert "9 tool calls" in finding.evidence
    script.report_call("edit", args="patch", result="patched")
    assert script.get_finding(NO_PROGRESS) is None or not get_required_finding(script, NO_PROGRESS).ticket


def test_repeats_among_reads_of_many_items_are_not_a_majority() -> None:
    script = start_worker()
    for n in range(30):
        script.report_call("check_url", args=f"url {n}", result="200 OK")
        if n % 3 == 2:
            script.report_call("check_url", args=f"url {n - 2}", result="200 OK")

    assert all(finding.severity is Severity.LOW for finding in script.health.findings)


def test_refused_edits_among_successful_ones_are_not_a_standstill() -> None:
    script = start_worker()
    for n in range(24):
        report_refused_edit(script, 0 if n else 1)
        script.report_call("edit", args=f"new {n}", result="ok")
        script.report_call("edit", args=f"newer {n}", result="ok")

    assert all(not finding.ticket or finding.kind is LOOP for finding in script.health.findings)


def test_errors_that_are_new_each_time_are_not_most_calls() -> None:
    script = start_worker()
    for n in range(14):
        script.report_call(
            "bash", args=f"python x.py {n}", result=f"e{n}", outcome="error", error_type=f"Error{n}"
        )

    assert script.get_finding(NO_PROGRESS) is None


def test_submissions_refused_between_changes_are_work() -> None:
    script = start_worker()
    for n in range(8):
        script.report_call("edit", args=f"patch {n}", result=f"patched {n}")
        script.report_call("submit", args=f"{n}", result=f"{n} fail", outcome="error", error_type="rejected")

    assert script.list_finding_kinds() <= {FindingKind.ERROR_RATE}


@pytest.mark.parametrize(
    ("tool", "data"),
    [
        ("search_web", {}),
        ("Grep", {}),
        ("bash", {"effect": "searches"}),
        ("bash", {"effect": "searches", "outcome": "error", "error_type": "exit_code_1"}),
    ],
)
def test_new_searches_that_find_nothing_are_shown_and_never_page(tool: str, data: dict[str, Any]) -> None:
    script = start_worker()
    for n in range(6):
        script.report_call(tool, args=f"words {n}", result=NOTHING_FOUND, **data)
    progress_finding = get_required_finding(script, NO_PROGRESS)
    for n in range(6, 11):
        script.report_call(tool, args=f"words {n}", result=NOTHING_FOUND, **data)

    assert (progress_finding.severity, progress_finding.ticket) == (Severity.LOW, False)
    assert get_required_finding(script, NO_PROGRESS).evidence.startswith("10 ")
    for n in range(11, 60):
        script.report_call(tool, args=f"words {n}", result=NOTHING_FOUND, **data)
    assert (
        get_required_finding(script, NO_PROGRESS).severity,
        get_required_finding(script, NO_PROGRESS).ticket,
    ) == (Severity.MEDIUM, True)
    script.report_call(tool, args="the right words", result="found")
    assert script.get_finding(NO_PROGRESS) is None


@pytest.mark.parametrize(
    ("tool", "result"),
    [
        ("check_url", "200 OK"),
        ("get_order_status", "shipped"),
        ("get_user", "active"),
        ("check_inventory", "in stock"),
        ("get_availability", "available"),
        ("get_label", NOTHING_FOUND),
        ("execute_sql", NOTHING_FOUND),
        ("query", NOTHING_FOUND),
    ],
)
def test_one_read_of_each_item_with_equal_answers_is_work(tool: str, result: str) -> None:
    script = start_worker()
    for n in range(30):
        script.report_call(tool, args=f"item {n}", result=result)

    assert all(finding.severity is Severity.LOW and not finding.ticket for finding in script.health.findings)


@pytest.mark.parametrize("command", ["grep -c TODO {}.py", "test -f {}.py && echo yes", "wc -l {}.py"])
def test_one_shell_command_for_each_file_with_equal_answers_is_work(command: str) -> None:
    script = start_worker()
    for n in range(30):
        arguments = {"command": command.format(n)}
        effect = build_effect_data("bash", arguments)
        script.report_call("bash", args=fingerprint(arguments), result=result_fingerprint("0"), **effect)

    assert script.list_finding_kinds() == set()


CHECKS = [
    ("bash", "pytest -q tests/test_{}.py"),
    ("bash", "cd app && ruff check m{}.py"),
    ("bash", "npm run lint -- m{}.ts"),
    ("bash", "docker compose exec web pytest tests/test_{}.py"),
    ("Bash", "for f in m{}/*.py; do mypy $f; done"),
    ("run_tests", "tests/test_{}.py"),
    ("lint_file", "m{}.py"),
]


@pytest.mark.parametrize("answer", ["1 failed", "Exit code 1", "E   ImportError: cannot import name 'x'"])
@pytest.mark.parametrize("has_failed", [True, False])
@pytest.mark.parametrize(("tool", "check"), CHECKS)
def test_check_of_each_item_with_equal_answers_never_pages(
    tool: str, check: str, has_failed: bool, answer: str
) -> None:
    script = start_worker()
    outcome_fields = {"outcome": "error", "error_type": "exit_code_1", "error": answer} if has_failed else {}
    for _ in range(2):
        for n in range(20):
            report_call_with_effect(script, tool, {"command": check.format(n)}, answer, **outcome_fields)
        script.report_call("edit", args=f"{script.now}", result="ok")

    assert all(finding.severity.rank <= Severity.MEDIUM.rank for finding in script.health.findings)
    assert has_failed or all(not finding.ticket for finding in script.health.findings)


@pytest.mark.parametrize(("tool", "check"), CHECKS)
def test_same_check_again_that_fails_pages(tool: str, check: str) -> None:
    script = start_worker()
    outcome_fields = {"outcome": "error", "error_type": "exit_code_1", "error": "1 failed"}
    for _ in range(8):
        report_call_with_effect(script, tool, {"command": check}, "1 failed", **outcome_fields)

    assert get_required_finding(script, LOOP).severity is Severity.HIGH
    assert get_required_finding(script, STREAK).severity is Severity.HIGH


@pytest.mark.parametrize("data", [{"outcome": "timeout"}, {"error": "bash: pytest: command not found"}])
def test_check_of_each_item_that_cannot_run_pages(data: dict[str, str]) -> None:
    script = start_worker()
    outcome_fields = {"outcome": "error", "error_type": "error", "error": "timed out"} | data
    for n in range(8):
        report_call_with_effect(
            script,
            "bash",
            {"command": f"pytest tests/test_{n}.py"},
            outcome_fields["error"],
            **outcome_fields,
        )

    assert get_required_finding(script, STREAK).severity is Severity.HIGH


BARE_EXITS = ["", "Exit code 1", "Error: Exit code 1", '{"exit_code":1,"stdout":"","stderr":""}']


@pytest.mark.parametrize("error", BARE_EXITS)
@pytest.mark.parametrize("command", ["grep -rn old_{} src/", "test -f m{}.py", "git grep -q old_{}"])
def test_exit_code_only_failures_of_reads_of_each_item_never_page(command: str, error: str) -> None:
    script, other_worker = start_worker(), start_worker()
    attributes = {"outcome": "error", "error_type": "error", "error": error}
    for n in range(30):
        report_call_with_effect(script, "bash", {"command": command.format(n)}, error, **attributes)
        report_call_with_effect(other_worker, "bash", {"command": command}, error, **attributes)

    assert all(finding.severity.rank <= Severity.MEDIUM.rank for finding in script.health.findings)
    if "grep -rn" not in command or error:
        assert get_required_finding(other_worker, LOOP).severity is Severity.CRITICAL


@pytest.mark.parametrize("error", ["Exit code 2", "cat: out: Permission denied", "Exit code 1: I/O error"])
def test_reads_of_each_item_failing_with_an_error_page(error: str) -> None:
    script = start_worker()
    attributes = {"outcome": "error", "error_type": "error", "error": error}
    for n in range(16):
        report_call_with_effect(script, "bash", {"command": f"test -f m{n}.py"}, error, **attributes)

    assert get_required_finding(script, STREAK).severity is Severity.HIGH


def test_search_that_finds_nothing_before_each_change_is_work() -> None:
    script = start_worker()
    for n in range(20):
        script.report_call("grep", args=f"name {n}", result=NOTHING_FOUND)
        script.report_call("edit", args=f"name {n}", result="updated")

    assert script.list_finding_kinds() == set()


# -- healthy behaviour that looks similar -----------------------------------------------------------


@pytest.mark.parametrize("turn", ["one", None])
def test_equal_failures_of_one_turn_count_once(turn: str | None) -> None:
    """The calls are reported as one turn, or overlap in time."""
    script = start_worker()
    script.report_event(EventType.LLM_CALL_COMPLETED, {})
    for n in range(8):
        data: dict[str, object] = {"tool": "fetch", "args_hash": f"{n}", "outcome": "error"}
        data |= {"result_hash": "refused", "error_type": "refused", "duration": 5.0}
        if turn:
            data["turn"] = turn
        script.report_event(EventType.TOOL_CALL_COMPLETED, data, after=0.1)

    assert script.list_finding_kinds() <= {FindingKind.ERROR_RATE}


def test_waiting_is_not_a_loop_until_it_exceeds_its_limit() -> None:
    script = start_worker()
    for minute in range(29):
        script.report_call("sleep", args="60", result="slept", after=30)
        script.report_call("get_job", args="7", result="queued", after=30)
        assert script.list_finding_kinds() <= {FindingKind.OUTPUT_UNCHANGED}, minute
    for _ in range(3):
        script.report_call("sleep", args="60", result="slept", after=60)

    finding = get_required_finding(script, NO_PROGRESS)
    assert (finding.severity, finding.ticket) == (Severity.MEDIUM, True)
    assert " 3" in finding.evidence
    for _ in range(90):
        script.report_call("sleep", args="60", result="slept", after=60)
    assert get_required_finding(script, NO_PROGRESS).severity is Severity.HIGH


def test_same_question_every_minute_is_a_poll() -> None:
    script = start_worker()
    for _ in range(10):
        script.report_call("job_status", args="7", result="queued", after=60)

    assert script.list_finding_kinds() == set()


@pytest.mark.parametrize("pause", [5, 15, 45])
@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        ("get_job_status", {"id": "7"}, "pending"),
        ("get_check_runs", {"ref": "main"}, "in_progress"),
        ("bash", {"command": "tail -n1 train.log"}, "step 100"),
        ("bash", {"command": "ps aux | grep train"}, "1234 train.py"),
        ("exec_command", {"cmd": "gh run view 123 --json status"}, "in_progress"),
        ("bash", {"command": "kubectl -n x get pods"}, "Pending"),
        ("bash", {"command": "cd app && sudo docker compose ps"}, "starting"),
        ("bash", {"command": "gh api repos/o/r/actions/runs/1 --jq .status"}, "in_progress"),
        ("bash", {"command": "aws cloudformation describe-stacks"}, "CREATE_IN_PROGRESS"),
        ("bash", {"command": "curl -s localhost:8000/health"}, "starting"),
        ("exec_command", {"cmd": "systemctl status app"}, "activating"),
    ],
)
def test_state_read_again_after_a_pause_is_a_poll(
    tool: str, arguments: dict[str, str], result: str, pause: float
) -> None:
    script, slow_worker, hasty_worker = start_worker(), start_worker(), start_worker()
    effect = build_effect_data(tool, arguments)
    for _ in range(20):
        script.report_call(tool, args=fingerprint(arguments), result=result, after=pause, **effect)
        slow_worker.report_call(
            tool, args=fingerprint(arguments), result=result, after=pause, duration=4.5, **effect
        )
        hasty_worker.report_call(tool, args=fingerprint(arguments), result=result, after=4, **effect)

    assert (script.list_finding_kinds(), slow_worker.list_finding_kinds()) == (set(), set())
    assert get_required_finding(hasty_worker, LOOP).severity is Severity.CRITICAL
    for _ in range(int(1700 / pause) - 20):
        script.report_call(tool, args=fingerprint(arguments), result=result, after=pause, **effect)
    assert all(finding.severity.rank <= Severity.MEDIUM.rank for finding in script.health.findings)


@pytest.mark.parametrize("command", ["ls out", "git status"])
def test_read_again_in_a_row_after_a_pause_is_a_poll(command: str) -> None:
    """A read needs a longer pause than a query of a state, because a slow model also pauses."""
    script, hasty_worker = start_worker(), start_worker()
    for _ in range(20):
        report_call_with_effect(script, "bash", {"command": command}, "a", after=15)
        report_call_with_effect(hasty_worker, "bash", {"command": command}, "a", after=14)

    assert script.list_finding_kinds() == set()
    assert get_required_finding(hasty_worker, LOOP).severity is Severity.CRITICAL


WAITS = [
    ("bash", {"command": "sleep 5"}, ""),
    ("powershell", {"command": "Start-Sleep -Seconds 5"}, ""),
    ("bash", {"command": "python -c 'import time; time.sleep(5)'"}, ""),
    ("computer", {"action": "wait", "duration": 2}, "waited"),
    ("browser_wait_for", {"time": 5}, "ok"),
]
STATE_READS = [
    ("bash", {"command": "docker compose exec db ./is_ready"}, "not yet", {}),
    ("computer", {"action": "screenshot"}, "a picture", {}),
    ("bash", {"command": "docker exec db pg_isready"}, "no response", {"error_type": "exit_code_2"}),
]


@pytest.mark.parametrize(("tool", "arguments", "answer", "data"), STATE_READS)
@pytest.mark.parametrize("wait", WAITS)
def test_waiting_and_reading_for_less_than_half_an_hour_never_pages(
    wait: tuple[str, object, str], tool: str, arguments: object, answer: str, data: dict[str, str]
) -> None:
    script = start_worker()
    for _ in range(1700 // 8):
        report_call_with_effect(script, *wait, after=5)
        report_call_with_effect(script, tool, arguments, answer, after=3, **data)

    assert all(finding.severity.rank <= Severity.MEDIUM.rank for finding in script.health.findings)


def test_command_that_waits_and_fails_in_the_same_way_is_a_poll() -> None:
    script, varying_worker = start_worker(), start_worker()
    failure: dict[str, Any] = {"outcome": "error", "error_type": "exit_code_7", "error": "Exit code 7"}
    for n in range(100):
        report_call_with_effect(
            script, "bash", {"command": "sleep 10; curl -sf localhost"}, "Exit code 7", after=11, **failure
        )
        report_call_with_effect(
            varying_worker, "bash", {"command": f"sleep 10; ./try {n}"}, "Exit code 7", after=11, **failure
        )

    assert all(finding.severity.rank <= Severity.MEDIUM.rank for finding in script.health.findings)
    assert get_required_finding(script, NO_PROGRESS).ticket
    assert get_required_finding(varying_worker, STREAK).severity is Severity.CRITICAL


FAILING_POLLS = [
    ("gh pr checks 12", "build pending", "exit_code_8"),
    ("nc -z db 5432", "Exit code 1", "exit_code_1"),
    ("pg_isready -h db", "db:5432 - no response", "exit_code_2"),
    ("curl -sf localhost:8080/health", "curl: (7) Failed to connect", "exit_code_7"),
]


@pytest.mark.parametrize(("command", "answer", "error"), FAILING_POLLS)
def test_state_that_fails_equally_after_a_pause_is_a_poll(command: str, answer: str, error: str) -> None:
    script, hasty_worker, varying_worker = start_worker(), start_worker(), start_worker()
    attributes: dict[str, Any] = {"outcome": "error", "error_type": error, "error": answer}
    for n in range(20):
        report_call_with_effect(script, "bash", {"command": command}, answer, after=20, **attributes)
        report_call_with_effect(hasty_worker, "bash", {"command": command}, answer, after=4, **attributes)
        report_call_with_effect(
            varying_worker, "bash", {"command": f"{command} # {n}"}, answer, after=20, **attributes
        )

    assert script.list_finding_kinds() <= {FindingKind.ERROR_RATE}
    assert get_required_finding(hasty_worker, LOOP).severity is Severity.CRITICAL
    assert FindingKind.ERROR_STREAK in varying_worker.list_finding_kinds()
    for _ in range(80):
        report_call_with_effect(script, "bash", {"command": command}, answer, after=20, **attributes)
    assert (
        get_required_finding(script, NO_PROGRESS).severity,
        get_required_finding(script, NO_PROGRESS).ticket,
    ) == (Severity.MEDIUM, True)


def test_poll_with_a_command_that_does_not_exist_is_a_loop() -> None:
    script = start_worker()
    attributes: dict[str, Any] = {"outcome": "error", "error": "bash: pg_isready: command not found"}
    for _ in range(6):
        report_call_with_effect(
            script, "bash", {"command": "pg_isready"}, attributes["error"], after=20, **attributes
        )

    assert get_required_finding(script, LOOP).severity is Severity.HIGH


def test_unfinished_rollout_is_a_wait() -> None:
    script = start_worker()
    answer = 'Waiting for deployment "x" rollout to finish: 1 of 3 updated replicas'
    attributes: dict[str, Any] = {"outcome": "error", "error_type": "exit_code_1", "error": answer}
    for _ in range(20):
        command = {"command": "kubectl -n x rollout status deploy/x --timeout=10s"}
        report_call_with_effect(script, "bash", command, answer, after=20, **attributes)

    assert script.list_finding_kinds() == set()


@pytest.mark.parametrize("tool", ["edit_file", "execute_sql", "run_tests"])
def test_repeated_writing_call_after_slow_model_answers_is_a_loop(tool: str) -> None:
    script = start_worker()
    for _ in range(5):
        script.report_call(tool, result="the same", after=45)

    assert get_required_finding(script, LOOP).severity is Severity.HIGH


def test_repeated_reads_after_slow_model_answers_are_a_loop() -> None:
    """B29: an agent that waits for a file reads only this file again."""
    script = start_worker()
    for n in range(5):
        script.report_call("read_file", args="config", result="the same", after=30)
        script.report_call("visit_page", args=f"page {n}", result=f"text {n}", after=30)

    assert get_required_finding(script, LOOP).severity is Severity.HIGH


@pytest.mark.parametrize(
    ("tool", "arguments", "pause"),
    [
        ("bash", {"command": "sleep 5; cat f"}, 6),
        ("write_stdin", {"chars": ""}, 10),
        ("bash", {"command": "ls out"}, 20),
        ("read_file", {"path": "a"}, 45),
        ("run_tests", {}, 70),
    ],
)
def test_quick_polls_or_polls_of_unknown_state_are_found_sooner_and_never_page(
    tool: str, arguments: dict[str, str], pause: float
) -> None:
    script = start_worker()
    for _ in range(20):
        effect = build_effect_data(tool, arguments)
        script.report_call(tool, args=fingerprint(arguments), result="the same", after=pause, **effect)
    assert script.list_finding_kinds() == set()
    for _ in range(5):
        effect = build_effect_data(tool, arguments)
        script.report_call(tool, args=fingerprint(arguments), result="the same", after=pause, **effect)

    assert (
        get_required_finding(script, NO_PROGRESS).severity,
        get_required_finding(script, NO_PROGRESS).ticket,
    ) == (Severity.MEDIUM, True)
    script.report_call(tool, args=fingerprint(arguments), result="at last", after=pause)
    assert script.get_finding(NO_PROGRESS) is None


def test_browser_that_waits_and_reads_is_not_a_loop() -> None:
    script = start_worker()
    for _ in range(10):
        script.report_call("browser_wait_for", args="5 s", result="ok", after=7)
        script.report_call("browser_snapshot", args="none", result="loading", after=3)

    assert script.list_finding_kinds() == set()


@pytest.mark.parametrize(
    "data", [{"outcome": "timeout"}, {"outcome": "error", "error_type": "error", "error": "timed out"}]
)
def test_wait_timeout_is_not_a_failure(data: dict[str, Any]) -> None:
    script = start_worker()
    for _ in range(20):
        script.report_call("wait_for_message", args="60 s", result="timed out", after=62, **data)
    assert script.list_finding_kinds() == set()
    for _ in range(5):
        script.report_call("wait_agent", args="7", result="none", outcome="error", error_type="unknown agent")

    assert script.get_finding(STREAK) is not None


@pytest.mark.parametrize(("tool", "arguments"), [("sleep", {"seconds": 1}), ("bash", {"command": "sleep 1"})])
def test_short_sleep_hides_no_loop(tool: str, arguments: dict[str, object]) -> None:
    script = start_worker()
    for _ in range(5):
        effect = build_effect_data(tool, arguments)
        script.report_call(tool, args=fingerprint(arguments), result="slept", **effect)
        script.report_call("read_file", args="config", result="the same")

    assert get_required_finding(script, LOOP).severity is Severity.HIGH


def test_call_stopped_by_its_user_is_not_a_provider_failure() -> None:
    script = start_worker()
    for error in ("Request was aborted.", "CancelledError", "[Request interrupted by user]"):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "error", "error": error})

    assert script.list_finding_kinds() == set()
    for _ in range(3):
        script.report_event(
            EventType.LLM_CALL_COMPLETED, {"error_type": "APIError", "error": "Connection aborted."}
        )
    assert script.get_finding(FindingKind.PROVIDER_FAILURE) is not None


def test_silence_in_an_unknown_phase_pages_only_if_the_process_lives() -> None:
    """A permission prompt, a closed laptop or a slow model cannot be distinguished from a hang."""
    quiet_worker, beating_worker = WorkerScript(), WorkerScript()
    for script in (quiet_worker, beating_worker):
        script.stay_silent(130)
        script.report_call()
    beating_worker.report_event(EventType.AGENT_HEARTBEAT, {"interval": 1200})
    for script in (quiet_worker, beating_worker):
        script.stay_silent(897)
        assert script.list_finding_kinds() == set()
        script.stay_silent(3)

    assert (get_required_finding(quiet_worker, FindingKind.STALL).severity, quiet_worker.state) == (
        Severity.MEDIUM,
        HealthState.STUCK,
    )
    assert get_required_finding(beating_worker, FindingKind.STALL).severity is Severity.CRITICAL


@pytest.mark.parametrize("expected", ["message", "question"])
def test_silence_in_an_unknown_phase_with_a_user_is_only_shown(expected: str) -> None:
    """The user may be away."""
    script = WorkerScript()
    script.stay_silent(130)
    if expected == "message":
        script.report_event(EventType.CLIENT_INPUT_RECEIVED)
    else:
        script.report_call("AskUserQuestion", args="which?", result="that")
    script.stay_silent(900)

    finding = get_required_finding(script, FindingKind.STALL)
    assert (finding.severity, finding.ticket, script.state) == (Severity.LOW, False, HealthState.DEGRADED)


# -- with a present user ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "args", "result", "data"),
    [
        ("Bash", "pytest", "10 passed", {}),
        ("Bash", "pytest", "1 failed", {"outcome": "error", "error_type": "exit_code_1"}),
        ("get_weather", "berlin", "15 C", {}),
        ("get_order", "order {}", "shipped", {}),
        ("look_up", "word {}", "not found", {"outcome": "error", "error_type": "not_found"}),
        ("edit", "patch {}", "no match {}", {"outcome": "error", "error_type": "no match"}),
        ("search", "words {}", NOTHING_FOUND, {}),
    ],
)
def test_repeats_requested_by_the_user_are_not_a_loop(
    tool: str, args: str, result: str, data: dict[str, Any]
) -> None:
    script = start_worker()
    for n in range(20):
        script.report_event(EventType.CLIENT_INPUT_RECEIVED)
        report_answers(script, 1)
        script.report_call(tool, args=args.format(n), result=result.format(n), **data)

    assert script.list_finding_kinds() <= {FindingKind.ERROR_RATE}


def test_loop_after_a_message_from_the_user_is_a_loop() -> None:
    script = start_worker()
    script.report_event(EventType.CLIENT_INPUT_RECEIVED)
    for _ in range(5):
        script.report_call("Bash", args="pytest", result="1 failed")

    assert get_required_finding(script, LOOP).severity is Severity.HIGH


@pytest.mark.parametrize("is_answered", [True, False])
@pytest.mark.parametrize(
    "data",
    [
        {"error_type": "interrupted"},
        {"error_type": "error", "error": "[Request interrupted by user for tool use]"},
        {"error_type": "error", "error": "The user doesn't want to proceed with this tool use."},
        {"error_type": "ToolRejected", "error": "Rejected by the user."},
    ],
)
def test_tool_calls_stopped_by_a_person_are_not_failures(data: dict[str, Any], is_answered: bool) -> None:
    script = start_worker()
    for n in range(20):
        script.report_call("Bash", args=f"command {n}", result="stopped", outcome="error", **data)
        if is_answered:
            script.report_event(EventType.CLIENT_INPUT_RECEIVED)

    assert (script.list_finding_kinds(), script.health.vitals.error_count) == (set(), 0)


def test_other_cancelled_tool_calls_are_failures() -> None:
    script = start_worker()
    for n in range(5):
        script.report_call(
            "fetch",
            args=f"page {n}",
            result="stopped",
            outcome="error",
            error_type="cancelled",
            error="the upstream request was cancelled",
        )

    assert script.get_finding(STREAK) is not None


# -- detectors in shadow mode by default --------------------------------------------------------------


def enable_in_settings(*kinds: FindingKind) -> HealthSettings:
    return HealthSettings.model_validate({"detectors": dict.fromkeys(kinds, "on")} | NO_GRACE_BLOCK)


def test_sixty_tool_calls_without_a_change_are_grinding() -> None:
    script = start_worker(enable_in_settings(FindingKind.GRINDING))
    for n in range(59):
        script.report_call("read", args=f"{n}", result=f"text {n}")
    assert script.list_finding_kinds() == set()
    script.report_call("read", args="59", result="text 59")

    assert get_required_finding(script, FindingKind.GRINDING).evidence.startswith("60 tool calls")
    script.report_call("edit", args="patch", result="patched")
    assert script.list_finding_kinds() == set()


def test_tokens_without_a_change_are_compared_with_usual_usage() -> None:
    script = start_worker(enable_in_settings(FindingKind.TOKEN_BURN))
    for n in range(30):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 60_000, "output_tokens": 1_000})
        script.report_call("edit", args=f"patch {n}", result=f"patched {n}")
    for n in range(3):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 60_000, "output_tokens": 1_000})
        script.report_call("read", args=f"file {n}", result=f"text {n}")
    assert script.get_finding(FindingKind.TOKEN_BURN) is None
    script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 60_000, "output_tokens": 1_000})

    assert all(
        part in get_required_finding(script, FindingKind.TOKEN_BURN).evidence
        for part in ("244,000", "64,000")
    )


def test_trial_detectors_have_no_effect() -> None:
    script = start_worker()
    for n in range(80):
        script.report_call("read", args=f"{n}", result=f"text {n}")

    assert (script.list_finding_kinds(), script.state) == (set(), HealthState.HEALTHY)
    assert [finding.kind for finding in script.health.shadow] == [FindingKind.GRINDING]
