"""
The ticket service: opens, counts, triages and closes tickets, durably.

Every change is one transaction that holds the ticket, the event that says so, and what ``on_change``
adds; only then is the event fanned out. The database is the truth: each change reads the ticket in its
own transaction, and what is in memory only saves looking. The rules about what is a ticket are here and
in ``ticket_rules``, not in the model: a model that was talked into it can neither open a ticket about
a worker that is well, nor wave one away that is not.
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
from queenright.health.event_log import append_events
from queenright.health.findings import Finding, FindingKind, Severity, WorkerKey
from queenright.health.keyset import Place
from queenright.health.monitor import WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.spent import spent_since
from queenright.health.store import Store
from queenright.health.ticket_lifecycle import Change
from queenright.health.tickets import (
    EscalationTicket,
    TicketClosedError,
    TicketDraft,
    TicketNotFoundError,
    TicketRejectedError,
    TicketStatus,
    TicketStatusError,
    Way,
    mismatches,
)
from queenright.health.vitals import SessionStatus
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, Clock, EventType

T = TypeVar("T")
OnChange = Callable[[Connection, EscalationTicket], None]
FindJoined = Callable[[Connection, EscalationTicket], EscalationTicket | None]

_REMEMBERED_CLOSED: Final = 1_000
_TEXT_LIMIT: Final = 1_000
_LONG_TEXT_LIMIT: Final = 4_000
_SETTLED_AT_ONCE: Final = 50
"""Tickets that one transaction settles; others have the loop between two."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The ticket as it is after a report, and what the report did."""

    ticket: EscalationTicket
    change: Change


@dataclass(frozen=True, slots=True)
class Report:
    """What the judge says of one worker as it is now; ``model`` wrote it, in this trace and span."""

    health: WorkerHealth
    draft: TicketDraft
    trace_id: str = ""
    span_id: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """That an operator must know of a ticket, in which words, how soon, and who says so."""

    ticket_id: str
    analysis: str
    urgency: str
    by: str = "queen"
    untriaged: bool = False
    model: str = ""


@dataclass(slots=True)
class _Changes:
    """What one transaction did: to be remembered and fanned out once it is committed."""

    tickets: list[EscalationTicket] = field(default_factory=list)
    events: list[AgentEvent] = field(default_factory=list)


_Work = Callable[[Connection, _Changes], T]


def _with_spending(conn: Connection, ticket: EscalationTicket) -> EscalationTicket:
    if ticket.trouble_since is None:
        return ticket
    key = ticket.worker_agent_id, ticket.worker_session_id
    return ticket.model_copy(update=spent_since(conn, *key, ticket.trouble_since))


class TicketService:
    """
    All tickets of one store. Belongs to one event loop.

    Args:
        store: Where tickets and their events are kept.
        settings: How long a recovery must hold, and when what nobody acknowledged is brought up again.
        clock: Seconds since the epoch.
        ids: Makes the ids of tickets and events.
        publish: Is given events once they are durable (``EventBus.fan_out``).
        group: Returns what a worker's trouble shares with others', else an empty string: its cause, or the id
            of the storm in which it got worse. A ticket keeps what it is opened with.
        on_change: Is called inside the transaction of every change that the outside must hear of, when
            an operator has been told or must be: the outbox. It must only use the connection it is given.
        silenced_until: Returns until when nobody would hear of a ticket, in seconds since the epoch; None if
            they would. It is called from several threads.
        dead_from: Returns from when a worker counts as gone if nothing more is heard of it; None for never.
        find_joined: Returns, inside the transaction in which people are to be told of a ticket, the earlier
            one whose incident it joins, so that nobody is told anew; None if it is told for itself.
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
        self._on_change = on_change
        self._silenced_until = silenced_until
        self._dead_from = dead_from
        self._find_joined = find_joined
        self._live: dict[str, EscalationTicket] = {}
        self._by_worker: dict[WorkerKey, set[str]] = {}
        self._closed: OrderedDict[str, EscalationTicket] = OrderedDict()
        self._running: set[asyncio.Task[Any]] = set()
        self._deadlines: list[tuple[float, str]] = []
        """A heap of when ``settle`` looks at which ticket, silences aside."""
        self._scheduled: dict[str, float] = {}
        """The one entry of each ticket in the heap that counts."""
        self._reached: set[str] = set()
        """Tickets whose entry was taken from the heap and that have not changed since: silenced ones."""
        self.exchange(settings)

    def exchange(self, settings: HealthSettings) -> None:
        """Use these deadlines from now on, for the tickets that are open, too."""
        self._hold = settings.tickets.hold_seconds
        self._remind_after = settings.tickets.re_escalation.after_minutes * 60
        self._remind_most = settings.tickets.re_escalation.max
        for ticket in self._live.values():
            self._schedule(ticket)

    # -- reading ------------------------------------------------------------------------------------

    async def load(self) -> list[EscalationTicket]:
        """
        Read the live tickets, at start, and return those that still wait for triage, oldest first.

        Whoever starts the service hands these to the queen: the process before may have been killed after
        it stored a ticket and before anybody saw it.
        """
        tickets = await self._store.read(table.live_tickets)
        for ticket in tickets:
            self._remember(ticket)
        return [ticket for ticket in tickets if ticket.status is TicketStatus.OPEN]

    def get(self, ticket_id: str) -> EscalationTicket | None:
        """Return a ticket that is live or was closed lately; ``find`` looks further back."""
        return self._live.get(ticket_id) or self._closed.get(ticket_id)

    async def find(self, ticket_id: str) -> EscalationTicket | None:
        """Return the ticket with this id, however old; None if there is none."""
        return self.get(ticket_id) or await self._store.read(lambda conn: table.find_ticket(conn, ticket_id))

    def open_tickets(self) -> list[EscalationTicket]:
        """Return the tickets that are open, intervening or acknowledged, oldest first."""
        return sorted(
            (t for t in self._live.values() if t.is_open), key=lambda t: (t.first_seen, t.ticket_id)
        )

    def paged_agents(self) -> set[str]:
        """Return the agents of open tickets about which somebody was paged."""
        return {
            ticket.worker_agent_id
            for ticket in self._live.values()
            if ticket.is_open
            and ticket.notified_severity is not None
            and ticket.notified_severity.rank >= Severity.HIGH.rank
        }

    def lately(self) -> list[EscalationTicket]:
        """Return the tickets that are live, and the last that closed, in any order."""
        return [*self._live.values(), *self._closed.values()]

    def open_for(self, agent_id: str, session_id: str) -> EscalationTicket | None:
        """Return the open ticket of a worker's session, None if it has none."""
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
        """Return tickets, newest first, closed and dismissed ones too; with ``before`` the next page."""
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
        """Return when ``settle`` has something to do, in seconds since the epoch; None if never."""
        while self._deadlines:
            at, ticket_id = self._deadlines[0]
            if self._scheduled.get(ticket_id) == at and self._due(self._live[ticket_id]) == at:
                break
            self._take_first_deadline()
        found = [self._due(self._live[ticket_id]) for ticket_id in self._reached]
        found += [at for at, _ in self._deadlines[:1]]
        return min((at for at in found if at is not None), default=None)

    # -- what the judge and the monitor say ---------------------------------------------------------

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
        Open a ticket about a worker, or count one more report on the one it has.

        Args:
            health: The worker as it is now.
            draft: What the judge says. Its severity counts if it is above the rules' floor.
            trace_id: The judge's trace.
            span_id: The judge's span.
            model: Who wrote the draft.

        Raises:
            TicketRejectedError: The worker gives no reason for a ticket (any more), or the draft speaks of
                another.
            StoreError: It could not be stored; then nothing has changed.
        """
        return await self._commit(self._report(Report(health, draft, trace_id, span_id, model)))

    async def raise_tickets(self, reports: Sequence[Report]) -> list[Raised | None]:
        """
        Do what ``raise_ticket`` does for many workers, in one transaction.

        Returns:
            What became of each; None for one that gives no reason for a ticket.

        Raises:
            StoreError: It could not be stored; then nothing has changed.
        """
        works = [self._report_or_none(report) for report in reports]

        def work(conn: Connection, changes: _Changes) -> list[Raised | None]:
            return [None if one is None else one(conn, changes) for one in works]

        return await self._commit(work)

    def _report_or_none(self, report: Report) -> _Work[Raised] | None:
        try:
            return self._report(report)
        except TicketRejectedError:
            return None

    def _report(self, report: Report) -> _Work[Raised]:
        """Return what writes a report into a transaction."""
        now, draft = self._clock(), report.draft
        facts = rules.facts_of(report.health, now)
        findings = rules.reasons(report.health)
        if wrong := rules.objections(report.health, findings) or mismatches(draft, facts):
            raise TicketRejectedError(*wrong)
        groups = {finding.kind: self._group(report.health, finding) for finding in findings}
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
            live = table.live_tickets_of_worker(conn, facts.worker_agent_id, facts.worker_session_id)
            ticket, finding, severity = rules.whom_it_concerns(live, findings, draft.severity, facts)
            texts.update(words_kind=finding.kind, words_severity=severity)
            if ticket is None:
                texts.update(rules.seen(report.health, None, [finding]))
                for other in live:
                    if other.is_open and not rules.own_findings(other, findings):
                        # A session has one open ticket: what that was about is over, and this is worse.
                        over = lifecycle.settle(lifecycle.clear(other, now=now), now=now, hold=0.0)
                        why = {"closed_reason": "what it shared with others is over"}
                        self._close(conn, changes, over.model_copy(update=why))
                group = groups[finding.kind]
                ticket = rules.new_ticket(
                    self._ids(), facts, finding, findings, severity, texts, now, storm_id=group
                )
                ticket = _with_spending(conn, ticket)
                table.insert_ticket(conn, ticket)
                return self._raised(conn, changes, ticket, "opened")
            changed, change = rules.report_on(ticket, findings, severity, now)
            texts.update(rules.seen(report.health, changed, findings))
            # A count brings the numbers up to date; what the operator may be reading changes with its cause.
            if change == "counted" and ticket.is_open and not rules.has_true_words(ticket, findings):
                change = "renewed"
            changed = rules.brought_up_to_date(changed, facts, {} if change == "counted" else texts)
            changed = _with_spending(conn, changed)
            table.update_ticket(conn, changed)
            raised = self._raised(conn, changes, changed, change)
            self._tell_new_trouble(conn, changes, ticket, changed, now)
            return raised

        return work

    async def observe(self, health: WorkerHealth) -> None:
        """
        Let a worker's findings, or its end, act on the tickets it has; call it whenever they changed.

        A finding that is new, worse or back is a report. When none is left, the hold begins; a worker
        that has ended and could not be brought back keeps its ticket. Nothing is opened here: that is the
        judge's part.
        """
        key = (health.vitals.agent_id, health.vitals.session_id)
        if key not in self._by_worker:
            return
        now = self._clock()
        findings = rules.reasons(health)
        unknown = health.vitals.status is SessionStatus.UNKNOWN
        reason = "nothing was heard of the worker any more" if unknown else "the worker ended"

        def work(conn: Connection, changes: _Changes) -> None:
            live = table.live_tickets_of_worker(conn, *key)
            taken = False
            for ticket in sorted(live, key=lambda t: not t.is_open):
                # What a run that completes has ended is over once that has held, as any other trouble.
                ended = (
                    health.vitals.ended
                    and ticket.kind is not FindingKind.RUNS_FAILED
                    and not rules.own_findings(ticket, findings)
                )
                if ended or rules.is_of_life_before(ticket, health):
                    why = reason if ended else "the worker has begun another life"
                    self._close(conn, changes, lifecycle.worker_ended(ticket, now=now, reason=why))
                else:
                    taken = self._look(conn, changes, ticket, health, findings, now, taken=taken) or taken

        await self._commit(work)

    async def worker_renamed(self, old: WorkerKey, new: WorkerKey) -> None:
        """Close the tickets of a worker that has another name now; under that, its trouble is found anew."""
        if old not in self._by_worker:
            return
        now, reason = self._clock(), f"its name is {new[0]!r} now, session {new[1]!r}"

        def work(conn: Connection, changes: _Changes) -> None:
            for ticket in table.live_tickets_of_worker(conn, *old):
                self._close(conn, changes, lifecycle.worker_ended(ticket, now=now, reason=reason))

        await self._commit(work)

    async def settle(self, now: float, *, but: Collection[str] = ()) -> list[EscalationTicket]:
        """
        Do what is due: close the tickets whose condition has been gone for the hold, and return them.

        And bring up again those that the operator was told of and nobody acknowledged. What was due several
        times while nobody looked (a restart) is brought up once.

        Args:
            now: Seconds since the epoch.
            but: Tickets to leave as they are.
        """
        while self._deadlines and self._deadlines[0][0] <= now:
            self._take_first_deadline()
        due = [
            ticket_id
            for ticket_id in self._reached
            if (at := self._due(self._live[ticket_id])) is not None and at <= now and ticket_id not in but
        ]
        due.sort(key=lambda ticket_id: (self._live[ticket_id].first_seen, ticket_id))
        closed: list[EscalationTicket] = []
        for first in range(0, len(due), _SETTLED_AT_ONCE):
            closed += await self._settle(due[first : first + _SETTLED_AT_ONCE], now)
        return closed

    async def _settle(self, due: Collection[str], now: float) -> list[EscalationTicket]:
        """Do in one transaction what is due on these tickets; return those that closed."""

        def work(conn: Connection, changes: _Changes) -> list[EscalationTicket]:
            closed = []
            for ticket_id in due:
                ticket = table.find_ticket(conn, ticket_id)
                if ticket is None or not ticket.live:
                    continue
                settled = lifecycle.settle(ticket, now=now, hold=self._hold)
                if not settled.live:
                    self._close(conn, changes, settled)
                    closed.append(settled)
                elif (at := self._remind_at(ticket)) is not None and at <= now:
                    self._remind(conn, changes, ticket, now)
            return closed

        return await self._commit(work)

    async def bring_up(self, ticket_id: str, *, since: float) -> None:
        """
        Tell people of a ticket again, as there is something for them to decide or do; once.

        Whoever was told at ``since`` or later is not told again, nor is whoever has acknowledged it: they
        read it on the ticket.

        Args:
            ticket_id: A ticket that people were told of.
            since: From when on there is that, in seconds since the epoch.

        Raises:
            StoreError: It could not be stored; nobody was told.
        """
        now = self._clock()

        def work(conn: Connection, changes: _Changes) -> None:
            ticket = table.find_ticket(conn, ticket_id)
            if ticket is None or not ticket.live:
                return
            if ticket.status is TicketStatus.INTERVENING and (ticket.bumped_at or 0.0) < since:
                self._remind(conn, changes, ticket, now, is_request=True)
            else:
                self._tell(conn, ticket)

        await self._commit(work)

    def _schedule(self, ticket: EscalationTicket) -> None:
        """Note when ``settle`` looks at a ticket next; a silence may only put off what it does then."""
        self._reached.discard(ticket.ticket_id)
        at = lifecycle.hold_ends(ticket, self._hold) if ticket.live else None
        if at is None and ticket.live:
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
        """Return when ``settle`` has something to do; of a ticket in its hold nobody is reminded."""
        ends = lifecycle.hold_ends(ticket, self._hold)
        return self._remind_at(ticket) if ends is None else ends

    def _remind_at(self, ticket: EscalationTicket) -> float | None:
        at = lifecycle.remind_at(ticket, after=self._remind_after, most=self._remind_most)
        if at is None or self._silenced_until is None:
            return at
        # A reminder that nobody hears is none: it is due when the silence ends.
        until = self._silenced_until(ticket.ticket_id)
        return at if until is None else max(at, until)

    # -- what the queen and the operator decide -----------------------------------------------------

    async def dismiss(
        self, ticket_id: str, reason: str, *, by: str = "queen", recovered: bool = False
    ) -> EscalationTicket:
        """
        Decide that nobody need be told. What is high or critical and still holds cannot be dismissed.

        Args:
            ticket_id: The ticket.
            reason: Why.
            by: Who decided.
            recovered: The worker was looked at again, and its condition is gone.

        Raises:
            TicketRejectedError: There is no reason given.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.dismiss``.
        """
        reason = _said("reason", reason)
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
        Decide that an operator must know; again, on a ticket that one knows of, to say anew what about it.

        Args:
            ticket_id: The ticket.
            analysis: What the operator is told.
            urgency: How soon.
            by: Who decided.
            untriaged: Triage did not answer in time, and this goes past it.
            graph_id: The graph where the operator can talk to the queen.
            stream_id: And the stream in it.
            model: Who wrote the analysis.

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
        Do what ``intervene`` does for many tickets, in one transaction; return those that it was done for.

        Raises:
            TicketRejectedError: Analysis or urgency is empty.
            StoreError: It could not be stored; then nothing has changed.
        """
        works = [self._intervention(decision, graph_id, stream_id) for decision in decisions]

        def work(conn: Connection, changes: _Changes) -> list[EscalationTicket]:
            changed = []
            for one in works:
                # A ticket that was decided on meanwhile is left as it is.
                with contextlib.suppress(TicketNotFoundError, TicketClosedError, TicketStatusError):
                    changed.append(one(conn, changes))
            return changed

        return await self._commit(work)

    def _intervention(self, given: Decision, graph_id: str, stream_id: str) -> _Work[EscalationTicket]:
        """Return what writes a decision for the operator into a transaction."""
        analysis = _said("analysis", given.analysis)
        urgency = _said("urgency", given.urgency)
        now = self._clock()

        def work(conn: Connection, changes: _Changes) -> EscalationTicket:
            def change(ticket: EscalationTicket) -> tuple[EscalationTicket, list[AgentEvent]]:
                changed = lifecycle.intervene(
                    ticket,
                    analysis=analysis,
                    urgency=urgency,
                    by=given.by,
                    now=now,
                    untriaged=given.untriaged,
                )
                changed = changed.model_copy(update={"queen_model": given.model})
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
                    "untriaged": given.untriaged,
                }
                return changed, [
                    self._event(changed, EventType.TICKET_TRIAGED, triaged),
                    self._event(changed, EventType.QUEEN_INTERVENTION_REQUESTED, requested),
                    *joined,
                ]

            return self._decision(given.ticket_id, change, tell=True)(conn, changes)

        return work

    def _join(
        self, conn: Connection, ticket: EscalationTicket, now: float
    ) -> tuple[EscalationTicket, list[AgentEvent]]:
        """Let a ticket join an earlier one's incident, if it does, and be in the hand of whoever has that."""
        earlier = self._find_joined(conn, ticket)
        if earlier is None:
            return ticket, []
        joined = lifecycle.join(ticket, earlier)
        if not earlier.acknowledged_by:
            return joined, []
        note = f"the same incident as ticket {earlier.ticket_id}"
        return self._acknowledgement(
            joined, earlier.acknowledged_by, earlier.acknowledged_via or Way.API, note, now
        )

    async def acknowledge(
        self, ticket_id: str, *, by: str, via: Way = Way.API, note: str = ""
    ) -> EscalationTicket:
        """
        Note that an operator is on it, by whatever way it was said: nobody is reminded of it any more.

        Args:
            ticket_id: The ticket.
            by: Who.
            via: By what way.
            note: What was said besides.

        Raises:
            TicketRejectedError: Nobody is named.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.acknowledge``.
        """
        by, note = _said("by", by), redact(note.strip(), _TEXT_LIMIT)
        now = self._clock()

        def change(ticket: EscalationTicket) -> tuple[EscalationTicket, list[AgentEvent]]:
            return self._acknowledgement(ticket, by, via, note, now)

        return await self._decide(ticket_id, change, tell=False)

    async def resolve_incident(
        self, ticket_id: str, *, by: str, via: Way, note: str = ""
    ) -> EscalationTicket:
        """
        Note that a person has closed the incident of a ticket that only its condition can end.

        Args:
            ticket_id: The ticket.
            by: Who.
            via: By what way.
            note: What the ticket says of it.

        Raises:
            TicketRejectedError: Nobody is named.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See
                ``ticket_lifecycle.resolve_incident``.
        """
        by, note = _said("by", by), redact(note.strip(), _TEXT_LIMIT)
        now = self._clock()

        def change(ticket: EscalationTicket) -> tuple[EscalationTicket, list[AgentEvent]]:
            changed = lifecycle.resolve_incident(ticket, by=by, now=now, via=via, note=note)
            has_it_already = ticket.status is TicketStatus.ACKNOWLEDGED
            return changed, [] if has_it_already else [self._acknowledged(changed, by, via, note)]

        return await self._decide(ticket_id, change, tell=False)

    async def take_ended(
        self, ticket_id: str, *, by: str, via: Way, note: str = "", is_resolved: bool = False
    ) -> EscalationTicket:
        """
        Note that a person has the incident of a ticket that has ended, or has resolved it.

        Args:
            ticket_id: A ticket that has ended and whose alert is held open.
            by: Who.
            via: By what way.
            note: What the ticket says of it.
            is_resolved: Whether nothing may join the incident any more; its alert ends.

        Raises:
            TicketRejectedError: Nobody is named.
            TicketNotFoundError: See ``find``.
        """
        by, note = _said("by", by), redact(note.strip(), _TEXT_LIMIT)
        now = self._clock()

        def change(ticket: EscalationTicket) -> tuple[EscalationTicket, list[AgentEvent]]:
            changed = lifecycle.take_ended(
                ticket, by=by, now=now, via=via, note=note, is_resolved=is_resolved
            )
            return changed, [] if ticket.acknowledged_by else [self._acknowledged(changed, by, via, note)]

        return await self._decide(ticket_id, change, tell=is_resolved)

    def _acknowledgement(
        self, ticket: EscalationTicket, by: str, via: Way, note: str, now: float
    ) -> tuple[EscalationTicket, list[AgentEvent]]:
        changed = lifecycle.acknowledge(ticket, by=by, now=now, via=via, note=note)
        return changed, [self._acknowledged(changed, by, via, note)]

    def _acknowledged(self, ticket: EscalationTicket, by: str, via: Way, note: str) -> AgentEvent:
        data = {"ticket_id": ticket.ticket_id, "by": by, "via": via.value} | ({"note": note} if note else {})
        return self._event(ticket, EventType.TICKET_ACKNOWLEDGED, data)

    async def unacknowledge(
        self, ticket_id: str, *, by: str, via: Way = Way.API, only_via: Way | None = None
    ) -> EscalationTicket:
        """
        Note that nobody is on it any more: reminders count anew, and what triage has not seen it sees.

        Args:
            ticket_id: The ticket.
            by: Who says so.
            via: By what way.
            only_via: Undo only what was acknowledged by this way.

        Raises:
            TicketRejectedError: Nobody is named.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.unacknowledge``;
                or it was acknowledged by another way than ``only_via``.
        """
        by = _said("by", by)
        now = self._clock()

        def change(ticket: EscalationTicket) -> tuple[EscalationTicket, list[AgentEvent]]:
            changed = lifecycle.unacknowledge(ticket, now=now)
            if only_via not in (None, ticket.acknowledged_via):
                has = f"{ticket.acknowledged_by} has it, and did not say so by {only_via}"
                raise TicketStatusError(ticket, "unacknowledge", has)
            data = {"ticket_id": ticket_id, "by": by, "via": via.value, "was": ticket.acknowledged_by}
            events = [self._event(changed, EventType.TICKET_UNACKNOWLEDGED, data)]
            if changed.status is TicketStatus.OPEN:
                # By this the queen hears of what waits for her.
                back = {"ticket": changed.model_dump(mode="json"), "change": "reopened"}
                events.append(self._event(changed, EventType.WORKER_ESCALATION_TICKET, back))
            return changed, events

        return await self._decide(ticket_id, change, tell=True)

    async def resolve(self, ticket_id: str, reason: str, *, by: str) -> EscalationTicket:
        """
        Close a ticket about a failed recovery, failed runs or a dead worker: a person has settled it.

        A worker that is dead is over with that, until it is heard of again.

        Raises:
            TicketRejectedError: No reason is given, or nobody is named.
            TicketNotFoundError, TicketClosedError, TicketStatusError: See ``ticket_lifecycle.resolve``.
        """
        reason, by = _said("reason", reason), _said("by", by)
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
        """Return whether a live ticket is about a worker that is gone, and about no work that it has left."""
        return self.can_be_resolved(ticket) and not lifecycle.is_about_work(ticket)

    def _worker_dead_from(self, ticket: EscalationTicket) -> float | None:
        return self._dead_from((ticket.worker_agent_id, ticket.worker_session_id))

    def can_be_resolved(self, ticket: EscalationTicket) -> bool:
        """Return whether a ticket ends by a person's word alone."""
        dead_from = self._worker_dead_from(ticket)
        return lifecycle.can_be_resolved(ticket, now=self._clock(), dead_from=dead_from)

    # -- one transaction ----------------------------------------------------------------------------

    async def _commit(self, work: _Work[T]) -> T:
        """Run ``work`` in a transaction with its events; then remember and fan out."""

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

        # A caller that gives up half-way (a judge past its time) must not keep what was committed untold.
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
                self._tell(conn, changed)
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
            self._tell(conn, ticket)
        return Raised(ticket, change)

    def _look(
        self,
        conn: Connection,
        changes: _Changes,
        ticket: EscalationTicket,
        health: WorkerHealth,
        findings: Sequence[Finding],
        now: float,
        *,
        taken: bool,
    ) -> bool:
        """Let findings act on one live ticket; return whether it is open now. ``taken``: another one is."""
        looked, change = rules.look(ticket, findings, now, taken=taken)
        if looked is not ticket:
            if change != "counted" or looked.occurrences != ticket.occurrences:
                looked = looked.model_copy(update=rules.seen(health, looked, findings))
                looked = _with_spending(conn, looked)
            table.update_ticket(conn, looked)
            self._raised(conn, changes, looked, change)
            self._tell_new_trouble(conn, changes, ticket, looked, now)
        return looked.is_open

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
        self._tell(conn, ticket)

    def _tell_new_trouble(
        self,
        conn: Connection,
        changes: _Changes,
        before: EscalationTicket,
        ticket: EscalationTicket,
        now: float,
    ) -> None:
        """Bring up a ticket about failed runs once if its session comes into other trouble."""
        if not rules.has_new_trouble(before, ticket):
            return
        if ticket.status is TicketStatus.INTERVENING:
            self._remind(conn, changes, ticket, now, is_request=True)
        else:
            self._tell(conn, ticket)

    def _remind(
        self,
        conn: Connection,
        changes: _Changes,
        before: EscalationTicket,
        now: float,
        *,
        is_request: bool = False,
    ) -> None:
        """Bring a ticket up again; those of its incident that were brought up with it are so again."""
        ticket = lifecycle.remind(before, now=now, is_request=is_request)
        others = table.live_tickets(conn, agent_id=before.worker_agent_id)
        reminded = [other for other in others if lifecycle.is_reminded_with(before, other)]
        rest = (lifecycle.remind(other, now=now, is_request=is_request) for other in reminded)
        for one in (ticket, *rest):
            table.update_ticket(conn, one)
            changes.tickets.append(one)
        data = {
            "ticket_id": ticket.ticket_id,
            "reminder": ticket.reminders,
            "is_request": is_request,
            "severity": ticket.severity.value,
            "unacknowledged_seconds": now - (ticket.incident_since or ticket.notified_at or now),
        }
        changes.events.append(self._event(ticket, EventType.TICKET_REESCALATED, data))
        self._tell(conn, ticket)

    def _tell(self, conn: Connection, ticket: EscalationTicket) -> None:
        """Let the outside hear of a ticket, if it has ever heard of it."""
        if self._on_change is not None and ticket.notified_severity is not None:
            self._on_change(conn, ticket)

    def _event(self, ticket: EscalationTicket, event_type: EventType, data: dict[str, Any]) -> AgentEvent:
        return AgentEvent(
            id=self._ids(),
            type=event_type,
            time=ticket.updated_at,
            agent_id=ticket.worker_agent_id,
            session_id=ticket.worker_session_id,
            incarnation_id=ticket.incarnation_id,
            graph_id=ticket.worker_graph_id,
            node_id=ticket.worker_node_id,
            trace_id=ticket.trace_id,
            span_id=ticket.span_id,
            data=data,
        )

    def _remember(self, ticket: EscalationTicket) -> None:
        key = (ticket.worker_agent_id, ticket.worker_session_id)
        self._schedule(ticket)
        if ticket.live:
            self._live[ticket.ticket_id] = ticket
            self._by_worker.setdefault(key, set()).add(ticket.ticket_id)
            return
        self._live.pop(ticket.ticket_id, None)
        if (ids := self._by_worker.get(key)) is not None:
            ids.discard(ticket.ticket_id)
            if not ids:
                del self._by_worker[key]
        self._closed[ticket.ticket_id] = ticket
        if len(self._closed) > _REMEMBERED_CLOSED:
            self._closed.popitem(last=False)


def _said(name: str, text: str) -> str:
    """Return a text that somebody gave for the record, without secrets."""
    said = redact(text.strip(), _LONG_TEXT_LIMIT)
    if not said:
        raise TicketRejectedError(f"{name}: must not be empty")
    return said
