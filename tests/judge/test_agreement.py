"""Kappa: known values, limits, and independence of the order of answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.judge.scenarios.agreement import agreement, kappa

LEVELS = ("none", "low", "medium", "high", "critical")
PAIRS = st.lists(st.tuples(st.sampled_from(LEVELS), st.sampled_from(LEVELS)), min_size=1, max_size=40)


def make_pairs(yes_yes: int, yes_no: int, no_yes: int, no_no: int) -> list[tuple[str, str]]:
    return (
        [("yes", "yes")] * yes_yes
        + [("yes", "no")] * yes_no
        + [("no", "yes")] * no_yes
        + [("no", "no")] * no_no
    )


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (make_pairs(20, 5, 10, 15), 0.4),  # agreement 0.7 where chance alone gives 0.5
        (make_pairs(45, 15, 25, 15), 0.1304),
        (make_pairs(25, 35, 5, 35), 0.2593),
        (make_pairs(10, 0, 0, 10), 1.0),
        (make_pairs(0, 10, 10, 0), -1.0),
        (make_pairs(5, 5, 5, 5), 0.0),
        (make_pairs(10, 0, 10, 0), 0.0),  # the first rater always says yes
    ],
)
def test_kappa_has_its_known_value(pairs: list[tuple[str, str]], expected: float) -> None:
    assert kappa(pairs) == pytest.approx(expected, abs=1e-4)


def test_kappa_is_undefined_when_only_one_answer_occurs() -> None:
    assert kappa([]) is None
    assert kappa(make_pairs(10, 0, 0, 0)) is None
    result = agreement(make_pairs(10, 0, 0, 0))
    assert (result.kappa, result.low, result.high, result.share) == (None, None, None, 1.0)


def test_weighted_kappa_forgives_a_neighbour_but_not_the_opposite_level() -> None:
    agreeing_pairs = [(level, level) for level in LEVELS] * 4
    with_near_miss, with_far_miss = (
        [*agreeing_pairs, ("critical", "high")],
        [*agreeing_pairs, ("critical", "none")],
    )

    assert (kappa(with_near_miss, LEVELS) or 0) > (kappa(with_far_miss, LEVELS) or 0)
    assert kappa(with_near_miss) == pytest.approx(kappa(with_far_miss) or 0, abs=0.01)


def test_weighted_kappa_equals_the_value_computed_by_hand() -> None:
    # Two misses by one level in 4 answers: 1/2. Expected by chance, with each level as frequent as in the
    # # answers: (2·0 + 4·1 + 2·2 + 2·2 + 4·1 + 2·0) / 16 = 1.
    pairs = [("none", "none"), ("none", "low"), ("medium", "low"), ("medium", "medium")]

    assert kappa(pairs, ("none", "low", "medium")) == pytest.approx(0.5)


def test_kappa_rejects_an_answer_outside_the_order() -> None:
    with pytest.raises(ValueError, match="awful"):
        kappa([("none", "awful")], LEVELS)


@given(PAIRS)
def test_kappa_is_one_only_for_full_agreement(pairs: list[tuple[str, str]]) -> None:
    for order in ((), LEVELS):
        value = kappa(pairs, order)
        if value is not None:
            assert value <= 1.0
            assert (value == pytest.approx(1.0)) == all(first == second for first, second in pairs)


@given(PAIRS)
def test_kappa_is_independent_of_order_and_rater(
    pairs: list[tuple[str, str]],
) -> None:
    swapped_pairs = [(second_answer, first_answer) for first_answer, second_answer in pairs]
    sorted_pairs = sorted(pairs)

    for order in ((), LEVELS):
        value = kappa(pairs, order)
        for other in (kappa(swapped_pairs, order), kappa(sorted_pairs, order)):
            assert other == (None if value is None else pytest.approx(value))


@given(PAIRS)
def test_interval_is_reproducible(pairs: list[tuple[str, str]]) -> None:
    first, second = (agreement(pairs, LEVELS, resamples=50) for _ in range(2))

    assert first == second
    if first.low is not None and first.high is not None:
        assert first.low <= first.high
