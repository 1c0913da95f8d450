"""Replay a session through the detectors: their values at each step, and the findings."""

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
    Replay a session with the given thresholds. This takes up to a second, so call it in a thread.

    Args:
        events: The events of the session, in the order of the log.
        settings: The thresholds.
        session_id: The session.
        until: The end of the session's monitoring, in seconds since the epoch.
        is_truncated: Whether there are earlier events.
    """
    step_ids = _assign_steps(events)
    shown_moments: list[api.Moment] = []
    moments: list[Moment] = []
    for moment in replay(make_monotonic(events), settings, until=until):
        moments.append(moment)
        is_step = events[moment.step].type in STEP_EVENTS
        previous_findings = moments[-2].findings if len(moments) > 1 else []
        if is_step or _list_finding_keys(moment.findings) != _list_finding_keys(previous_findings):
            shown_moments.append(_make_moment(moment, settings, step_ids))
    rows = [
        api.FiredFinding(
            **_describe_finding(onset.finding),
            at=onset.at,
            step_id=step_ids[onset.step],
            cleared_at=onset.cleared_at,
        )
        for onset in list_onsets(moments)
    ]
    return api.Evaluation(
        session_id=session_id,
        moments=shown_moments,
        fired=rows,
        settings=[api.Threshold.of(threshold) for threshold in list_thresholds(settings)],
        truncated=is_truncated,
    )


def _assign_steps(events: Iterable[AgentEvent]) -> list[str]:
    """Return the id of each event's step, or of the last step before it."""
    steps = SessionSteps()
    step_ids, last_step_id = [], ""
    for number, event in enumerate(events):
        if event.type in STEP_EVENTS:
            last_step_id = steps.add(number, event) or last_step_id
        step_ids.append(last_step_id)
    return step_ids


def _make_moment(moment: Moment, settings: HealthSettings, step_ids: Sequence[str]) -> api.Moment:
    return api.Moment(
        step_id=step_ids[moment.step],
        at=moment.at,
        health=determine_state_at(moment, settings),
        findings=[api.ReplayFinding(**_describe_finding(finding)) for finding in moment.findings],
        holds=[
            api.DetectorValue(
                detector=value.kind, value=value.value, limit=value.limit, text=value.description
            )
            for value in list_detector_values(moment.vitals, settings, moment.at)
        ],
    )


def _describe_finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "severity": finding.severity,
        "evidence": finding.evidence,
        "shadow": finding.shadow,
    }


def _list_finding_keys(findings: Iterable[Finding]) -> set[tuple[str, str]]:
    return {(finding.kind, finding.severity) for finding in findings}
