"""
The queen's triage: a node that dismisses tickets or notifies the operator. Late decisions are bypassed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from queenright.health.detection.deadlines import find_grace_end
from queenright.health.findings import Severity
from queenright.health.ticket_service import InterveneDecision
from queenright.health.tickets.ticket import EscalationTicket, TicketError, TicketStatus
from queenright.instrumentation import names
from queenright.judge import ticket_policy, wording
from queenright.judge.decision_context import DecisionContext, decision_node
from queenright.judge.messages import triage_message
from queenright.judge.metrics import TriageOutcome
from queenright.judge.models import AssignedModel
from queenright.judge.monitoring_tools import NotifyArguments, notify_tool, open_ticket, raise_to_severity
from queenright.judge.prompting import queen_prompt
from queenright.judge.queen_actions import QueenActions, acting_tools
from queenright.judge.rules_model import DISMISS, NOTIFY, SUMMARY
from queenright.judge.settings import RULES
from queenright.judge.tracing import child_context
from queenright.runtime.events import EventType
from queenright.runtime.execution import Trigger
from queenright.runtime.graphs.graph import EntryPointSpec, NodeSpec
from queenright.runtime.nodes.event_loop import NodeResult
from queenright.runtime.stream import RunNode
from queenright.runtime.tooling.tools import Tool, ToolError

_log = logging.getLogger(__name__)

QUEEN_GRAPH: Final = "queen"
TICKET_RECEIVER: Final = "ticket_receiver"
TRIAGE_NODE: Final = "ticket_triage"

_DEFERRED: Final = "kept: its worker has restarted; it is triaged again after the start grace"

_SETTLE_SECONDS: Final = 5.0
"""The seconds after a start grace until the monitor has published its findings."""

_FIRST_PAUSE_SECONDS: Final = 1.0
_PAUSE_DIVISOR: Final = 4
"""
A failed triage is retried after pauses that begin at one second and are at most the bypass time divided by
this, so that the rules soon replace a model that fails immediately.
"""


_CROWD_SIZE: Final = 20
"""If more tickets than this are waiting, the rules decide, because a model is too slow."""

_BATCH_SIZE: Final = 50
"""The number of tickets per transaction. Other tasks run in between."""

_MAX_WAITING: Final = 1_000_000
"""High enough for all tickets. After a restart, each worker may have one."""


class DismissArguments(BaseModel):
    """The reason to dismiss a ticket."""

    model_config = ConfigDict(extra="forbid")

    ticket_id: str
    reason: str = Field(min_length=3, max_length=1000)


@dataclass(slots=True)
class _Deadline:
    """When a waiting ticket is checked next, and when the rules may decide it. Seconds since the epoch."""

    at: float
    bypass_at: float
    pause: float


class Queen:
    """
    Triages tickets one after another. A high or critical ticket waits at most for the bypass time.

    If a model dismisses a high or critical ticket whose condition still holds, it is overruled.

    Args:
        retry: Requests another triage of the ticket with this id.
        actions: Nudges and stops workers. If None, the queen has no tools for this.
    """

    def __init__(
        self,
        context: DecisionContext,
        model: AssignedModel,
        *,
        retry: Callable[[str], None],
        actions: QueenActions | None = None,
    ) -> None:
        self._context = context
        self._monitor = context.monitor
        self._tickets = context.tickets
        self._clock = context.clock
        self._model = model
        self._timeout = context.settings.judge.triage_timeout_seconds
        self._prompt = queen_prompt(model.settings.prompt)
        self._retry = retry
        self._action_tools = [] if actions is None else acting_tools(actions, self._require_undecided)
        self._case = context.open_case()
        self._current: EscalationTicket | None = None
        self._arrivals: dict[str, float] = {}
        self._queue: set[str] = set()
        self._left_to_model: set[str] = set()
        """The tickets that the rules left to the model while many tickets were waiting."""
        self._deadlines: dict[str, _Deadline] = {}
        self._checks: list[tuple[float, str]] = []
        """A heap of the deadlines. Entries that do not match their ticket's current deadline are skipped."""
        self._timer: asyncio.Task[None] | None = None
        self._wakes_at = math.inf

    def node(self) -> NodeSpec:
        """Return the triage node."""
        return decision_node(
            TRIAGE_NODE,
            system_prompt=self._prompt.text,
            output_key="intervention_decision",
            reads=(SUMMARY, *(tool.name for tool in (*self._context.read_tools, *self._action_tools))),
            decides=(NOTIFY, DISMISS),
            model=self._model,
        )

    def entry(self) -> EntryPointSpec:
        """Return the entry point, which tickets start."""
        return EntryPointSpec(
            id=TICKET_RECEIVER,
            node_id=TRIAGE_NODE,
            trigger_type="event",
            event_types=frozenset({EventType.WORKER_ESCALATION_TICKET}),
            max_waiting=_MAX_WAITING,
        )

    def tools(self) -> list[Tool]:
        """Return the queen's tools."""
        return [
            self._case.tool(),
            notify_tool(self._notify),
            Tool(DISMISS, "Keep the ticket from the operator.", DismissArguments, self._dismiss),
            *self._action_tools,
            *self._context.read_tools,
        ]

    def expect(self, ticket_id: str) -> None:
        """Start the bypass time of a ticket that waits for triage."""
        ticket = self._tickets.get(ticket_id)
        if ticket is None or ticket.status is not TicketStatus.OPEN:
            return  # an operator already handles it, or it was triaged in the meantime
        self._queue.add(ticket_id)
        arrival = self._arrivals.setdefault(ticket_id, self._clock())
        if ticket_id not in self._deadlines:
            bypass_at = arrival + self._timeout
            self._schedule_check(
                ticket_id,
                _Deadline(min(arrival + _FIRST_PAUSE_SECONDS, bypass_at), bypass_at, _FIRST_PAUSE_SECONDS),
            )

    async def stop(self) -> None:
        """Stop the bypass timer. Untriaged tickets stay open and are triaged after the next start."""
        self._deadlines.clear()
        self._checks.clear()
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

    async def receive(self, trigger: Trigger, run: RunNode) -> str:
        """Triage the ticket of a trigger. This is the entry point ``ticket_receiver``."""
        ticket_id = _get_ticket_id(trigger)
        try:
            if len(self._queue) - len(self._left_to_model) > _CROWD_SIZE:
                await self._triage_crowd()
            ticket = self._tickets.get(ticket_id)
            if ticket is not None and _is_notified(ticket) and _is_changed(trigger, ticket):
                await self._intervene(ticket, analyse_by_rules(ticket), ticket.severity, by="rules")
                return "intervene"
            if ticket is None or ticket.status is not TicketStatus.OPEN:
                return "nothing to decide"
            return await self._triage(ticket, run)
        finally:
            self._finish_triage(ticket_id)

    def _finish_triage(self, ticket_id: str) -> None:
        self._queue.discard(ticket_id)
        self._left_to_model.discard(ticket_id)
        self._drop_deadline(ticket_id)

    async def _triage_crowd(self) -> None:
        """Let the rules decide the waiting tickets, many per transaction."""
        waiting_ids = sorted(self._queue - self._left_to_model)
        for start in range(0, len(waiting_ids), _BATCH_SIZE):
            batch = waiting_ids[start : start + _BATCH_SIZE]
            try:
                await self._decide_all(
                    [decision for id_ in batch if (decision := self._decide_by_rules(id_)) is not None]
                )
            except Exception:
                _log.exception("cannot send the waiting tickets at once, triaging them one by one")
            for ticket_id in batch:
                ticket = self._tickets.get(ticket_id)
                if ticket is not None and ticket.status is TicketStatus.OPEN:
                    self._left_to_model.add(ticket_id)
                else:
                    self._finish_triage(ticket_id)
            await asyncio.sleep(0)

    def _decide_by_rules(self, ticket_id: str) -> InterveneDecision | None:
        """Return the rules' decision to notify the operator, or None if the model should decide."""
        ticket = self._tickets.get(ticket_id)
        if ticket is None or ticket.status is not TicketStatus.OPEN:
            return None
        summary = self._get_summary(ticket)
        if not self._may_notify(ticket, summary):
            return None
        decision = ticket_policy.triage(_dump_ticket(ticket), summary)
        if decision.decision != "intervene":
            return None
        if self._model.answering == RULES:
            return InterveneDecision(ticket_id, decision.text, decision.urgency, model=RULES)
        if not ticket_policy.is_binding(ticket.severity):
            return None
        text = f"{decision.text} Too many tickets wait for the queen; this is the analysis of the rules."
        return pass_on(ticket, text, decision.urgency)

    async def _decide_all(self, decisions: Sequence[InterveneDecision]) -> None:
        if decisions:
            for ticket in await self._tickets.intervene_all(decisions):
                self._count_triage(ticket.ticket_id, "bypass" if ticket.untriaged else "intervene")

    async def _triage(self, ticket: EscalationTicket, run: RunNode) -> str:
        self._case.select((ticket.agent_id, ticket.session_id))
        self._current = ticket
        with self._context.tracer.start_as_current_span(
            f"{names.SPAN_TRIAGE} {ticket.agent_id}",
            context=child_context(ticket.trace_id, ticket.span_id),
            attributes={
                names.TICKET_ID: ticket.ticket_id,
                names.GEN_AI_AGENT_NAME: ticket.agent_id,
                names.PROMPT_ID: self._prompt.id,
            },
        ) as span:
            try:
                if self._is_starting(ticket):
                    _log.info("ticket %s waits: its worker has restarted", ticket.ticket_id)
                elif self._has_recovered():
                    await self._dismiss_recovered(ticket)
                else:
                    result = await run(triage_message(_dump_ticket(ticket), self._case.summary()))
                    if self._is_undecided(ticket):
                        await self._handle_no_decision(ticket, result)
            finally:
                self._current = None
            triaged_ticket = self._tickets.get(ticket.ticket_id)
            decision = (triaged_ticket.triage_decision if triaged_ticket is not None else None) or "undecided"
            span.set_attribute(names.TRIAGE_DECISION, decision)
        return decision

    async def _handle_no_decision(self, ticket: EscalationTicket, result: NodeResult) -> None:
        """
        Notify the operator of a binding ticket if the model ended without a decision, because a retry would
        end the same way.
        """
        reason = result.error or "it ended without a decision"
        _log.warning("triage of ticket %s gave no decision: %s", ticket.ticket_id, reason)
        if result.outcome == "no_answer" or self._is_starting(ticket):
            return  # retried later
        self._model.count_invalid(reason)
        if not ticket_policy.is_binding(ticket.severity) or not self._may_notify(
            ticket, self._get_summary(ticket)
        ):
            return
        try:
            await self._pass_on([ticket], "The queen's model gave no valid decision")
        except Exception:
            _log.exception("cannot pass on ticket %s untriaged, retrying", ticket.ticket_id)

    # -- the queen's tools ----------------------------------------------------------------------

    async def _notify(self, arguments: NotifyArguments) -> str:
        ticket = self._require_undecided(arguments.ticket_id)
        if self._is_starting(ticket):
            return _DEFERRED
        if self._has_recovered():
            await self._dismiss_recovered(ticket)
            return f"not sent: the condition has cleared; dismissed as {ticket_policy.RECOVERED!r}"
        await self._intervene(
            ticket, arguments.analysis, raise_to_severity(arguments.urgency, ticket), by="queen"
        )
        return "the operator is notified"

    async def _dismiss(self, arguments: DismissArguments) -> str:
        ticket = self._require_undecided(arguments.ticket_id)
        if self._is_starting(ticket):
            return _DEFERRED
        if self._has_recovered():
            await self._dismiss_recovered(ticket)
            return f"dismissed as {ticket_policy.RECOVERED!r}"
        if not ticket_policy.is_binding(ticket.severity):
            await self._decide(ticket.ticket_id, arguments.reason)
            return f"dismissed: {arguments.reason}"
        proposal = wording.one_line(arguments.reason, 200)
        note = (
            f"(The queen proposed to dismiss it: {proposal!r}; a {ticket.severity.value} ticket whose "
            "condition still holds is not dismissed.)"
        )
        await self._intervene(ticket, f"{analyse_by_rules(ticket)} {note}", ticket.severity, by="rules")
        return f"overruled: {ticket.severity.value}, and the condition still holds; the operator is notified"

    def _require_undecided(self, ticket_id: str) -> EscalationTicket:
        """Return the ticket of a tool call, or raise ``ToolError`` if it must not be decided."""
        about = self._current.ticket_id if self._current is not None else ""
        return open_ticket(self._tickets, ticket_id, about=about)

    def _is_starting(self, ticket: EscalationTicket) -> bool:
        """Return whether the worker has restarted since the ticket and is in its start grace."""
        health = self._monitor.get(ticket.agent_id, ticket.session_id)
        if health is None or health.vitals.has_ended or health.vitals.incarnation_id == ticket.incarnation_id:
            return False
        return self._clock() < find_grace_end(health.vitals, self._context.settings) + _SETTLE_SECONDS

    def _get_summary(self, ticket: EscalationTicket) -> dict[str, Any] | None:
        return self._context.summary((ticket.agent_id, ticket.session_id))

    def _may_notify(self, ticket: EscalationTicket, summary: dict[str, Any] | None) -> bool:
        """
        Return whether the operator may be notified immediately, because nothing shows that the condition has
        cleared.
        """
        return summary is None or not (self._is_starting(ticket) or ticket_policy.is_condition_gone(summary))

    def _has_recovered(self) -> bool:
        # A worker that is unknown after a restart of the service has not recovered.
        summary = self._case.summary()
        return summary is not None and ticket_policy.is_condition_gone(summary)

    # -- decisions ------------------------------------------------------------------------------

    async def _intervene(
        self, ticket: EscalationTicket, analysis: str, urgency: Severity, *, by: str
    ) -> None:
        try:
            await self._tickets.intervene(
                ticket.ticket_id,
                analysis,
                urgency.value,
                by=by,
                model=self._model.answering if by == "queen" else RULES,
            )
        except TicketError as error:
            raise ToolError(str(error)) from error
        self._count_triage(ticket.ticket_id, "intervene")

    async def _dismiss_recovered(self, ticket: EscalationTicket) -> None:
        # Update the ticket first, because the ticket service does not dismiss a condition that still holds.
        health, summary = self._case.health, self._case.summary()
        if health is not None:
            await self._tickets.observe(health)
        if self._is_undecided(ticket):
            await self._decide(ticket.ticket_id, ticket_policy.dismissal_reason(summary or {}))

    async def _decide(self, ticket_id: str, reason: str) -> None:
        try:
            await self._tickets.dismiss(ticket_id, reason, has_recovered=self._has_recovered())
        except TicketError as error:
            raise ToolError(str(error)) from error
        self._count_triage(ticket_id, "dismiss")

    def _count_triage(self, ticket_id: str, decision: TriageOutcome) -> None:
        now = self._clock()
        self._context.metrics.count_triage(decision, now - self._arrivals.get(ticket_id, now))

    # -- bypass ---------------------------------------------------------------------------------

    def _schedule_check(self, ticket_id: str, deadline: _Deadline) -> None:
        """Check a ticket at its deadline. A single timer sleeps until the earliest deadline."""
        self._deadlines[ticket_id] = deadline
        heappush(self._checks, (deadline.at, ticket_id))
        if deadline.at < self._wakes_at:
            if self._timer is not None:
                self._timer.cancel()
            self._wakes_at = deadline.at
            self._timer = asyncio.create_task(self._run_timer(), name="triage-bypass")

    async def _run_timer(self) -> None:
        while self._checks:
            self._wakes_at = self._checks[0][0]
            await self._context.sleep(max(0.0, self._wakes_at - self._clock()))
            self._wakes_at = -math.inf  # the timer is awake and reads the heap again before it sleeps
            try:
                await self._check_due()
            except Exception:
                _log.exception("cannot check the tickets that wait for triage")
        self._wakes_at = math.inf

    async def _check_due(self) -> None:
        now, due_ids = self._clock(), list[str]()
        while self._checks and self._checks[0][0] <= now:
            at, ticket_id = heappop(self._checks)
            deadline = self._deadlines.get(ticket_id)
            if deadline is not None and deadline.at == at:
                due_ids.append(ticket_id)
        for start in range(0, len(due_ids), _BATCH_SIZE):
            await self._check_tickets(due_ids[start : start + _BATCH_SIZE])
            await asyncio.sleep(0)

    async def _check_tickets(self, ticket_ids: Sequence[str]) -> None:
        """Retry failed triages. After the bypass time, notify the operator of binding tickets."""
        waiting_tickets = [
            waiting_ticket for id_ in ticket_ids if (waiting_ticket := self._tickets.get(id_)) is not None
        ]
        overdue_tickets = [
            ticket
            for ticket in waiting_tickets
            if (deadline := self._deadlines.get(ticket.ticket_id)) is not None
            and self._clock() >= deadline.bypass_at
            and self._is_undecided(ticket)
            and ticket_policy.is_binding(ticket.severity)
            and self._may_notify(ticket, self._get_summary(ticket))
        ]
        try:
            await self._pass_on(overdue_tickets, f"The queen has not triaged this within {self._timeout:g} s")
        except Exception:
            _log.exception("cannot pass on %d tickets untriaged, retrying", len(overdue_tickets))
        for ticket_id in ticket_ids:
            self._request_retry(ticket_id)

    def _request_retry(self, ticket_id: str) -> None:
        """Request another triage of a ticket that is still waiting."""
        deadline, ticket = self._deadlines.get(ticket_id), self._tickets.get(ticket_id)
        if deadline is None or ticket is None or ticket.status is not TicketStatus.OPEN:
            self._deadlines.pop(ticket_id, None)
            return
        now, pause = self._clock(), min(2 * deadline.pause, self._timeout / _PAUSE_DIVISOR)
        time_left = deadline.bypass_at - now
        at = now + (min(pause, time_left) if time_left > 0 else pause)
        self._schedule_check(ticket_id, _Deadline(at, deadline.bypass_at, pause))
        if ticket_id not in self._queue:
            self._queue.add(ticket_id)
            self._retry(ticket_id)

    async def _pass_on(self, tickets: Sequence[EscalationTicket], reason: str) -> None:
        """Notify the operator of tickets that the queen has not decided, with the rules' analysis."""
        await self._decide_all(
            [
                pass_on(ticket, f"{analyse_by_rules(ticket)} {reason}; this is the analysis of the rules.")
                for ticket in tickets
            ]
        )
        for ticket in tickets:
            self._drop_deadline(ticket.ticket_id)

    def _is_undecided(self, ticket: EscalationTicket) -> bool:
        current_ticket = self._tickets.get(ticket.ticket_id)
        return current_ticket is not None and current_ticket.status is TicketStatus.OPEN

    def _drop_deadline(self, ticket_id: str) -> None:
        """Drop the deadline of a ticket that has been decided."""
        ticket = self._tickets.get(ticket_id)
        if ticket is not None and ticket.status is TicketStatus.OPEN:
            return
        self._arrivals.pop(ticket_id, None)
        self._deadlines.pop(ticket_id, None)


def _get_ticket_id(trigger: Trigger) -> str:
    if trigger.event is not None:
        return str(trigger.event.data["ticket"]["ticket_id"])
    return str(trigger.input_data["ticket_id"])


def _is_notified(ticket: EscalationTicket) -> bool:
    return ticket.status in (TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED)


def _is_changed(trigger: Trigger, ticket: EscalationTicket) -> bool:
    """Return whether a notified ticket has changed since its triage. Several changes count once."""
    event = trigger.event
    if event is None or event.data.get("change") not in ("rose", "renewed"):
        return False
    if event.data["change"] == "rose" and ticket.words_severity is not ticket.severity:
        return False  # its texts are not updated yet
    return ticket.urgency != ticket.severity.value or (ticket.triaged_at or 0.0) < event.time


def pass_on(ticket: EscalationTicket, text: str, urgency: str = "") -> InterveneDecision:
    """Return the decision to notify the operator of a ticket without the queen's decision."""
    urgency = urgency or ticket.severity.value
    return InterveneDecision(ticket.ticket_id, text, urgency, by="rules", is_untriaged=True, model=RULES)


def analyse_by_rules(ticket: EscalationTicket) -> str:
    """Return the rules' analysis of a ticket."""
    return ticket_policy.analysis(_dump_ticket(ticket))


def _dump_ticket(ticket: EscalationTicket) -> dict[str, Any]:
    return ticket.model_dump(mode="json")
