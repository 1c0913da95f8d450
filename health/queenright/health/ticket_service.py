"""
The ticket service: opens, counts, triages and closes tickets, durably.

Every change is one transaction with the ticket, its event, and what ``on_change`` adds. The event is
published after the commit. The database is the truth: each change reads the ticket in its own transaction,
and memory only saves reads. The rules are enforced here and in ``ticket_rules``, not in the model: a model
that was manipulated can neither open a ticket about a healthy worker nor dismiss a critical one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final, TypeVar

from sqlalchemy import Connection

from queenright.health import ticket_lifecycle as lifecycle
from queenright.health import ticket_rules as rules
from queenright.health import ticket_table as table
from queenright.health.event_log import append_events, read_events
from queenright.health.findings import Finding, FindingKind, Severity, WorkerKey
from queenright.health.incidents import IncidentWatch
from queenright.health.monitor import WorkerHealth
from queenright.health.rows import Place
from queenright.health.run_cost import spending_since
from queenright.health.session_outcome import WorkerStatus
from queenright.health.settings import HealthSettings
from queenright.health.shared_cause import possible_cause
from queenright.health.store import Store
from queenright.health.ticket_lifecycle import Change
from queenright.health.tickets import (
    AckChannel,
    EscalationTicket,
    TicketClosedError,
    TicketDraft,
    TicketNotFoundError,
    TicketRejectedError,
    TicketStatus,
    TicketStatusError,
    mismatches,
)
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, Clock, EventType

T = TypeVar("T")
OnChange = Callable[[Connection, EscalationTicket], None]
FindJoined = Callable[[Connection, EscalationTicket], EscalationTicket | None]

_REMEMBERED_CLOSED: Final = 1_000
_TEXT_LIMIT: Final = 1_000
_LONG_TEXT_LIMIT: Final = 4_000
_REPORTED_LATE_SECONDS: Final = 86_400.0
"""An incident that closed while the service was down is reported at the start, if that is not longer ago."""
_END_REASONS: Final = {
    WorkerStatus.COMPLETED: lifecycle.RUN_COMPLETED,
    WorkerStatus.UNKNOWN: "the worker sent nothing more",
}
_SETTLED_AT_ONCE: Final = 50
"""The most tickets that one transaction settles; the event loop runs other work between two."""


@dataclass(frozen=True, slots=True)
class Raised:
    """A ticket after a report, and what the report changed."""

    ticket: EscalationTicket
    change: Change


@dataclass(frozen=True, slots=True)
class Report:
    """What the judge reports about a worker: ``model`` wrote the draft, in this trace and span."""

    health: WorkerHealth
    draft: TicketDraft
    trace_id: str = ""
    span_id: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision to notify an operator of a ticket."""

    ticket_id: str
    analysis: str
    urgency: str
    by: str = "queen"
    untriaged: bool = False
    model: str = ""


@dataclass(slots=True)
class _Changes:
    """Tickets to remember and events to publish after the commit."""

    tickets: list[EscalationTicket] = field(default_factory=list)
    events: list[AgentEvent] = field(default_factory=list)


_Work = Callable[[Connection, _Changes], T]


def _with_spending(conn: Connection, ticket: EscalationTicket) -> EscalationTicket:
    if ticket.trouble_since is None:
        return ticket
    key = ticket.agent_id, ticket.session_id
    return ticket.model_copy(update=spending_since(conn, *key, ticket.trouble_since))


class TicketService:
    """
    All tickets of one store. Belongs to one event loop.

    Args:
        settings: Hold after recovery, and when unacknowledged tickets are escalated again.
        publish: Receives events once they are durable (``EventBus.fan_out``).
        group: Returns what a worker's trouble has in common with that of others, its cause or the id of a
            storm, or an empty string. A ticket keeps it; one without takes the cause of a later report.
        find_worker: Returns the worker of a ticket, or None.
        on_change: Is called inside the transaction of every change that must be notified: the outbox. It may
            only use the connection it is given.
        silenced_until: Returns until when a ticket is silenced, in seconds since the epoch, or None. It is
            called from several threads.
        dead_from: Returns from when a worker counts as dead if it stays silent, or None.
        find_joined: Returns, inside the transaction of a notification, the earlier ticket whose incident the
            ticket joins, so that people are not notified again, or None.
    """

    def __init__(
        self,
        store: Store,
        *,
        settings: HealthSettings,
        clock: Clock,
        ids: Callable[[], str] = new_id,
        publish: Callable[..., None],
        group: Callable[[WorkerHealth, Finding], str] = lambda health, finding: "",
        find_worker: Callable[[str, str], WorkerHealth | None] = lambda agent_id, session_id: None,
        on_change: OnChange | None = None,
        silenced_until: Callable[[str], float | None] | None = None,
        dead_from: Callable[[WorkerKey], float | None] = lambda key: None,
        find_joined: FindJoined = lambda conn, ticket: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._publish = publish
        self._group = group
        self._find_worker = find_worker
        self._on_change = on_change
        self._silenced_until = silenced_until
        self._dead_from = dead_from
        self._find_joined = find_joined
        self._live: dict[str, EscalationTicket] = {}
        self._by_worker: dict[WorkerKey, set[str]] = {}
        self._closed: OrderedDict[str, EscalationTicket] = OrderedDict()
        self._running: set[asyncio.Task[Any]] = set()
        self._deadlines: list[tuple[float, str]] = []
        """A heap of when ``settle`` looks at each ticket, silences aside."""
        self._scheduled: dict[str, float] = {}
        """The valid heap entry of each ticket."""
        self._reached: set[str] = set()
        """Due tickets that have not changed since: silenced ones."""
        self._incidents = IncidentWatch()
        self.replace_settings(settings)

    def replace_settings(self, settings: HealthSettings) -> None:
        """Replace the deadlines, also those of open tickets."""
        self._hold = settings.tickets.hold_seconds
        self._remind_after = settings.tickets.re_escalation.after_minutes * 60
        self._remind_most = settings.tickets.re_escalation.max
        for ticket in self._live.values():
            self._schedule(ticket)

    # -- reading ------------------------------------------------------------------------------------

    async def load(self) -> list[EscalationTicket]:
        """
        Read the live and recent tickets at start, and return those that wait for triage, oldest first.

        The caller passes them to the queen: the previous process may have been killed between storing a
        ticket and triage.
        """
        since = self._clock() - _REPORTED_LATE_SECONDS
        tickets, recent, reported = await self._store.read(
            lambda conn: (
                table.live_tickets(conn),
                table.ticket_history(conn, limit=_REMEMBERED_CLOSED),
                read_events(conn, types={EventType.INCIDENT_CLOSED}, since=since),
            )
        )
        closed = [ticket for ticket in recent if not ticket.is_live]
        for ticket in (*tickets, *sorted(closed, key=lambda ticket: ticket.closed_at or 0.0)):
            self._remember(ticket)
        reported_ids = {str(event.data.get("incident_id")) for _, event in reported}
        self._incidents.restore(self.recent_tickets(), reported_ids, since)
        return [ticket for ticket in tickets if ticket.status is TicketStatus.OPEN]

    def get(self, ticket_id: str) -> EscalationTicket | None:
        """Return a ticket that is live or closed recently. ``find`` also reads older ones."""
        return self._live.get(ticket_id) or self._closed.get(ticket_id)

    async def find(self, ticket_id: str) -> EscalationTicket | None:
        """Return the ticket with this id, however old, or None."""
        return self.get(ticket_id) or await self._store.read(lambda conn: table.find_ticket(conn, ticket_id))

    def open_tickets(self) -> list[EscalationTicket]:
        """Return the tickets that are open, intervening or acknowledged, oldest first."""
        return sorted(
            (t for t in self._live.values() if t.is_open), key=lambda t: (t.first_seen, t.ticket_id)
        )

    def paged_agents(self) -> set[str]:
        """Return the agents with an open ticket that paged somebody."""
        return {
            ticket.agent_id
            for ticket in self._live.values()
            if ticket.is_open
            and ticket.notified_severity is not None
            and ticket.notified_severity.rank >= Severity.HIGH.rank
        }

    def recent_tickets(self) -> list[EscalationTicket]:
        """Return the live tickets and the last ones that closed, in any order."""
        return [*self._live.values(), *self._closed.values()]

    def open_for(self, agent_id: str, session_id: str) -> EscalationTicket | None:
        """Return the open ticket of a worker's session, or None."""
        ids = self._by_worker.get((agent_id, session_id), ())
        return next((self._live[ticket_id] for ticket_id in ids if self._live[ticket_id].is_open), None)

    def open_counts(self) -> dict[tuple[Severity, TicketStatus], int]:
        """Return how many tickets are open, by severity and status."""
        return dict(Counter((t.severity, t.status) for t in self._live.values() if t.is_open))

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
        """Return when ``settle`` has work to do, in seconds since the epoch; None if never."""
        while self._deadlines:
            at, ticket_id = self._deadlines[0]
            if self._scheduled.get(ticket_id) == at and self._due(self._live[ticket_id]) == at:
                break
            self._take_first_deadline()
        deadlines = [self._due(self._live[ticket_id]) for ticket_id in self._reached]
        deadlines += [at for at, _ in self._deadlines[:1]]
        return min((at for at in deadlines if at is not None), default=None)

    # -- reports of the judge and the monitor -------------------------------------------------------

    async def raise_ticket(
        self,
        health: WorkerHealth,
        draft: TicketDraft,
        *,
        trace_id: str = "",
        span_id: str = "",
        model: str = "",
    ) -> Raised:
        """
        Open a ticket about a worker, or count a report on its open one.

        Raises:
            TicketRejectedError: The worker has no finding that justifies a ticket, or the draft is about
                another worker.
            StoreError: The ticket could not be stored; nothing has changed.
        """
        causes: set[str] = set()
        work = self._report(Report(health, draft, trace_id, span_id, model), causes)
        [raised] = await self._commit(self._with_children([work], causes))
        assert raised is not None
        return raised

    async def raise_tickets(self, reports: Sequence[Report]) -> list[Raised | None]:
        """
        Raise many tickets in one transaction.

        Returns:
            One result for each report; None if its worker has no finding that justifies a ticket.

        Raises:
            StoreError: The tickets could not be stored; nothing has changed.
        """
        causes: set[str] = set()
        works = [self._report_or_none(report, causes) for report in reports]
        return await self._commit(self._with_children(works, causes))

    def _report_or_none(self, report: Report, causes: set[str]) -> _Work[Raised] | None:
        try:
            return self._report(report, causes)
        except TicketRejectedError:
            return None

    def _with_children(
        self, works: Sequence[_Work[Raised] | None], causes: Collection[str]
    ) -> _Work[list[Raised | None]]:
        """Return the work of reports, after which the open tickets with their causes join the incidents."""
        children = self._find_children(causes)
        now = self._clock()

        def work(conn: Connection, changes: _Changes) -> list[Raised | None]:
            raised = [None if change is None else change(conn, changes) for change in works]
            for ticket_id, cause in children.items():
                ticket = table.find_ticket(conn, ticket_id)
                if ticket is None or not ticket.is_open or ticket.storm_id:
                    continue
                child = ticket.model_copy(update={"storm_id": cause, "updated_at": now})
                table.update_ticket(conn, child)
                changes.tickets.append(child)
                self._notify(conn, child)
            return raised

        return work

    def _find_children(self, causes: Collection[str]) -> dict[str, str]:
        """Return the open tickets without a group whose workers share one of these causes by now."""
        children = {}
        for ticket in self._live.values() if causes else ():
            if not ticket.is_open or ticket.storm_id:
                continue
            health = self._find_worker(ticket.agent_id, ticket.session_id)
            findings = () if health is None else health.findings
            finding = next((finding for finding in findings if finding.kind is ticket.kind), None)
            # What could be shared is known without a look at the fleet.
            if health is None or finding is None or (cause := possible_cause(health, finding)) not in causes:
                continue
            reasons = rules.reasons(health)
            child = ticket.model_copy(update={"storm_id": cause})
            if (
                finding in reasons
                and self._group(health, finding) == cause
                and not rules.has_separate_trouble(child, reasons)
            ):
                children[ticket.ticket_id] = cause
        return children

    def _report(self, report: Report, causes: set[str]) -> _Work[Raised]:
        """Return the work that writes a report into a transaction; add the causes that it shares."""
        now, draft = self._clock(), report.draft
        facts = rules.worker_facts(report.health, now)
        findings = rules.reasons(report.health)
        if errors := rules.objections(report.health, findings) or mismatches(draft, facts):
            raise TicketRejectedError(*errors)
        groups = {finding.kind: self._group(report.health, finding) for finding in findings}
        causes.update(group for group in groups.values() if ":" in group)
        texts: dict[str, Any] = {
            "cause": redact(draft.cause, _TEXT_LIMIT),
            "judge_reasoning": redact(draft.judge_reasoning, _LONG_TEXT_LIMIT),
            "suggested_action": redact(draft.suggested_action, _TEXT_LIMIT),
            "evidence_snippet": redact(draft.evidence_snippet or findings[0].evidence),
            "trace_id": report.trace_id,
            "span_id": report.span_id,
            "judge_model": report.model,
        }

        def work(conn: Connection, changes: _Changes) -> Raised:
            live = table.live_tickets_of_worker(conn, facts.agent_id, facts.session_id)
            ticket, finding, severity = rules.match_ticket(live, findings, draft.severity, facts)
            texts.update(words_kind=finding.kind, words_severity=severity)
            if ticket is None:
                texts.update(rules.finding_fields(report.health, None, [finding]))
                for other in live:
                    if other.is_open and not rules.own_findings(other, findings):
                        # A session has one open ticket: the shared cause is over, and this finding is worse.
                        over = lifecycle.settle(lifecycle.clear(other, now=now), now=now, hold=0.0)
                        why = {"closed_reason": "the shared cause is over"}
                        self._close(conn, changes, over.model_copy(update=why))
                group = groups[finding.kind]
                ticket = rules.new_ticket(
                    self._ids(), facts, finding, findings, severity, texts, now, storm_id=group
                )
                ticket = _with_spending(conn, ticket)
                table.insert_ticket(conn, ticket)
                return self._raised(conn, changes, ticket, "opened")
            changed, change = rules.count_report(ticket, findings, severity, now)
            texts.update(rules.finding_fields(report.health, changed, findings))
            # A count updates only numbers, and a text of the rules, which contains them.
            if change == "counted" and ticket.is_open and not rules.has_current_text(ticket, findings):
                change = "renewed"
            current = rules.updated_text(ticket, findings[0], texts) if change == "counted" else texts
            changed = rules.with_current_facts(changed, facts, current)
            changed = _with_spending(conn, changed)
            table.update_ticket(conn, changed)
            raised = self._raised(conn, changes, changed, change)
            self._notify_new_trouble(conn, changes, ticket, changed, now)
            return raised

        return work

    async def observe(self, health: WorkerHealth) -> None:
        """
        Apply a worker's findings, or its end, to its tickets. Call this whenever they changed.

        A finding that is new, worse or back is a report. With none left, the hold begins. A worker that has
        ended and could not be recovered keeps its ticket. Only the judge opens tickets.
        """
        key = (health.vitals.agent_id, health.vitals.session_id)
        if key not in self._by_worker:
            return
        now = self._clock()
        findings = rules.reasons(health)
        reason = _END_REASONS.get(health.vitals.status, "the worker ended")

        def work(conn: Connection, changes: _Changes) -> None:
            live = table.live_tickets_of_worker(conn, *key)
            is_other_open = False
            for ticket in sorted(live, key=lambda t: not t.is_open):
                # A ticket about failed runs ends by recovery and hold, like any other, when a run completes.
                ended = (
                    health.vitals.ended
                    and ticket.kind is not FindingKind.RUNS_FAILED
                    and not rules.own_findings(ticket, findings)
                )
                if ended or rules.is_about_earlier_incarnation(ticket, health):
                    why = reason if ended else "the worker has a new incarnation"
                    self._close(conn, changes, lifecycle.worker_ended(ticket, now=now, reason=why))
                else:
                    is_other_open = (
                        self._apply(conn, changes, ticket, health, findings, now, is_other_open=is_other_open)
                        or is_other_open
                    )

        await self._commit(work)

    async def worker_renamed(self, old: WorkerKey, new: WorkerKey) -> None:
        """
        Move the tickets of a renamed worker, also closed ones, to its new name.

        The labels of an alert that was sent do not change. If the worker is known under its new name and has
        a ticket there, its live ones are closed.
        """
        if not await self._store.read(lambda conn: table.tickets_of_worker(conn, *old)):
            return
        now, reason = self._clock(), f"the worker is now {new[0]!r}, session {new[1]!r}"

        def work(conn: Connection, changes: _Changes) -> None:
            has_others = bool(table.live_tickets_of_worker(conn, *new))
            for former in table.tickets_of_worker(conn, *old):
                ticket = lifecycle.rename(former, *new)
                if not ticket.is_live:
                    table.update_ticket(conn, ticket)
                    if ticket.ticket_id in self._closed:
                        changes.tickets.append(ticket)
                elif has_others:
                    self._close(conn, changes, lifecycle.worker_ended(ticket, now=now, reason=reason))
                else:
                    table.update_ticket(conn, ticket)
                    changes.tickets.append(ticket)
                    self._notify(conn, ticket)

        await self._commit(work)

    async def settle(self, now: float, *, exclude: Collection[str] = ()) -> list[EscalationTicket]:
        """
        Close the tickets whose hold has passed, and return them; send due reminders; report closed incidents.

        Reminders go out for notified tickets that nobody acknowledged. A reminder that was due several times
        (during a restart) is sent once.
        """
        while self._deadlines and self._deadlines[0][0] <= now:
            self._take_first_deadline()
        due_ids = [
            ticket_id
            for ticket_id in self._reached
            if (at := self._due(self._live[ticket_id])) is not None and at <= now and ticket_id not in exclude
        ]
        due_ids.sort(key=lambda ticket_id: (self._live[ticket_id].first_seen, ticket_id))
        closed: list[EscalationTicket] = []
        for first in range(0, len(due_ids), _SETTLED_AT_ONCE):
            closed += await self._settle(due_ids[first : first + _SETTLED_AT_ONCE], now)
        await self._report_closed_incidents(now)
        return closed

    async def _report_closed_incidents(self, now: float) -> None:
        if not (closed := self._incidents.closed(self.recent_tickets(), now)):
            return

        def work(conn: Connection, changes: _Changes) -> None:
            for incident in closed.values():
                data = {
                    "incident_id": incident.incident_id,
                    "cause": incident.cause,
                    "workers": incident.workers,
                    "opened_at": incident.opened_at,
                    "closed_at": incident.closed_at,
                }
                event = AgentEvent(id=self._ids(), type=EventType.INCIDENT_CLOSED, time=now, data=data)
                changes.events.append(event)

        await self._commit(work)
        self._incidents.remove(closed)

    async def _settle(self, ticket_ids: Collection[str], now: float) -> list[EscalationTicket]:
        """Settle these tickets in one transaction; return those that closed."""

        def work(conn: Connection, changes: _Changes) -> list[EscalationTicket]:
            closed = []
            for ticket_id in ticket_ids:
                ticket = table.find_ticket(conn, ticket_id)
                if ticket is None or not ticket.is_live:
                    continue
                settled = lifecycle.settle(ticket, now=now, hold=self._hold)
                if not settled.is_live:
                    self._close(conn, changes, settled)
                    closed.append(settled)
                elif (at := self._remind_at(ticket)) is not None and at <= now:
                    self._remind(conn, changes, ticket, now)
            return closed

        return await self._commit(work)

    async def request_attention(self, ticket_id: str, *, since: float) -> None:
        """
        Notify people again, once, because there is something for them to decide or do.

        Nobody is notified again who was at ``since`` or later, or who has acknowledged the ticket.

        Args:
            ticket_id: A ticket that people were notified of.
            since: When the request arose, in seconds since the epoch.

        Raises:
            StoreError: Writing failed; nobody was notified.
        """
        now = self._clock()

        def work(conn: Connection, changes: _Changes) -> None:
            ticket = table.find_ticket(conn, ticket_id)
            if ticket is None or not ticket.is_live:
                return
            if ticket.status is TicketStatus.INTERVENING and (ticket.bumped_at or 0.0) < since:
                self._remind(conn, changes, ticket, now, is_request=True)
            else:
                self._notify(conn, ticket)

        await self._commit(work)

    def _schedule(self, ticket: EscalationTicket) -> None:
        """Schedule the next look of ``settle`` at a ticket; a silence may only defer what it does then."""
        self._reached.discard(ticket.ticket_id)
        at = lifecycle.hold_ends(ticket, self._hold) if ticket.is_live else None
        if at is None and ticket.is_live:
            at = lifecycle.remind_at(ticket, after=self._remind_after, most=self._remind_most)
        if at is None:
            self._scheduled.pop(ticket.ticket_id, None)
        elif self._scheduled.get(ticket.ticket_id) != at:
            self._scheduled[ticket.ticket_id] = at
            heappush(self._deadlines, (at, ticket.ticket_id))

    def _take_first_deadline(self) -> None:
        at, ticket_id = heappop(self._deadlines)
        if self._scheduled.get(ticket_id) == at:
            del self._scheduled[ticket_id]
            self._reached.add(ticket_id)

    def _due(self, ticket: EscalationTicket) -> float | None:
        """Return when ``settle`` has work to do. There are no reminders during the hold."""
        ends = lifecycle.hold_ends(ticket, self._hold)
        return self._remind_at(ticket) if ends is None else ends

    def _remind_at(self, ticket: EscalationTicket) -> float | None:
        at = lifecycle.remind_at(ticket, after=self._remind_after, most=self._remind_most)
        if at is None or self._silenced_until is None:
            return at
        # Defer reminders while the ticket is silenced.
        until = self._silenced_until(ticket.ticket_id)
        return at if until is None else max(at, until)

    # -- decisions of the queen and the operator ----------------------------------------------------

    async def dismiss(
        self, ticket_id: str, reason: str, *, by: str = "queen", recovered: bool = False
    ) -> EscalationTicket:
        """
        Dismiss a ticket: nobody is notified. High and critical ones that still hold cannot be dismissed.

        Raises:
            TicketRejectedError: The reason is empty.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.dismiss``.
        """
        reason = _require_text("reason", reason)
        now = self._clock()

        def change(ticket: EscalationTicket) -> tuple[EscalationTicket, list[AgentEvent]]:
            changed = lifecycle.dismiss(
                ticket,
                reason=reason,
                by=by,
                now=now,
                recovered=recovered,
                dead_from=self._worker_dead_from(ticket),
            )
            data = {"ticket_id": ticket_id, "decision": "dismiss", "reason": reason, "by": by}
            return changed, [self._event(changed, EventType.TICKET_TRIAGED, data)]

        return await self._decide(ticket_id, change, tell=False)

    async def intervene(
        self,
        ticket_id: str,
        analysis: str,
        urgency: str,
        *,
        by: str = "queen",
        untriaged: bool = False,
        graph_id: str = "queen",
        stream_id: str = "",
        model: str = "",
    ) -> EscalationTicket:
        """
        Notify an operator, or update the analysis of a ticket that was notified before.

        Args:
            untriaged: Triage did not answer in time and is bypassed.
            stream_id: The stream in that graph.

        Raises:
            TicketRejectedError: Analysis or urgency is empty.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.intervene``.
        """
        decision = Decision(ticket_id, analysis, urgency, by, untriaged, model)
        return await self._commit(self._intervention(decision, graph_id, stream_id))

    async def intervene_all(
        self, decisions: Sequence[Decision], *, graph_id: str = "queen", stream_id: str = ""
    ) -> list[EscalationTicket]:
        """
        Call ``intervene`` for many tickets in one transaction, and return those it applied to.

        Raises:
            TicketRejectedError: Analysis or urgency is empty.
            StoreError: Writing failed; nothing has changed.
        """
        works = [self._intervention(decision, graph_id, stream_id) for decision in decisions]

        def work(conn: Connection, changes: _Changes) -> list[EscalationTicket]:
            changed = []
            for change in works:
                # Skip a ticket that was decided on in the meantime.
                with contextlib.suppress(TicketNotFoundError, TicketClosedError, TicketStatusError):
                    changed.append(change(conn, changes))
            return changed

        return await self._commit(work)

    def _intervention(self, decision: Decision, graph_id: str, stream_id: str) -> _Work[EscalationTicket]:
        analysis = _require_text("analysis", decision.analysis)
        urgency = _require_text("urgency", decision.urgency)
        now = self._clock()

        def work(conn: Connection, changes: _Changes) -> EscalationTicket:
            def change(ticket: EscalationTicket) -> tuple[EscalationTicket, list[AgentEvent]]:
                changed = lifecycle.intervene(
                    ticket,
                    analysis=analysis,
                    urgency=urgency,
                    by=decision.by,
                    now=now,
                    untriaged=decision.untriaged,
                )
                changed = changed.model_copy(update={"queen_model": decision.model})
                joined: list[AgentEvent] = []
                if ticket.status is TicketStatus.OPEN:
                    changed, joined = self._join(conn, changed, now)
                triaged = {
                    "ticket_id": ticket.ticket_id,
                    "decision": changed.triage_decision,
                    "reason": analysis,
                }
                requested = {
                    "ticket_id": ticket.ticket_id,
                    "analysis": analysis,
                    "severity": changed.severity.value,
                    "urgency": urgency,
                    "queen_graph_id": graph_id,
                    "queen_stream_id": stream_id,
                    "untriaged": decision.untriaged,
                }
                return changed, [
                    self._event(changed, EventType.TICKET_TRIAGED, triaged),
                    self._event(changed, EventType.QUEEN_INTERVENTION_REQUESTED, requested),
                    *joined,
                ]

            return self._decision(decision.ticket_id, change, tell=True)(conn, changes)

        return work

    def _join(
        self, conn: Connection, ticket: EscalationTicket, now: float
    ) -> tuple[EscalationTicket, list[AgentEvent]]:
        """Join an earlier ticket's incident, if there is one, and take over its acknowledgement."""
        earlier = self._find_joined(conn, ticket)
        if earlier is None:
            return ticket, []
        joined = lifecycle.join(ticket, earlier)
        if not earlier.acknowledged_by:
            return joined, []
        note = f"the same incident as ticket {earlier.ticket_id}"
        return self._acknowledgement(
            joined, earlier.acknowledged_by, earlier.acknowledged_via or AckChannel.API, note, now
        )

    async def acknowledge(
        self, ticket_id: str, *, by: str, via: AckChannel = AckChannel.API, note: str = ""
    ) -> EscalationTicket:
        """
        Acknowledge a ticket: its reminders stop.

        Raises:
            TicketRejectedError: ``by`` is empty.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.acknowledge``.
        """
        by, note = _require_text("by", by), redact(note.strip(), _TEXT_LIMIT)
        now = self._clock()

        def change(ticket: EscalationTicket) -> tuple[EscalationTicket, list[AgentEvent]]:
            return self._acknowledgement(ticket, by, via, note, now)

        return await self._decide(ticket_id, change, tell=False)

    async def resolve_incident(
        self, ticket_id: str, *, by: str, via: AckChannel, note: str = ""
    ) -> EscalationTicket:
        """
        Record that a person resolved the incident of a ticket that only the end of its condition closes.

        Raises:
            TicketRejectedError: ``by`` is empty.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See
                ``ticket_lifecycle.resolve_incident``.
        """
        by, note = _require_text("by", by), redact(note.strip(), _TEXT_LIMIT)
        now = self._clock()

        def change(ticket: EscalationTicket) -> tuple[EscalationTicket, list[AgentEvent]]:
            changed = lifecycle.resolve_incident(ticket, by=by, now=now, via=via, note=note)
            is_acknowledged = ticket.status is TicketStatus.ACKNOWLEDGED
            return changed, [] if is_acknowledged else [self._acknowledged(changed, by, via, note)]

        return await self._decide(ticket_id, change, tell=False)

    async def acknowledge_ended(
        self, ticket_id: str, *, by: str, via: AckChannel, note: str = "", is_resolved: bool = False
    ) -> EscalationTicket:
        """
        Record that a person acknowledged or resolved the incident of a closed ticket.

        Args:
            is_resolved: Resolved: nothing joins the incident any more, and its alert ends.

        Raises:
            TicketRejectedError: ``by`` is empty.
            TicketNotFoundError: See ``find``.
        """
        by, note = _require_text("by", by), redact(note.strip(), _TEXT_LIMIT)
        now = self._clock()

        def change(ticket: EscalationTicket) -> tuple[EscalationTicket, list[AgentEvent]]:
            changed = lifecycle.acknowledge_ended(
                ticket, by=by, now=now, via=via, note=note, is_resolved=is_resolved
            )
            return changed, [] if ticket.acknowledged_by else [self._acknowledged(changed, by, via, note)]

        return await self._decide(ticket_id, change, tell=is_resolved)

    def _acknowledgement(
        self, ticket: EscalationTicket, by: str, via: AckChannel, note: str, now: float
    ) -> tuple[EscalationTicket, list[AgentEvent]]:
        changed = lifecycle.acknowledge(ticket, by=by, now=now, via=via, note=note)
        return changed, [self._acknowledged(changed, by, via, note)]

    def _acknowledged(self, ticket: EscalationTicket, by: str, via: AckChannel, note: str) -> AgentEvent:
        data = {"ticket_id": ticket.ticket_id, "by": by, "via": via.value} | ({"note": note} if note else {})
        return self._event(ticket, EventType.TICKET_ACKNOWLEDGED, data)

    async def unacknowledge(
        self,
        ticket_id: str,
        *,
        by: str,
        via: AckChannel = AckChannel.API,
        only_via: AckChannel | None = None,
    ) -> EscalationTicket:
        """
        Withdraw an acknowledgement: reminders start over, and an untriaged ticket goes to triage.

        Args:
            only_via: Withdraw only an acknowledgement made through this channel.

        Raises:
            TicketRejectedError: ``by`` is empty.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.unacknowledge``;
                or it was acknowledged through another channel than ``only_via``.
        """
        by = _require_text("by", by)
        now = self._clock()

        def change(ticket: EscalationTicket) -> tuple[EscalationTicket, list[AgentEvent]]:
            changed = lifecycle.unacknowledge(ticket, now=now)
            if only_via not in (None, ticket.acknowledged_via):
                problem = f"{ticket.acknowledged_by} acknowledged it, but not through {only_via}"
                raise TicketStatusError(ticket, "unacknowledge", problem)
            data = {"ticket_id": ticket_id, "by": by, "via": via.value, "was": ticket.acknowledged_by}
            events = [self._event(changed, EventType.TICKET_UNACKNOWLEDGED, data)]
            if changed.status is TicketStatus.OPEN:
                # This event sends the ticket to the queen.
                back = {"ticket": changed.model_dump(mode="json"), "change": "reopened"}
                events.append(self._event(changed, EventType.WORKER_ESCALATION_TICKET, back))
            return changed, events

        return await self._decide(ticket_id, change, tell=True)

    async def resolve(self, ticket_id: str, reason: str, *, by: str) -> EscalationTicket:
        """
        Resolve a ticket about a failed recovery, failed runs or a dead worker.

        Resolving the ticket of a dead worker ends the worker, until its next event.

        Raises:
            TicketRejectedError: ``reason`` or ``by`` is empty.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.resolve``.
        """
        reason, by = _require_text("reason", reason), _require_text("by", by)
        now = self._clock()

        def work(conn: Connection, changes: _Changes) -> EscalationTicket:
            ticket = table.find_ticket(conn, ticket_id)
            if ticket is None:
                raise TicketNotFoundError(ticket_id)
            dead_from = self._worker_dead_from(ticket)
            closed = lifecycle.resolve(ticket, reason=reason, by=by, now=now, dead_from=dead_from)
            is_dead = dead_from is not None and dead_from <= now
            self._close(conn, changes, closed, by=by, worker_dead=is_dead)
            return closed

        return await self._commit(work)

    def is_about_dead_worker(self, ticket: EscalationTicket) -> bool:
        """Return whether a live ticket is about a dead worker, and not about unfinished work of it."""
        return self.can_be_resolved(ticket) and not lifecycle.is_about_work(ticket)

    def _worker_dead_from(self, ticket: EscalationTicket) -> float | None:
        return self._dead_from((ticket.agent_id, ticket.session_id))

    def can_be_resolved(self, ticket: EscalationTicket) -> bool:
        """Return whether a person can resolve the ticket."""
        dead_from = self._worker_dead_from(ticket)
        return lifecycle.can_be_resolved(ticket, now=self._clock(), dead_from=dead_from)

    # -- one transaction ----------------------------------------------------------------------------

    async def _commit(self, work: _Work[T]) -> T:
        """Run ``work`` in a transaction with its events; then remember its tickets and publish."""

        async def commit() -> T:
            changes = _Changes()

            def transaction(conn: Connection) -> T:
                result = work(conn, changes)
                append_events(conn, changes.events)
                return result

            result = await self._store.transact(transaction)
            for ticket in changes.tickets:
                self._remember(ticket)
            if changes.events:
                self._publish(*changes.events)
            return result

        # A cancelled caller (a judge that timed out) must not keep committed events from being published.
        return await asyncio.shield(self._start(commit()))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _decide(
        self,
        ticket_id: str,
        change: Callable[[EscalationTicket], tuple[EscalationTicket, list[AgentEvent]]],
        *,
        tell: bool,
    ) -> EscalationTicket:
        return await self._commit(self._decision(ticket_id, change, tell=tell))

    def _decision(
        self,
        ticket_id: str,
        change: Callable[[EscalationTicket], tuple[EscalationTicket, list[AgentEvent]]],
        *,
        tell: bool,
    ) -> _Work[EscalationTicket]:
        def work(conn: Connection, changes: _Changes) -> EscalationTicket:
            ticket = table.find_ticket(conn, ticket_id)
            if ticket is None:
                raise TicketNotFoundError(ticket_id)
            changed, events = change(ticket)
            table.update_ticket(conn, changed)
            changes.tickets.append(changed)
            changes.events.extend(events)
            if tell:
                self._notify(conn, changed)
            return changed

        return work

    def _raised(
        self, conn: Connection, changes: _Changes, ticket: EscalationTicket, change: Change
    ) -> Raised:
        changes.tickets.append(ticket)
        if change != "counted":
            data = {"ticket": ticket.model_dump(mode="json"), "change": change}
            changes.events.append(self._event(ticket, EventType.WORKER_ESCALATION_TICKET, data))
        if change == "rose":
            self._notify(conn, ticket)
        return Raised(ticket, change)

    def _apply(
        self,
        conn: Connection,
        changes: _Changes,
        ticket: EscalationTicket,
        health: WorkerHealth,
        findings: Sequence[Finding],
        now: float,
        *,
        is_other_open: bool,
    ) -> bool:
        """Apply findings to a live ticket; return whether it is open."""
        changed, change = rules.apply_findings(ticket, findings, now, is_other_open=is_other_open)
        if changed is not ticket:
            if change != "counted" or changed.occurrences != ticket.occurrences:
                changed = changed.model_copy(update=rules.finding_fields(health, changed, findings))
                changed = _with_spending(conn, changed)
            table.update_ticket(conn, changed)
            self._raised(conn, changes, changed, change)
            self._notify_new_trouble(conn, changes, ticket, changed, now)
        return changed.is_open

    def _close(
        self,
        conn: Connection,
        changes: _Changes,
        ticket: EscalationTicket,
        *,
        by: str | None = None,
        worker_dead: bool = False,
    ) -> None:
        ticket = _with_spending(conn, ticket)
        table.update_ticket(conn, ticket)
        changes.tickets.append(ticket)
        if ticket.status is TicketStatus.DISMISSED:
            return
        data: dict[str, Any] = {
            "ticket_id": ticket.ticket_id,
            "status": ticket.status.value,
            "reason": ticket.closed_reason,
        }
        if by is not None:
            data["by"] = by
        if worker_dead:
            data["worker_dead"] = True
        changes.events.append(self._event(ticket, EventType.TICKET_RESOLVED, data))
        self._notify(conn, ticket)

    def _notify_new_trouble(
        self,
        conn: Connection,
        changes: _Changes,
        before: EscalationTicket,
        ticket: EscalationTicket,
        now: float,
    ) -> None:
        """Notify once more if the session of a ticket about failed runs has other trouble."""
        if not rules.has_new_trouble(before, ticket):
            return
        if ticket.status is TicketStatus.INTERVENING:
            self._remind(conn, changes, ticket, now, is_request=True)
        else:
            self._notify(conn, ticket)

    def _remind(
        self,
        conn: Connection,
        changes: _Changes,
        before: EscalationTicket,
        now: float,
        *,
        is_request: bool = False,
    ) -> None:
        """Remind people of a ticket, and count the reminder on the tickets of its incident."""
        ticket = lifecycle.remind(before, now=now, is_request=is_request)
        others = table.live_tickets(conn, agent_id=before.agent_id)
        reminded = [other for other in others if lifecycle.is_reminded_with(before, other)]
        rest = (lifecycle.remind(other, now=now, is_request=is_request) for other in reminded)
        for changed in (ticket, *rest):
            table.update_ticket(conn, changed)
            changes.tickets.append(changed)
        data = {
            "ticket_id": ticket.ticket_id,
            "reminder": ticket.reminders,
            "is_request": is_request,
            "severity": ticket.severity.value,
            "unacknowledged_seconds": now - (ticket.incident_since or ticket.notified_at or now),
        }
        changes.events.append(self._event(ticket, EventType.TICKET_REESCALATED, data))
        self._notify(conn, ticket)

    def _notify(self, conn: Connection, ticket: EscalationTicket) -> None:
        """Pass on a changed ticket that people were notified of."""
        if self._on_change is not None and ticket.notified_severity is not None:
            self._on_change(conn, ticket)

    def _event(self, ticket: EscalationTicket, event_type: EventType, data: dict[str, Any]) -> AgentEvent:
        return AgentEvent(
            id=self._ids(),
            type=event_type,
            time=ticket.updated_at,
            agent_id=ticket.agent_id,
            session_id=ticket.session_id,
            incarnation_id=ticket.incarnation_id,
            graph_id=ticket.worker_graph_id,
            node_id=ticket.worker_node_id,
            trace_id=ticket.trace_id,
            span_id=ticket.span_id,
            data=data,
        )

    def _remember(self, ticket: EscalationTicket) -> None:
        self._schedule(ticket)
        previous = self._live.pop(ticket.ticket_id, None)
        if previous is None or not ticket.is_open or previous.storm_id != ticket.storm_id:
            self._incidents.add(ticket)
        before = previous or ticket
        key = (before.agent_id, before.session_id)
        if (ids := self._by_worker.get(key)) is not None:
            ids.discard(ticket.ticket_id)
            if not ids:
                del self._by_worker[key]
        if ticket.is_live:
            self._live[ticket.ticket_id] = ticket
            key = (ticket.agent_id, ticket.session_id)
            self._by_worker.setdefault(key, set()).add(ticket.ticket_id)
            return
        self._closed[ticket.ticket_id] = ticket
        if len(self._closed) > _REMEMBERED_CLOSED:
            self._closed.popitem(last=False)


def _require_text(name: str, text: str) -> str:
    """Return ``text`` without secrets; refuse an empty one."""
    redacted = redact(text.strip(), _LONG_TEXT_LIMIT)
    if not redacted:
        raise TicketRejectedError(f"{name}: must not be empty")
    return redacted
