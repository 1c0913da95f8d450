"""One line of the benchmark table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured against what budget, both as text with their units."""

    name: str
    measured: str
    budget: str
    ok: bool
