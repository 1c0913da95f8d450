"""The service killed at every point of the outbox, with two real Alertmanagers at the end of bad ways."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.alert_process import POINTS
from tests.chaos.alerts import under_fire

KILLS = 6
"""However long they take; ``python -m tests.chaos.alerts --kills 200`` does more."""


async def test_decision_reaches_both_alertmanagers_once_despite_failures(
    tmp_path: Path,
) -> None:
    """
    B43, B76, B77: the service is killed at any moment, after an hour in which nobody could be told.

    Alertmanagers refuse, hang, are slow, answer 500 and 503, are cut off in the middle; one or both. Then
    each knows every notification under the identity that it was decided under, those that ended have ended,
    and people got one message for each page.
    """
    found = await under_fire(tmp_path, kills=KILLS, seed=43)

    assert found["wrong"] == []
    assert found["notifications"] >= 3
    assert sum(found["deaths"].values()) >= 4
    assert set(found["deaths"]) & set(POINTS)
