"""The state of a switch that people set, such as the emergency stop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchState:
    """The state of the switch, who set it, why, and when (seconds since the epoch)."""

    on: bool = False
    by: str = ""
    reason: str = ""
    changed_at: float | None = None
