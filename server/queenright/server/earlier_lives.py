"""Which sessions of an agent were over before another began: an agent that crashes is started anew. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from queenright.health.vitals import VitalSigns


def earlier_lives(vitals: VitalSigns, others: Iterable[VitalSigns]) -> list[str]:
    """
    Return the sessions that were over before this one began, the latest first.

    Of a session without heartbeats nobody knows whether it is silent or gone, unless it has ended.
    """
    over = [
        (one.last_event, one.session_id)
        for one in others
        if one.session_id != vitals.session_id
        and (one.ended or one.last_heartbeat is not None)
        and one.last_event <= vitals.started_at
    ]
    return [session_id for _, session_id in sorted(over, reverse=True)]
