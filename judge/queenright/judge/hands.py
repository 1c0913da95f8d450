"""
The queen's hands: what she may do to a worker, past deciding on its ticket.

A model says which ticket and in which words. Whom it is about is read from the ticket, and whether anything may
be done to that worker is the intervention service's to say, whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict, Field

from queenright.health.tickets import EscalationTicket
from queenright.runtime.tooling.tools import Tool

NUDGE: Final = "nudge_worker"
REQUEST_TERMINATION: Final = "request_termination"

LONGEST_NUDGE: Final = 1000
"""So many characters a worker is told at most."""
LONGEST_REASON: Final = 1000


class NudgeArguments(BaseModel):
    """What the worker is told."""

    model_config = ConfigDict(extra="forbid")

    ticket_id: str
    message: str = Field(
        min_length=10,
        max_length=LONGEST_NUDGE,
        description="What the worker is told in its next turn: what was seen, and what it should do instead.",
    )


class TerminationArguments(BaseModel):
    """Why the worker should be stopped."""

    model_config = ConfigDict(extra="forbid")

    ticket_id: str
    reason: str = Field(
        min_length=10,
        max_length=LONGEST_REASON,
        description="Why to stop it, in one or two sentences; the operator reads them.",
    )


class Hands(Protocol):
    """
    Does things to the worker that a ticket is about.

    Both return what happened in words for a model, and raise ``ToolError`` with the reason if nothing did.
    """

    async def nudge(self, ticket: EscalationTicket, message: str) -> str:
        """Put a message into the worker's context."""
        ...

    async def request_termination(self, ticket: EscalationTicket, reason: str) -> str:
        """Stop the worker, or ask the operator to approve that."""
        ...


def acting_tools(hands: Hands, about: Callable[[str], EscalationTicket]) -> list[Tool]:
    """
    Return the tools that do something to a worker.

    Args:
        hands: Does it.
        about: Returns the ticket of an id, if something may be done about it now; else raises ``ToolError``.
    """

    async def nudge(given: NudgeArguments) -> str:
        return await hands.nudge(about(given.ticket_id), given.message)

    async def request_termination(given: TerminationArguments) -> str:
        return await hands.request_termination(about(given.ticket_id), given.reason)

    return [
        Tool(
            NUDGE,
            "Speak to the worker that the ticket is about: your message is put into its context.",
            NudgeArguments,
            nudge,
        ),
        Tool(
            REQUEST_TERMINATION,
            "Ask for the worker that the ticket is about to be stopped for good; the operator approves it first.",
            TerminationArguments,
            request_termination,
        ),
    ]
