"""The monitor as a real process, really killed, in the middle of everything."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.killed_monitor import killed

KILLS = 60
SECONDS = 40.0
"""No more kills after so long; ``python -m tests.chaos.killed_monitor --kills 1000`` does them all."""


def test_decisions_of_a_killed_monitor_are_kept_and_executed_once(tmp_path: Path) -> None:
    """
    B77: ``kill -9`` at any moment: no ticket, intervention, recovery or notification is lost.

    Nor does one get a second identity, is a nudge given twice, or another life of a worker stopped.
    """
    found = killed(tmp_path, kills=KILLS, seed=77, seconds=SECONDS)

    assert found["wrong"] == []
    assert found["kills"] >= 5
    assert found["tickets"] > 0
    assert found["interventions"] > 0
