"""The decisions of recovery, without a store or a worker."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.detection.health_state import HealthState
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.recovery.decisions import (
    HOUR,
    AttemptAllowed,
    AttemptsExhausted,
    choose_checkpoint,
    free_at,
    hour_is_full,
    next_attempt,
    note,
    recovery_obstacle,
    watch,
)
from queenright.health.recovery.recovery import Recovery, RecoveryState
from queenright.health.recovery.respawner import CheckpointRef
from queenright.health.settings import RecoverySettings as Limits
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_facts import OpenBreakers
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.names import WaitingReason

LIMITS = Limits()
NOW = 1_000_000.0


def make_attempt(**fields: object) -> Recovery:
    defaults: dict[str, object] = {
        "recovery_id": "r1",
        "task_id": "t1",
        "agent_id": "bee",
        "session_id": "s1",
        "incarnation_id": "i1",
        "state": RecoveryState.WATCHING,
        "attempt": 1,
        "by": "ladder",
        "reason": "it was stuck",
        "created_at": NOW - 10,
        "not_before": NOW - 10,
        "started_at": NOW - 10,
        "watch_until": NOW + 890,
        "new_incarnation_id": "i2",
    }
    return Recovery.model_validate(defaults | fields)


def make_failed_attempts(times: int, last_end: float = NOW) -> list[Recovery]:
    return [
        make_attempt(state=RecoveryState.FAILED, started_at=last_end - 1, ended_at=last_end)
        for _ in range(times)
    ]


def make_worker(
    incarnation: str = "i2", state: HealthState = HealthState.HEALTHY, since: float = NOW, **vital: object
) -> WorkerHealth:
    vitals = VitalSigns("bee", "s1", NOW - 100)
    vitals.incarnation_id = incarnation
    for name, value in vital.items():
        setattr(vitals, name, value)
    return WorkerHealth(vitals, (), state, since, "it goes in circles")


def make_checkpoint(name: str, *, valid: bool = True) -> CheckpointRef:
    return CheckpointRef(checkpoint_id=name, created_at=NOW, valid=valid, reason="" if valid else "torn")


@pytest.mark.parametrize(("times", "wait"), [(0, 0), (1, 60), (2, 120)])
def test_backoff_doubles_between_attempts(times: int, wait: float) -> None:
    """B72: the backoff counts from the failure of the last attempt."""
    next_time = next_attempt(make_failed_attempts(times), [], now=NOW, limits=LIMITS, dice=0)

    assert next_time == AttemptAllowed(times + 1, NOW + wait)


def test_third_backoff_applies_if_more_attempts_are_allowed() -> None:
    """B72."""
    limits = Limits(max_attempts_per_task=9)

    assert next_attempt(make_failed_attempts(3), [], now=NOW, limits=limits, dice=0) == AttemptAllowed(
        4, NOW + 240
    )
    assert next_attempt(make_failed_attempts(8), [], now=NOW, limits=limits, dice=0) == AttemptAllowed(
        9, NOW + 240
    )


@given(dice=st.floats(0, 1), times=st.integers(1, 2))
def test_jitter_lengthens_a_backoff_by_at_most_its_share(dice: float, times: int) -> None:
    """B72."""
    next_time = next_attempt(make_failed_attempts(times), [], now=NOW, limits=LIMITS, dice=dice)

    assert isinstance(next_time, AttemptAllowed)
    base = LIMITS.backoff_seconds[times - 1]
    assert NOW + base <= next_time.not_before <= NOW + base * 1.2 + 1e-6


def test_fourth_attempt_at_a_task_needs_a_review() -> None:
    """B72."""
    answer = next_attempt(make_failed_attempts(3), [], now=NOW, limits=LIMITS, dice=0)

    assert isinstance(answer, AttemptsExhausted)
    assert "3 times" in answer.reason
    assert "queenright recover t1 --reviewed" in answer.reason


def test_review_allows_one_more_attempt() -> None:
    answer = next_attempt(make_failed_attempts(3), [], now=NOW, limits=LIMITS, dice=0, reviewed=True)

    assert isinstance(answer, AttemptAllowed)


def test_refused_and_dropped_recoveries_are_not_attempts() -> None:
    past_attempts = [make_attempt(state=RecoveryState.DROPPED, started_at=None) for _ in range(9)]

    assert next_attempt(past_attempts, [], now=NOW, limits=LIMITS, dice=0) == AttemptAllowed(1, NOW)


@given(gaps=st.lists(st.floats(0, 2000), max_size=60))
def test_at_most_five_attempts_begin_within_an_hour(gaps: list[float]) -> None:
    """B72: the limit covers all tasks."""
    start_times: list[float] = []
    for now in itertools.accumulate(gaps, initial=NOW):
        if isinstance(next_attempt([], start_times, now=now, limits=LIMITS, dice=0), AttemptAllowed):
            start_times.append(now)

    for request_time in start_times:
        assert sum(request_time - HOUR < other <= request_time for other in start_times) <= 5


def test_clock_set_back_allows_no_extra_attempt() -> None:
    """B72."""
    answer = next_attempt([], [NOW + 9000] * 5, now=NOW, limits=LIMITS, dice=0)

    assert isinstance(answer, AttemptsExhausted)


@given(start_times=st.lists(st.floats(NOW - 2 * HOUR, NOW + HOUR), max_size=12))
def test_next_slot_is_free_when_the_hour_is_no_longer_full(start_times: list[float]) -> None:
    """B72."""
    at = free_at(start_times, now=NOW, limits=LIMITS)

    assert not hour_is_full(start_times, now=at, limits=LIMITS)
    if at > NOW:
        assert hour_is_full(start_times, now=at - 0.01, limits=LIMITS)


@given(valid=st.lists(st.booleans(), max_size=8))
def test_newest_valid_checkpoint_is_chosen(valid: list[bool]) -> None:
    """B74: broken newer checkpoints are skipped and named; without a valid one, the task starts over."""
    chain = [make_checkpoint(f"c{n}", valid=is_valid) for n, is_valid in enumerate(valid)]

    chosen, skipped = choose_checkpoint(chain)

    assert chosen == next((link for link in chain if link.valid), None)
    assert list(skipped) == chain[: len(skipped)]
    assert not any(link.valid for link in skipped)
    assert chosen is not None or len(skipped) == len(chain)


@pytest.mark.parametrize("status", [WorkerStatus.COMPLETED, WorkerStatus.CANCELLED])
def test_ended_task_is_not_recovered(status: WorkerStatus) -> None:
    """B70."""
    obstacle = recovery_obstacle(make_attempt(), make_worker("i1", status=status, ended_at=NOW))

    assert obstacle is not None
    assert status.value in obstacle


def test_continuing_or_progressing_task_is_not_recovered() -> None:
    """B70."""
    assert "i7" in (recovery_obstacle(make_attempt(), make_worker("i7")) or "")
    assert "progress" in (recovery_obstacle(make_attempt(), make_worker("i1", last_progress=NOW)) or "")
    assert (
        recovery_obstacle(make_attempt(), make_worker("i1", status=WorkerStatus.FAILED, ended_at=NOW)) is None
    )
    assert recovery_obstacle(make_attempt(), None) is None


@pytest.mark.parametrize(
    ("recovered_worker", "check_time", "verdict"),
    [
        (make_worker(), NOW, "continues"),
        (make_worker(state=HealthState.STUCK), NOW, "failed"),
        (make_worker(state=HealthState.FAILING), NOW, "failed"),
        (make_worker(state=HealthState.FAILING, since=NOW - 50), NOW, "continues"),
        (make_worker(state=HealthState.FAILING, since=NOW - 50), NOW + 900, "failed"),
        (make_worker(status=WorkerStatus.FAILED, ended_at=NOW), NOW, "failed"),
        (make_worker(status=WorkerStatus.TERMINATED, ended_at=NOW), NOW, "failed"),
        (make_worker(status=WorkerStatus.COMPLETED, ended_at=NOW), NOW, "succeeded"),
        (make_worker(status=WorkerStatus.CANCELLED, ended_at=NOW), NOW, "dropped"),
        (make_worker(last_progress=NOW), NOW, "continues"),
        (make_worker(last_progress=NOW), NOW + 900, "succeeded"),
        (make_worker(last_progress=NOW - 50), NOW + 900, "succeeded"),
        (make_worker(state=HealthState.DEGRADED), NOW + 900, "succeeded"),
        (make_worker(waiting=WaitingReason.USER_INPUT), NOW + 900, "succeeded"),
        (make_worker("", last_activity=NOW), NOW + 900, "succeeded"),
        (make_worker("", last_activity=NOW - 50), NOW + 900, "failed"),
        (make_worker("", last_heartbeat=NOW), NOW + 900, "succeeded"),
        (make_worker("i1", status=WorkerStatus.TERMINATED, ended_at=NOW), NOW, "continues"),
        (make_worker("i1", status=WorkerStatus.TERMINATED, ended_at=NOW), NOW + 900, "failed"),
        (None, NOW, "continues"),
        (None, NOW + 900, "failed"),
    ],
)
def test_recovery_watch_has_a_verdict_for_every_worker_state(
    recovered_worker: WorkerHealth | None, check_time: float, verdict: str
) -> None:
    assert watch(make_attempt(), recovered_worker, check_time).verdict == verdict


def test_progress_despite_an_open_breaker_is_not_a_failure() -> None:
    """The worker's state is failing, but it makes progress without the calls that the breaker blocks."""
    breaker_fields: dict[str, Any] = {
        "breakers": OpenBreakers(("tool_execution:bee:search",)),
        "breakers_since": NOW + 5,
    }
    progressed_worker = make_worker(state=HealthState.FAILING, last_progress=NOW + 10, **breaker_fields)
    stalled_worker = make_worker(state=HealthState.FAILING, last_progress=NOW, **breaker_fields)

    assert watch(make_attempt(), progressed_worker, NOW + 20).verdict == "continues"
    assert watch(make_attempt(), progressed_worker, NOW + 900).verdict == "succeeded"
    assert watch(make_attempt(), stalled_worker, NOW + 20).verdict == "failed"


def test_unknown_new_incarnation_is_found_by_the_watch() -> None:
    assert watch(make_attempt(new_incarnation_id=""), make_worker("i9"), NOW).incarnation_id == "i9"


def test_note_has_the_reason_and_the_checkpoint() -> None:
    assert "it was stuck" in note(make_attempt(), make_checkpoint("c7"))
    assert "checkpoint c7" in note(make_attempt(), make_checkpoint("c7"))
    assert "start the task over" in note(make_attempt(), None)
