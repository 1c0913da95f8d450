from __future__ import annotations

import pytest

from queenright.instrumentation.counts import format_count


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
def test_format_count_has_the_right_plural_and_separators(
    number: int, noun: str, plural: str, text: str
) -> None:
    assert format_count(number, noun, plural) == text
