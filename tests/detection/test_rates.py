"""Confidence intervals of rates."""

from __future__ import annotations

from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_guard.similarity import normalized_edit_distance as theirs

from tests.detection.edit_distance import normalized_edit_distance
from tests.detection.rates import (
    compute_bootstrap_interval,
    compute_median,
    compute_wilson_interval,
    format_percent,
    format_rate,
)


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    # From R's binom.confint(method = "wilson"); 0 of 10 is z²/(n + z²).
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (8, 10, 0.4902, 0.9433), (15, 18, 0.6078, 0.9416)],
)
def test_wilson_gives_the_known_intervals(hits: int, total: int, low: float, high: float) -> None:
    assert compute_wilson_interval(hits, total) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 5000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_rate_lies_in_its_interval(counts: tuple[int, int]) -> None:
    alarm_count, total = counts
    low, high = compute_wilson_interval(alarm_count, total)

    assert 0 <= low <= alarm_count / total <= high <= 1
    assert compute_wilson_interval(total - alarm_count, total) == pytest.approx((1 - high, 1 - low))


def test_rate_without_runs_is_unknown() -> None:
    assert compute_wilson_interval(0, 0) == (0.0, 1.0)
    assert format_rate(0, 0) == "\N{EN DASH}"
    assert compute_median([]) is None
    assert compute_bootstrap_interval([1, 2], lambda sample: None) is None


def test_bootstrap_gives_the_same_interval_each_time() -> None:
    sample = [float(n % 7) for n in range(60)]

    interval = compute_bootstrap_interval(sample, mean)

    assert interval is not None
    assert interval == compute_bootstrap_interval(sample, mean)
    assert interval.low < mean(sample) < interval.high


def test_rates_have_a_decimal_only_below_ten() -> None:
    assert [format_percent(share) for share in (0, 0.006, 0.0996, 0.5, 1)] == [
        "0%",
        "0.6%",
        "10%",
        "50%",
        "100%",
    ]
    assert format_rate(15, 18) == "83% (61\N{EN DASH}94)"


@given(st.text("abc /", max_size=40), st.text("abc /", max_size=40))
def test_edit_distance_equals_that_of_agent_loop_guard(text: str, other_text: str) -> None:
    assert normalized_edit_distance(text, other_text) == theirs(text, other_text)


@given(st.text(max_size=20), st.text(max_size=20))
def test_edit_distance_equals_that_of_agent_loop_guard_for_any_text(text: str, other_text: str) -> None:
    assert normalized_edit_distance(text, other_text) == theirs(text, other_text)
