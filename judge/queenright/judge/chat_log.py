"""What is said in the chat about a ticket, as values and as events in the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from queenright.instrumentation.errors import QueenrightError
from queenright.judge.chat_case import Question
from queenright.judge.queen import QUEEN_GRAPH
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.storage.session_state import execution_key

OPERATOR_CHAT: Final = "operator_chat"
CHAT_STREAM: Final = execution_key(QUEEN_GRAPH, OPERATOR_CHAT)
SAID: Final = frozenset({EventType.OPERATOR_ASKED, EventType.QUEEN_ANSWERED})

Role = Literal["operator", "queen"]


class ChatRefusedError(QueenrightError):
    """Raised when a question is not taken: nothing was written down; says the way out."""


class ChatInterruptedError(QueenrightError):
    """Raised when the service ends before a question is answered: it is kept, and answered later."""

    def __init__(self, question_id: str) -> None:
        super().__init__(
            f"the service is stopping; question {question_id} is kept, and is answered in the chat after the "
            "next start"
        )
        self.question_id = question_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One thing that was said in the chat about a ticket."""

    id: str
    at: float
    """Seconds since the epoch."""
    role: Role
    by: str
    text: str
    question_id: str
    """Of an answer: what it answers; of a question: its own id."""
    outcome: str = ""
    """Of an answer: ``answered``, or ``by_rule`` where the model gave none."""


def session_of(ticket_id: str) -> str:
    """Return the id of the session in which a ticket is talked about."""
    return f"chat_{ticket_id}"


def said_event(type_: EventType, ticket_id: str, at: float, data: Mapping[str, Any]) -> AgentEvent:
    """Return what was said as an event of the queen's graph."""
    return AgentEvent(
        type=type_,
        time=at,
        session_id=session_of(ticket_id),
        graph_id=QUEEN_GRAPH,
        stream_id=CHAT_STREAM,
        node_id=OPERATOR_CHAT,
        data=data,
    )


def question_of(event: AgentEvent) -> Question:
    """Return the question that an ``operator_asked`` is."""
    data = event.data
    return Question(
        id=event.id,
        ticket_id=str(data["ticket_id"]),
        at=event.time,
        by=str(data["by"]),
        text=str(data["text"]),
        act=bool(data.get("act", False)),
    )


def said(event: AgentEvent) -> Said:
    """Return what an event of ``SAID`` says."""
    data = event.data
    asked = event.type is EventType.OPERATOR_ASKED
    return Said(
        id=event.id,
        at=event.time,
        role="operator" if asked else "queen",
        by=str(data["by"]) if asked else "queen",
        text=str(data["text"]),
        question_id=event.id if asked else str(data["question_id"]),
        outcome="" if asked else str(data["outcome"]),
    )
