from __future__ import annotations

from queenright.health.settings import HealthSettings
from queenright.health.vital_facts import SessionStatus
from queenright.health.vitals import VitalSigns
from queenright.server.earlier_lives import earlier_lives

SETTINGS = HealthSettings()


def life(session: str, began: float, *, beat: float | None = None, ended: bool = False) -> VitalSigns:
    vitals = VitalSigns("bee", session, began, SETTINGS.loops, SETTINGS)
    vitals.last_heartbeat = beat
    if ended:
        vitals.end(SessionStatus.FAILED, began + 1)
    return vitals


def test_session_whose_heartbeats_stopped_before_this_one_began_is_an_earlier_life() -> None:
    """B123; and B122: one that runs at the same time, or may be silent, is not."""
    mine = life("mine", 100.0)
    others = [
        life("crashed", 10.0, beat=60.0),
        life("failed", 20.0, ended=True),
        life("beats on", 10.0, beat=130.0),
        life("silent", 10.0),
        mine,
    ]

    assert earlier_lives(mine, others) == ["crashed", "failed"]
