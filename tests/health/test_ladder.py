"""The ladder as a pure function: one next step for any worker and any history."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queenright.health.action_kind import ActionKind
from queenright.health.detection.health_state import HealthState
from queenright.health.interventions.ladder import Ladder, LadderInputs, LadderStep, Level, next_step
from queenright.health.interventions.target import Target
from queenright.health.settings import HealthSettings
from queenright.health.vitals.session_outcome import WorkerStatus

SETTINGS = HealthSettings()
OVER = {
    WorkerStatus.COMPLETED,
    WorkerStatus.CANCELLED,
    WorkerStatus.FAILED,
    WorkerStatus.TERMINATED,
}
FINAL = {ActionKind.TERMINATE, ActionKind.RECOVER}

targets = st.builds(
    Target, agent_id=st.just("bee"), session_id=st.just("s"), incarnation_id=st.sampled_from(["i1", "i2"])
)
times = st.floats(0, 10_000, allow_nan=False)


@st.composite
def ladder_inputs(draw: st.DrawFn) -> LadderInputs:
    status = draw(st.sampled_from(WorkerStatus))
    return LadderInputs(
        target=draw(targets),
        status=status,
        has_ended=status in OVER,
        is_unknown=draw(st.booleans()),
        is_waiting=draw(st.booleans()),
        state=draw(st.sampled_from(HealthState)),
        state_since=draw(times),
        is_provider_at_fault=draw(st.booleans()),
        is_given_up=draw(st.booleans()),
        grace_until=draw(times),
        last_progress=draw(st.none() | times),
        last_checkpoint=draw(st.none() | times),
        checkpoint_is_stale=draw(st.booleans()),
        resumed_at=draw(times),
    )


ladders = st.builds(
    Ladder,
    agent_id=st.just("bee"),
    session_id=st.just("s"),
    incarnation_id=st.sampled_from(["i1", "i2"]),
    level=st.sampled_from(Level),
    nudges=st.integers(0, 5),
    trouble_since=times,
    progress_before=st.none() | times,
    needs_checkpoint=st.booleans(),
    acted_at=st.none() | times,
    until=st.none() | times,
)


def take_step(ladder: Ladder | None, inputs: LadderInputs) -> LadderStep:
    return next_step(ladder, inputs, SETTINGS)


@given(st.none() | ladders, ladder_inputs())
def test_waiting_healthy_or_unknown_worker_is_never_acted_on(
    ladder: Ladder | None, inputs: LadderInputs
) -> None:
    """B69: nothing is ever due for a waiting worker."""
    if inputs.has_ended:
        return
    is_healthy = inputs.state not in (HealthState.STUCK, HealthState.FAILING)
    if inputs.is_waiting or inputs.is_unknown or inputs.is_provider_at_fault or is_healthy:
        assert take_step(ladder, inputs).action is None


@given(st.none() | ladders, ladder_inputs())
def test_ended_worker_is_only_recovered_and_only_after_a_failure(
    ladder: Ladder | None, inputs: LadderInputs
) -> None:
    """B70: finished or closed work is never restarted."""
    if not inputs.has_ended:
        return
    next_ladder = take_step(ladder, inputs)
    assert next_ladder.action in (None, ActionKind.RECOVER)
    is_terminating = ladder is not None and ladder.level in (Level.TERMINATING, Level.TERMINATED)
    if inputs.status in (WorkerStatus.COMPLETED, WorkerStatus.CANCELLED) and not is_terminating:
        assert next_ladder == LadderStep(ladder=None)


@given(ladders, ladder_inputs())
def test_ladder_state_is_not_carried_to_the_next_incarnation(ladder: Ladder, inputs: LadderInputs) -> None:
    """B67: a new incarnation starts with a new ladder."""
    if ladder.target != inputs.target:
        assert take_step(ladder, inputs) == take_step(None, inputs)


@given(ladders, ladder_inputs())
def test_progress_resets_the_ladder_and_pauses_one_interval(ladder: Ladder, inputs: LadderInputs) -> None:
    """B66: progress resets the ladder; a ladder for a stale checkpoint needs a checkpoint."""
    before = -1.0 if ladder.progress_before is None else ladder.progress_before
    if inputs.has_ended or ladder.target != inputs.target or (inputs.last_progress or -1.0) <= before:
        return
    if ladder.needs_checkpoint and inputs.checkpoint_is_stale:
        return
    next_ladder = take_step(ladder, inputs)
    if next_ladder.ladder is not None:
        assert next_ladder.ladder.is_untouched
    assert next_ladder.action not in FINAL
    if next_ladder.action is not None and ladder.acted_at is not None:
        assert next_ladder.at >= ladder.acted_at + SETTINGS.intervention.nudge.interval_seconds


@given(st.none() | ladders, ladder_inputs())
def test_no_automatic_action_after_recovery_was_given_up(ladder: Ladder | None, inputs: LadderInputs) -> None:
    """A person has the ticket. An earlier decision is still carried out."""
    decided_levels = {Level.HANDING_OFF, Level.TERMINATING, Level.TERMINATED}
    if inputs.is_given_up and (ladder is None or ladder.level not in decided_levels):
        assert take_step(ladder, inputs).action is None


@given(ladders, ladder_inputs())
def test_only_a_checkpoint_resets_a_stale_checkpoint_ladder(ladder: Ladder, inputs: LadderInputs) -> None:
    """B66: an ACCEPT does not resolve a stale checkpoint."""
    needed = ladder.needs_checkpoint and inputs.checkpoint_is_stale
    if inputs.has_ended or ladder.target != inputs.target or not needed or ladder.is_untouched:
        return
    has_new_checkpoint = inputs.last_checkpoint is not None and inputs.last_checkpoint > ladder.trouble_since
    next_ladder = take_step(ladder, inputs).ladder
    assert next_ladder is not None
    assert next_ladder.is_untouched is has_new_checkpoint


@given(ladders, ladder_inputs())
def test_next_nudge_is_never_within_the_interval(ladder: Ladder, inputs: LadderInputs) -> None:
    """B66: at most one action per worker and interval, and termination only after its deadline."""
    next_ladder = take_step(ladder, inputs)
    if next_ladder.action is None or next_ladder.ladder is None or inputs.has_ended:
        return
    interval = SETTINGS.intervention.nudge.interval_seconds
    assert next_ladder.at >= inputs.grace_until
    if ladder.target != inputs.target:
        return
    handing_off = next_ladder.ladder.level is Level.HANDING_OFF
    if next_ladder.action is ActionKind.NUDGE and ladder.acted_at is not None and not handing_off:
        assert next_ladder.at >= ladder.acted_at + interval
    if next_ladder.action is ActionKind.TERMINATE and ladder.level is not Level.TERMINATING:
        assert next_ladder.at >= (ladder.until or -math.inf)
        assert next_ladder.at >= inputs.resumed_at + interval


@given(ladders, ladder_inputs())
def test_ladder_round_trips(ladder: Ladder, inputs: LadderInputs) -> None:
    restored_ladder = Ladder.model_validate_json(ladder.model_dump_json())
    assert restored_ladder == ladder
    assert take_step(restored_ladder, inputs) == take_step(ladder, inputs)


def test_ladder_nudges_three_times_then_escalates_terminates_and_recovers() -> None:
    """002 §11: the graduated sequence, in the order of the requirement."""
    inputs = LadderInputs(
        target=Target(agent_id="bee", session_id="s", incarnation_id="i1"),
        status=WorkerStatus.ACTIVE,
        has_ended=False,
        is_unknown=False,
        is_waiting=False,
        state=HealthState.STUCK,
        state_since=1000.0,
        is_provider_at_fault=False,
        is_given_up=False,
        grace_until=0.0,
        last_progress=None,
        last_checkpoint=None,
        checkpoint_is_stale=False,
        resumed_at=0.0,
    )
    ladder, levels = None, []
    for _ in range(6):
        next_ladder = take_step(ladder, inputs)
        if next_ladder.action is None:
            break
        levels.append((next_ladder.action, next_ladder.at - 1000.0))
        assert next_ladder.ladder is not None
        changes: dict[ActionKind, dict[str, Any]] = {
            ActionKind.NUDGE: {"nudges": next_ladder.ladder.nudges + 1, "acted_at": next_ladder.at},
            ActionKind.ESCALATE: {
                "level": Level.ESCALATED,
                "acted_at": next_ladder.at,
                "until": next_ladder.at + 900,
            },
            ActionKind.TERMINATE: {"level": Level.RECOVERING},
        }
        ladder = next_ladder.ladder.model_copy(update=changes[next_ladder.action])

    nudge, escalate, terminate = ActionKind.NUDGE, ActionKind.ESCALATE, ActionKind.TERMINATE
    assert levels == [(nudge, 0), (nudge, 600), (nudge, 1200), (escalate, 1800), (terminate, 2700)]


@given(ladders, ladder_inputs())
def test_settled_dead_worker_is_never_recovered(ladder: Ladder, inputs: LadderInputs) -> None:
    """B88: no action is taken on a worker that ended with an unknown outcome, whatever was in progress."""
    settled_inputs = replace(inputs, status=WorkerStatus.UNKNOWN, has_ended=True)

    assert take_step(ladder, settled_inputs) == LadderStep(ladder=None)
