from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.vitals.calls import RecentCalls
from queenright.instrumentation.fingerprint import fingerprint
from queenright.runtime.events import EventType
from tests.health.worker_script import WorkerScript

LOOP = FindingKind.DOOM_LOOP
NO_GRACE = HealthSettings.model_validate({"judge": {"start_grace_seconds": 0}})


def start_worker(settings: HealthSettings = NO_GRACE) -> WorkerScript:
    return WorkerScript(settings=settings).start()


def report_calls(script: WorkerScript, letters: Iterable[str], *, result: str = "same") -> WorkerScript:
    for letter in letters:
        script.report_call(args=letter, result=result + letter)
    return script


@pytest.mark.parametrize(
    ("bad_steps", "severity", "ticket"),
    [
        (4, None, False),
        (5, Severity.LOW, False),
        (9, Severity.LOW, False),
        (10, Severity.MEDIUM, True),
        (14, Severity.MEDIUM, True),
        (15, Severity.HIGH, True),
        (19, Severity.HIGH, True),
        (20, Severity.CRITICAL, True),
    ],
)
def test_bad_steps_have_the_severity_of_their_band(
    bad_steps: int, severity: Severity | None, ticket: bool
) -> None:
    """B14: the band limits 5, 10, 15 and 20 are inclusive."""
    script = start_worker()
    script.report_step("RETRY", times=bad_steps, text="still no answer")

    finding = script.get_finding(FindingKind.RETRY_STORM)
    assert (finding.severity if finding else None) is severity
    assert (finding.ticket if finding else False) is ticket


def test_bad_steps_with_new_information_each_time_stay_a_warning() -> None:
    """B15: 10 to 14 bad steps that each have new information stay a warning."""
    texts, results = start_worker(), start_worker()
    for n in range(14):
        texts.report_step("RETRY", text=f"the {n}th chapter lacks a source")
        results.report_call(args=f"page {n}", result=f"text {n}")
        results.report_step("RETRY", text="not enough yet")

    for script in (texts, results):
        finding = script.get_finding(FindingKind.RETRY_STORM)
        assert finding is not None
        assert (finding.severity, finding.ticket) == (Severity.LOW, False)


def test_new_text_with_the_same_results_is_not_new_information() -> None:
    script = start_worker()
    for n in range(10):
        script.report_call(args=f"attempt {n}", result="connection refused")
        script.report_step("RETRY", text=f"let me try it in another way, the {n}th")

    finding = script.get_finding(FindingKind.RETRY_STORM)
    assert finding is not None
    assert finding.severity is Severity.MEDIUM


@pytest.mark.parametrize("outcome", ["ok", "error"])
def test_same_call_and_result_three_times_in_a_row_is_a_loop(outcome: str) -> None:
    """B26: the same tool, arguments and result three times in a row are a loop, even if every call fails."""
    script = start_worker()
    for n in (1, 2):
        script.report_call(outcome=outcome)
        assert script.get_finding(LOOP) is None, n
    script.report_call(outcome=outcome)

    finding = script.get_finding(LOOP)
    assert finding is not None
    assert finding.severity is Severity.MEDIUM
    assert "search" in finding.evidence
    assert script.state is HealthState.STUCK


def test_key_order_and_white_space_of_arguments_do_not_matter() -> None:
    """B27: key order and whitespace in arguments do not matter."""
    script = start_worker()
    for args in ('{"q": "bees", "n": 3}', '{"n":3,"q":"bees"}', '{ "n": 3, "q": "bees" }'):
        script.report_call(args=fingerprint(args))

    assert script.get_finding(LOOP) is not None


def test_ids_and_times_around_a_result_do_not_hide_a_repeat() -> None:
    """
    B83: different ids and timestamps around the same result do not hide a repeat; a changing number does.
    """
    repeating_worker, polling_worker = start_worker(), start_worker()
    for n in range(6):
        result = {
            "id": f"0{n}9d5a1e-7c1b-4b53-9e55-3a8f0c9e1a2{n}",
            "ts": f"2026-01-01T10:00:1{n}Z",
            "rows": 0,
        }
        repeating_worker.report_call(result=fingerprint(result))
        polling_worker.report_call(result=fingerprint({"status": "running", "percent": n * 7}))

    assert repeating_worker.get_finding(LOOP) is not None
    assert polling_worker.list_finding_kinds() == set()


def test_poll_with_changing_results_is_not_a_loop() -> None:
    """B28: the same poll with changing results is not a loop."""
    script = start_worker()
    for n in range(40):
        script.report_call("poll", result=f"{n} %")

    assert script.list_finding_kinds() == set()


def test_exempt_tools_are_ignored() -> None:
    """B28: tools on the exempt list are ignored."""
    script = start_worker(HealthSettings.model_validate({"loops": {"exempt_tools": ["poll"]}}))
    for _ in range(40):
        script.report_call("poll")

    assert script.list_finding_kinds() == set()


@pytest.mark.parametrize("cycle", ["AB", "ABC", "ABCD", "AAB"])
def test_three_rounds_of_a_cycle_are_a_loop(cycle: str) -> None:
    """B29: A-B-A-B-A-B is a loop."""
    script = report_calls(start_worker(), cycle * 3)

    assert script.get_finding(LOOP) is not None


def test_two_rounds_of_a_cycle_are_not_a_loop() -> None:
    assert report_calls(start_worker(), "ABAB").get_finding(LOOP) is None


def test_repeats_interleaved_with_other_calls_are_a_loop() -> None:
    """B29: repeats with one other call in between are a loop, although each of the other calls is new."""
    script = report_calls(start_worker(), "A1A2A3")
    assert script.get_finding(LOOP) is None
    report_calls(script, "A")

    finding = script.get_finding(LOOP)
    assert finding is not None
    assert (finding.severity, finding.ticket) == (Severity.MEDIUM, True)
    assert "4 times" in finding.evidence


def test_search_repeated_between_pages_is_a_loop_of_rising_severity() -> None:
    """B29: A-B-A-C, where each page is new and the search always returns the same."""
    script = start_worker()
    severities = []
    for n in range(20):
        script.report_call("web_search", args="queen bees", result="ten links")
        script.report_call("visit_page", args=f"url {n}", result=f"page {n}")
        finding = script.get_finding(LOOP)
        severities.append(finding.severity if finding else None)

    assert severities[2:5] == [None, Severity.MEDIUM, Severity.HIGH]
    assert severities[18:] == [Severity.HIGH, Severity.CRITICAL]


def test_command_repeated_after_each_change_is_not_a_loop() -> None:
    """B32: the command always returns the same, but it checks the changes made in between."""
    script = start_worker()
    script.report_call("edit", args="first", result="ok")
    for n in range(20):
        script.report_call("edit", args=f"patch {n}", result="ok")
        script.report_call("read", args=f"file {n}", result=f"text {n}")
        script.report_call("check", args="make check", result="no errors")

    assert script.list_finding_kinds() == set()


def test_check_after_each_change_is_not_a_streak_but_counts_in_the_share() -> None:
    """B32: edits and a check always return the same, with no read in between."""
    script = start_worker()
    script.report_call("edit", args="first", result="ok")
    for n in range(10):
        script.report_call("edit", args=f"patch {n}", result="ok")
        script.report_call("check", args="make check", result="no errors")

    for kind in (FindingKind.ZERO_PROGRESS, LOOP):
        finding = script.get_finding(kind)
        assert finding is not None
        assert (finding.severity, finding.ticket) == (Severity.LOW, False)
    assert script.list_finding_kinds() == {FindingKind.ZERO_PROGRESS, LOOP}


def test_repeated_fruitless_search_is_a_loop() -> None:
    """B29: A-B-A-C, where B and C are new and find nothing: a read is not a change."""
    script = start_worker()
    script.report_call("search", args="another", result="no results")
    for n in range(5):
        script.report_call("search", args="hive", result="three pages")
        script.report_call("search", args=f"hive {n}", result="no results")

    finding = script.get_finding(LOOP)
    assert finding is not None
    assert (finding.severity, finding.ticket) == (Severity.HIGH, True)


def test_check_repeated_after_each_edit_is_shown() -> None:
    """B32: nearly every second call is the same and returns the same."""
    script = start_worker()
    for n in range(7):
        script.report_call("edit", args=f"patch {n}", result=f"patched {n}")
        script.report_call("lint", result="no errors")
    assert script.get_finding(LOOP) is None
    script.report_call("edit", args="patch 7", result="patched 7")
    script.report_call("lint", result="no errors")

    finding = script.get_finding(LOOP)
    assert finding is not None
    assert (finding.severity, finding.ticket) == (Severity.LOW, False)
    assert "8 times" in finding.evidence


def test_change_does_not_hide_a_streak_or_a_cycle() -> None:
    streak_worker, cycle_worker = start_worker(), start_worker()
    for script in (streak_worker, cycle_worker):
        script.report_call("edit", args="first", result="ok")
        script.report_call("edit", args="second", result="ok")
    report_calls(streak_worker, "AAA")
    for _ in range(3):
        cycle_worker.report_call("edit", args="third", result="ok")
        cycle_worker.report_call("check", args="make check", result="failed")

    for script in (streak_worker, cycle_worker):
        finding = script.get_finding(LOOP)
        assert finding is not None
        assert "was called 3 times with" in finding.evidence


def test_repeats_before_a_change_still_count() -> None:
    script = report_calls(start_worker(), "A1A2A")
    script.report_call("edit", args="first", result="same1")
    report_calls(script, "A3")
    assert script.get_finding(LOOP) is None
    report_calls(script, "A")

    assert script.get_finding(LOOP) is not None


def test_one_class_of_error_with_different_arguments_is_an_error_streak() -> None:
    """B30: consecutive errors of one class from one tool are a streak, even with different arguments."""
    script = start_worker()
    for n in range(4):
        script.report_call(
            "fetch", args=f"url {n}", result=f"404 {n}", outcome="error", error_type="NotFound"
        )
    assert script.get_finding(FindingKind.ERROR_STREAK) is None
    script.report_call("fetch", args="url 5", result="404 5", outcome="error", error_type="NotFound")

    finding = script.get_finding(FindingKind.ERROR_STREAK)
    assert finding is not None
    assert all(part in finding.evidence for part in ("fetch", "5 times", "NotFound"))


@pytest.mark.parametrize(("tool", "error"), [("other", "NotFound"), ("fetch", "Forbidden")])
def test_different_tool_or_error_starts_a_new_streak(tool: str, error: str) -> None:
    script = start_worker()
    for n in range(4):
        script.report_call("fetch", args=f"{n}", result=f"{n}", outcome="error", error_type="NotFound")
    script.report_call(tool, args="x", result="x", outcome="error", error_type=error)

    assert script.get_finding(FindingKind.ERROR_STREAK) is None


def test_success_ends_an_error_streak() -> None:
    script = start_worker()
    for n in range(5):
        script.report_call("fetch", args=f"{n}", result=f"{n}", outcome="error", error_type="NotFound")
    script.report_call("fetch", args="good", result="page")

    assert script.get_finding(FindingKind.ERROR_STREAK) is None


def report_failures(script: WorkerScript, times: int, *, after: float = 1.0) -> None:
    for _ in range(times):
        n = script.turn
        script.report_call(
            f"t{n % 3}", args=f"{n}", result=f"{n}", outcome="error", error_type="Boom", after=after
        )


@pytest.mark.parametrize(
    ("times", "severity"), [(14, None), (15, Severity.HIGH), (19, Severity.HIGH), (20, Severity.CRITICAL)]
)
def test_failed_calls_of_many_tools_in_a_row_are_an_error_streak(
    times: int, severity: Severity | None
) -> None:
    """B30: the severity depends on the bands, not on the tools and their errors."""
    script = start_worker()
    report_failures(script, times)

    finding = script.get_finding(FindingKind.ERROR_STREAK)
    assert (finding.severity if finding else None) is severity
    assert (script.state is HealthState.STUCK) is (severity is not None)


def test_slow_failed_calls_are_an_error_streak_after_fifteen_minutes() -> None:
    script = start_worker()
    report_failures(script, 1)
    report_failures(script, 4, after=224)
    assert script.get_finding(FindingKind.ERROR_STREAK) is None
    report_failures(script, 1, after=4)

    finding = script.get_finding(FindingKind.ERROR_STREAK)
    assert finding is not None
    assert finding.severity is Severity.HIGH
    assert all(part in finding.evidence for part in ("6 times", "15 min", "t2", "Boom"))


def test_wait_between_failed_calls_does_not_count_as_time() -> None:
    script = start_worker()
    report_failures(script, 4)
    script.report_wait("user_input")
    script.report_wait(None, after=3600)
    report_failures(script, 4)

    assert script.get_finding(FindingKind.ERROR_STREAK) is None


@pytest.mark.parametrize("result", ["page", None, "ok"], ids=["new", "unknown", "acknowledged"])
def test_call_that_may_have_progressed_ends_a_failure_streak(result: str | None) -> None:
    script = start_worker()
    script.report_call("edit", args="first", result="ok")
    report_failures(script, 14)
    script.report_call("edit", args="second", result=result)
    report_failures(script, 14)

    assert script.get_finding(FindingKind.ERROR_STREAK) is None


def test_known_answers_between_failed_calls_do_not_end_their_streak() -> None:
    script = start_worker()
    script.report_call("read", args="page", result="text")
    for _ in range(15):
        report_failures(script, 1)
        script.report_call("read", args="page", result="text")

    assert script.get_finding(FindingKind.ERROR_STREAK) is not None


def test_failed_calls_of_one_turn_count_once() -> None:
    """B31: a turn whose parallel calls all fail is one failure."""
    script = start_worker()
    for n in range(20):
        script.report_call(f"t{n}", args=f"{n}", result=f"{n}", turn=1, outcome="error", error_type="Boom")

    assert script.get_finding(FindingKind.ERROR_STREAK) is None


def test_parallel_equal_calls_of_one_turn_count_once() -> None:
    """B31: parallel equal calls in one turn count once, for loops, streaks and progress."""
    script = start_worker()
    for turn in (1, 2):
        for _ in range(10):
            script.report_call(turn=turn, outcome="error", error_type="Timeout")
    assert script.list_finding_kinds() == {FindingKind.ERROR_RATE}
    script.report_call(turn=3, outcome="error", error_type="Timeout")

    assert script.list_finding_kinds() == {LOOP, FindingKind.ERROR_RATE}


def test_edit_test_cycle_is_not_a_loop() -> None:
    """B32: an edit-test cycle that repeats a test command with changing output is not a loop."""
    script = start_worker()
    for n in range(20):
        script.report_call("edit", args=f"patch {n}", result="ok")
        script.report_call(
            "test", args="pytest", result=f"{n} failed", outcome="error", error_type="TestsFailed"
        )

    assert script.list_finding_kinds() == {FindingKind.ERROR_RATE}
    assert script.state is HealthState.DEGRADED


@pytest.mark.parametrize(
    "error",
    [
        {"error_type": "ContextWindowExceededError"},
        {"error_type": "BadRequestError", "error": "This model's maximum context length is 8192 tokens"},
        {"error_type": "context_length_exceeded"},
        {"error_type": "BadRequestError", "error": "prompt is too long: 210000 tokens > 200000 maximum"},
    ],
)
def test_context_overflow_is_not_a_provider_failure(
    error: dict[str, str],
) -> None:
    """002 §11: a worker whose context is exhausted without a hand-off is stuck."""
    script = start_worker()
    for _ in range(3):
        script.report_event(EventType.LLM_CALL_COMPLETED, error)

    assert script.list_finding_kinds() == {FindingKind.CONTEXT_EXHAUSTED}
    states = [script.state]
    script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 10})
    states.append(script.state)

    assert states == [HealthState.STUCK, HealthState.HEALTHY]


def test_tokens_per_minute_limit_is_a_provider_failure() -> None:
    script = start_worker()
    for _ in range(3):
        text = "Rate limit reached: too many tokens per minute"
        script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "RateLimitError", "error": text})

    assert script.list_finding_kinds() == {FindingKind.PROVIDER_FAILURE}


@pytest.mark.parametrize("prefix", ["", "RuntimeError: "])
def test_error_is_shown_as_it_was_reported(prefix: str) -> None:
    """The error class, in which names and numbers are ``~``, is only for comparison."""
    script = start_worker()
    for attempt in range(3):
        text = f"cannot reach shard-{attempt} of the model"
        script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "RuntimeError", "error": text})
        script.report_event(EventType.STEP_COMPLETED, {"error_type": "RuntimeError", "error": prefix + text})

    finding = script.get_finding(FindingKind.PROVIDER_FAILURE)
    assert finding is not None
    assert finding.evidence == f"3 LLM calls failed in a row, last with {prefix}{text}"


def test_consecutive_llm_errors_are_a_provider_failure() -> None:
    """B34: consecutive LLM API errors are a provider failure, not a loop."""
    script = start_worker()
    for _ in range(2):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "RateLimitError"})
    assert script.list_finding_kinds() == set()
    script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "RateLimitError"})
    assert script.list_finding_kinds() == {FindingKind.PROVIDER_FAILURE}

    states = [script.state]
    script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "RateLimitError"})
    states.append(script.state)
    script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 10})
    states.append(script.state)

    assert states == [HealthState.DEGRADED, HealthState.FAILING, HealthState.HEALTHY]


def report_llm_error(script: WorkerScript, error: str = "RateLimitError") -> None:
    """Report a step that fails because its LLM call failed."""
    script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": error})
    script.report_step(error_type=error)


def test_step_failed_by_its_llm_call_counts_once_for_the_provider() -> None:
    """
    B34: consecutive LLM API errors are not the agent's fault: they are not bad steps, and count once each.
    """
    script = start_worker()
    for _ in range(5):
        report_llm_error(script)

    vitals = script.health.vitals
    assert (vitals.steps_since_last_accept, vitals.error_count, vitals.outcomes) == (0, 5, 5)
    assert script.get_finding(FindingKind.RETRY_STORM) is None
    assert script.state is HealthState.FAILING


def test_step_failed_by_a_context_overflow_is_bad() -> None:
    script = start_worker()
    for _ in range(5):
        report_llm_error(script, "ContextWindowExceededError")

    assert script.list_finding_kinds() == {FindingKind.CONTEXT_EXHAUSTED, FindingKind.RETRY_STORM}


def test_bad_step_counts_despite_its_llm_call() -> None:
    script = start_worker()
    for _ in range(5):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "RateLimitError"})
        script.report_step("RETRY")

    assert script.health.vitals.steps_since_last_accept == 5


def test_accepted_step_shows_that_a_model_answers() -> None:
    """If a framework reports only failed LLM calls, an accepted step shows that the provider works."""
    script = start_worker()
    for _ in range(10):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "RateLimitError"})
        script.report_step("ACCEPT")

    assert script.get_finding(FindingKind.PROVIDER_FAILURE) is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("RateLimitError", FindingKind.PROVIDER_FAILURE),
        ("ContextWindowExceededError", FindingKind.CONTEXT_EXHAUSTED),
    ],
)
def test_run_ended_by_a_failed_llm_call_is_shown_without_a_ticket(error: str, kind: FindingKind) -> None:
    """
    B34: one failed call is enough for a run that has ended, because its client has retried without reports.
    """
    script = start_worker()
    script.report_call()
    report_llm_error(script, error)
    assert script.get_finding(kind) is None
    script.report_event(EventType.EXECUTION_FAILED, {"error_type": error})

    finding = script.get_finding(kind)
    assert finding is not None
    assert (finding.severity, finding.ticket) == (Severity.MEDIUM, False)
    assert finding.evidence.startswith("the run ended in a failed LLM call, last with ")
    assert script.state is HealthState.HEALTHY
    script.now += 1
    script.start()
    assert script.list_finding_kinds() == set()


@pytest.mark.parametrize("end", [EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED])
def test_run_ended_without_an_llm_error_has_no_provider_failure(end: EventType) -> None:
    script = start_worker()
    report_llm_error(script)
    if end is EventType.EXECUTION_FAILED:
        script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 10})
    script.report_event(end, {"error_type": "ValueError"} if end is EventType.EXECUTION_FAILED else {})

    assert script.list_finding_kinds() == set()


def test_loop_grows_worse_beyond_its_window() -> None:
    script = start_worker()
    severities = []
    for _ in range(25):
        script.report_call()
        finding = script.get_finding(LOOP)
        severities.append(finding.severity if finding else None)

    assert severities[2] is severities[3] is Severity.MEDIUM
    assert severities[4] is severities[18] is Severity.HIGH
    assert severities[19] is severities[24] is Severity.CRITICAL


def test_slow_loop_reaches_critical_too() -> None:
    script = start_worker()
    for n in range(20):
        report_calls(script, ["A", f"new {n}"])

    finding = script.get_finding(LOOP)
    assert finding is not None
    assert finding.severity is Severity.CRITICAL


def test_loop_ends_after_four_unrelated_calls() -> None:
    script = report_calls(start_worker(), "AAAAA123")
    assert script.get_finding(LOOP) is not None
    report_calls(script, "4")

    assert script.get_finding(LOOP) is None
    assert script.state is HealthState.HEALTHY


def test_accept_ends_a_loop() -> None:
    script = report_calls(start_worker(), "AAAAA")
    script.report_step("ACCEPT")

    assert script.list_finding_kinds() == set()


def _fail_llm(script: WorkerScript) -> None:
    script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "RateLimitError"})


@pytest.mark.parametrize(
    ("kind", "repeat"),
    [
        (LOOP, lambda script: script.report_call()),
        (FindingKind.ERROR_STREAK, lambda script: script.report_call(outcome="error", error_type="OSError")),
        (FindingKind.RETRY_STORM, lambda script: script.report_step("RETRY")),
        (FindingKind.ZERO_PROGRESS, lambda script: report_calls(script, "ABCDE")),
        (FindingKind.ZERO_PROGRESS, lambda script: script.report_call("get_job_status", after=300.0)),
        (FindingKind.PROVIDER_FAILURE, lambda script: _fail_llm(script)),
    ],
)
def test_accept_ends_findings_about_progress(
    kind: FindingKind, repeat: Callable[[WorkerScript], object]
) -> None:
    """Triage relies on this: progress after the onset of such a finding clears it."""
    script = start_worker()
    for _ in range(20):
        repeat(script)
    finding_before = script.get_finding(kind)
    assert finding_before is not None
    assert finding_before.ticket

    script.report_step("ACCEPT")

    assert not [finding for finding in script.health.findings if finding.ticket]


def test_repeated_arguments_without_results_are_weak_evidence() -> None:
    script, mixed_worker = start_worker(), start_worker()
    for n in range(9):
        script.report_call(result=None)
        mixed_worker.report_call(result=None)
        mixed_worker.report_call(args=f"{n}", result=None)
    assert script.get_finding(LOOP) is None
    script.report_call(result=None)

    finding = script.get_finding(LOOP)
    assert finding is not None
    assert "results are not reported" in finding.evidence
    assert mixed_worker.get_finding(LOOP) is None


def test_calls_without_new_information_are_zero_progress() -> None:
    script = report_calls(start_worker(), "ABCDE")
    report_calls(script, "ACE")
    assert script.get_finding(FindingKind.ZERO_PROGRESS) is None
    report_calls(script, "B")

    finding = script.get_finding(FindingKind.ZERO_PROGRESS)
    assert finding is not None
    assert finding.severity is Severity.MEDIUM


def test_acknowledgements_are_not_zero_progress() -> None:
    script = start_worker()
    for n in range(60):
        script.report_call("insert_row", args=f"row {n}", result="ok")

    assert script.list_finding_kinds() == set()


def test_mostly_known_answers_are_shown_and_no_ticket() -> None:
    script = start_worker()
    report_calls(script, "AB")
    for n in range(6):
        script.report_call(args="A", result="sameA")
        script.report_call("edit", args=f"patch {n}", result="ok")
        script.report_call(args=f"new {n}", result=f"new {n}", outcome="error", error_type="E")

    finding = script.get_finding(FindingKind.ZERO_PROGRESS)
    assert finding is not None
    assert (finding.severity, finding.ticket) == (Severity.LOW, False)


def test_token_spike_is_shown_and_no_ticket() -> None:
    script = start_worker()
    for _ in range(5):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 10_000})
    script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 39_999})
    assert script.list_finding_kinds() == set()
    script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 40_000})

    finding = script.get_finding(FindingKind.TOKEN_SPIKE)
    assert finding is not None
    assert (finding.severity, finding.ticket) == (Severity.LOW, False)
    script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 10_000})
    assert script.get_finding(FindingKind.TOKEN_SPIKE) is None


def test_few_tokens_are_never_a_spike() -> None:
    script = start_worker()
    for tokens in (100, 100, 100, 100, 100, 19_000):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": tokens})

    assert script.list_finding_kinds() == set()


@given(st.lists(st.tuples(st.sampled_from("AB"), st.booleans()), max_size=60), st.integers(4, 30))
def test_only_recent_calls_without_a_change_count(call_changes: list[tuple[str, bool]], window: int) -> None:
    """Compare with a plain list that marks calls after which something has changed."""
    recent = RecentCalls(window)
    marked_calls: list[tuple[str, bool]] = []
    changed_at = -1
    for n, (letter, changes) in enumerate(call_changes):
        last = max((index for index, (tool, _) in enumerate(marked_calls) if tool == letter), default=None)
        has_changed_since = last is not None and last < changed_at and last >= n - window - 4
        recent.add(letter, "a", "r", None, float(n))
        marked_calls.append((letter, has_changed_since))
        if changes:
            recent.record_change()
            changed_at = n

    for repeat in recent.repeats():
        if repeat.tool == marked_calls[-1][0]:
            changes_before = [
                has_changed_since for tool, has_changed_since in marked_calls[-window:] if tool == repeat.tool
            ]
            assert repeat.in_window == 1 + sum(
                not has_changed_since for has_changed_since in changes_before[1:]
            )


@given(st.lists(st.sampled_from("AB"), max_size=60), st.integers(4, 30))
def test_recent_calls_equal_those_of_a_plain_list(letters: list[str], window: int) -> None:
    recent = RecentCalls(window)
    for n, letter in enumerate(letters):
        recent.add("tool", letter, "r", None, float(n))

    recent_letters = letters[-(window + 4) :]
    assert len(recent) == len(recent_letters)
    last = recent_letters[-1] if recent_letters else ""
    if recent_letters.count(last) > 1:
        repeat = recent.repeats()[0]
        tail = recent_letters[-window:]
        assert repeat.in_window == tail.count(last)
        assert repeat.run == len(letters) - len("".join(letters).rstrip(last))
        assert repeat.times <= letters.count(last)


def test_evidence_of_a_loop_counts_the_run_beyond_the_window() -> None:
    script = start_worker()
    for n in range(5):
        script.report_call("search", args="bees", result="none")
        script.report_call("read", args=f"{n}", result=f"{n}")
    for _ in range(88):
        script.report_call("search", args="bees", result="none")

    finding = script.get_finding(FindingKind.DOOM_LOOP)
    assert finding is not None
    assert finding.evidence == (
        "search was called 93 times with the same arguments and result, the last 88 in a row"
    )


def test_call_that_succeeds_without_a_recorded_result_ends_a_row_of_failures() -> None:
    """B104: a tool that works again ends the streak, whether or not its result is recorded."""
    script = start_worker()
    for n in range(20):
        script.report_call(
            "mcp__github__get_issue", args=f"{n}", result="gone", outcome="error", error_type="gone"
        )
    failing_kinds = {finding.kind for finding in script.health.findings}
    script.report_call("mcp__github__get_issue", args="20", result=None)

    assert failing_kinds >= {FindingKind.ERROR_STREAK, FindingKind.ZERO_PROGRESS}
    assert [finding for finding in script.health.findings if finding.ticket] == []
