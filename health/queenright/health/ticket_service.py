"""
The ticket service: opens, counts, triages and closes tickets, durably.

Every change is one transaction with the ticket, its event, and the rows that ``on_change`` adds. The event is
published after the commit. The database is authoritative: each change reads the ticket in its own
transaction, and memory is only a cache. The rules are enforced here and in ``ticket_rules``. So a manipulated
model can neither open a ticket about a healthy worker nor dismiss a critical ticket.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from sqlalchemy import Connection

from queenright.health.findings import FindingKind, Severity, WorkerKey
from queenright.health.interventions.storm import WINDOW_SECONDS
from queenright.health.interventions.target import LADDER
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.store.event_log import append_events, read_events
from queenright.health.store.rows import Place
from queenright.health.store.store import Store
from queenright.health.tickets import ticket_lifecycle as lifecycle
from queenright.health.tickets import ticket_rules as rules
from queenright.health.tickets import ticket_table as table
from queenright.health.tickets.incidents import IncidentWatch
from queenright.health.tickets.shared_cause import list_failing
from queenright.health.tickets.ticket import (
    AckChannel,
    EscalationTicket,
    TicketClosedError,
    TicketDraft,
    TicketNotFoundError,
    TicketRejectedError,
    TicketStatus,
    TicketStatusError,
)
from queenright.health.tickets.ticket_deadlines import TicketDeadlines
from queenright.health.tickets.ticket_reports import (
    FindGroup,
    PreparedReport,
    Report,
    find_joining,
    join_groups,
    prepare_report,
)
from queenright.health.tickets.ticket_transaction import (
    Decide,
    DecisionResult,
    OnChange,
    TicketReportResult,
    TicketTransaction,
)
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.redaction import redact
from queenright.runtime.deadline import TaskSet
from queenright.runtime.events import AgentEvent, Clock, EventType

T = TypeVar("T")
FindIncidentTicket = Callable[[Connection, EscalationTicket], EscalationTicket | None]

_MAX_CLOSED_TICKETS: Final = 1_000
_NOTE_LIMIT: Final = 1_000
_REASON_LIMIT: Final = 4_000
_INCIDENT_REPORT_SECONDS: Final = 86_400.0
"""An incident that closed while the service was down is reported at its start, unless that was longer ago."""
_CLOSE_REASONS: Final = {
    WorkerStatus.COMPLETED: lifecycle.RUN_COMPLETED,
    WorkerStatus.UNKNOWN: "the worker sent nothing more",
}
_MAX_FAILING_TICKETS: Final = 500
"""The maximum number of open tickets, newest first, that are searched for shared failures."""
_INCIDENT_FIELDS: Final = ("incident_id", "cause", "workers", "opened_at", "closed_at")
_SETTLE_BATCH: Final = 50
"""The maximum number of tickets that one transaction settles. The event loop runs other work in between."""


@dataclass(frozen=True, slots=True)
class InterveneDecision:
    """A decision to notify an operator of a ticket."""

    ticket_id: str
    analysis: str
    urgency: str
    by: str = "queen"
    is_untriaged: bool = False
    model: str = ""


_Work = Callable[[TicketTransaction], T]


class TicketService:
    """
    All tickets of one store. It belongs to one event loop.

    Args:
        settings: The hold after a recovery, and when unacknowledged tickets are escalated again.
        publish: Receives events once they are durable (``EventBus.fan_out``).
        group: Returns the cause that a worker's trouble shares with other workers, or the id of a storm, or
            an empty string. A ticket keeps its group. A ticket without a group takes that of a later report.
        find_worker: Returns the worker of a ticket, or None.
        on_change: Called in the transaction of every change that must be notified, to write to the outbox. It
            must use only the connection that it gets.
        silenced_until: Returns when a ticket's silence ends, in seconds since the epoch, or None. It is
            called from several threads.
        dead_from: Returns when a worker counts as dead if it stays silent, or None; see
            ``HealthMonitor.dead_from``.
        find_joined: Called in the transaction of a notification. Returns the earlier ticket whose incident
            the ticket joins, so that people are not notified again, or None.
    """

    def __init__(
        self,
        store: Store,
        *,
        settings: HealthSettings,
        clock: Clock,
        ids: Callable[[], str] = new_id,
        publish: Callable[..., None],
        group: FindGroup = lambda health, finding: "",
        find_worker: Callable[[str, str], WorkerHealth | None] = lambda agent_id, session_id: None,
        on_change: OnChange | None = None,
        silenced_until: Callable[[str], float | None] | None = None,
        dead_from: Callable[[WorkerKey], float | None] = lambda key: None,
        find_joined: FindIncidentTicket = lambda conn, ticket: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._publish = publish
        self._group = group
        self._find_worker = find_worker
        self._on_change = on_change
        self._dead_from = dead_from
        self._find_joined = find_joined
        self._live_tickets: dict[str, EscalationTicket] = {}
        self._by_worker: dict[WorkerKey, set[str]] = {}
        self._closed_tickets: OrderedDict[str, EscalationTicket] = OrderedDict()
        self._tasks = TaskSet()
        self._deadlines = TicketDeadlines(settings.tickets, silenced_until)
        self._incidents = IncidentWatch()

    def replace_settings(self, settings: HealthSettings) -> None:
        """Replace the deadlines, including those of open tickets."""
        self._deadlines.replace_settings(settings.tickets)

    # -- reading ------------------------------------------------------------------------------------

    async def load(self) -> list[EscalationTicket]:
        """
        Read the live and recent tickets. Return the tickets that wait for triage, oldest first.

        The caller passes these to the queen, because the previous process may have been killed between
        storing a ticket and its triage.
        """
        since = self._clock() - _INCIDENT_REPORT_SECONDS
        tickets, recent, reported_incidents = await self._store.read(
            lambda conn: (
                table.live_tickets(conn),
                table.ticket_history(conn, limit=_MAX_CLOSED_TICKETS),
                read_events(conn, types={EventType.INCIDENT_CLOSED}, since=since),
            )
        )
        closed_tickets = [ticket for ticket in recent if not ticket.is_live]
        for ticket in (*tickets, *sorted(closed_tickets, key=lambda ticket: ticket.closed_at or 0.0)):
            self._cache(ticket)
        reported_ids = {str(event.data.get("incident_id")) for _, event in reported_incidents}
        self._incidents.restore(self.recent_tickets(), reported_ids, since)
        return [ticket for ticket in tickets if ticket.status is TicketStatus.OPEN]

    def get(self, ticket_id: str) -> EscalationTicket | None:
        """Return a ticket that is live or has closed recently, or None. ``find`` also reads older tickets."""
        return self._live_tickets.get(ticket_id) or self._closed_tickets.get(ticket_id)

    async def find(self, ticket_id: str) -> EscalationTicket | None:
        """Return the ticket with this id, however old, or None."""
        return self.get(ticket_id) or await self._store.read(lambda conn: table.find_ticket(conn, ticket_id))

    async def find_by_prefix(self, prefix: str, limit: int) -> list[EscalationTicket]:
        """Return up to ``limit`` tickets whose id begins with ``prefix``, sorted by id."""
        return await self._store.read(lambda conn: table.tickets_by_prefix(conn, prefix, limit))

    def open_tickets(self) -> list[EscalationTicket]:
        """Return the tickets that are open, intervening or acknowledged, oldest first."""
        return sorted(
            (t for t in self._live_tickets.values() if t.is_open), key=lambda t: (t.first_seen, t.ticket_id)
        )

    def open_sessions(self) -> set[WorkerKey]:
        """Return the workers with an open ticket."""
        return {(t.agent_id, t.session_id) for t in self._live_tickets.values() if t.is_open}

    def paged_agents(self) -> set[str]:
        """Return the agents with an open ticket that has paged people."""
        return {
            ticket.agent_id
            for ticket in self._live_tickets.values()
            if ticket.is_open
            and ticket.notified_severity is not None
            and ticket.notified_severity.rank >= Severity.HIGH.rank
        }

    def recent_tickets(self) -> list[EscalationTicket]:
        """Return the live and the recently closed tickets, in any order."""
        return [*self._live_tickets.values(), *self._closed_tickets.values()]

    def open_for(self, agent_id: str, session_id: str) -> EscalationTicket | None:
        """Return the open ticket of a worker's session, or None."""
        ids = self._by_worker.get((agent_id, session_id), ())
        return next(
            (self._live_tickets[ticket_id] for ticket_id in ids if self._live_tickets[ticket_id].is_open),
            None,
        )

    def open_counts(self) -> dict[tuple[Severity, TicketStatus], int]:
        """Return the number of open tickets by severity and status."""
        return dict(Counter((t.severity, t.status) for t in self._live_tickets.values() if t.is_open))

    async def history(
        self,
        limit: int = 100,
        *,
        agent_id: str | None = None,
        statuses: Collection[TicketStatus] | None = None,
        severity: Severity | None = None,
        since: float | None = None,
        before: Place | None = None,
    ) -> list[EscalationTicket]:
        """
        Return tickets, newest first, including closed and dismissed ones.

        ``before`` is the cursor of the next page.
        """
        return await self._store.read(
            lambda conn: table.ticket_history(
                conn,
                limit=limit,
                agent_id=agent_id,
                statuses=statuses,
                severity=severity,
                since=since,
                before=before,
            )
        )

    def next_deadline(self) -> float | None:
        """Return when ``settle`` has work to do, in seconds since the epoch, or None if it has none."""
        return self._deadlines.next_due_at()

    # -- reports of the judge and the monitor -------------------------------------------------------

    async def raise_ticket(
        self,
        health: WorkerHealth,
        draft: TicketDraft,
        *,
        trace_id: str = "",
        span_id: str = "",
        model: str = "",
    ) -> TicketReportResult:
        """
        Open a ticket about a worker, or count a report on its open ticket.

        Raises:
            TicketRejectedError: The worker has no finding that justifies a ticket, or the draft is about
                another worker.
            StoreError: The ticket could not be stored. Nothing has changed.
        """
        report = Report(health, draft, trace_id, span_id, model)
        [result] = await self._raise([prepare_report(report, self._group, self._clock())])
        assert result is not None
        return result

    async def raise_tickets(self, reports: Sequence[Report]) -> list[TicketReportResult | None]:
        """
        Raise many tickets in one transaction.

        Returns:
            One result for each report, in order. None if the worker has no finding that justifies a ticket.

        Raises:
            StoreError: The tickets could not be stored. Nothing has changed.
        """
        return await self._raise([self._prepare_or_none(report) for report in reports])

    def _prepare_or_none(self, report: Report) -> PreparedReport | None:
        try:
            return prepare_report(report, self._group, self._clock())
        except TicketRejectedError:
            return None

    async def _raise(self, reports: Sequence[PreparedReport | None]) -> list[TicketReportResult | None]:
        """Write reports. Open tickets with the same causes then join their incidents."""
        causes = {cause for report in reports if report is not None for cause in report.shared_causes}
        joining = find_joining(self._live_tickets.values(), causes, self._find_worker, self._group)
        now = self._clock()

        def work(tx: TicketTransaction) -> list[TicketReportResult | None]:
            results = [None if report is None else report.write(tx) for report in reports]
            join_groups(tx, joining, now)
            return results

        return await self._commit(work)

    def list_failing(self) -> dict[str, list[WorkerKey]]:
        """
        Return the workers with open tickets whose failure workers of other services may share, by failure.
        """
        newest = itertools.islice(reversed(self._live_tickets.values()), _MAX_FAILING_TICKETS)
        workers = (
            (health, finding)
            for ticket in newest
            if ticket.is_open and (health := self._find_worker(ticket.agent_id, ticket.session_id))
            for finding in health.findings
            if finding.kind is ticket.kind
        )
        return list_failing(workers, self._clock())

    async def join_causes(self, causes: Collection[str]) -> None:
        """
        Let open tickets join the causes that their workers now share with workers of other services.

        Raises:
            StoreError: Writing failed. Nothing has changed.
        """
        joining = find_joining(self._live_tickets.values(), causes, self._find_worker, self._group)
        if joining:
            await self._commit(partial(join_groups, joining=joining, now=self._clock()))

    async def join_storm(self, storm_of: Callable[[WorkerKey], str]) -> None:
        """
        Let open tickets join a storm that was detected only after they were opened.

        Args:
            storm_of: Returns the id of the storm in which a worker got worse, or an empty string.

        Raises:
            StoreError: Writing failed. Nothing has changed.
        """
        now = self._clock()
        storms = {
            ticket.ticket_id: storm_of((ticket.agent_id, ticket.session_id))
            for ticket in self._live_tickets.values()
            # An older ticket concerns an earlier condition of the worker.
            if ticket.is_open and not ticket.storm_id and now - ticket.first_seen < WINDOW_SECONDS
        }
        joining = {ticket_id: storm_id for ticket_id, storm_id in storms.items() if storm_id}
        if joining:
            await self._commit(lambda tx: join_groups(tx, joining, now))

    async def observe(self, health: WorkerHealth) -> None:
        """
        Apply a worker's findings, or its end, to its tickets. Call this whenever either has changed.

        A finding that is new, worse or has returned counts as a report. When no finding is left, the hold
        begins. A worker that has ended and could not be recovered keeps its ticket. This opens no tickets;
        only the judge does.
        """
        key = (health.vitals.agent_id, health.vitals.session_id)
        if key not in self._by_worker:
            return
        now = self._clock()
        findings = rules.reasons(health)
        reason = _CLOSE_REASONS.get(health.vitals.status, "the worker ended")

        def work(tx: TicketTransaction) -> None:
            live = table.live_tickets_of_worker(tx.conn, *key)
            is_other_open = False
            for ticket in sorted(live, key=lambda t: not t.is_open):
                # A ticket about failed runs does not close here. It recovers, and closes after the hold, when
                # a run completes.
                has_ended = (
                    health.vitals.has_ended
                    and ticket.kind is not FindingKind.RUNS_FAILED
                    and not rules.own_findings(ticket, findings)
                )
                if has_ended or rules.is_about_earlier_incarnation(ticket, health):
                    close_reason = reason if has_ended else "the worker has a new incarnation"
                    tx.close(lifecycle.worker_ended(ticket, now=now, reason=close_reason))
                else:
                    is_other_open = (
                        tx.apply_findings(ticket, health, findings, now, is_other_open=is_other_open)
                        or is_other_open
                    )

        await self._commit(work)

    async def worker_renamed(self, old: WorkerKey, new: WorkerKey) -> None:
        """
        Move the tickets of a renamed worker, including closed ones, to its new name.

        The labels of alerts that were sent do not change. If a worker with the new name already has a live
        ticket, the live tickets of the old name are closed.
        """
        if not await self._store.read(lambda conn: table.tickets_of_worker(conn, *old)):
            return
        now, reason = self._clock(), f"the worker is now {new[0]!r}, session {new[1]!r}"

        def work(tx: TicketTransaction) -> None:
            has_live_ticket = bool(table.live_tickets_of_worker(tx.conn, *new))
            for former_ticket in table.tickets_of_worker(tx.conn, *old):
                ticket = lifecycle.rename(former_ticket, *new)
                if not ticket.is_live:
                    table.write_ticket(tx.conn, ticket)
                    if ticket.ticket_id in self._closed_tickets:
                        tx.tickets.append(ticket)
                elif has_live_ticket:
                    tx.close(lifecycle.worker_ended(ticket, now=now, reason=reason))
                else:
                    tx.update(ticket)
                    tx.notify(ticket)

        await self._commit(work)

    async def settle(self, now: float, *, exclude: Collection[str] = ()) -> list[EscalationTicket]:
        """
        Close the tickets whose hold has passed, send due reminders, and report closed incidents. Return the
        closed tickets.

        Reminders are sent for notified tickets that are not acknowledged. A reminder that was due several
        times, for example during a restart, is sent once.
        """
        due_ids = self._deadlines.due_ids(now, exclude)
        closures: list[EscalationTicket] = []
        for start in range(0, len(due_ids), _SETTLE_BATCH):
            closures += await self._settle(due_ids[start : start + _SETTLE_BATCH], now)
        await self._report_closed_incidents(now)
        return closures

    async def _report_closed_incidents(self, now: float) -> None:
        if not (incidents := self._incidents.list_closed(self.recent_tickets(), now)):
            return

        def work(tx: TicketTransaction) -> None:
            for incident in incidents.values():
                data = {name: getattr(incident, name) for name in _INCIDENT_FIELDS}
                event = AgentEvent(id=self._ids(), type=EventType.INCIDENT_CLOSED, time=now, data=data)
                tx.events.append(event)

        await self._commit(work)
        self._incidents.remove(incidents)

    async def _settle(self, ticket_ids: Collection[str], now: float) -> list[EscalationTicket]:
        """Settle these tickets in one transaction. Return those that closed."""

        def work(tx: TicketTransaction) -> list[EscalationTicket]:
            tickets = []
            for ticket_id in ticket_ids:
                ticket = tx.find(ticket_id)
                if ticket is None or not ticket.is_live:
                    continue
                settled_ticket = lifecycle.settle(ticket, now=now, hold=self._deadlines.hold)
                if not settled_ticket.is_live:
                    tx.close(settled_ticket)
                    tickets.append(settled_ticket)
                elif (at := self._deadlines.reminder_at(ticket)) is not None and at <= now:
                    tx.remind(ticket, now)
            return tickets

        return await self._commit(work)

    async def request_attention(self, ticket_id: str, *, since: float) -> None:
        """
        Notify people again, because a decision or an action is needed.

        Nothing is sent if people were notified at ``since`` or later, or the ticket is acknowledged.

        Args:
            ticket_id: A ticket that people were notified of.
            since: When the request arose, in seconds since the epoch.

        Raises:
            StoreError: Writing failed, so no one was notified.
        """
        now = self._clock()

        def work(tx: TicketTransaction) -> None:
            ticket = tx.find(ticket_id)
            if ticket is None or not ticket.is_live:
                return
            if ticket.status is TicketStatus.INTERVENING and (ticket.bumped_at or 0.0) < since:
                tx.remind(ticket, now, is_request=True)
            else:
                tx.notify(ticket)

        await self._commit(work)

    # -- decisions of the queen and the operator ----------------------------------------------------

    async def dismiss(
        self, ticket_id: str, reason: str, *, by: str = "queen", has_recovered: bool = False
    ) -> EscalationTicket:
        """
        Dismiss a ticket, so that no one is notified. A high or critical ticket whose condition still holds
        cannot be dismissed.

        Raises:
            TicketRejectedError: The reason is empty.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.dismiss``.
        """
        reason = _require_text("reason", reason)
        now = self._clock()

        def change(tx: TicketTransaction, ticket: EscalationTicket) -> DecisionResult:
            updated_ticket = lifecycle.dismiss(
                ticket,
                reason=reason,
                by=by,
                now=now,
                has_recovered=has_recovered,
                dead_from=self._find_death_time(ticket),
            )
            data = {"ticket_id": ticket_id, "decision": "dismiss", "reason": reason, "by": by}
            return updated_ticket, [tx.event(updated_ticket, EventType.TICKET_TRIAGED, data)]

        return await self._decide(ticket_id, change, notify_people=False)

    async def intervene(
        self,
        ticket_id: str,
        analysis: str,
        urgency: str,
        *,
        by: str = "queen",
        is_untriaged: bool = False,
        model: str = "",
    ) -> EscalationTicket:
        """
        Notify an operator, or update the analysis of a ticket that was notified before.

        Args:
            is_untriaged: Whether triage is bypassed because it did not answer in time.

        Raises:
            TicketRejectedError: Analysis or urgency is empty.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.intervene``.
        """
        decision = InterveneDecision(ticket_id, analysis, urgency, by, is_untriaged, model)
        return await self._commit(self._make_intervention_work(decision))

    async def intervene_all(self, decisions: Sequence[InterveneDecision]) -> list[EscalationTicket]:
        """
        Call ``intervene`` for many tickets in one transaction, and return the tickets that changed.

        Raises:
            TicketRejectedError: Analysis or urgency is empty.
            StoreError: Writing failed. Nothing has changed.
        """
        works = [self._make_intervention_work(decision) for decision in decisions]

        def work(tx: TicketTransaction) -> list[EscalationTicket]:
            tickets = []
            for change in works:
                # Skip tickets that were decided in the meantime.
                with contextlib.suppress(TicketNotFoundError, TicketClosedError, TicketStatusError):
                    tickets.append(change(tx))
            return tickets

        return await self._commit(work)

    def _make_intervention_work(self, decision: InterveneDecision) -> _Work[EscalationTicket]:
        analysis = _require_text("analysis", decision.analysis)
        urgency = _require_text("urgency", decision.urgency)
        now = self._clock()

        def work(tx: TicketTransaction) -> EscalationTicket:
            def change(tx: TicketTransaction, ticket: EscalationTicket) -> DecisionResult:
                updated_ticket = lifecycle.intervene(
                    ticket,
                    analysis=analysis,
                    urgency=urgency,
                    by=decision.by,
                    now=now,
                    is_untriaged=decision.is_untriaged,
                )
                updated_ticket = updated_ticket.model_copy(update={"queen_model": decision.model})
                join_events: list[AgentEvent] = []
                if ticket.status is TicketStatus.OPEN:
                    updated_ticket, join_events = self._join_incident(tx, updated_ticket, now)
                triage_data = {
                    "ticket_id": ticket.ticket_id,
                    "decision": updated_ticket.triage_decision,
                    "reason": analysis,
                }
                # The intervention ladder escalates without involving the queen.
                is_by_queen = decision.by != LADDER
                request_data = {
                    "ticket_id": ticket.ticket_id,
                    "analysis": analysis,
                    "severity": updated_ticket.severity.value,
                    "urgency": urgency,
                    "queen_graph_id": "queen" if is_by_queen else "",
                    "queen_stream_id": "queen::ticket_receiver" if is_by_queen else "",
                    "untriaged": decision.is_untriaged,
                }
                return updated_ticket, [
                    tx.event(updated_ticket, EventType.TICKET_TRIAGED, triage_data),
                    tx.event(updated_ticket, EventType.QUEEN_INTERVENTION_REQUESTED, request_data),
                    *join_events,
                ]

            return tx.decide(decision.ticket_id, change, notify_people=True)

        return work

    def _join_incident(self, tx: TicketTransaction, ticket: EscalationTicket, now: float) -> DecisionResult:
        """Join an earlier ticket's incident, if there is one, and take over its acknowledgement."""
        earlier = self._find_joined(tx.conn, ticket)
        if earlier is None:
            return ticket, []
        member = lifecycle.join(ticket, earlier)
        if not earlier.acknowledged_by:
            return member, []
        note = f"the same incident as ticket {earlier.ticket_id}"
        return self._acknowledge(
            tx, member, earlier.acknowledged_by, earlier.acknowledged_via or AckChannel.API, note, now
        )

    async def acknowledge(
        self, ticket_id: str, *, by: str, via: AckChannel = AckChannel.API, note: str = ""
    ) -> EscalationTicket:
        """
        Acknowledge a ticket, which stops its reminders.

        Raises:
            TicketRejectedError: ``by`` is empty.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.acknowledge``.
        """
        by, note = _require_text("by", by), redact(note.strip(), _NOTE_LIMIT)
        now = self._clock()

        def change(tx: TicketTransaction, ticket: EscalationTicket) -> DecisionResult:
            return self._acknowledge(tx, ticket, by, via, note, now)

        return await self._decide(ticket_id, change, notify_people=False)

    async def resolve_incident(
        self, ticket_id: str, *, by: str, via: AckChannel, note: str = ""
    ) -> EscalationTicket:
        """
        Record that a person resolved the incident of a ticket. The ticket itself closes only when its
        condition ends.

        Raises:
            TicketRejectedError: ``by`` is empty.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See
                ``ticket_lifecycle.resolve_incident``.
        """
        by, note = _require_text("by", by), redact(note.strip(), _NOTE_LIMIT)
        now = self._clock()

        def change(tx: TicketTransaction, ticket: EscalationTicket) -> DecisionResult:
            updated_ticket = lifecycle.resolve_incident(ticket, by=by, now=now, via=via, note=note)
            if ticket.status is TicketStatus.ACKNOWLEDGED:
                return updated_ticket, []
            return updated_ticket, [self._make_acknowledgement(tx, updated_ticket, by, via, note)]

        return await self._decide(ticket_id, change, notify_people=False)

    async def acknowledge_ended(
        self, ticket_id: str, *, by: str, via: AckChannel, note: str = "", is_resolved: bool = False
    ) -> EscalationTicket:
        """
        Record that a person acknowledged or resolved the incident of a closed ticket.

        Args:
            is_resolved: Whether the incident is resolved, so that no ticket joins it any more and its alert
                ends.

        Raises:
            TicketRejectedError: ``by`` is empty.
            TicketNotFoundError: See ``find``.
        """
        by, note = _require_text("by", by), redact(note.strip(), _NOTE_LIMIT)
        now = self._clock()

        def change(tx: TicketTransaction, ticket: EscalationTicket) -> DecisionResult:
            updated_ticket = lifecycle.acknowledge_ended(
                ticket, by=by, now=now, via=via, note=note, is_resolved=is_resolved
            )
            return updated_ticket, [] if ticket.acknowledged_by else [
                self._make_acknowledgement(tx, updated_ticket, by, via, note)
            ]

        return await self._decide(ticket_id, change, notify_people=is_resolved)

    def _acknowledge(
        self, tx: TicketTransaction, ticket: EscalationTicket, by: str, via: AckChannel, note: str, now: float
    ) -> DecisionResult:
        updated_ticket = lifecycle.acknowledge(ticket, by=by, now=now, via=via, note=note)
        return updated_ticket, [self._make_acknowledgement(tx, updated_ticket, by, via, note)]

    def _make_acknowledgement(
        self, tx: TicketTransaction, ticket: EscalationTicket, by: str, via: AckChannel, note: str
    ) -> AgentEvent:
        data = {"ticket_id": ticket.ticket_id, "by": by, "via": via.value} | ({"note": note} if note else {})
        return tx.event(ticket, EventType.TICKET_ACKNOWLEDGED, data)

    async def unacknowledge(
        self,
        ticket_id: str,
        *,
        by: str,
        via: AckChannel = AckChannel.API,
        only_via: AckChannel | None = None,
    ) -> EscalationTicket:
        """
        Withdraw an acknowledgement. Reminders restart, and a ticket without triage goes to triage.

        Args:
            only_via: Withdraw only an acknowledgement made through this channel.

        Raises:
            TicketRejectedError: ``by`` is empty.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.unacknowledge``.
                TicketStatusError also if it was acknowledged through another channel than ``only_via``.
        """
        by = _require_text("by", by)
        now = self._clock()

        def change(tx: TicketTransaction, ticket: EscalationTicket) -> DecisionResult:
            updated_ticket = lifecycle.unacknowledge(ticket, now=now)
            if only_via not in (None, ticket.acknowledged_via):
                problem = f"{ticket.acknowledged_by} acknowledged it, but not through {only_via}"
                raise TicketStatusError(ticket, "unacknowledge", problem)
            data = {"ticket_id": ticket_id, "by": by, "via": via.value, "was": ticket.acknowledged_by}
            events = [tx.event(updated_ticket, EventType.TICKET_UNACKNOWLEDGED, data)]
            if updated_ticket.status is TicketStatus.OPEN:
                # This event sends the ticket to the queen.
                reopened = {"ticket": updated_ticket.model_dump(mode="json"), "change": "reopened"}
                events.append(tx.event(updated_ticket, EventType.WORKER_ESCALATION_TICKET, reopened))
            return updated_ticket, events

        return await self._decide(ticket_id, change, notify_people=True)

    async def resolve(self, ticket_id: str, reason: str, *, by: str) -> EscalationTicket:
        """
        Resolve a ticket about a failed recovery, failed runs or a dead worker.

        Resolving the ticket of a dead worker also ends the worker, until its next event.

        Raises:
            TicketRejectedError: ``reason`` or ``by`` is empty.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.resolve``.
        """
        reason, by = _require_text("reason", reason), _require_text("by", by)
        now = self._clock()

        def work(tx: TicketTransaction) -> EscalationTicket:
            ticket = tx.get(ticket_id)
            dead_from = self._find_death_time(ticket)
            closed_ticket = lifecycle.resolve(ticket, reason=reason, by=by, now=now, dead_from=dead_from)
            is_dead = dead_from is not None and dead_from <= now
            tx.close(closed_ticket, by=by, worker_dead=is_dead)
            return closed_ticket

        return await self._commit(work)

    def is_about_dead_worker(self, ticket: EscalationTicket) -> bool:
        """Return whether a live ticket is about a dead worker, rather than about its unfinished work."""
        return self.can_be_resolved(ticket) and not lifecycle.is_about_work(ticket)

    def _find_death_time(self, ticket: EscalationTicket) -> float | None:
        return self._dead_from((ticket.agent_id, ticket.session_id))

    def can_be_resolved(self, ticket: EscalationTicket) -> bool:
        """Return whether a person can resolve the ticket."""
        dead_from = self._find_death_time(ticket)
        return lifecycle.can_be_resolved(ticket, now=self._clock(), dead_from=dead_from)

    # -- one transaction ----------------------------------------------------------------------------

    async def _commit(self, work: _Work[T]) -> T:
        """
        Run ``work`` and store its events in one transaction. Then cache its tickets and publish the events.
        """

        async def commit() -> T:
            def transaction(conn: Connection) -> tuple[T, TicketTransaction]:
                tx = TicketTransaction(conn, self._ids, self._on_change)
                result = work(tx)
                append_events(conn, tx.events)
                return result, tx

            result, tx = await self._store.transact(transaction)
            for ticket in tx.tickets:
                self._cache(ticket)
            if tx.events:
                self._publish(*tx.events)
            return result

        # A caller that is cancelled, such as a judge that timed out, must not keep committed events from
        # being published.
        return await self._tasks.run(commit())

    async def _decide(self, ticket_id: str, decide: Decide, *, notify_people: bool) -> EscalationTicket:
        return await self._commit(lambda tx: tx.decide(ticket_id, decide, notify_people=notify_people))

    def _cache(self, ticket: EscalationTicket) -> None:
        self._deadlines.schedule(ticket)
        previous = self._live_tickets.pop(ticket.ticket_id, None)
        if previous is None or not ticket.is_open or previous.storm_id != ticket.storm_id:
            self._incidents.add(ticket)
        before = previous or ticket
        key = (before.agent_id, before.session_id)
        if (ids := self._by_worker.get(key)) is not None:
            ids.discard(ticket.ticket_id)
            if not ids:
                del self._by_worker[key]
        if ticket.is_live:
            self._live_tickets[ticket.ticket_id] = ticket
            key = (ticket.agent_id, ticket.session_id)
            self._by_worker.setdefault(key, set()).add(ticket.ticket_id)
            return
        self._closed_tickets[ticket.ticket_id] = ticket
        if len(self._closed_tickets) > _MAX_CLOSED_TICKETS:
            self._closed_tickets.popitem(last=False)


def _require_text(name: str, text: str) -> str:
    """Return ``text`` stripped and with secrets masked, or raise ``TicketRejectedError`` if it is empty."""
    text = redact(text.strip(), _REASON_LIMIT)
    if not text:
        raise TicketRejectedError(f"{name}: must not be empty")
    return text
