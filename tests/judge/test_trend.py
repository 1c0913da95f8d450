"""The numbers of each worker's previous check are exact, and independent of the conversation."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.judge.trend import COUNTS, MAX_WORKERS, Trends
from queenright.runtime.storage.files import UnusableFileError


def make_summary(
    agent: str = "bee", session: str = "s", incarnation: str = "i", **numbers: Any
) -> dict[str, Any]:
    counts = dict.fromkeys(COUNTS, 0) | {"tokens": None}
    return {
        "agent_id": agent,
        "session_id": session,
        "incarnation_id": incarnation,
        "state": "stuck",
        "stall_minutes": 1.5,
        "last_progress": 5.0,
        **counts,
        **numbers,
    }


def test_first_check_has_no_trend() -> None:
    assert Trends().compare(make_summary(), 0.0) is None


def test_second_check_has_the_numbers_of_the_first_and_their_change() -> None:
    trends = Trends()
    trends.note(make_summary(total_steps=47), 1000.0, "healthy")

    trend = trends.compare(make_summary(total_steps=47, tool_calls_total=2, last_progress=9.0), 1120.0)

    assert trend is not None
    assert (trend["minutes_ago"], trend["verdict_then"], trend["checks_before"]) == (2.0, "healthy", 1)
    assert trend["then"]["total_steps"] == 47
    assert trend["change"] == dict.fromkeys(COUNTS, 0) | {"tool_calls_total": 2, "tokens": None}
    assert trend["progress_since"] is True
    assert trend["restart_since"] is False


def test_different_session_starts_its_own_trend() -> None:
    """B5: the first check of a worker in a new session has no trend."""
    trends = Trends()
    trends.note(make_summary(total_steps=47), 0.0, "healthy")

    assert trends.compare(make_summary(session="t", total_steps=3), 120.0) is None


def test_decreased_count_is_not_reported_as_a_change() -> None:
    """B5: fewer steps than before mean that the worker started again."""
    trends = Trends()
    trends.note(make_summary(total_steps=47), 0.0, "healthy")

    trend = trends.compare(make_summary(incarnation="j", total_steps=3), 120.0)

    assert trend is not None
    assert trend["change"]["total_steps"] is None
    assert trend["restart_since"] is True


@given(st.lists(st.tuples(st.integers(0, MAX_WORKERS + 20), st.integers(0, 9))))
def test_trend_file_round_trips_within_its_limit(checks: list[tuple[int, int]]) -> None:
    trends = Trends()
    for number, steps in checks:
        trends.note(make_summary(f"bee-{number}", total_steps=steps), float(steps), "unknown")

    rows = trends.dump()

    assert len(trends) == len(rows) == len({number for number, _ in checks}) <= MAX_WORKERS
    assert not trends.has_changed


def test_worker_checked_longest_ago_is_removed_first(tmp_path: Path) -> None:
    trends = Trends()
    for number in range(MAX_WORKERS):
        trends.note(make_summary(f"bee-{number}"), 0.0, "healthy")
    trends.note(make_summary("bee-0"), 1.0, "healthy")
    trends.note(make_summary("one more"), 1.0, "healthy")

    Trends.save(tmp_path / "deep" / "trend.json", trends.dump())
    loaded_trends = Trends.load(tmp_path / "deep" / "trend.json")

    assert len(loaded_trends) == MAX_WORKERS
    assert loaded_trends.compare(make_summary("bee-0"), 2.0) is not None
    assert loaded_trends.compare(make_summary("bee-1"), 2.0) is None


@pytest.mark.parametrize("content", ["", "{", "{}", '[{"agent_id": "bee"}]', "[1]"])
def test_file_without_a_trend_is_rejected(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trend.json"
    path.write_text(content)

    with pytest.raises(UnusableFileError, match=r"trend\.json"):
        Trends.load(path)
    assert len(Trends.load(tmp_path / "none.json")) == 0
