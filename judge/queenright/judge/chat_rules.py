"""
The queen's part of a chat by rule: what she answers an operator with no language model behind her.

Pure: it reads the newest question and the case beside it, and answers in words or by a tool call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any, Final

from queenright.judge import chat_topics
from queenright.judge.queen_actions import LONGEST_NUDGE, LONGEST_REASON, NUDGE, REQUEST_TERMINATION
from queenright.judge.quoting import unquote
from queenright.runtime.llm.model import Message, ModelError, ModelReply, ToolCall

ACKNOWLEDGE: Final = "acknowledge_ticket"

_MOST_TOPICS: Final = 3
_FAILED: Final = re.compile(r"error: (?:\w+: )?")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its case, as a message holds them."""

    question: Mapping[str, Any]
    case: Mapping[str, Any]
    worker: Mapping[str, Any] | None
    """How the worker is now; None if it is not known."""

    @property
    def text(self) -> str:
        """What was asked."""
        return str(self.question.get("message") or "")

    @property
    def ticket(self) -> Mapping[str, Any]:
        """The ticket that it is about."""
        found = self.case.get("ticket")
        return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True, slots=True)
class Order:
    """Something that the operator wants done: the tool that does it, and what it is given."""

    tool: str
    arguments: Mapping[str, Any]
    by_hand: str
    """The command that does it, where the tool is not offered."""


def is_chat(messages: Sequence[Message]) -> bool:
    """Return whether the newest words are a question of an operator."""
    return bool(messages) and _position(messages) is not None


def answer(messages: Sequence[Message], offered: Collection[str]) -> ModelReply:
    """
    Answer the newest question.

    Args:
        messages: The conversation.
        offered: Names of the tools that may be called.

    Raises:
        ModelError: It holds no question.
    """
    position = _position(messages)
    asked = None if position is None else read(messages[position].content)
    if position is None or asked is None:
        raise ModelError("the conversation holds no <question> of an operator")
    results = [message.content for message in messages[position:] if message.role == "tool"]
    if results:
        return ModelReply(text=_came_of_it(results[-1]))
    wanted = order(asked)
    if wanted is None:
        return ModelReply(text=words(asked))
    if isinstance(wanted, str):
        return ModelReply(text=wanted)
    if wanted.tool not in offered:
        return ModelReply(text=f"I cannot do that from here. By hand: {wanted.by_hand}")
    arguments = json.dumps(wanted.arguments, ensure_ascii=False)
    return ModelReply(tool_calls=(ToolCall("call_1", wanted.tool, arguments),))


def read(message: str) -> Asked | None:
    """Return the question that a message holds, with its case; None if it holds none."""
    question, case = unquote("question", message), unquote("case", message)
    if question is None or case is None:
        return None
    worker = unquote("worker", message)
    return Asked(question, case, worker if worker is not None and "worker_agent_id" in worker else None)


def order(asked: Asked) -> Order | str | None:
    """
    Return what the operator wants done; None if they ask, words if it cannot be told what they want done.

    Only a sentence that begins with the order is one: "should I stop it?" is not.
    """
    agent = str(asked.ticket.get("worker_agent_id") or "")
    ticket_id = str(asked.ticket.get("ticket_id") or "")
    whom = rf"(?:it|him|her|them|(?:the|this) (?:worker|agent)|{re.escape(agent) or 'it'})"
    text = asked.text.strip()
    if told := re.match(rf"{_PLEASE}(?:nudge|tell)\s+{whom}\b\s*(?:[:,]|that\b|to\b)?\s*(.*)\Z", text):
        message = told[1].strip().strip("\"'“”").strip()
        if not message:
            return "Say what it should be told: `nudge it: TEXT`."
        by_hand = f"queenright nudge {agent} --message TEXT"
        return Order(NUDGE, {"ticket_id": ticket_id, "message": message[:LONGEST_NUDGE]}, by_hand)
    reason = r"(?:(?:[:,]|because\b|since\b)\s*(.*)|now)?[.!]*\Z"
    if stopped := re.match(rf"{_PLEASE}(?:stop|terminate|kill)\s+{whom}\s*{reason}", text):
        why = ": ".join(filter(None, ("The operator wants it stopped", (stopped[1] or "").strip())))
        by_hand = f"queenright terminate {agent} --reason TEXT"
        return Order(REQUEST_TERMINATION, {"ticket_id": ticket_id, "reason": why[:LONGEST_REASON]}, by_hand)
    if _MINE.match(text):
        return Order(ACKNOWLEDGE, {"ticket_id": ticket_id}, f"queenright tickets acknowledge {ticket_id}")
    return None


def words(asked: Asked) -> str:
    """Answer a question in words: what it asks for, or else what can be asked."""
    if _BEYOND.match(asked.text.strip()):
        return _beyond(asked)
    now = float(asked.question.get("at") or 0.0)
    said = [
        say(asked.ticket, asked.case, asked.worker, now)
        for pattern, say in _TOPICS
        if pattern.search(asked.text)
    ]
    return "\n\n".join(said[:_MOST_TOPICS]) if said else _HELP


def _beyond(asked: Asked) -> str:
    """Say what is not done by rule, what is, and the commands for the rest."""
    agent = quote(str(asked.ticket.get("worker_agent_id") or "AGENT"))
    session = quote(str(asked.ticket.get("worker_session_id") or "SESSION"))
    return (
        "I answer by rule here: I read no files or logs, change no code and restart nothing. I can nudge it "
        "(`nudge it: TEXT`), ask for it to be stopped (`stop it: REASON`), and note that you have it "
        f"(`acknowledge`). By hand: `queenright events --agent {agent} --types all` follows what it does, "
        f"`queenright recover {session}` starts it again from its last checkpoint."
    )


def without_model(asked: Asked) -> str:
    """Answer in the place of a model that failed: what can be said by rule, and an order as a command."""
    wanted = order(asked)
    if isinstance(wanted, Order):
        return f"I cannot say whether anything was done. By hand: {wanted.by_hand}"
    return f"By the rules: {wanted or words(asked)}"


def _position(messages: Sequence[Message]) -> int | None:
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if message.role == "user" and unquote("question", message.content) is not None:
            return position
    return None


def _came_of_it(result: str) -> str:
    if failed := _FAILED.match(result):
        return f"That was not done: {result[failed.end() :]}"
    return result[:1].upper() + result[1:]


def _topic(*words: str) -> re.Pattern[str]:
    return re.compile(rf"(?i)\b(?:{'|'.join(words)})")


_PLEASE: Final = r"(?is)(?:please\s+)?"
_MINE: Final = re.compile(
    rf"{_PLEASE}(?:ack(?:nowledge)?(?: (?:it|this|the ticket))?|i(?:'ve got| have) (?:it|this))[.!]*\Z"
)

# What an operator may want done that is not done by rule; a question how it is done is none.
_BEYOND: Final = re.compile(
    rf"{_PLEASE}(?:(?:can|could|will|would) you\s+(?:please\s+)?)?(?:"
    r"(?:read|open|look|show|list|check|search|print)\b.*\b(?:files?|folders?|logs?|code|source|prompts?)\b"
    r"|(?:edit|change|mend|fix|patch|rewrite|repair|debug|restart|recover|resume|rerun|reload|redeploy)\b)"
)

# How what is asked for begins, and who answers it.
_TOPICS: Final[Sequence[tuple[re.Pattern[str], chat_topics.Topic]]] = (
    (
        _topic(
            "wrong", "problem", "happen", "going on", "the matter", "cause", "explain", "summar", "why is it"
        ),
        chat_topics.wrong,
    ),
    (_topic("now", "still", "stat(e|us)", "recovered", "alive", "progress", "is it doing"), chat_topics.now),
    (_topic("since", "how long", "when"), chat_topics.since),
    (_topic("evidence", "proof", "errors?", "output", "verdict", "show me"), chat_topics.evidence),
    (
        _topic("why (was|were|did|am|are|is the ticket)", "deci[ds]", "triage", "dismiss", "severity"),
        chat_topics.decided,
    ),
    (
        _topic("tried", "done (to|about|so far|for)", "been done", "nudged", "action", "interven"),
        chat_topics.tried,
    ),
    (
        _topic("next", "should", "recommend", "advi[cs]e", "suggest", "fix", "(how|what) (do|can) (i|we)"),
        chat_topics.what_next,
    ),
    (_topic("cost", "tokens?", "money", "dollar", "expensive", "spen[dt]"), chat_topics.cost),
    (
        _topic("history", "before", "earlier", "again", "first time", "previous", "other", "related"),
        chat_topics.history,
    ),
)

_HELP: Final = (
    "I answer by rule here, and can say: what is wrong, how it is now, since when, the evidence, why it came "
    "to you, what was tried, what to do next, what it has cost, and its history. I can also act: "
    "`nudge it: TEXT` puts TEXT into its context, `stop it: REASON` asks for it to be stopped, `acknowledge` "
    "says that you have it."
)
