"""Build the console's view of interventions, escalations, approvals, breakers and recoveries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from queenright import api
from queenright.health.breakers.circuit_breaker import BreakerStatus
from queenright.health.breakers.state_machine import BreakerState
from queenright.health.cluster.switch_state import SwitchState
from queenright.health.interventions.action_limits import ActionBudget
from queenright.health.interventions.approval import Approval, describe_requester
from queenright.health.interventions.escalation import Escalation
from queenright.health.interventions.ladder import Ladder, LadderStep, Level
from queenright.health.interventions.storm import StormWatch
from queenright.health.recovery.recovery import Recovery

_MAX_ROWS: Final = 20


def build_interventions_view(
    *,
    stop: SwitchState,
    storm: StormWatch,
    budget: ActionBudget,
    dry_run: bool,
    ladders: Iterable[tuple[Ladder, LadderStep]],
    pending: Iterable[Escalation],
    approvals: Iterable[Approval],
    breakers: Iterable[BreakerStatus],
    recoveries: Iterable[Recovery],
    now: float,
    notices: Sequence[str] = (),
) -> api.Acting:
    """
    Return the interventions that are in progress or due.

    Args:
        stop: The emergency stop.
        storm: The current storm, if any.
        budget: The limit of interventions, and how much of it is used.
        dry_run: Whether interventions are only recorded, not carried out.
        ladders: Active ladders, each with its next step.
        pending: Escalations without an answer.
        approvals: Requests to terminate a worker without an answer, oldest first.
        breakers: All circuit breakers.
        recoveries: The latest recoveries, newest first.
        now: Seconds since the epoch.
        notices: Sentences about models that the rules replace.
    """
    ordered_ladders = sorted(ladders, key=lambda row: (row[0].trouble_since, row[0].agent_id))
    escalations = sorted(pending, key=lambda escalation: escalation.deadline)
    requests, all_breakers = list(approvals), list(breakers)
    tripped_breakers = [breaker for breaker in all_breakers if breaker.state is not BreakerState.CLOSED]
    return api.Acting(
        emergency_stop=api.StatusEmergencyStop.of(stop),
        storm=api.Storm(id=storm.storm(now), workers=storm.count_victims(now), since=storm.began_at(now)),
        budget=api.Budget(most=budget.most, used=budget.count_used(now), free_at=budget.free_at(now)),
        notices=list(notices),
        dry_run=dry_run,
        ladders=[
            _make_ladder_row(ladder, step, now, dry_run=dry_run)
            for ladder, step in ordered_ladders[:_MAX_ROWS]
        ],
        ladders_more=max(0, len(ordered_ladders) - _MAX_ROWS),
        escalations=[api.StatusEscalation.of(escalation) for escalation in escalations[:_MAX_ROWS]],
        escalations_more=max(0, len(escalations) - _MAX_ROWS),
        approvals=[_make_approval_row(request) for request in requests[:_MAX_ROWS]],
        approvals_more=max(0, len(requests) - _MAX_ROWS),
        breakers=[api.StatusBreaker.of(breaker) for breaker in tripped_breakers[:_MAX_ROWS]],
        breakers_known=len(all_breakers),
        breakers_more=max(0, len(tripped_breakers) - _MAX_ROWS),
        recoveries=[
            api.StatusRecovery.of(recovery, reason=recovery.outcome or recovery.reason)
            for recovery in list(recoveries)[:_MAX_ROWS]
        ],
    )


def _describe_nudges(ladder: Ladder, *, dry_run: bool) -> str:
    if not ladder.nudges:
        return "to be nudged"
    if ladder.undelivered:
        return f"could not be nudged: {ladder.undelivered.partition('. ')[0]}"
    return f"nudge {ladder.nudges} {'(dry run)' if dry_run else 'sent'}"


def _make_ladder_row(ladder: Ladder, step: LadderStep, now: float, *, dry_run: bool) -> api.StatusLadder:
    level = ladder.level
    due_at = step.at if step.action is not None else ladder.until
    if step.action is None and due_at is not None and due_at <= now:
        due_at = None
    texts = {
        Level.NUDGED: _describe_nudges(ladder, dry_run=dry_run),
        Level.ESCALATED: "orchestrator asked",
        Level.HUMAN: "a person must act",
    }
    return api.StatusLadder.of(
        ladder,
        level=level,
        what=texts.get(level, level.value.replace("_", " ")),
        next=step.action.value if step.action is not None else "",
        next_at=due_at,
    )


def _make_approval_row(approval: Approval) -> api.StatusApproval:
    return api.StatusApproval.of(approval, by=describe_requester(approval.asked_by, approval.ordered_by))
