"""Characters that must not reach a terminal."""

from __future__ import annotations

from typing import Final

CONTROL_CHARACTERS: Final = (
    *range(32),
    *range(127, 160),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
)
"""Control characters, bidirectional overrides and surrogates: they could move the cursor or hide text."""
