"""
The queen's actions on a worker. `queen_triage` decides about the ticket.

The model passes only the ticket's id and a text. The ticket determines the worker, and the intervention
service decides whether an action on that worker is permitted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from queenright.health.interventions.approval import describe_requester
from queenright.health.interventions.approvals import Approvals
from queenright.health.interventions.intervention import Intervention, InterventionOutcome
from queenright.health.interventions.messages import duration
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import TerminationSettings
from queenright.health.store.store import StoreError
from queenright.health.tickets.ticket import EscalationTicket
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.runtime.tooling.tools import Tool, ToolError, ToolUnavailableError

if TYPE_CHECKING:
    from queenright.health.interventions.intervention_service import InterventionService

NUDGE: Final = "nudge_worker"
REQUEST_TERMINATION: Final = "request_termination"

MAX_NUDGE_LENGTH: Final = 1000
"""The maximum number of characters of a message to a worker."""
MAX_REASON_LENGTH: Final = 1000

_BY: Final = "queen"

T = TypeVar("T")


class NudgeArguments(BaseModel):
    """The message to the worker."""

    model_config = ConfigDict(extra="forbid")

    ticket_id: str
    message: str = Field(
        min_length=10,
        max_length=MAX_NUDGE_LENGTH,
        description="Message for the worker's next turn: what was observed, and what to do instead.",
    )


class TerminationArguments(BaseModel):
    """The reason to stop the worker."""

    model_config = ConfigDict(extra="forbid")

    ticket_id: str
    reason: str = Field(
        min_length=10,
        max_length=MAX_REASON_LENGTH,
        description="Why to stop it, in one or two sentences; the operator reads them.",
    )


def nudge_tool(run: Callable[..., Awaitable[str]], context: tuple[str, ...] = ()) -> Tool:
    """Return ``nudge_worker``."""
    about = "Speak to the worker that the ticket is about: your message is put into its context."
    return Tool(NUDGE, about, NudgeArguments, run, context=context)


def termination_tool(run: Callable[..., Awaitable[str]], context: tuple[str, ...] = ()) -> Tool:
    """Return ``request_termination``."""
    about = "Ask for the worker that the ticket is about to be stopped. An operator approves it first."
    return Tool(REQUEST_TERMINATION, about, TerminationArguments, run, context=context)


class QueenActions:
    """
    Acts on the worker of a ticket, through the intervention service.

    Each action returns its result as text for a model. ``ordered_by`` is the operator who ordered the action,
    if any.

    Args:
        settings: The settings that determine whether a termination needs approval.
    """

    def __init__(
        self,
        interventions: InterventionService,
        approvals: Approvals,
        *,
        monitor: HealthMonitor,
        settings: TerminationSettings,
    ) -> None:
        self._interventions = interventions
        self._approvals = approvals
        self._monitor = monitor
        self._settings = settings

    async def nudge(self, ticket: EscalationTicket, message: str, *, ordered_by: str = "") -> str:
        """
        Put a message into the worker's context, with secrets masked and clipped to ``MAX_NUDGE_LENGTH``.

        Raises:
            ToolError: The message was not delivered.
        """
        message = redact(_remove_invisible(message), MAX_NUDGE_LENGTH).strip()
        if not message:
            raise ToolError("message: must not be blank")
        intervention = await _run_action(
            self._interventions.nudge(
                ticket.agent_id,
                message,
                session_id=ticket.session_id,
                incarnation_id=ticket.incarnation_id,
                by=describe_requester(_BY, ordered_by),
                person=False,
            )
        )
        text = {
            InterventionOutcome.DONE: "nudged: the message is in the worker's context",
            InterventionOutcome.QUEUED: "nudged: the message waits for the worker to fetch it",
            InterventionOutcome.DRY_RUN: "dry run: the nudge is logged and was not sent",
        }
        return _describe_result(intervention, text, "the nudge was not delivered")

    async def request_termination(
        self, ticket: EscalationTicket, reason: str, *, ordered_by: str = ""
    ) -> str:
        """
        Request an operator's approval to stop the worker, or stop it if the settings allow that.

        Raises:
            ToolError: Nothing was requested or done.
        """
        reason = redact(" ".join(_remove_invisible(reason).split()), MAX_REASON_LENGTH)
        if not reason:
            raise ToolError("reason: must not be blank")
        if self._settings.on_request == "never":
            raise ToolError("only people may terminate a worker (settings); propose it in your analysis")
        if self._settings.on_request == "allow":
            return await self._terminate(ticket, reason, describe_requester(_BY, ordered_by))
        approval = await _run_action(
            self._approvals.request(
                self._get_worker(ticket),
                ticket_id=ticket.ticket_id,
                reason=reason,
                by=_BY,
                ordered_by=ordered_by,
            )
        )
        time_left = duration(approval.expires_at - approval.created_at)
        return (
            f"asked: an operator may approve it within {time_left}: "
            f"`queenright approvals approve {approval.approval_id}`. It is not stopped."
        )

    async def _terminate(self, ticket: EscalationTicket, reason: str, by: str) -> str:
        intervention = await _run_action(
            self._interventions.terminate(
                ticket.agent_id,
                reason,
                session_id=ticket.session_id,
                incarnation_id=ticket.incarnation_id,
                by=by,
                person=False,
            )
        )
        words = {
            InterventionOutcome.DONE: "the worker has stopped",
            InterventionOutcome.DRY_RUN: "dry run: the termination is logged, and the worker keeps running",
        }
        return _describe_result(intervention, words, "the worker may still be running")

    def _get_worker(self, ticket: EscalationTicket) -> WorkerHealth:
        """Return the ticket's worker, or raise ``ToolError`` if it is unknown or has a new incarnation."""
        worker = self._monitor.get(ticket.agent_id, ticket.session_id)
        if worker is None:
            raise ToolError("the worker of this ticket is no longer known")
        if worker.vitals.incarnation_id != ticket.incarnation_id:
            raise ToolError("the worker has restarted since the ticket's last update; read its summary again")
        return worker


def acting_tools(actions: QueenActions, get_ticket: Callable[[str], EscalationTicket]) -> list[Tool]:
    """
    Return the tools that act on a worker.

    Args:
        get_ticket: Returns the ticket with an id, or raises ``ToolError`` if no action on it is permitted
            now.
    """

    async def nudge(arguments: NudgeArguments) -> str:
        return await actions.nudge(get_ticket(arguments.ticket_id), arguments.message)

    async def request_termination(arguments: TerminationArguments) -> str:
        return await actions.request_termination(get_ticket(arguments.ticket_id), arguments.reason)

    return [nudge_tool(nudge), termination_tool(request_termination)]


async def _run_action(work: Awaitable[T]) -> T:
    try:
        return await work
    except StoreError as error:
        raise ToolUnavailableError(f"the database is unavailable, so nothing was done: {error}") from error
    except QueenrightError as error:
        raise ToolError(str(error)) from error


def _describe_result(intervention: Intervention, texts: dict[InterventionOutcome, str], fallback: str) -> str:
    if intervention.outcome in texts:
        return texts[intervention.outcome]
    raise ToolError(f"{intervention.outcome.value}: {intervention.detail or fallback}")


def _remove_invisible(text: str) -> str:
    """Remove invisible characters and characters that change the text direction."""
    return "".join(char for char in text if char == "\n" or char.isprintable())
