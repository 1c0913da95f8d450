"""
Models of the screens, in addition to those of the API: graphs with their state, and conversations.

Times are in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from queenright.api.agents import AgentRow
from queenright.api.events import Event
from queenright.api.terms import OPEN_TICKET_STATUSES
from queenright.api.tickets import ChatMessage, Ticket
from queenright.tui.formatting import format_clock_time

Row = Mapping[str, Any]


def make_worker_key(worker: AgentRow) -> str:
    """Return the key of a worker's table row: its name and session."""
    return f"{worker.agent_id}\n{worker.session_id}"


def get_health_or_outcome(worker: AgentRow) -> str:
    """Return the health of a worker, or the outcome of an ended session."""
    return worker.outcome or worker.state


def describe_activity(worker: AgentRow) -> str:
    """Return the current activity of a worker; empty for an ended session."""
    if worker.question:
        return f"waiting: {worker.question}"
    limit_text = "" if worker.limited_until is None else f" at {format_clock_time(worker.limited_until)}"
    return worker.activity.removeprefix("working: ") + limit_text


def is_open(ticket: Ticket) -> bool:
    """Return whether a ticket is open."""
    return ticket.status in OPEN_TICKET_STATUSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A graph of a loaded agent."""

    graph_id: str
    agent_id: str
    active: bool
    primary: bool
    running: int
    """Number of active runs."""
    waiting: tuple[str, ...]
    """Nodes that wait for input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEntry:
    """One message of a conversation."""

    by: str
    text: str
    at: float
    is_own: bool

    @classmethod
    def of(cls, message: ChatMessage) -> Self:
        """Return the entry for a message of a chat with the queen."""
        return cls(by=message.by, text=message.text, at=message.at, is_own=message.role == "operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedAnswer:
    """The part of an answer that the queen has written so far; empty if its beginning is missing."""

    question_id: str = ""
    text: str = ""
    at: float = 0.0
    next: int = 0
    """The index of the next piece."""

    def add(self, event: Event) -> StreamedAnswer:
        """Return the answer with the piece in a ``queen_answer_delta``; piece 0 restarts it."""
        question_id, index = str(event.data["question_id"]), int(event.data["index"])
        if index and (question_id, index) != (self.question_id, self.next):
            return StreamedAnswer()
        text = (self.text if index else "") + str(event.data["text"])
        return StreamedAnswer(question_id=question_id, text=text, at=event.time, next=index + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Stored messages of a graph's active session, otherwise of its newest."""

    entries: tuple[ChatEntry, ...] = ()
    until: float = 0.0
    """Time of the last message."""
