import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.judge.model_backoff import WINDOW, ModelBackoff
from tests.judge.conftest import FakeTime

FAILED, ANSWERED = True, False


def record_calls(
    calls: list[bool], *, seconds_between: float = 60.0, failures: int = 3
) -> tuple[ModelBackoff, FakeTime, int]:
    """Record calls until the first suspension; return the backoff, the clock and the number of calls."""
    time = FakeTime()
    backoff = ModelBackoff(failures, 300, time)
    for count, has_failed in enumerate(calls):
        if backoff.reason:
            return backoff, time, count
        time.now += seconds_between
        if has_failed:
            backoff.note_failure("timeout")
        else:
            backoff.note_reply()
    return backoff, time, len(calls)


@pytest.mark.parametrize(
    ("pattern", "calls_before_suspension"),
    [([FAILED], 3), ([FAILED, FAILED, ANSWERED], 8), ([FAILED, ANSWERED], 11)],
)
def test_model_failing_half_its_calls_is_suspended(pattern: list[bool], calls_before_suspension: int) -> None:
    backoff, _, calls = record_calls(pattern * 20)

    assert backoff.reason == "timeout"
    assert calls == calls_before_suspension


def test_model_failing_a_third_of_its_calls_is_not_suspended() -> None:
    backoff, _, _ = record_calls([ANSWERED, ANSWERED, FAILED] * 500)

    assert backoff.reason is None


def test_failures_of_an_hour_ago_are_forgotten() -> None:
    backoff, _, calls = record_calls([FAILED, FAILED, ANSWERED] * 20, seconds_between=WINDOW / 5)

    assert backoff.reason is None
    assert calls == 60


def test_success_after_suspension_resets_the_failures() -> None:
    backoff, time, _ = record_calls([FAILED, FAILED, ANSWERED] * 20)
    time.now += 300
    assert backoff.reason is None

    assert backoff.note_reply()
    assert not backoff.note_reply()
    assert [backoff.note_failure("error") for _ in range(3)] == [False, False, True]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_model_is_suspended_only_after_the_tolerated_number_of_failures(
    calls: list[bool], failures: int
) -> None:
    backoff, _, calls_made = record_calls(calls, failures=failures)

    if backoff.reason:
        assert sum(calls[:calls_made]) >= failures
        assert calls[calls_made - 1] is FAILED
