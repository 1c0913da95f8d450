"""The replay of a session through the detectors: their values at each step, and the findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from queenright import api
from queenright.health.detection.detector_values import list_detector_values
from queenright.health.detection.evaluation_thresholds import list_thresholds
from queenright.health.detection.session_replay import (
    Moment,
    determine_state_at,
    list_onsets,
    make_monotonic,
    replay,
)
from queenright.health.findings import Finding
from queenright.health.settings import HealthSettings
from queenright.runtime.events import AgentEvent
from queenright.server.views.session_steps import STEP_EVENTS, SessionSteps


def evaluate_session(
    events: Sequence[AgentEvent],
    settings: HealthSettings,
    *,
    session_id: str,
    until: float,
    is_truncated: bool,
) -> api.Evaluation:
    """
    Return the replay of a session. Takes up to a second, so call it in a thread.

    Args:
        events: The events of the session, in the order of the log.
        settings: The thresholds.
        session_id: The session.
        until: When the session was last watched, in seconds since the epoch.
        is_truncated: Whether there are earlier events.
    """
    step_ids = _assign_steps(events)
    shown_moments: list[api.Moment] = []
    moments: list[Moment] = []
    for moment in replay(make_monotonic(events), settings, until=until):
        moments.append(moment)
        is_step = events[moment.step].type in STEP_EVENTS
        before = moments[-2].findings if len(moments) > 1 else []
        if is_step or _names(moment.findings) != _names(before):
            shown_moments.append(_moment(moment, settings, step_ids))
    rows = [
        api.FiredFinding(
            **_finding(key.finding), at=key.at, step_id=step_ids[key.step], cleared_at=key.cleared_at
        )
        for key in list_onsets(moments)
    ]
    return api.Evaluation(
        session_id=session_id,
        moments=shown_moments,
        fired=rows,
        settings=[api.Threshold.of(threshold) for threshold in list_thresholds(settings)],
        truncated=is_truncated,
    )


def _assign_steps(events: Iterable[AgentEvent]) -> list[str]:
    """Return the step of each event, or the last step before it."""
    steps = SessionSteps()
    step_ids, last = [], ""
    for number, event in enumerate(events):
        if event.type in STEP_EVENTS:
            last = steps.add(number, event) or last
        step_ids.append(last)
    return step_ids


def _moment(moment: Moment, settings: HealthSettings, step_ids: Sequence[str]) -> api.Moment:
    return api.Moment(
        step_id=step_ids[moment.step],
        at=moment.at,
        health=determine_state_at(moment, settings),
        findings=[api.ReplayFinding(**_finding(finding)) for finding in moment.findings],
        holds=[
            api.DetectorValue(
                detector=value.kind, value=value.value, limit=value.limit, text=value.description
            )
            for value in list_detector_values(moment.vitals, settings, moment.at)
        ],
    )


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "severity": finding.severity,
        "evidence": finding.evidence,
        "shadow": finding.shadow,
    }


def _names(findings: Iterable[Finding]) -> set[tuple[str, str]]:
    return {(finding.kind, finding.severity) for finding in findings}
