"""The answer of ``queenright/rules`` to any question of an operator: a summary of the ticket's case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, Final

from queenright.health.interventions.target import LADDER
from queenright.instrumentation.sentences import sentence
from queenright.judge.wording import clock_time, one_line

_LIMIT: Final = 600
_MAX_INTERVENTIONS: Final = 5
_CLOSING_NOTE: Final = "This is what the built-in rules know. For other answers, set `judging.queen.model`."


def answer(case: Mapping[str, Any], worker: Mapping[str, Any] | None = None) -> str:
    """
    Return a text that states what happened, the worker's state, the interventions, and the options of the
    operator.

    Args:
        case: The ticket's case, as in ``chat_case.build_case``. The answer omits missing parts.
        worker: The worker's health; None if it was not read.
    """
    ticket = case.get("ticket") or {}
    parts = (
        _describe_problem(ticket),
        _describe_state(ticket, worker),
        _describe_interventions(ticket, case.get("done_to_the_worker")),
        _describe_advice(ticket),
        _CLOSING_NOTE,
    )
    return "\n".join(filter(None, parts))


def _describe_problem(ticket: Mapping[str, Any]) -> str:
    cause, since = _get_text(ticket, "cause"), ticket.get("first_seen")
    since_text = f" Open since {clock_time(since)}, severity {ticket.get('severity')}." if since else ""
    return f"What happened: {sentence(cause)}{since_text}" if cause else ""


def _describe_state(ticket: Mapping[str, Any], worker: Mapping[str, Any] | None) -> str:
    if ticket.get("closed_at"):
        reason = _get_text(ticket, "closed_reason") or _get_text(ticket, "status").replace("_", " ")
        return f"Now: the ticket is closed since {clock_time(ticket['closed_at'])} ({reason})."
    if worker is None:
        return ""
    if "state" not in worker:
        return "Now: the agent has no running session."
    # The reason dates from the change of state, but the evidence is current.
    findings = worker.get("findings") or ()
    evidence = next((_get_text(f, "evidence") for f in findings if f.get("kind") == ticket.get("kind")), "")
    reason = evidence or _get_text(worker, "reason")
    state = f"the worker is {_get_text(worker, 'state').lower()}{f': {reason}' if reason else ''}"
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
    if by := _get_text(ticket, "acknowledged_by"):
        parts.append(f"Acknowledged by {by}.")
    if "ticket_id" in ticket:
        parts.append("A notification was approved." if ticket.get("notified_at") else "Nobody was notified.")
    return f"Done: {' '.join(parts)}" if parts else ""


def _describe_actor(intervention: Mapping[str, Any]) -> str:
    by = _get_text(intervention, "by")
    return "automatic" if by in (LADDER, "") else f"by {by}"


def _describe_advice(ticket: Mapping[str, Any]) -> str:
    if ticket.get("closed_at"):
        return ""
    agent, ticket_id = quote(_get_text(ticket, "agent_id") or "AGENT"), _get_text(ticket, "ticket_id")
    follow_hint = f"`queenright events --agent {agent} --types all` follows the worker."
    if not ticket_id:
        return f"You can: use `queenright nudge {agent}` or `queenright terminate {agent}`; {follow_hint}"
    advice = _get_text(ticket, "suggested_action")
    return (
        f"You can: {f'{sentence(advice)} ' if advice else ''}"
        "Write here `nudge it: TEXT`, `terminate it: REASON`, `acknowledge` or, if loaded here, "
        f"`restart it`; in the terminal, `queenright tickets show {ticket_id}` has the whole ticket, and "
        f"{follow_hint}"
    )


def _get_text(values: Mapping[str, Any], key: str) -> str:
    return one_line(str(values.get(key) or ""), _LIMIT)
