from __future__ import annotations

import pytest

from queenright.instrumentation.durations import format_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (0.4, "0 s"),
        (6, "6 s"),
        (89, "89 s"),
        (90, "2 min"),
        (240, "4 min"),
        (5_369, "89 min"),
        (5_400, "1.5 h"),
        (9_000, "2.5 h"),
        (10_800, "3 h"),
        (129_600, "1.5 d"),
        (259_200, "3 d"),
    ],
)
def test_format_duration_uses_plain_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
