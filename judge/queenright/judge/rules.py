"""``queenright/rules``: a model that follows the rules by making the same tool calls that any model would."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queenright.judge import chat_rules, escalation_policy, policy
from queenright.judge.quoting import unquote
from queenright.judge.settings import RULES
from queenright.runtime.llm.model import Message, ModelError, ModelReply, OnText, ToolCall, ToolSpec
from queenright.runtime.nodes.event_loop import SET_OUTPUT

SUMMARY: Final = "get_worker_health_summary"
EMIT: Final = "emit_escalation_ticket"
NOTIFY: Final = "notify_operator"
DISMISS: Final = "dismiss_ticket"
DECIDE: Final = "decide_escalation"

_CALL: Final = "rules_"
"""How the ids of the rules' own calls begin."""


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

        And as the orchestrator if there is an escalation to decide, or to an operator who asks something.

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
        if chat_rules.is_chat(messages):
            return chat_rules.answer(messages, offered)
        have = ", ".join(sorted(offered)) or "no tools"
        raise ModelError(f"{RULES} judges and triages; it was offered {have}")


def _judge(said: Sequence[Message]) -> ModelReply:
    summary = _asked("worker", said)
    if EMIT in _answers(said):
        return _call(said, SET_OUTPUT, {"health_verdict": "healthy"})  # it was refused: things have changed
    draft = policy.draft_ticket(summary)
    if draft is None:
        return _call(said, SET_OUTPUT, {"health_verdict": "healthy"})
    return _call(said, EMIT, {"ticket_json": draft.model_dump_json(exclude_none=True)})


def _queen(said: Sequence[Message]) -> ModelReply:
    ticket = _asked("ticket", said)
    for tool, answer in _answers(said).items():
        if tool in (NOTIFY, DISMISS):  # it was refused: somebody else has decided meanwhile
            return _call(said, SET_OUTPUT, {"intervention_decision": f"undecided: {answer}"})
    decision = policy.triage(ticket, _known(said))
    if decision.decision == "dismiss":
        return _call(said, DISMISS, {"ticket_id": ticket["ticket_id"], "reason": decision.text})
    return _call(
        said,
        NOTIFY,
        {"ticket_id": ticket["ticket_id"], "analysis": decision.text, "urgency": decision.urgency},
    )


def _orchestrator(said: Sequence[Message]) -> ModelReply:
    escalation = _asked("escalation", said)
    answers = _answers(said)
    if DECIDE in answers:  # it was refused: somebody else has decided meanwhile
        return _call(said, SET_OUTPUT, {"escalation_decision": f"undecided: {answers[DECIDE]}"})
    answer = escalation_policy.answer(escalation, _known(said))
    return _call(
        said,
        DECIDE,
        {
            "escalation_id": escalation["escalation_id"],
            "decision": answer.decision,
            "reason": answer.reason[:1000],
        },
    )


def _asked(tag: str, said: Sequence[Message]) -> dict[str, Any]:
    data = unquote(tag, said[0].content)
    if data is None:
        raise ModelError(f"the message holds no <{tag}>")
    return data


def _known(said: Sequence[Message]) -> dict[str, Any] | None:
    """Return the worker's health; None for one that is known no more: other numbers must do then."""
    summary = _asked("worker", said)
    return summary if "worker_agent_id" in summary else None


def _since_last_question(messages: Sequence[Message]) -> Sequence[Message]:
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].role == "user":
            return messages[position:]
    raise ModelError("nothing was asked")


def _answers(said: Sequence[Message]) -> dict[str, str]:
    """Return the last answer of each tool that the rules called, not of one that a model called before."""
    calls = [call for message in said for call in message.tool_calls]
    asked = {call.id: call.name for call in calls if call.id.startswith(_CALL)}
    return {asked[m.tool_call_id]: m.content for m in said if m.role == "tool" and m.tool_call_id in asked}


def _call(said: Sequence[Message], tool: str, arguments: Mapping[str, Any]) -> ModelReply:
    call = ToolCall(f"{_CALL}{len(said)}", tool, json.dumps(arguments, ensure_ascii=False))
    return ModelReply(tool_calls=(call,))
