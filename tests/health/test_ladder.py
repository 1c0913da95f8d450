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


def step(ladder: Ladder | None, inputs: LadderInputs) -> LadderStep:
    return next_step(ladder, inputs, SETTINGS)


@given(st.none() | ladders, ladder_inputs())
def test_waiting_healthy_or_unknown_worker_is_never_acted_on(
    ladder: Ladder | None, inputs: LadderInputs
) -> None:
    """B69: nothing is ever due for a waiting worker."""
    if inputs.has_ended:
        return
    well = inputs.state not in (HealthState.STUCK, HealthState.FAILING)
    if inputs.is_waiting or inputs.is_unknown or inputs.is_provider_at_fault or well:
        assert step(ladder, inputs).action is None


@given(st.none() | ladders, ladder_inputs())
def test_ended_worker_is_only_recovered_and_only_after_a_failure(
    ladder: Ladder | None, inputs: LadderInputs
) -> None:
    """B70: finished or closed work is never restarted."""
    if not inputs.has_ended:
        return
    following = step(ladder, inputs)
    assert following.action in (None, ActionKind.RECOVER)
    result = ladder is not None and ladder.level in (Level.TERMINATING, Level.TERMINATED)
    if inputs.status in (WorkerStatus.COMPLETED, WorkerStatus.CANCELLED) and not result:
        assert following == LadderStep(ladder=None)


@given(ladders, ladder_inputs())
def test_ladder_state_is_not_carried_to_the_next_incarnation(ladder: Ladder, inputs: LadderInputs) -> None:
    """B67: a new incarnation starts with a new ladder."""
    if ladder.target != inputs.target:
        assert step(ladder, inputs) == step(None, inputs)


@given(ladders, ladder_inputs())
def test_progress_resets_the_ladder_and_pauses_one_interval(ladder: Ladder, inputs: LadderInputs) -> None:
    """B66: progress resets the ladder; a ladder for a stale checkpoint needs a checkpoint."""
    before = -1.0 if ladder.progress_before is None else ladder.progress_before
    if inputs.has_ended or ladder.target != inputs.target or (inputs.last_progress or -1.0) <= before:
        return
    if ladder.needs_checkpoint and inputs.checkpoint_is_stale:
        return
    following = step(ladder, inputs)
    if following.ladder is not None:
        assert following.ladder.is_untouched
    assert following.action not in FINAL
    if following.action is not None and ladder.acted_at is not None:
        assert following.at >= ladder.acted_at + SETTINGS.intervention.nudge.interval_seconds


@given(st.none() | ladders, ladder_inputs())
def test_no_automatic_action_after_recovery_was_given_up(ladder: Ladder | None, inputs: LadderInputs) -> None:
    """A person has the ticket. An earlier decision is still carried out."""
    decided = {Level.HANDING_OFF, Level.TERMINATING, Level.TERMINATED}
    if inputs.is_given_up and (ladder is None or ladder.level not in decided):
        assert step(ladder, inputs).action is None


@given(ladders, ladder_inputs())
def test_only_a_checkpoint_resets_a_stale_checkpoint_ladder(ladder: Ladder, inputs: LadderInputs) -> None:
    """B66: an ACCEPT does not resolve a stale checkpoint."""
    needed = ladder.needs_checkpoint and inputs.checkpoint_is_stale
    if inputs.has_ended or ladder.target != inputs.target or not needed or ladder.is_untouched:
        return
    saved = inputs.last_checkpoint is not None and inputs.last_checkpoint > ladder.trouble_since
    following = step(ladder, inputs).ladder
    assert following is not None
    assert following.is_untouched is saved


@given(ladders, ladder_inputs())
def test_next_nudge_is_never_within_the_interval(ladder: Ladder, inputs: LadderInputs) -> None:
    """B66: at most one action per worker and interval, and termination only after its deadline."""
    following = step(ladder, inputs)
    if following.action is None or following.ladder is None or inputs.has_ended:
        return
    interval = SETTINGS.intervention.nudge.interval_seconds
    assert following.at >= inputs.grace_until
    if ladder.target != inputs.target:
        return
    handing_off = following.ladder.level is Level.HANDING_OFF
    if following.action is ActionKind.NUDGE and ladder.acted_at is not None and not handing_off:
        assert following.at >= ladder.acted_at + interval
    if following.action is ActionKind.TERMINATE and ladder.level is not Level.TERMINATING:
        assert following.at >= (ladder.until or -math.inf)
        assert following.at >= inputs.resumed_at + interval


@given(ladders, ladder_inputs())
def test_ladder_round_trips(ladder: Ladder, inputs: LadderInputs) -> None:
    read = Ladder.model_validate_json(ladder.model_dump_json())
    assert read == ladder
    assert step(read, inputs) == step(ladder, inputs)


def test_three_nudges_then_the_orchestrator_then_the_end_then_back() -> None:
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
    ladder, seen = None, []
    for _ in range(6):
        following = step(ladder, inputs)
        if following.action is None:
            break
        seen.append((following.action, following.at - 1000.0))
        assert following.ladder is not None
        changes: dict[ActionKind, dict[str, Any]] = {
            ActionKind.NUDGE: {"nudges": following.ladder.nudges + 1, "acted_at": following.at},
            ActionKind.ESCALATE: {
                "level": Level.ESCALATED,
                "acted_at": following.at,
                "until": following.at + 900,
            },
            ActionKind.TERMINATE: {"level": Level.RECOVERING},
        }
        ladder = following.ladder.model_copy(update=changes[following.action])

    nudge, escalate, terminate = ActionKind.NUDGE, ActionKind.ESCALATE, ActionKind.TERMINATE
    assert seen == [(nudge, 0), (nudge, 600), (nudge, 1200), (escalate, 1800), (terminate, 2700)]


@given(ladders, ladder_inputs())
def test_settled_dead_worker_is_never_recovered(ladder: Ladder, inputs: LadderInputs) -> None:
    """B88: no action is taken on a worker that ended with an unknown outcome, whatever was in progress."""
    settled = replace(inputs, status=WorkerStatus.UNKNOWN, has_ended=True)

    assert step(ladder, settled) == LadderStep(ladder=None)
