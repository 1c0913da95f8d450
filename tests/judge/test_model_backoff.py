import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.judge.model_backoff import WINDOW, ModelBackoff
from tests.judge.conftest import FakeTime

FAILED, ANSWERED = True, False


def after(calls: list[bool], *, every: float = 60.0, failures: int = 3) -> tuple[ModelBackoff, FakeTime, int]:
    """Return what calls come to until the first rest, and how many were made."""
    time = FakeTime()
    patience = ModelBackoff(failures, 300, time)
    for count, failed in enumerate(calls):
        if patience.reason:
            return patience, time, count
        time.now += every
        if failed:
            patience.note_failure("timeout")
        else:
            patience.note_reply()
    return patience, time, len(calls)


@pytest.mark.parametrize(
    ("turns", "calls_before_its_rest"),
    [([FAILED], 3), ([FAILED, FAILED, ANSWERED], 8), ([FAILED, ANSWERED], 11)],
)
def test_model_failing_half_its_calls_is_suspended(turns: list[bool], calls_before_its_rest: int) -> None:
    patience, _, calls = after(turns * 20)

    assert patience.reason == "timeout"
    assert calls == calls_before_its_rest


def test_model_failing_a_third_of_its_calls_is_not_suspended() -> None:
    patience, _, _ = after([ANSWERED, ANSWERED, FAILED] * 500)

    assert patience.reason is None


def test_failures_of_an_hour_ago_are_forgotten() -> None:
    patience, _, calls = after([FAILED, FAILED, ANSWERED] * 20, every=WINDOW / 5)

    assert patience.reason is None
    assert calls == 60


def test_success_after_suspension_resets_the_failures() -> None:
    patience, time, _ = after([FAILED, FAILED, ANSWERED] * 20)
    time.now += 300
    assert patience.reason is None

    assert patience.note_reply()
    assert not patience.note_reply()
    assert [patience.note_failure("error") for _ in range(3)] == [False, False, True]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_model_is_suspended_only_after_the_tolerated_failures(calls: list[bool], failures: int) -> None:
    patience, _, made = after(calls, failures=failures)

    if patience.reason:
        assert sum(calls[:made]) >= failures
        assert calls[made - 1] is FAILED
