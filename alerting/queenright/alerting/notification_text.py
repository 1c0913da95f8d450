"""
Texts of a ticket's alert annotations, ordered by trust. Pure.

First comes the finding, which the rules write from their own numbers, then the worker's evidence, then the
statements of models, attributed and sanitized. Statements that repeat the rules' text are left out. The
template ``alertmanager/templates/queenright.tmpl`` renders the annotations for Slack and PagerDuty.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from queenright.alerting.model_text import neutralize_markup, sanitize_line
from queenright.health.findings import FindingKind
from queenright.health.tickets.ticket import EscalationTicket
from queenright.health.tickets.ticket_rules import BY_RULES
from queenright.instrumentation.money import format_spend
from queenright.instrumentation.redaction import redact
from queenright.judge import ticket_policy, wording
from queenright.judge.settings import RULES

_FINDING_LIMIT: Final = 900
_MODEL_LIMIT: Final = 1200
_ACTION_LIMIT: Final = 500
_EVIDENCE_LIMIT: Final = 500

_RULES_ATTRIBUTION: Final = (BY_RULES, "By the rules a ")
"""How the reasoning starts if the rules wrote the ticket. The second text occurs in older tickets."""


def describe_finding(ticket: EscalationTicket) -> str:
    """Describe the finding and its impact, without any text written by a model."""
    kind = ticket.finding_kind or ticket.kind
    cause = wording.cause(
        kind,
        agent=redact(ticket.agent_id, 100),
        node=redact(ticket.node_id, 100),
        evidence=ticket.finding_evidence,
        since=ticket.first_seen if ticket.finding_since is None else ticket.finding_since,
        now=ticket.updated_at,
    )
    fields = {**ticket.model_dump(mode="json"), "kind": kind.value, "cause": cause, "suggested_action": ""}
    text = ticket_policy.analysis(fields).removesuffix(_build_advice(ticket, kind)).strip()
    if cost := format_spend(ticket.spent_usd, ticket.spent_tokens, ticket.spent_unpriced_tokens):
        text = f"{text} It has spent {cost} since then."
    if ticket.untriaged:
        text = f"Untriaged: the queen did not answer in time. {text}"
    return redact(neutralize_markup(text), _FINDING_LIMIT)


def quote_evidence(ticket: EscalationTicket) -> str:
    """
    Return the worker's output, otherwise the detector's evidence, otherwise the ticket's evidence snippet.
    """
    text = ticket.worker_excerpt or ticket.finding_evidence
    return (
        redact(neutralize_markup(text), _EVIDENCE_LIMIT)
        if text
        else sanitize_line(ticket.evidence_snippet, _EVIDENCE_LIMIT)
    )


def quote_models(ticket: EscalationTicket, *, own_urls: Collection[str] = ()) -> str:
    """Return the attributed statements of the models; "" if they only repeat the rules."""
    if ticket.untriaged or not ticket.analysis:
        if ticket.judge_reasoning.startswith(_RULES_ATTRIBUTION):
            return ""
        reasoning = sanitize_line(ticket.judge_reasoning, _MODEL_LIMIT, own_urls=own_urls)
        return f"{_attribute('judge', ticket.judge_model)} says: {reasoning}"
    model_text = _find_model_text(ticket)
    if not model_text:
        return ""
    text = sanitize_line(model_text, _MODEL_LIMIT, own_urls=own_urls)
    return text if ticket.triaged_by == "rules" else f"{_attribute('queen', ticket.queen_model)} says: {text}"


def suggest_action(ticket: EscalationTicket, *, own_urls: Collection[str] = ()) -> str:
    """Return the suggested action of the rules, and the judge's if it differs."""
    kind = ticket.finding_kind or ticket.kind
    action = ticket.suggested_action.strip()
    rule_advice = redact(neutralize_markup(_build_advice(ticket, kind)), _ACTION_LIMIT)
    if not action:
        return rule_advice
    if (
        rule_kind := next((kind for kind in FindingKind if action == _build_advice(ticket, kind)), None)
    ) is not None:
        return redact(neutralize_markup(_build_advice(ticket, rule_kind)), _ACTION_LIMIT)
    suggestion = sanitize_line(action, _ACTION_LIMIT, own_urls=own_urls)
    return f"{rule_advice}\n{_attribute('judge', ticket.judge_model)} suggests: {suggestion}"


def _build_advice(ticket: EscalationTicket, kind: FindingKind) -> str:
    return wording.advice(kind, ticket.agent_id, ticket.session_id)


def _attribute(role: str, model: str) -> str:
    # Without a model name if the rules currently replace the model, because either may have written the text.
    name = redact(neutralize_markup(model), 80) if model != RULES else ""
    return f"The {role} ({name})" if name else f"The {role}"


def current_analysis(ticket: EscalationTicket) -> str:
    """Return the analysis. The rules' part of it is rewritten with the ticket's current cause and numbers."""
    model_text = _find_model_text(ticket)
    if model_text == ticket.analysis.strip():
        return ticket.analysis
    return f"{ticket_policy.analysis(ticket.model_dump(mode='json'))} {model_text}".strip()


def _find_model_text(ticket: EscalationTicket) -> str:
    """
    Return the part of the analysis that follows the rules' text, which the notification already contains.

    The rules' text is recognized by its fixed ending. Everything before that is dropped, even if a model
    wrote it, because ``describe_finding`` states it from the rules' own numbers.
    """
    kinds = (ticket.kind, ticket.finding_kind or ticket.kind, ticket.words_kind or ticket.kind)
    for kind in dict.fromkeys(kinds):
        for action in dict.fromkeys((_build_advice(ticket, kind), ticket.suggested_action)):
            _, separator, model_text = ticket.analysis.partition(f"{wording.impact(kind)} {action}")
            if separator:
                return model_text.strip()
    return ticket.analysis.strip()
