"""
What a person reads about a ticket, in the order of how far it can be trusted. Pure.

First what the rules saw, in their own words and from their own numbers; then the worker's evidence; and
only then what models made of it, marked as theirs and made harmless. What the rules would have said
anyway is not said twice.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from queenright.alerting.model_text import inert, plain
from queenright.health.findings import FindingKind
from queenright.health.tickets import EscalationTicket
from queenright.instrumentation.money import spent
from queenright.instrumentation.redaction import redact
from queenright.judge import policy, wording
from queenright.judge.settings import RULES

_SEEN: Final = 900
_SAID: Final = 1200
_ADVISED: Final = 500
_EVIDENCE: Final = 500

_BY_RULE: Final = "By the rules a "
"""How the reasoning of the rules begins, where they wrote the ticket."""


def seen(ticket: EscalationTicket) -> str:
    """Return what the rules saw and why it matters: nothing in it is a model's."""
    kind = ticket.finding_kind or ticket.kind
    cause = wording.cause(
        kind,
        agent=redact(ticket.worker_agent_id, 100),
        node=redact(ticket.worker_node_id, 100),
        evidence=ticket.finding_evidence,
        since=ticket.first_seen if ticket.finding_since is None else ticket.finding_since,
    )
    fields = {**ticket.model_dump(mode="json"), "kind": kind.value, "cause": cause, "suggested_action": ""}
    text = policy.analysis(fields).removesuffix(_advice(ticket, kind)).strip()
    if cost := spent(ticket.spent_usd, ticket.spent_tokens, ticket.spent_unpriced_tokens):
        text = f"{text} It has spent {cost} since then."
    if ticket.untriaged:
        text = f"Untriaged: the queen did not answer in time. {text}"
    return redact(inert(text), _SEEN)


def evidence(ticket: EscalationTicket) -> str:
    """Return the worker's own words, or its detector's; of a ticket that has neither, what was quoted."""
    text = ticket.worker_excerpt or ticket.finding_evidence
    return redact(inert(text), _EVIDENCE) if text else plain(ticket.evidence_snippet, _EVIDENCE)


def said(ticket: EscalationTicket, *, ours: Collection[str] = ()) -> str:
    """
    Return what the models made of it, each with who says it; empty where that is what the rules say.

    Args:
        ticket: The ticket.
        ours: Beginnings of the links that may stay in it.
    """
    if ticket.untriaged or not ticket.analysis:
        if ticket.judge_reasoning.startswith(_BY_RULE):
            return ""
        return f"{_who('judge', ticket.judge_model)} says: {plain(ticket.judge_reasoning, _SAID, ours=ours)}"
    own = _beyond_rules(ticket)
    if not own:
        return ""
    text = plain(own, _SAID, ours=ours)
    return text if ticket.triaged_by == "rules" else f"{_who('queen', ticket.queen_model)} says: {text}"


def advice(ticket: EscalationTicket, *, ours: Collection[str] = ()) -> str:
    """Return what to do: by the rules, and then by the judge if it says anything else."""
    kind = ticket.finding_kind or ticket.kind
    action = ticket.suggested_action.strip()
    by_rule = redact(inert(_advice(ticket, kind)), _ADVISED)
    if not action:
        return by_rule
    if (known := next((one for one in FindingKind if action == _advice(ticket, one)), None)) is not None:
        return redact(inert(_advice(ticket, known)), _ADVISED)
    suggested = plain(action, _ADVISED, ours=ours)
    return f"{by_rule}\n{_who('judge', ticket.judge_model)} suggests: {suggested}"


def _advice(ticket: EscalationTicket, kind: FindingKind) -> str:
    return wording.advice(kind, ticket.worker_agent_id, ticket.worker_session_id)


def _who(role: str, model: str) -> str:
    # The name is for people only. Where the rules stand in for a model now, it may have been the model still.
    name = redact(inert(model), 80) if model != RULES else ""
    return f"The {role} ({name})" if name else f"The {role}"


def _beyond_rules(ticket: EscalationTicket) -> str:
    """
    Return what the analysis says beyond what the rules would, which is on the page already.

    Theirs is known by its end, which is the same for every worker. Whatever stands before that is left out,
    whoever wrote it: ``seen`` says it from the rules' own numbers.
    """
    for kind in dict.fromkeys((ticket.kind, ticket.finding_kind or ticket.kind)):
        for action in dict.fromkeys((_advice(ticket, kind), ticket.suggested_action)):
            _, end, rest = ticket.analysis.partition(f"{wording.matters(kind)} {action}")
            if end:
                return rest.strip()
    return ticket.analysis.strip()
