"""What a person answers on the console: requests to stop a worker, questions to the orchestrator."""

from __future__ import annotations

from typing import Final

from fastapi import HTTPException

from queenright.health.interventions.approvals import ApprovalNotFoundError
from queenright.health.interventions.approvals_record import by_whom
from queenright.health.interventions.permission_request import ANSWERS
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
from queenright.server.routes.approvals import Word
from queenright.server.routes.interventions import Decided
from queenright.server.routes.permissions import PermissionWord
from queenright.server.service import Service
from queenright.server.views.words import ago, clock_time

_WHY: Final = Field(name="reason", label="Why", kind="area", hint="Kept in the audit trail, under your name.")
_DECISIONS: Final = {
    "more_time": Button(label="Give it more time", value="more_time"),
    "hand_off": Button(label="Hand its work to another", value="hand_off"),
    "terminate": Button(label="Stop it", value="terminate", danger=True),
}


# -- requests to stop a worker --------------------------------------------------------------------


async def _ask_approval(service: Service, given: Given) -> Question:
    one = await service.approvals.find(given["id"])
    if one is None:
        raise ApprovalNotFoundError(given["id"])
    now = service.clock()
    who = by_whom(one.asked_by, one.ordered_by)
    lead = f"The {who} asks for it. If you approve, it is looked at again, and then told to stop."
    if not one.asks:
        by = f" by {one.decided_by}" if one.decided_by else ""
        why = f": {one.decision_reason}" if one.decision_reason else ""
        lead = f"Nothing is asked any more. It is {one.status.value}{by}{why}."
    return Question(
        title=f"May {one.agent_id} be stopped?",
        lead=lead,
        back=f"/tickets/{one.ticket_id}",
        facts=(
            ("Worker", one.agent_id),
            ("Why", one.reason),
            ("Until", f"{clock_time(one.expires_at)} UTC, {ago(max(0.0, one.expires_at - now))} left"),
        ),
        fields=(_WHY,),
        buttons=(
            Button(label="Approve: stop it", value="approve", danger=True),
            Button(label="Deny: leave it alone", value="deny"),
        )
        if one.asks
        else (),
    )


async def _approval(service: Service, form: Given, by: str) -> Done:
    approvals = service.approvals
    said = checked(Word, by=by, reason=form.get("reason", ""))
    match form.get("answer"):
        case "approve":
            one = await approvals.approve(form["id"], by=said.by, reason=said.reason)
            words = f"Approved. {one.agent_id} is told to stop; its page says what became of it."
        case "deny":
            one = await approvals.deny(form["id"], by=said.by, reason=said.reason)
            words = f"Denied. {one.agent_id} is left alone."
        case _:
            raise IncompleteFormError("Your answer: approve or deny.")
    return Done(place=agent_page(one.agent_id, one.session_id), words=words)


# -- permission requests --------------------------------------------------------------------------


async def _ask_permission(service: Service, given: Given) -> Question:
    one, too_late = service.permissions.find(given["id"])
    now = service.clock()
    return Question(
        title=f"May {one.agent_id} do this?",
        lead=f"It cannot be answered now: {too_late}."
        if too_late
        else "It waits for your answer. Without one, the person at the terminal is asked.",
        back=agent_page(one.agent_id, one.session_id),
        facts=(
            ("Worker", one.agent_id),
            ("It asks", one.question),
            ("Until", f"{clock_time(one.expires_at)} UTC, {ago(max(0.0, one.expires_at - now))} left"),
        ),
        fields=() if too_late else (_WHY,),
        buttons=()
        if too_late
        else (
            Button(label="Allow it", value="allow", danger=True),
            Button(label="Deny it", value="deny"),
        ),
    )


async def _permission(service: Service, form: Given, by: str) -> Done:
    if (decision := form.get("answer", "")) not in ANSWERS:
        raise IncompleteFormError("Your answer: allow or deny.")
    given = checked(PermissionWord, decision=decision, by=by, reason=form.get("reason", ""))
    done = await service.permissions.answer(form["id"], given.decision, by=given.by, reason=given.reason)
    words = "Allowed: it goes on." if decision == "allow" else "Denied: it is told so."
    if done.outcome is not Outcome.DONE:
        words = "Dry run: it is written down, and nothing was answered."
    return Done(
        place=agent_page(done.agent_id, done.session_id), words=words, well=done.outcome is Outcome.DONE
    )


# -- questions to the orchestrator ----------------------------------------------------------------


async def _ask_escalation(service: Service, given: Given) -> Question:
    pending = service.interventions.ledger.pending.get(given["id"])
    if pending is None:
        raise HTTPException(
            404,
            "nobody waits for an answer to this question: it is answered, withdrawn, or there is none",
        )
    now = service.clock()
    return Question(
        title=f"What is to become of {pending.agent_id}?",
        lead="It got no further after it was nudged.",
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
                label="Minutes more",
                kind="number",
                hint="Only with more time; by the settings, if left empty.",
            ),
        ),
        buttons=tuple(_DECISIONS[option] for option in pending.options),
    )


async def _escalation(service: Service, form: Given, by: str) -> Done:
    if (decision := form.get("answer", "")) not in _DECISIONS:
        raise IncompleteFormError("Your answer: more time, a hand-off, or the end.")
    minutes = form.get("minutes", "").strip()
    seconds: float | str | None = None
    if minutes and decision == "more_time":
        try:
            seconds = float(minutes) * 60
        except ValueError:
            raise IncompleteFormError("Minutes more: please give a number, for example 30.") from None
    said = checked(
        Decided, decision=decision, by=by, reason=form.get("reason", ""), more_time_seconds=seconds
    )
    done = await service.health.decide_escalation(
        form["id"],
        said.decision,
        by=said.by,
        reason=said.reason,
        more_time_seconds=said.more_time_seconds,
    )
    words = f"Decided: {decision.replace('_', ' ')}."
    return Done(place=agent_page(done.agent_id, done.session_id), words=words)


ANSWER_ACTS: Final = (
    Act(path="/approvals/{id}", ask=_ask_approval, do=_approval, grave=True),
    Act(path="/permissions/{id}", ask=_ask_permission, do=_permission, grave=True),
    Act(path="/escalations/{id}", ask=_ask_escalation, do=_escalation, grave=True),
)
