"""The monitor as a real process that is killed at any moment."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.killed_monitor import kill_repeatedly

KILLS = 60
SECONDS = 40.0
"""Time limit for the kills; ``python -m tests.chaos.killed_monitor --kills 1000`` has none."""


def test_decisions_of_a_killed_monitor_are_kept_and_executed_once(tmp_path: Path) -> None:
    """
    B77: ``kill -9`` at any moment loses no ticket, intervention, recovery or notification.

    None gets a second identity, no nudge is delivered twice, and no other incarnation of a worker is stopped.
    """
    result = kill_repeatedly(tmp_path, kills=KILLS, seed=77, seconds=SECONDS)

    assert result["differences"] == []
    assert result["kills"] >= 5
    assert result["tickets"] > 0
    assert result["interventions"] > 0
