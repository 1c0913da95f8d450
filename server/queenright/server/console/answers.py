"""Answers of the pages to approvals, permission requests and escalations."""

from __future__ import annotations

from typing import Final

from fastapi import HTTPException

from queenright.health.interventions.approvals import ApprovalNotFoundError
from queenright.health.interventions.approvals_record import describe_requester
from queenright.health.interventions.permissions import ANSWERS
from queenright.health.interventions.record import Outcome
from queenright.server.console.forms import (
    Act,
    Button,
    Done,
    Field,
    Given,
    IncompleteFormError,
    Question,
    agent_page,
    checked,
)
from queenright.server.routes.approvals import ApprovalDecision
from queenright.server.routes.interventions import EscalationDecision
from queenright.server.routes.permissions import PermissionAnswer
from queenright.server.service import Service
from queenright.server.views.formatting import ago, clock_time

_WHY: Final = Field(
    name="reason", label="Why", kind="area", hint="Recorded in the audit trail with your name."
)
_DECISIONS: Final = {
    "more_time": Button(label="Give more time", value="more_time"),
    "hand_off": Button(label="Hand off to another worker", value="hand_off"),
    "terminate": Button(label="Terminate", value="terminate", danger=True),
}


# -- approvals --------------------------------------------------------------------


async def _ask_approval(service: Service, given: Given) -> Question:
    one = await service.approvals.find(given["id"])
    if one is None:
        raise ApprovalNotFoundError(given["id"])
    now = service.clock()
    who = describe_requester(one.asked_by, one.ordered_by)
    lead = f"Requested by the {who}. If you approve, its state is checked again and it is asked to stop."
    if not one.is_pending:
        by = f" by {one.decided_by}" if one.decided_by else ""
        why = f": {one.decision_reason}" if one.decision_reason else ""
        lead = f"This request is closed: {one.status.value}{by}{why}."
    return Question(
        title=f"Terminate {one.agent_id}?",
        lead=lead,
        back=f"/tickets/{one.ticket_id}",
        facts=(
            ("Worker", one.agent_id),
            ("Why", one.reason),
            ("Until", f"{clock_time(one.expires_at)} UTC, {ago(max(0.0, one.expires_at - now))} left"),
        ),
        fields=(_WHY,),
        buttons=(
            Button(label="Approve and terminate", value="approve", danger=True),
            Button(label="Deny", value="deny"),
        )
        if one.is_pending
        else (),
    )


async def _approval(service: Service, form: Given, by: str) -> Done:
    approvals = service.approvals
    given = checked(ApprovalDecision, by=by, reason=form.get("reason", ""))
    match form.get("answer"):
        case "approve":
            one = await approvals.approve(form["id"], by=given.by, reason=given.reason)
            words = f"Approved. {one.agent_id} is asked to stop; see its page for the result."
        case "deny":
            one = await approvals.deny(form["id"], by=given.by, reason=given.reason)
            words = f"Denied. {one.agent_id} keeps running."
        case _:
            raise IncompleteFormError("Choose approve or deny.")
    return Done(place=agent_page(one.agent_id, one.session_id), words=words)


# -- permission requests --------------------------------------------------------------------------


async def _ask_permission(service: Service, given: Given) -> Question:
    one, too_late = service.permissions.find(given["id"])
    now = service.clock()
    return Question(
        title=f"Allow {one.agent_id} to do this?",
        lead=f"Not possible now: {too_late}."
        if too_late
        else "It waits for an answer. Without one, the user at its terminal is asked.",
        back=agent_page(one.agent_id, one.session_id),
        facts=(
            ("Worker", one.agent_id),
            ("Request", one.question),
            ("Until", f"{clock_time(one.expires_at)} UTC, {ago(max(0.0, one.expires_at - now))} left"),
        ),
        fields=() if too_late else (_WHY,),
        buttons=()
        if too_late
        else (
            Button(label="Allow", value="allow", danger=True),
            Button(label="Deny", value="deny"),
        ),
    )


async def _permission(service: Service, form: Given, by: str) -> Done:
    if (decision := form.get("answer", "")) not in ANSWERS:
        raise IncompleteFormError("Choose allow or deny.")
    given = checked(PermissionAnswer, decision=decision, by=by, reason=form.get("reason", ""))
    done = await service.permissions.answer(form["id"], given.decision, by=given.by, reason=given.reason)
    words = "Allowed." if decision == "allow" else "Denied."
    if done.outcome is not Outcome.DONE:
        words = "Dry run: recorded, not answered."
    return Done(
        place=agent_page(done.agent_id, done.session_id), words=words, well=done.outcome is Outcome.DONE
    )


# -- escalations ----------------------------------------------------------------


async def _ask_escalation(service: Service, given: Given) -> Question:
    pending = service.interventions.ledger.pending.get(given["id"])
    if pending is None:
        raise HTTPException(
            404,
            "this escalation is not open: it was decided or withdrawn, or does not exist",
        )
    now = service.clock()
    return Question(
        title=f"Decide about {pending.agent_id}",
        lead="It made no progress after its nudges.",
        back=agent_page(pending.agent_id, pending.session_id),
        facts=(
            ("Worker", pending.agent_id),
            ("Why", pending.reason),
            (
                "Until",
                f"{clock_time(pending.deadline)} UTC, {ago(max(0.0, pending.deadline - now))} left",
            ),
        ),
        fields=(
            _WHY,
            Field(
                name="minutes",
                label="Extra minutes",
                kind="number",
                hint="Only for more time. Leave empty for the default.",
            ),
        ),
        buttons=tuple(_DECISIONS[option] for option in pending.options),
    )


async def _escalation(service: Service, form: Given, by: str) -> Done:
    if (decision := form.get("answer", "")) not in _DECISIONS:
        raise IncompleteFormError("Choose more time, a hand-off, or terminate.")
    minutes = form.get("minutes", "").strip()
    seconds: float | str | None = None
    if minutes and decision == "more_time":
        try:
            seconds = float(minutes) * 60
        except ValueError:
            raise IncompleteFormError("Extra minutes: enter a number, such as 30.") from None
    given = checked(
        EscalationDecision, decision=decision, by=by, reason=form.get("reason", ""), more_time_seconds=seconds
    )
    done = await service.health.decide_escalation(
        form["id"],
        given.decision,
        by=given.by,
        reason=given.reason,
        more_time_seconds=given.more_time_seconds,
    )
    words = f"Decided: {decision.replace('_', ' ')}."
    return Done(place=agent_page(done.agent_id, done.session_id), words=words)


ANSWER_ACTS: Final = (
    Act(path="/approvals/{id}", ask=_ask_approval, do=_approval, grave=True),
    Act(path="/permissions/{id}", ask=_ask_permission, do=_permission, grave=True),
    Act(path="/escalations/{id}", ask=_ask_escalation, do=_escalation, grave=True),
)
