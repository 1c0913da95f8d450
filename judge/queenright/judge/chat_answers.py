"""Answers of ``queenright/rules`` to an operator's questions about a ticket, from the ticket's case alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, Final

from queenright.health.interventions.target import LADDER
from queenright.health.tickets import TicketStatus
from queenright.judge.wording import clock_time, one_line, sentence

_LIMIT: Final = 600
_MAX_INTERVENTIONS: Final = 5
_TOPICS: Final = {
    "happened": r"what(?:'s| is| was)? (?:wrong|the (?:matter|problem|cause))|happen|why\b|reason",
    "now": r"still|(?:right |by )?now\b|current|recover|better\b|running|over\b|alive|state\b|status",
    "done": r"(?:was|has|have|been|is) (?:\w+ ){0,3}(?:done|tried)\b|did (?:you|it|she|we)|nudged|interven",
    "next": r"(?:should|can|could|must|do) (?:i|we)\b|next\b|to do\b|fix|help|advice|suggest|recommend",
}
_MORE: Final = (
    "Built-in rules answer what happened, whether it still happens, what was done and what you can do. "
    "For other questions and for changes of files, set `judging.queen.model`."
)


def answer(message: str, case: Mapping[str, Any], worker: Mapping[str, Any] | None = None) -> str:
    """
    Answer a question about a ticket: the topics that it asks about, or all of them if it names none.

    Args:
        message: The operator's words.
        case: The ticket's case, as in ``chat_case.case_of``; the answer omits what is missing.
        worker: The worker's health; None if it was not read.
    """
    ticket = case.get("ticket") or {}
    parts = {
        "happened": _describe_problem(ticket),
        "now": _state_now(ticket, worker),
        "done": _describe_interventions(ticket, case.get("done_to_the_worker")),
        "next": _describe_advice(ticket),
    }
    named = [topic for topic, words in _TOPICS.items() if re.search(rf"(?i)\b(?:{words})", message)]
    lines = [parts[topic] for topic in named if parts[topic]]
    return "\n".join(lines or [*filter(None, parts.values()), _MORE])


def _describe_problem(ticket: Mapping[str, Any]) -> str:
    cause = _text(ticket, "cause")
    if not cause:
        return ""
    since, occurrences = ticket.get("first_seen"), ticket.get("occurrences") or 1
    times = f"The ticket counts it {occurrences:,} times. " if occurrences > 1 else ""
    opened = f"Open since {clock_time(since)}, severity {ticket.get('severity')}." if since else ""
    return f"What happened: {sentence(cause)} {times}{opened}".rstrip()


def _state_now(ticket: Mapping[str, Any], worker: Mapping[str, Any] | None) -> str:
    status = _text(ticket, "status")
    if ticket.get("closed_at"):
        why = _text(ticket, "closed_reason")
        closed = f"the ticket is closed ({status.replace('_', ' ')}{f': {why}' if why else ''})"
        return f"Now: {closed}, since {clock_time(ticket['closed_at'])}."
    if worker is None:
        return ""
    if "state" not in worker:
        return "Now: the agent has no running session."
    at = f" ({clock_time(worker['looked_at'])})" if worker.get("looked_at") else ""
    kind = _text(ticket, "kind")
    kinds = {_text(finding, "kind"): finding for finding in worker.get("findings") or ()}
    # The reason is as of the change of state, the evidence as of now.
    stated = _text(kinds.get(kind, {}), "evidence") or _text(worker, "reason")
    reason = f": {stated}" if stated else ""
    name = kind.replace("_", " ")
    still = (
        ""
        if not kind
        else f"The finding {name} is still open."
        if kind in kinds
        else f"The finding {name} has cleared."
    )
    state = f"the worker is {_text(worker, 'state').lower()}{reason}"
    return f"Now{at}: {sentence(state)} {still}".rstrip()


def _describe_interventions(
    ticket: Mapping[str, Any], interventions: Sequence[Mapping[str, Any]] | None
) -> str:
    if interventions is None:
        return ""
    lines = [
        f"{action['kind']} at {clock_time(action['at'])}, {_describe_actor(action)}, "
        f"{str(action['outcome']).replace('_', ' ')}"
        for action in interventions[:_MAX_INTERVENTIONS]
    ]
    by = _text(ticket, "acknowledged_by")
    acknowledged = f" Acknowledged by {by}." if by else ""
    notified = " A notification was approved." if ticket.get("notified_at") else " Nobody was notified."
    if "ticket_id" not in ticket:
        notified = ""
    return f"Done: {sentence('; '.join(lines) or 'nothing to the worker yet')}{acknowledged}{notified}"


def _describe_actor(intervention: Mapping[str, Any]) -> str:
    by = _text(intervention, "by")
    return "automatic" if by in (LADDER, "") else f"by {by}"


def _describe_advice(ticket: Mapping[str, Any]) -> str:
    if ticket.get("closed_at"):
        return "You can: nothing; the ticket is closed."
    advice = _text(ticket, "suggested_action")
    acknowledge = "" if ticket.get("status") == TicketStatus.ACKNOWLEDGED else ", `acknowledge`"
    agent, ticket_id = quote(_text(ticket, "agent_id") or "AGENT"), _text(ticket, "ticket_id")
    if not ticket_id:
        return (
            f"You can: in the terminal, `queenright nudge {agent} --message TEXT` or "
            f'`queenright terminate {agent} --reason "..."`; '
            f"`queenright events --agent {agent} --types all` follows the worker."
        )
    return (
        f"You can: {f'{sentence(advice)} ' if advice else ''}"
        f"Write here `nudge it: TEXT`, `stop it: REASON`{acknowledge}, or `restart it` if it is loaded here; "
        f"in the terminal, `queenright tickets show {ticket_id}` has the whole ticket and "
        f"`queenright events --agent {agent} --types all` follows the worker."
    )


def _text(values: Mapping[str, Any], key: str) -> str:
    return one_line(str(values.get(key) or ""), _LIMIT)
