"""The service is killed at every point of the outbox, with faulty connections to two real Alertmanagers."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.alert_process import POINTS
from tests.chaos.alerts import run_with_failures

KILLS = 6
"""The number of kills; ``python -m tests.chaos.alerts --kills 200`` kills more often."""


async def test_decision_reaches_both_alertmanagers_once_despite_failures(
    tmp_path: Path,
) -> None:
    """
    B43, B76, B77: the service is killed at any moment, after an hour without notifications.

    One or both Alertmanagers refuse connections, hang, are slow, answer 500 or 503, or break off. At the end,
    each has every notification under its original identity, ended alerts have ended, and each page has one
    message.
    """
    result = await run_with_failures(tmp_path, kills=KILLS, seed=43)

    assert result["differences"] == []
    assert result["notifications"] >= 3
    assert sum(result["deaths"].values()) >= 4
    assert set(result["deaths"]) & set(POINTS)
