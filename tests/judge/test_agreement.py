"""Kappa: known values, its borders, and that it does not depend on what it must not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.judge.scenarios.agreement import agreement, kappa

ORDER = ("none", "low", "medium", "high", "critical")
PAIRS = st.lists(st.tuples(st.sampled_from(ORDER), st.sampled_from(ORDER)), min_size=1, max_size=40)


def table(yes_yes: int, yes_no: int, no_yes: int, no_no: int) -> list[tuple[str, str]]:
    return (
        [("yes", "yes")] * yes_yes
        + [("yes", "no")] * yes_no
        + [("no", "yes")] * no_yes
        + [("no", "no")] * no_no
    )


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (table(20, 5, 10, 15), 0.4),  # agreement 0.7 where chance alone gives 0.5
        (table(45, 15, 25, 15), 0.1304),
        (table(25, 35, 5, 35), 0.2593),
        (table(10, 0, 0, 10), 1.0),
        (table(0, 10, 10, 0), -1.0),
        (table(5, 5, 5, 5), 0.0),
        (table(10, 0, 10, 0), 0.0),  # always yes
    ],
)
def test_kappa_of_known_tables(pairs: list[tuple[str, str]], expected: float) -> None:
    assert kappa(pairs) == pytest.approx(expected, abs=1e-4)


def test_kappa_is_undefined_when_only_one_answer_occurs() -> None:
    assert kappa([]) is None
    assert kappa(table(10, 0, 0, 0)) is None
    found = agreement(table(10, 0, 0, 0))
    assert (found.kappa, found.low, found.high, found.share) == (None, None, None, 1.0)


def test_weights_forgive_a_neighbour_and_not_the_other_end() -> None:
    well = [(level, level) for level in ORDER] * 4
    near, far = [*well, ("critical", "high")], [*well, ("critical", "none")]

    assert (kappa(near, ORDER) or 0) > (kappa(far, ORDER) or 0)
    assert kappa(near) == pytest.approx(kappa(far) or 0, abs=0.01)


def test_weighted_kappa_of_a_table_worked_out_by_hand() -> None:
    # Two misses by one place in 4 answers: 1/2. By chance none meets none, low and medium as often as the
    # answers are given: (2·0 + 4·1 + 2·2 + 2·2 + 4·1 + 2·0) / 16 = 1.
    pairs = [("none", "none"), ("none", "low"), ("medium", "low"), ("medium", "medium")]

    assert kappa(pairs, ("none", "low", "medium")) == pytest.approx(0.5)


def test_answer_outside_the_order_is_refused() -> None:
    with pytest.raises(ValueError, match="awful"):
        kappa([("none", "awful")], ORDER)


@given(PAIRS)
def test_kappa_is_at_most_one_and_one_only_for_full_agreement(pairs: list[tuple[str, str]]) -> None:
    for order in ((), ORDER):
        value = kappa(pairs, order)
        if value is not None:
            assert value <= 1.0
            assert (value == pytest.approx(1.0)) == all(a == b for a, b in pairs)


@given(PAIRS)
def test_kappa_is_independent_of_order_and_rater(
    pairs: list[tuple[str, str]],
) -> None:
    turned = [(b, a) for a, b in pairs]
    mixed = sorted(pairs)

    for order in ((), ORDER):
        value = kappa(pairs, order)
        for other in (kappa(turned, order), kappa(mixed, order)):
            assert other == (None if value is None else pytest.approx(value))


@given(PAIRS)
def test_interval_is_the_same_each_time(pairs: list[tuple[str, str]]) -> None:
    one, other = (agreement(pairs, ORDER, resamples=50) for _ in range(2))

    assert one == other
    if one.low is not None and one.high is not None:
        assert one.low <= one.high
