"""``queenright/rules``: a model that follows the rules by making the same tool calls that any model would."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queenright.judge import escalation_policy, policy
from queenright.judge.quoting import unquote
from queenright.judge.settings import RULES
from queenright.runtime.llm.model import Message, ModelError, ModelReply, OnText, ToolCall, ToolSpec
from queenright.runtime.nodes.event_loop import SET_OUTPUT

SUMMARY: Final = "get_worker_health_summary"
EMIT: Final = "emit_escalation_ticket"
NOTIFY: Final = "notify_operator"
DISMISS: Final = "dismiss_ticket"
DECIDE: Final = "decide_escalation"


class RulesModel:
    """Reads the conversation and says what the tables say. Has no memory and no clock of its own."""

    @property
    def name(self) -> str:
        """``queenright/rules``."""
        return RULES

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """
        Say the next thing: as the judge if there is a ticket to write, as the queen if there is an operator.

        And as the orchestrator if there is an escalation to decide.

        Raises:
            ModelError: The conversation is neither a check nor a triage nor an escalation.
        """
        offered = {tool.name for tool in tools}
        said = _since_last_question(messages)
        if EMIT in offered:
            return _judge(said)
        if NOTIFY in offered:
            return _queen(said)
        if DECIDE in offered:
            return _orchestrator(said)
        have = ", ".join(sorted(offered)) or "no tools"
        raise ModelError(f"{RULES} judges and triages; it was offered {have}")


def _judge(said: Sequence[Message]) -> ModelReply:
    check = unquote("check", said[0].content)
    if check is None:
        raise ModelError("the message holds no <check>")
    answers = _answers(said)
    if SUMMARY not in answers:
        return _call(said, SUMMARY, {"agent_id": check["agent_id"], "session_id": check["session_id"]})
    summary = unquote("worker", answers[SUMMARY])
    if summary is None:
        raise ModelError(f"no summary: {answers[SUMMARY]}")
    if EMIT in answers:
        return _call(said, SET_OUTPUT, {"health_verdict": "ticket"})
    draft = policy.should_ticket(summary)
    if draft is None:
        return _call(said, SET_OUTPUT, {"health_verdict": "healthy"})
    return _call(said, EMIT, {"ticket_json": json.dumps(draft, ensure_ascii=False)})


def _queen(said: Sequence[Message]) -> ModelReply:
    ticket = unquote("ticket", said[0].content)
    if ticket is None:
        raise ModelError("the message holds no <ticket>")
    answers = _answers(said)
    if SUMMARY not in answers:
        worker = {"agent_id": ticket["worker_agent_id"], "session_id": ticket["worker_session_id"]}
        return _call(said, SUMMARY, worker)
    for tool, word in ((NOTIFY, "intervened"), (DISMISS, "dismissed")):
        if tool in answers:
            return _call(said, SET_OUTPUT, {"intervention_decision": f"{word}: {answers[tool]}"})
    # Of a worker that is known no more there is no summary; the ticket's own numbers count then.
    summary = unquote("worker", answers[SUMMARY])
    known = summary if summary is not None and "worker_agent_id" in summary else None
    decision = policy.triage(ticket, known)
    if decision.decision == "dismiss":
        return _call(said, DISMISS, {"ticket_id": ticket["ticket_id"], "reason": decision.text})
    return _call(
        said,
        NOTIFY,
        {"ticket_id": ticket["ticket_id"], "analysis": decision.text, "urgency": decision.urgency},
    )


def _orchestrator(said: Sequence[Message]) -> ModelReply:
    escalation = unquote("escalation", said[0].content)
    if escalation is None:
        raise ModelError("the message holds no <escalation>")
    answers = _answers(said)
    if SUMMARY not in answers:
        worker = {"agent_id": escalation["agent_id"], "session_id": escalation["session_id"]}
        return _call(said, SUMMARY, worker)
    if DECIDE in answers:
        return _call(said, SET_OUTPUT, {"escalation_decision": answers[DECIDE]})
    summary = unquote("worker", answers[SUMMARY])
    if summary is None:
        raise ModelError(f"no summary: {answers[SUMMARY]}")
    answer = escalation_policy.answer(escalation, summary if "worker_agent_id" in summary else None)
    return _call(
        said,
        DECIDE,
        {
            "escalation_id": escalation["escalation_id"],
            "decision": answer.decision,
            "reason": answer.reason[:1000],
        },
    )


def _since_last_question(messages: Sequence[Message]) -> Sequence[Message]:
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].role == "user":
            return messages[position:]
    raise ModelError("nothing was asked")


def _answers(said: Sequence[Message]) -> dict[str, str]:
    """Return the last answer of each tool that was called."""
    asked = {call.id: call.name for message in said for call in message.tool_calls}
    return {asked[m.tool_call_id]: m.content for m in said if m.role == "tool" and m.tool_call_id in asked}


def _call(said: Sequence[Message], tool: str, arguments: Mapping[str, Any]) -> ModelReply:
    call = ToolCall(f"call_{len(said)}", tool, json.dumps(arguments, ensure_ascii=False))
    return ModelReply(tool_calls=(call,))
