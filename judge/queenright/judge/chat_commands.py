"""The commands of the operator chat, and the replies of ``queenright/rules`` to operators."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any, Final

from queenright.judge.agent_workspace import RESTART, WRITE_FILE
from queenright.judge.chat_answers import answer
from queenright.judge.queen_actions import MAX_NUDGE_LENGTH, MAX_REASON_LENGTH, NUDGE, REQUEST_TERMINATION
from queenright.judge.quoting import unquote
from queenright.runtime.llm.model import Message, ModelError, ModelReply, ToolCall

ACKNOWLEDGE: Final = "acknowledge_ticket"

_TOOL_ERROR: Final = re.compile(r"error: (?:\w+: )?")
_PLEASE: Final = r"(?is)(?:please\s+)?"
_ACKNOWLEDGE: Final = re.compile(
    rf"{_PLEASE}(?:ack(?:nowledge)?(?: (?:it|this|the ticket))?|i(?:'ve got| have) (?:it|this))[.!]*\Z"
)
_NEEDS_MODEL: Final = "Without a language model I cannot read or change files (set `judging.queen.model`)."


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """An operator's command: the tool that carries it out, with its arguments."""

    tool: str
    arguments: Mapping[str, Any]
    by_hand: str
    """The equivalent command for the terminal."""
    more_tools: tuple[str, ...] = ()
    """Other tools that the command allows."""

    @property
    def tools(self) -> tuple[str, ...]:
        """All tools that the command allows."""
        return (self.tool, *self.more_tools)


def parse_command(text: str, ticket: Mapping[str, Any]) -> ChatCommand | None:
    """
    Return the command in a message about a ticket, or None.

    The message must begin with the command, because "should I stop it?" is a question.
    """
    agent, ticket_id = _get_text(ticket, "agent_id"), _get_text(ticket, "ticket_id")
    worker = rf"(?:it|him|her|them|(?:the|this) (?:worker|agent)|{re.escape(agent) or 'it'})"
    text = text.strip()
    if nudge := re.match(rf"{_PLEASE}(?:nudge|tell)\s+{worker}\b\s*(?:[:,]|that\b|to\b)?\s*(.*)\Z", text):
        message = nudge[1].strip().strip("\"'“”").strip()
        by_hand = f"queenright nudge {quote(agent)} --message TEXT"
        arguments = {"ticket_id": ticket_id, "message": message[:MAX_NUDGE_LENGTH]}
        return ChatCommand(NUDGE, arguments, by_hand) if message else None
    reason = r"(?:(?:[:,]|because\b|since\b)\s*(\S.*)|now)?[.!]*\Z"
    if stop := re.match(rf"{_PLEASE}(?:stop|terminate|kill)\s+{worker}\s*{reason}", text):
        termination_reason = ": ".join(
            filter(None, ("The operator wants it stopped", (stop[1] or "").strip()))
        )
        by_hand = f"queenright terminate {quote(agent)} --reason TEXT"
        arguments = {"ticket_id": ticket_id, "reason": termination_reason[:MAX_REASON_LENGTH]}
        return ChatCommand(REQUEST_TERMINATION, arguments, by_hand)
    reload_command = f"queenright agents unload {quote(agent)}, then queenright agents load FOLDER"
    if re.match(rf"{_PLEASE}(?:restart|reload)\s+{worker}\s*{reason}", text):
        return ChatCommand(RESTART, {"ticket_id": ticket_id}, reload_command)
    if change := re.match(
        rf"{_PLEASE}(?:change|edit)\s+(?!{worker}(?:\s|:))`?([^\s`:]+)`?"
        rf"(\s+and\s+(?:restart|reload)(?:\s+{worker})?)?\s*:\s*\S",
        text,
    ):
        path = change[1].removeprefix("./")
        arguments = {"ticket_id": ticket_id, "path": path}
        by_hand = f"edit {path} in the agent's folder, then {reload_command}"
        return ChatCommand(WRITE_FILE, arguments, by_hand, (RESTART,) if change[2] else ())
    if _ACKNOWLEDGE.match(text):
        by_hand = f"queenright tickets acknowledge {ticket_id}"
        return ChatCommand(ACKNOWLEDGE, {"ticket_id": ticket_id}, by_hand)
    return None


def is_chat(messages: Sequence[Message]) -> bool:
    """Return whether a conversation contains an operator's question."""
    return _find_newest_question(messages) is not None


def reply(messages: Sequence[Message], tool_names: Collection[str]) -> ModelReply:
    """
    Reply to the newest question: carry out its command, or answer it from the ticket.

    Args:
        tool_names: The names of the tools that may be called.

    Raises:
        ModelError: The conversation contains no question.
    """
    position = _find_newest_question(messages)
    if position is None:
        raise ModelError("the conversation contains no <question> of an operator")
    results = [message.content for message in messages[position:] if message.role == "tool"]
    if results:
        return ModelReply(text=_describe_result(results[-1]))
    content = messages[position].content
    question, case = unquote("question", content) or {}, unquote("case", content) or {}
    ticket = case.get("ticket") or {}
    command = parse_command(_get_text(question, "message"), ticket)
    if command is None:
        return ModelReply(text=answer(case, unquote("worker", content)))
    if not _get_text(ticket, "ticket_id"):
        return ModelReply(text=f"Without a ticket I only answer. By hand: {command.by_hand}")
    if command.tool == WRITE_FILE:
        return ModelReply(text=f"{_NEEDS_MODEL} By hand: {command.by_hand}")
    if command.tool not in tool_names:
        return ModelReply(text=f"I cannot do that from here. By hand: {command.by_hand}")
    arguments = json.dumps(command.arguments, ensure_ascii=False)
    return ModelReply(tool_calls=(ToolCall("call_1", command.tool, arguments),))


def _find_newest_question(messages: Sequence[Message]) -> int | None:
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if message.role == "user" and unquote("question", message.content) is not None:
            return position
    return None


def _describe_result(result: str) -> str:
    if error := _TOOL_ERROR.match(result):
        return f"That was not carried out: {result[error.end() :]}"
    return result[:1].upper() + result[1:]


def _get_text(values: Mapping[str, Any], key: str) -> str:
    return str(values.get(key) or "")
