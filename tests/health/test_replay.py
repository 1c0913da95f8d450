"""The replay of a session through the detectors."""

from __future__ import annotations

from queenright.health.detection.session_replay import list_onsets, make_monotonic, replay
from queenright.health.findings import FindingKind
from queenright.health.settings import HealthSettings
from queenright.runtime.events import AgentEvent, EventType

SETTINGS = HealthSettings()
IDLE = SETTINGS.stall.idle_seconds


def make_event(kind: EventType, at: float, **data: object) -> AgentEvent:
    return AgentEvent(type=kind, time=at, incarnation_id="i", data=data)


def make_run(*later: float) -> list[AgentEvent]:
    """Return a run whose steps end at these times."""
    start = make_event(EventType.EXECUTION_STARTED, 0.0, start_records=True)
    return [start, *(make_event(EventType.STEP_COMPLETED, step_end, verdict="ACCEPT") for step_end in later)]


def test_silence_is_found_when_it_is_too_long_and_ends_with_the_next_event() -> None:
    events = make_monotonic(make_run(10.0, 1000.0))

    [stall] = list_onsets(replay(events, SETTINGS))

    assert (stall.finding.kind, stall.at, stall.step) == (FindingKind.STALL, 10.0 + IDLE, 1)
    assert stall.cleared_at == 1000.0
    assert stall.finding.evidence == "nothing happened for 4 min between steps"


def test_silence_after_the_last_event_counts_only_while_the_session_was_watched() -> None:
    events = make_monotonic(make_run(10.0))

    assert list_onsets(replay(events, SETTINGS)) == []
    assert list_onsets(replay(events, SETTINGS, until=9.0 + IDLE)) == []
    [stall] = list_onsets(replay(events, SETTINGS, until=10.0 + IDLE))
    assert stall.cleared_at is None


def test_waiting_worker_is_not_stalled() -> None:
    events = make_monotonic(
        [*make_run(10.0), make_event(EventType.WORKER_WAITING, 11.0, reason="user_input")]
    )

    assert list_onsets(replay(events, SETTINGS, until=5000.0)) == []


def test_failed_call_is_found_only_if_its_session_is_over() -> None:
    call = make_event(EventType.LLM_CALL_COMPLETED, 11.0, error_type="APIError")
    events = make_monotonic([*make_run(10.0), call])

    assert [onset.finding.kind for onset in list_onsets(replay(events, SETTINGS))] == [
        FindingKind.PROVIDER_FAILURE
    ]
    assert list_onsets(replay(events, SETTINGS, until=20.0)) == []


def test_times_never_go_back() -> None:
    assert [at for at, _ in make_monotonic(make_run(10.0, 5.0, 12.0))] == [0.0, 10.0, 10.0, 12.0]
