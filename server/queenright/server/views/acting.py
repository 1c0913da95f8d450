"""What the status page shows of acting on workers: interventions, escalations, breakers, recoveries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from queenright import api
from queenright.health.breakers.breaker import BreakerState
from queenright.health.breakers.circuit import BreakerStatus
from queenright.health.interventions.approvals_record import Approval, by_whom
from queenright.health.interventions.ladder import Ladder, Level, Step
from queenright.health.interventions.record import Escalation, Outcome
from queenright.health.interventions.storm import ActionBudget, StormWatch
from queenright.health.interventions.switch import Switch
from queenright.health.interventions.target import LADDER, ActionKind, Target
from queenright.health.recovery.attempt import Recovery, RecoveryState
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.views.words import ago, clipped, clock_time

ACTED: Final = frozenset(
    {
        EventType.NUDGE_SENT,
        EventType.ESCALATION_TRIGGERED,
        EventType.ESCALATION_DECIDED,
        EventType.TERMINATION_REQUESTED,
        EventType.TERMINATION_DECIDED,
        EventType.AGENT_TERMINATED,
        EventType.RECOVERY_INITIATED,
        EventType.RECOVERY_COMPLETED,
        EventType.RECOVERY_FAILED,
        EventType.CIRCUIT_BREAKER_STATE_CHANGED,
        EventType.INTERVENTION_RECORDED,
        EventType.EMERGENCY_STOP_CHANGED,
        EventType.AGENT_OPERATED,
        EventType.TOKENS_CHANGED,
    }
)
"""Events that say what was done."""

_SHOWN: Final = 20
_QUOTED: Final = 160
"""Characters of a nudge that are shown."""
_OWN_LINE: Final = frozenset({Outcome.DONE, Outcome.QUEUED})
"""Outcomes that an event of their own tells of."""
_COLOURS: Final = {"closed": "healthy", "half_open": "degraded", "open": "failing"}
_RECOVERY_COLOURS: Final = {
    RecoveryState.SUCCEEDED: "healthy",
    RecoveryState.FAILED: "failing",
    RecoveryState.DROPPED: "plain",
}
_WENT: Final = {"revoked": "was revoked", "expired": "has expired", "removed": "is gone"}
_BECAME: Final = {
    "dry_run": "would have been done (dry run)",
    "unreachable": "not done",
    "unconfirmed": "not confirmed",
}


def worth_a_line(event: AgentEvent) -> bool:
    """
    Return whether the feed shows an event.

    What was done has one of its own, next to its record; that nobody can be nudged is said once a ladder.
    """
    data = event.data
    if event.type is not EventType.INTERVENTION_RECORDED:
        return True
    of_ladder = data.get("by", LADDER) == LADDER
    if of_ladder and data["outcome"] == Outcome.UNREACHABLE and data.get("kind") == ActionKind.NUDGE:
        return bool(data.get("attempt", 1) == 1)
    return data["outcome"] not in _OWN_LINE


def acted(event: AgentEvent) -> tuple[str, str]:
    """Return the colour and the sentence of one event of ``ACTED``."""
    data, agent = event.data, event.agent_id
    match event.type:
        case EventType.NUDGE_SENT:
            how = "into its context" if data["delivery"] == "injected" else "to be fetched"
            said = clipped(str(data.get("message") or ""), _QUOTED)
            nudge = f"nudge {data['attempt']}" if data["attempt"] else "nudge"
            return "act", f"{agent}: {nudge}, {how}, by {data['by']}. {said}".rstrip()
        case EventType.ESCALATION_TRIGGERED:
            return "act", f"{agent}: the orchestrator is asked. {data['reason']}"
        case EventType.ESCALATION_DECIDED:
            why = data.get("reason") or ""
            if data.get("status") == "timed_out":
                return "act", f"{agent}: the orchestrator has not answered. {why}"
            if data.get("status") == "withdrawn":
                return "info", f"{agent}: the orchestrator need not answer any more. {why}"
            decision = str(data["decision"]).replace("_", " ")
            return "act", f"{agent}: {decision}, decided by {data['by']}. {why}"
        case EventType.TERMINATION_REQUESTED:
            return "act", f"{agent}: may it be stopped? The {data['by']} asks. {data['reason']}"
        case EventType.TERMINATION_DECIDED:
            why = data.get("reason") or ""
            if data["status"] in ("approved", "denied"):
                return "act", f"{agent}: to stop it is {data['status']} by {data['by']}. {why}".rstrip()
            return "info", f"{agent}: to stop it needs no answer any more ({data['status']}). {why}".rstrip()
        case EventType.AGENT_TERMINATED:
            saved = f", its state is in {data['checkpoint_id']}" if data.get("checkpoint_id") else ""
            return "failing", f"{agent}: terminated by {data['by']}{saved}. {data['reason']}"
        case EventType.RECOVERY_INITIATED:
            start = data.get("from_checkpoint") or "the start of its task"
            return "act", f"{agent}: recovery {data['attempt']} begins, from {start}"
        case EventType.RECOVERY_COMPLETED:
            return "healthy", f"{agent}: recovered as session {data['new_session_id']}"
        case EventType.RECOVERY_FAILED:
            end = "; a person has to look" if data.get("exhausted") else ""
            return "failing", f"{agent}: recovery failed{end}. {data['reason']}"
        case EventType.CIRCUIT_BREAKER_STATE_CHANGED:
            change = f"{data['from']} → {data['to']}".replace("_", " ")
            return _COLOURS.get(
                data["to"], "info"
            ), f"breaker {data['name']}: {change}. {data.get('reason') or ''}"
        case EventType.EMERGENCY_STOP_CHANGED:
            state = "on: nothing is done to any worker" if data["on"] else "off"
            colour = "failing" if data["on"] else "healthy"
            return colour, f"emergency stop {state}, by {data['by']}. {data['reason']}"
        case EventType.AGENT_OPERATED:
            what = str(data["what"]).replace("_", " ")
            more = f" ({data['detail']})" if data.get("detail") else ""
            return "info", f"{agent}: {what}, by {data['by']}{more}"
        case EventType.TOKENS_CHANGED:
            return "info", tokens_line(data)
        case _:
            became = _BECAME.get(data["outcome"], str(data["outcome"]))
            # Who it is about is said already.
            target = Target(agent_id=agent, session_id=event.session_id, incarnation_id=event.incarnation_id)
            why = str(data.get("detail") or "").replace(f"worker {target}", "it")
            why = clipped(why, _QUOTED)
            return "info", f"{agent}: {data['kind']} by {data['by']}: {became}. {why}"


def tokens_line(data: Mapping[str, Any]) -> str:
    """Return which tokens came and went, in words."""
    said = [f"{one['name']} ({one['role']}) is new" for one in data["came"]]
    said += [f"{one['name']} ({one['role']}) {_WENT.get(one['why'], one['why'])}" for one in data["went"]]
    return clipped(f"tokens: {'; '.join(said)}", _QUOTED)


def acting(
    *,
    stop: Switch,
    storm: StormWatch,
    budget: ActionBudget,
    dry_run: bool,
    ladders: Iterable[tuple[Ladder, Step]],
    pending: Iterable[Escalation],
    approvals: Iterable[Approval],
    breakers: Iterable[BreakerStatus],
    recoveries: Iterable[Recovery],
    now: float,
    notices: Iterable[str] = (),
) -> api.Acting:
    """
    Return the interventions that are under way or due.

    Args:
        stop: The emergency stop.
        storm: Knows whether there is a storm.
        budget: Knows how many interventions are allowed.
        dry_run: Whether interventions are recorded and not carried out.
        ladders: Ladders that have left the ground, each with its next step.
        pending: Escalations without an answer.
        approvals: Requests to terminate a worker without an answer, oldest first.
        breakers: All circuit breakers.
        recoveries: The latest recoveries, newest first.
        now: Seconds since the epoch.
        notices: Other sentences about why less is done than is due.
    """
    climbed = sorted(ladders, key=lambda one: (one[0].trouble_since, one[0].agent_id))
    escalations = sorted(pending, key=lambda one: one.deadline)
    requests, known = list(approvals), list(breakers)
    tripped = [one for one in known if one.state is not BreakerState.CLOSED]
    return api.Acting(
        emergency_stop=api.StatusEmergencyStop(
            on=stop.on,
            by=stop.by,
            reason=stop.reason,
            changed_at=stop.changed_at,
            since=clock_time(stop.changed_at) if stop.changed_at is not None else "",
        ),
        storm=api.Storm(id=storm.storm(now), workers=storm.struck(now), since=storm.began_at(now)),
        budget=api.Budget(most=budget.most, used=budget.used(now), free_at=budget.free_at(now)),
        brakes=[*_brakes(stop, storm, budget, now), *notices],
        dry_run=dry_run,
        ladders=[_ladder_row(one, step, stop, now, dry_run=dry_run) for one, step in climbed[:_SHOWN]],
        ladders_more=max(0, len(climbed) - _SHOWN),
        escalations=[_escalation_row(one, stop, now) for one in escalations[:_SHOWN]],
        escalations_more=max(0, len(escalations) - _SHOWN),
        approvals=[_approval_row(one, now) for one in requests[:_SHOWN]],
        approvals_more=max(0, len(requests) - _SHOWN),
        breakers=[breaker_row(one, now) for one in tripped[:_SHOWN]],
        breakers_known=len(known),
        breakers_more=max(0, len(tripped) - _SHOWN),
        recoveries=[recovery_row(one, now) for one in list(recoveries)[:_SHOWN]],
    )


def _brakes(stop: Switch, storm: StormWatch, budget: ActionBudget, now: float) -> list[str]:
    """Return why less is done than is due, a sentence each."""
    found = []
    if stop.on:
        since = f" since {clock_time(stop.changed_at)}" if stop.changed_at is not None else ""
        found.append(f"The emergency stop is on{since}, by {stop.by}: {stop.reason}.")
    began = storm.began_at(now)
    if began is not None:
        found.append(f"A storm since {clock_time(began)}: {storm.struck(now)} workers got worse at once.")
    wait = budget.free_at(now) - now
    if wait > 0:
        found.append(f"{budget.most} interventions a minute are used up, the next in {ago(wait)}.")
    return found


def _when(at: float, stop: Switch, now: float, words: str) -> str:
    """Return when something is due, in words with a place for the time that is left."""
    if stop.on:
        return "frozen"
    return words.format(ago(at - now)) if at > now else "waits its turn"


def _nudged(ladder: Ladder, *, dry_run: bool) -> str:
    if not ladder.nudges:
        return "to be nudged"
    became = "(dry run)" if dry_run else "sent" if ladder.delivered else "not done"
    return f"nudge {ladder.nudges} {became}"


def _ladder_row(ladder: Ladder, step: Step, stop: Switch, now: float, *, dry_run: bool) -> api.StatusLadder:
    level = ladder.level
    due = step.at if step.action is not None else ladder.until
    if step.action is None and due is not None and due <= now:
        due = None
    words = {
        Level.NUDGED: _nudged(ladder, dry_run=dry_run),
        Level.ESCALATED: "orchestrator asked",
        Level.HUMAN: "a person has to look",
    }
    return api.StatusLadder(
        agent_id=ladder.agent_id,
        session_id=ladder.session_id,
        level=level,
        what=words.get(level, level.value.replace("_", " ")),
        trouble_since=ladder.trouble_since,
        trouble_for=ago(now - ladder.trouble_since),
        acted_at=ladder.acted_at,
        acted_ago=ago(now - ladder.acted_at if ladder.acted_at is not None else None),
        until=ladder.until,
        next=step.action.value if step.action is not None else "",
        next_at=due,
        when=_when(due, stop, now, "next in {}") if due is not None else "",
    )


def _escalation_row(one: Escalation, stop: Switch, now: float) -> api.StatusEscalation:
    return api.StatusEscalation(
        escalation_id=one.escalation_id,
        agent_id=one.agent_id,
        reason=one.reason,
        options=list(one.options),
        deadline=one.deadline,
        when=_when(one.deadline, stop, now, "{} left"),
    )


def _approval_row(one: Approval, now: float) -> api.StatusApproval:
    return api.StatusApproval(
        approval_id=one.approval_id,
        agent_id=one.agent_id,
        ticket_id=one.ticket_id,
        reason=one.reason,
        by=by_whom(one.asked_by, one.ordered_by),
        expires_at=one.expires_at,
        when=f"{ago(max(0.0, one.expires_at - now))} left",
    )


def breaker_row(one: BreakerStatus, now: float) -> api.StatusBreaker:
    """Return a circuit breaker as the pages show it."""
    half_open_in = one.half_open_at - now if one.half_open_at is not None else None
    return api.StatusBreaker(
        name=one.name,
        state=one.state,
        colour=_COLOURS[one.state.value],
        failures=one.failures,
        threshold=one.threshold,
        reason=one.reason,
        half_open_at=one.half_open_at,
        half_open_in=ago(half_open_in) if half_open_in is not None else "",
    )


def recovery_row(one: Recovery, now: float) -> api.StatusRecovery:
    """Return a recovery as the pages show it."""
    is_due = one.state is RecoveryState.WAITING and one.not_before > now
    return api.StatusRecovery(
        recovery_id=one.recovery_id,
        task_id=one.task_id,
        agent_id=one.agent_id,
        state=one.state,
        colour=_RECOVERY_COLOURS.get(one.state, "degraded"),
        exhausted=one.exhausted,
        attempt=one.attempt,
        from_start=one.from_start,
        reason=one.outcome or one.reason,
        created_at=one.created_at,
        not_before=one.not_before,
        when=f"in {ago(one.not_before - now)}" if is_due else f"{ago(now - one.created_at)} ago",
    )
