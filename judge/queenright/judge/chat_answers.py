"""The answer of ``queenright/rules`` to any question of an operator: the ticket's case in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, Final

from queenright.health.interventions.target import LADDER
from queenright.instrumentation.sentences import sentence
from queenright.judge.wording import clock_time, one_line

_LIMIT: Final = 600
_MAX_INTERVENTIONS: Final = 5
_MORE: Final = "This is what the built-in rules know. For other answers, set `judging.queen.model`."


def answer(case: Mapping[str, Any], worker: Mapping[str, Any] | None = None) -> str:
    """
    Return what happened, the worker's state, what was done and what an operator can do.

    Args:
        case: The ticket's case, as in ``chat_case.build_case``; the answer omits what is missing.
        worker: The worker's health; None if it was not read.
    """
    ticket = case.get("ticket") or {}
    parts = (
        _describe_problem(ticket),
        _state_now(ticket, worker),
        _describe_interventions(ticket, case.get("done_to_the_worker")),
        _describe_advice(ticket),
        _MORE,
    )
    return "\n".join(filter(None, parts))


def _describe_problem(ticket: Mapping[str, Any]) -> str:
    cause, since = _text(ticket, "cause"), ticket.get("first_seen")
    since_text = f" Open since {clock_time(since)}, severity {ticket.get('severity')}." if since else ""
    return f"What happened: {sentence(cause)}{since_text}" if cause else ""


def _state_now(ticket: Mapping[str, Any], worker: Mapping[str, Any] | None) -> str:
    if ticket.get("closed_at"):
        reason = _text(ticket, "closed_reason") or _text(ticket, "status").replace("_", " ")
        return f"Now: the ticket is closed since {clock_time(ticket['closed_at'])} ({reason})."
    if worker is None:
        return ""
    if "state" not in worker:
        return "Now: the agent has no running session."
    # The reason is as of the change of state, the evidence as of now.
    findings = worker.get("findings") or ()
    evidence = next((_text(f, "evidence") for f in findings if f.get("kind") == ticket.get("kind")), "")
    reason = evidence or _text(worker, "reason")
    state = f"the worker is {_text(worker, 'state').lower()}{f': {reason}' if reason else ''}"
    return f"Now: {sentence(state)}"


def _describe_interventions(
    ticket: Mapping[str, Any], interventions: Sequence[Mapping[str, Any]] | None
) -> str:
    parts = []
    if interventions is not None:
        lines = [
            f"{action['kind']} at {clock_time(action['at'])}, {_describe_actor(action)}, "
            f"{str(action['outcome']).replace('_', ' ')}"
            for action in interventions[:_MAX_INTERVENTIONS]
        ]
        parts.append(sentence("; ".join(lines) or "nothing to the worker yet"))
    if by := _text(ticket, "acknowledged_by"):
        parts.append(f"Acknowledged by {by}.")
    if "ticket_id" in ticket:
        parts.append("A notification was approved." if ticket.get("notified_at") else "Nobody was notified.")
    return f"Done: {' '.join(parts)}" if parts else ""


def _describe_actor(intervention: Mapping[str, Any]) -> str:
    by = _text(intervention, "by")
    return "automatic" if by in (LADDER, "") else f"by {by}"


def _describe_advice(ticket: Mapping[str, Any]) -> str:
    if ticket.get("closed_at"):
        return ""
    agent, ticket_id = quote(_text(ticket, "agent_id") or "AGENT"), _text(ticket, "ticket_id")
    follow = f"`queenright events --agent {agent} --types all` follows the worker."
    if not ticket_id:
        return f"You can: use `queenright nudge {agent}` or `queenright terminate {agent}`; {follow}"
    advice = _text(ticket, "suggested_action")
    return (
        f"You can: {f'{sentence(advice)} ' if advice else ''}"
        "Write here `nudge it: TEXT`, `terminate it: REASON`, `acknowledge` or, if loaded here, "
        f"`restart it`; in the terminal, `queenright tickets show {ticket_id}` has the whole ticket, and "
        f"{follow}"
    )


def _text(values: Mapping[str, Any], key: str) -> str:
    return one_line(str(values.get(key) or ""), _LIMIT)
