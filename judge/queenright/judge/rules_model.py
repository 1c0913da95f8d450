"""``queenright/rules``: the rules as a model, with the same tool calls as any other model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queenright.judge import chat_commands, escalation_policy, ticket_policy
from queenright.judge.quoting import unquote
from queenright.judge.settings import RULES
from queenright.runtime.llm.model import Message, ModelError, ModelReply, OnText, ToolCall, ToolSpec
from queenright.runtime.nodes.event_loop import SET_OUTPUT

SUMMARY: Final = "get_worker_health_summary"
EMIT: Final = "emit_escalation_ticket"
NOTIFY: Final = "notify_operator"
DISMISS: Final = "dismiss_ticket"
DECIDE: Final = "decide_escalation"

_CALL_ID_PREFIX: Final = "rules_"
"""The prefix of the ids of the rules' calls."""


class RulesModel:
    """Answers a conversation by the rules. It has no state and no clock."""

    @property
    def name(self) -> str:
        """``queenright/rules``."""
        return RULES

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """
        Return the next reply. The offered tools show the role: judge, queen, orchestrator or chat.

        Raises:
            ModelError: The conversation belongs to none of these roles.
        """
        tool_names = {tool.name for tool in tools}
        turn = _select_last_turn(messages)
        if EMIT in tool_names:
            return _reply_as_judge(turn)
        if NOTIFY in tool_names:
            return _reply_as_queen(turn)
        if DECIDE in tool_names:
            return _reply_as_orchestrator(turn)
        if chat_commands.is_chat(messages):
            return chat_commands.reply(messages, tool_names)
        offered_names = ", ".join(sorted(tool_names)) or "no tools"
        raise ModelError(
            f"{RULES} only judges, triages and follows chat commands; the tools offered are: {offered_names}"
        )


def _reply_as_judge(turn: Sequence[Message]) -> ModelReply:
    summary = _read_block("worker", turn)
    if EMIT in _read_answers(turn):
        return _make_call(
            turn, SET_OUTPUT, {"health_verdict": "healthy"}
        )  # the ticket was rejected, because the worker has changed
    draft = ticket_policy.draft_ticket(summary)
    if draft is None:
        return _make_call(turn, SET_OUTPUT, {"health_verdict": "healthy"})
    return _make_call(turn, EMIT, {"ticket_json": draft.model_dump(mode="json", exclude_none=True)})


def _reply_as_queen(turn: Sequence[Message]) -> ModelReply:
    ticket = _read_block("ticket", turn)
    for tool, answer in _read_answers(turn).items():
        if tool in (NOTIFY, DISMISS):  # rejected, because it was decided elsewhere in the meantime
            return _make_call(turn, SET_OUTPUT, {"intervention_decision": f"undecided: {answer}"})
    decision = ticket_policy.triage(ticket, _read_worker(turn))
    if decision.decision == "dismiss":
        return _make_call(turn, DISMISS, {"ticket_id": ticket["ticket_id"], "reason": decision.text})
    return _make_call(
        turn,
        NOTIFY,
        {"ticket_id": ticket["ticket_id"], "analysis": decision.text, "urgency": decision.urgency},
    )


def _reply_as_orchestrator(turn: Sequence[Message]) -> ModelReply:
    escalation = _read_block("escalation", turn)
    answers = _read_answers(turn)
    if DECIDE in answers:  # rejected, because it was decided elsewhere in the meantime
        return _make_call(turn, SET_OUTPUT, {"escalation_decision": f"undecided: {answers[DECIDE]}"})
    answer = escalation_policy.answer(escalation, _read_worker(turn))
    return _make_call(
        turn,
        DECIDE,
        {
            "escalation_id": escalation["escalation_id"],
            "decision": answer.decision,
            "reason": answer.reason[:1000],
        },
    )


def _read_block(tag: str, turn: Sequence[Message]) -> dict[str, Any]:
    data = unquote(tag, turn[0].content)
    if data is None:
        raise ModelError(f"the message has no <{tag}> block")
    return data


def _read_worker(turn: Sequence[Message]) -> dict[str, Any] | None:
    """Return the worker's health summary, or None if the worker is no longer known."""
    summary = _read_block("worker", turn)
    return summary if "agent_id" in summary else None


def _select_last_turn(messages: Sequence[Message]) -> Sequence[Message]:
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].role == "user":
            return messages[position:]
    raise ModelError("the conversation contains no message of a user")


def _read_answers(turn: Sequence[Message]) -> dict[str, str]:
    """Return the last answer to each of the rules' calls. A model may have made other calls before."""
    calls = [call for message in turn for call in message.tool_calls]
    rules_calls = {call.id: call.name for call in calls if call.id.startswith(_CALL_ID_PREFIX)}
    return {
        rules_calls[m.tool_call_id]: m.content
        for m in turn
        if m.role == "tool" and m.tool_call_id in rules_calls
    }


def _make_call(turn: Sequence[Message], tool: str, arguments: Mapping[str, Any]) -> ModelReply:
    call = ToolCall(f"{_CALL_ID_PREFIX}{len(turn)}", tool, json.dumps(arguments, ensure_ascii=False))
    return ModelReply(tool_calls=(call,))
