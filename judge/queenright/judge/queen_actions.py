"""
The queen's actions on a worker, beyond deciding its ticket.

The model names the ticket and the words. The worker comes from the ticket, and the intervention service
decides whether an action on that worker is permitted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from queenright.health.interventions.approvals import Approvals
from queenright.health.interventions.approvals_record import describe_requester
from queenright.health.interventions.messages import duration
from queenright.health.interventions.record import Intervention, Outcome
from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import Termination
from queenright.health.store import StoreError
from queenright.health.tickets import EscalationTicket
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.runtime.tooling.tools import Tool, ToolError, ToolUnavailable

NUDGE: Final = "nudge_worker"
REQUEST_TERMINATION: Final = "request_termination"

LONGEST_NUDGE: Final = 1000
"""So many characters a worker is told at most."""
LONGEST_REASON: Final = 1000

_BY: Final = "queen"

T = TypeVar("T")


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


class QueenActions(Protocol):
    """
    Does things to the worker that a ticket is about.

    Both return what happened in words for a model, and raise ``ToolError`` with the reason if nothing did.
    """

    async def nudge(self, ticket: EscalationTicket, message: str, *, ordered_by: str = "") -> str:
        """Put a message into the worker's context; ``ordered_by``: whose order it is, if anybody's."""
        ...

    async def request_termination(
        self, ticket: EscalationTicket, reason: str, *, ordered_by: str = ""
    ) -> str:
        """Stop the worker, or ask the operator to approve that."""
        ...


def acting_tools(actions: QueenActions, about: Callable[[str], EscalationTicket]) -> list[Tool]:
    """
    Return the tools that do something to a worker.

    Args:
        actions: Carries them out.
        about: Returns the ticket of an id, if something may be done about it now; else raises ``ToolError``.
    """

    async def nudge(given: NudgeArguments) -> str:
        return await actions.nudge(about(given.ticket_id), given.message)

    async def request_termination(given: TerminationArguments) -> str:
        return await actions.request_termination(about(given.ticket_id), given.reason)

    return [
        Tool(
            NUDGE,
            "Speak to the worker that the ticket is about: your message is put into its context.",
            NudgeArguments,
            nudge,
        ),
        Tool(
            REQUEST_TERMINATION,
            "Ask for the worker that the ticket is about to be stopped. An operator approves it first.",
            TerminationArguments,
            request_termination,
        ),
    ]


class WorkerInterventions(Protocol):
    """The part of the intervention service that the queen uses; its permits, limits and records apply."""

    def nudge(
        self,
        agent_id: str,
        message: str | None,
        *,
        session_id: str,
        incarnation_id: str,
        by: str,
        person: Literal[False],
    ) -> Awaitable[Intervention]:
        """Put a message into a worker's context."""
        ...

    def terminate(
        self,
        agent_id: str,
        reason: str,
        *,
        session_id: str,
        incarnation_id: str,
        by: str,
        person: Literal[False],
    ) -> Awaitable[Intervention]:
        """Stop a worker."""
        ...


class WorkerActions:
    """
    Carries out the queen's actions through the intervention service.

    Args:
        interventions: Nudges and terminates workers.
        approvals: Asks an operator to approve a termination.
        monitor: The workers' health.
        settings: Whether a termination needs approval.
    """

    def __init__(
        self,
        interventions: WorkerInterventions,
        approvals: Approvals,
        *,
        monitor: HealthMonitor,
        settings: Termination,
    ) -> None:
        self._interventions = interventions
        self._approvals = approvals
        self._monitor = monitor
        self._settings = settings

    async def nudge(self, ticket: EscalationTicket, message: str, *, ordered_by: str = "") -> str:
        """
        Put a message into the context of the worker that a ticket is about: masked, and of bounded length.

        Raises:
            ToolError: It did not get there; says why.
        """
        said = redact(_plain(message), LONGEST_NUDGE).strip()
        if not said:
            raise ToolError("message: must say something")
        done = await _tried(
            self._interventions.nudge(
                ticket.worker_agent_id,
                said,
                session_id=ticket.worker_session_id,
                incarnation_id=ticket.incarnation_id,
                by=describe_requester(_BY, ordered_by),
                person=False,
            )
        )
        words = {
            Outcome.DONE: "nudged: the message is in the worker's context",
            Outcome.QUEUED: "nudged: the message waits for the worker to fetch it",
            Outcome.DRY_RUN: "dry run: the nudge is written down, and the worker was told nothing",
        }
        return _words(done, words, "the worker was told nothing")

    async def request_termination(
        self, ticket: EscalationTicket, reason: str, *, ordered_by: str = ""
    ) -> str:
        """
        Ask the operator whether the worker may be stopped, or stop it where the settings allow that.

        Raises:
            ToolError: Nobody was asked, and nothing was done; says why.
        """
        reason = redact(" ".join(_plain(reason).split()), LONGEST_REASON)
        if not reason:
            raise ToolError("reason: must say why the worker is to be stopped")
        if self._settings.on_request == "never":
            raise ToolError(
                "the settings let only people stop a worker; tell the operator with your analysis"
            )
        if self._settings.on_request == "allow":
            return await self._terminate(ticket, reason, describe_requester(_BY, ordered_by))
        worker = self._worker(ticket)
        asked = await _tried(
            self._approvals.request(
                worker, ticket_id=ticket.ticket_id, reason=reason, by=_BY, ordered_by=ordered_by
            )
        )
        left = duration(asked.expires_at - asked.created_at)
        return (
            f"asked: an operator may approve it within {left} (approval {asked.approval_id}). "
            "It is not stopped. The operator reads how to approve it in the notification of the ticket."
        )

    async def _terminate(self, ticket: EscalationTicket, reason: str, by: str) -> str:
        done = await _tried(
            self._interventions.terminate(
                ticket.worker_agent_id,
                reason,
                session_id=ticket.worker_session_id,
                incarnation_id=ticket.incarnation_id,
                by=by,
                person=False,
            )
        )
        words = {
            Outcome.DONE: "the worker has stopped",
            Outcome.DRY_RUN: "dry run: it is written down, and the worker goes on",
        }
        return _words(done, words, "the worker may be at work still")

    def _worker(self, ticket: EscalationTicket) -> WorkerHealth:
        """Return the very life of the worker that a ticket is about."""
        worker = self._monitor.get(ticket.worker_agent_id, ticket.worker_session_id)
        if worker is None:
            raise ToolError("the worker of this ticket is not known any more")
        if worker.vitals.incarnation_id != ticket.incarnation_id:
            raise ToolError("the worker was restarted since this was last seen; look at it again")
        return worker


async def _tried(work: Awaitable[T]) -> T:
    try:
        return await work
    except StoreError as error:
        raise ToolUnavailable(f"nothing can be written down now, so nothing was done: {error}") from error
    except QueenrightError as refusal:
        raise ToolError(str(refusal)) from refusal


def _words(done: Intervention, words: dict[Outcome, str], otherwise: str) -> str:
    if (said := words.get(done.outcome)) is not None:
        return said
    raise ToolError(f"{done.outcome.value}: {done.detail or otherwise}")


def _plain(text: str) -> str:
    """Return a text without what is not seen, or turns the order of what is."""
    return "".join(sign for sign in text if sign == "\n" or sign.isprintable())
