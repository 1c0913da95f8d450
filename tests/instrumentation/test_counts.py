from __future__ import annotations

import pytest

from queenright.instrumentation.counts import format_count, format_names


@pytest.mark.parametrize(
    ("number", "noun", "plural", "text"),
    [
        (0, "ticket", "", "0 tickets"),
        (1, "ticket", "", "1 ticket"),
        (2, "ticket", "", "2 tickets"),
        (12_345, "token", "", "12,345 tokens"),
        (2, "retry", "retries", "2 retries"),
    ],
)
def test_format_count_pluralizes_and_separates_thousands(
    number: int, noun: str, plural: str, text: str
) -> None:
    assert format_count(number, noun, plural) == text


@pytest.mark.parametrize(
    ("names", "extra_count", "text"),
    [
        ([], 0, ""),
        (["a"], 0, "a"),
        (["a", "b"], 0, "a and b"),
        (["a", "b", "c"], 0, "a, b and 1 more"),
        (["a", "b", "c"], 7, "a, b and 8 more"),
    ],
)
def test_format_names_lists_two_names_and_counts_the_others(
    names: list[str], extra_count: int, text: str
) -> None:
    assert format_names(names, extra_count) == text
