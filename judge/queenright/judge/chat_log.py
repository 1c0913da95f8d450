"""The messages of a chat about a ticket or a worker, as values and as events in the log."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from queenright.instrumentation.errors import InvalidValueError, QueenrightError
from queenright.judge.queen_triage import QUEEN_GRAPH
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.storage.session_state import make_execution_key

OPERATOR_CHAT: Final = "operator_chat"
CHAT_STREAM: Final = make_execution_key(QUEEN_GRAPH, OPERATOR_CHAT)
CHAT_EVENTS: Final = frozenset({EventType.OPERATOR_ASKED, EventType.QUEEN_ANSWERED})

Role = Literal["operator", "queen"]


class ChatRefusedError(InvalidValueError):
    """Raised when a question is rejected. It is not stored."""


class ChatInterruptedError(QueenrightError):
    """Raised when the service stops before a question is answered. It is answered after the next start."""

    def __init__(self, question_id: str) -> None:
        super().__init__(
            f"the service is stopping; question {question_id} is stored, and its answer appears in the chat "
            "after the next start"
        )
        self.question_id = question_id


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a chat: a ticket, or a session of a worker without a ticket."""

    ticket_id: str = ""
    agent_id: str = ""
    session_id: str = ""

    def __str__(self) -> str:
        return f"ticket {self.ticket_id}" if self.ticket_id else f"{self.agent_id!r} ({self.session_id})"

    @property
    def chat_session(self) -> str:
        """The id of the queen's session for the chat."""
        if self.ticket_id:
            return f"chat_{self.ticket_id}"
        worker = f"{self.agent_id}\n{self.session_id}".encode()
        return f"chat_worker_{hashlib.sha256(worker).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A stored question of an operator."""

    id: str
    subject: Subject
    at: float
    by: str
    text: str
    act: bool = False
    """Whether the message was sent as an order, regardless of its wording."""
    is_admin: bool = False
    """Whether the person may change agents. It is not stored, so an admin must ask again after a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRecord:
    """A message of a chat."""

    id: str
    at: float
    """Seconds since the epoch."""
    role: Role
    by: str
    text: str
    question_id: str
    """The id of the question: of the answered question, or of this question itself."""
    outcome: str = ""
    """For an answer: ``answered``, or ``by_rule`` if the rules answered instead of the model."""
    actions: tuple[str, ...] = ()
    """For an answer: the tools with which the queen acted."""


def chat_event(type_: EventType, subject: Subject, at: float, data: Mapping[str, Any]) -> AgentEvent:
    """Return a message of the chat as an event of the queen's graph."""
    return AgentEvent(
        type=type_,
        time=at,
        session_id=subject.chat_session,
        graph_id=QUEEN_GRAPH,
        stream_id=CHAT_STREAM,
        node_id=OPERATOR_CHAT,
        data=data,
    )


def parse_question(event: AgentEvent) -> Question:
    """Return the question in an ``operator_asked`` event."""
    data = event.data
    return Question(
        id=event.id,
        subject=Subject(ticket_id) if (ticket_id := str(data["ticket_id"])) else _parse_worker(data),
        at=event.time,
        by=str(data["by"]),
        text=str(data["text"]),
        act=bool(data.get("act", False)),
    )


def _parse_worker(data: Mapping[str, Any]) -> Subject:
    return Subject(agent_id=str(data["agent_id"]), session_id=str(data["session_id"]))


def parse_chat_record(event: AgentEvent) -> ChatRecord:
    """Return the message in one of ``CHAT_EVENTS``."""
    data = event.data
    is_question = event.type is EventType.OPERATOR_ASKED
    return ChatRecord(
        id=event.id,
        at=event.time,
        role="operator" if is_question else "queen",
        by=str(data["by"]) if is_question else "queen",
        text=str(data["text"]),
        question_id=event.id if is_question else str(data["question_id"]),
        outcome="" if is_question else str(data["outcome"]),
        actions=tuple(map(str, data.get("did", ()))),
    )
