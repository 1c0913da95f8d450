"""One line of the benchmark table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement and its budget, both as text with units."""

    name: str
    measured: str
    budget: str
    ok: bool
