"""
Approvals: what the queen wants done to a worker and a person has to allow, durably.

A request is on the disk before anybody is asked, and an answer before anything is done. What was approved is
done once: the termination's id is part of the answer, so a restart in between finds out whether it was begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from sqlalchemy import Connection

from queenright.health.event_log import append_events
from queenright.health.findings import FindingKind
from queenright.health.interventions import approvals_record as record
from queenright.health.interventions import messages
from queenright.health.interventions.approvals_record import Approval, ApprovalStatus, over
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.interventions.record import Intervention, Outcome, find_intervention
from queenright.health.interventions.target import ActionKind
from queenright.health.keyset import Place
from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.store import Store, StoreError
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, Clock, EventType

_log = logging.getLogger(__name__)

_MOST: Final = 10_000
_RETRY_SECONDS: Final = 5.0

Change = Callable[[Connection, Approval], None]
Unless = Callable[[WorkerHealth], str | None]


class Terminate(Protocol):
    """Stops a worker: ``InterventionService.terminate``."""

    def __call__(
        self,
        agent_id: str,
        reason: str,
        *,
        session_id: str,
        incarnation_id: str,
        by: str,
        intervention_id: str,
        unless: Unless,
    ) -> Awaitable[Intervention]:
        """Stop it, unless something speaks against it; see there."""
        ...


class ApprovalNotFoundError(QueenrightError):
    """Raised when no request has this id."""

    def __init__(self, approval_id: str) -> None:
        super().__init__(
            f"there is no approval {approval_id[:64]!r}; queenright approvals shows what waits for one"
        )


class ApprovalClosedError(QueenrightError):
    """Raised when a request is answered that needs no answer any more."""

    def __init__(self, approval: Approval) -> None:
        answered = approval.status in (ApprovalStatus.APPROVED, ApprovalStatus.DENIED)
        by = f" by {approval.decided_by}" if answered else ""
        why = f": {approval.decision_reason}" if approval.decision_reason else ""
        super().__init__(f"approval {approval.approval_id} is {approval.status.value}{by}{why}")


class Approvals:
    """
    All requests of one store. Belongs to one event loop.

    Args:
        store: Where they are kept.
        timeout: A request, or what was approved and could not be done, comes to nothing after so many
            seconds.
        monitor: Knows the workers.
        terminate: Does what was approved.
        stopped: Says why nothing may be done to anybody, or None.
        clock: Seconds since the epoch.
        publish: Is given events once they are durable.
        ids: Makes ids.
        on_change: Is called in the transaction of every change, for what the outside hears of it; it must
            only use the connection it is given.
    """

    def __init__(
        self,
        store: Store,
        *,
        timeout: float,
        monitor: HealthMonitor,
        terminate: Terminate,
        stopped: Callable[[], str | None],
        clock: Clock,
        publish: Callable[..., None],
        ids: Callable[[], str] = new_id,
        on_change: Change = lambda conn, approval: None,
    ) -> None:
        self._store = store
        self._timeout = timeout
        self._monitor = monitor
        self._terminate = terminate
        self._stopped = stopped
        self._clock = clock
        self._publish = publish
        self._ids = ids
        self.on_change = on_change
        self._open: dict[str, Approval] = {}
        self._doing: set[str] = set()
        self._retry_at: dict[str, float] = {}
        self._running: set[asyncio.Task[Any]] = set()

    # -- life ---------------------------------------------------------------------------------------

    async def load(self) -> None:
        """
        Know again what waits, after the interventions do; what was begun before a restart is not begun again.

        What was approved and not begun is done by ``advance``, if it may still be.
        """

        def read(conn: Connection) -> list[tuple[Approval, Intervention | None]]:
            found = record.read_approvals(conn, limit=_MOST, only_open=True)
            return [(one, find_intervention(conn, one.intervention_id)) for one in found]

        for one, begun in await self._store.read(read):
            self._open[one.approval_id] = one
            if begun is not None:
                await self._done(one, begun.outcome, begun.detail)

    async def close(self) -> None:
        """Leave off; what was approved is gone on with after the next start."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settled(self) -> None:
        """Wait until everything that was begun is done."""
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)

    # -- asking and answering -----------------------------------------------------------------------

    async def request(
        self, worker: WorkerHealth, *, ticket_id: str, reason: str, by: str, ordered_by: str = ""
    ) -> Approval:
        """
        Ask whether a worker may be stopped. It is on the disk on return.

        Args:
            worker: Whom it is about, as it is now.
            ticket_id: Why somebody looks at it.
            reason: Why to stop it.
            by: Who asks; nobody of this name may approve it.
            ordered_by: The person whose order ``by`` carries out, if there is one. They may approve it: they
                could stop the worker themselves, too.

        Raises:
            ActionRefusedError: It is asked already, or somebody has said no within the last time-out; or it
                is plain now that it must not be.
            StoreError: It could not be written down; nobody was asked.
        """
        v, now = worker.vitals, self._clock()
        one = Approval(
            approval_id=self._ids(),
            ticket_id=ticket_id,
            agent_id=v.agent_id,
            session_id=v.session_id,
            incarnation_id=v.incarnation_id,
            reason=redact(reason, 1000),
            asked_by=redact(by, 100),
            ordered_by=redact(ordered_by, 100) if ordered_by else "",
            created_at=now,
            expires_at=now + self._timeout,
            progress_before=v.last_progress,
        )
        if (no := self._stopped() or over(one, worker) or _of_no_use(worker)) is not None:
            raise ActionRefusedError(ActionKind.TERMINATE, one.agent_id, no)

        def ask(conn: Connection) -> list[Approval]:
            known = record.latest_about(conn, one.agent_id, one.session_id)
            written = [one]
            if known is not None and known.target == one.target:
                if (no := self._refusal(known, now)) is not None:
                    raise ActionRefusedError(ActionKind.TERMINATE, one.agent_id, no)
            elif known is not None and known.is_open:
                # Before the new one: at most one of a session is open.
                written.insert(0, _closed(known, ApprovalStatus.VOID, "it was restarted meanwhile", now))
            return written

        await self._commit(ask)
        return one

    def _refusal(self, known: Approval, now: float) -> str | None:
        if known.asks:
            return f"an operator is asked already (approval {known.approval_id}); wait for the answer"
        if known.is_open:
            return f"{known.decided_by} has approved it; it is being stopped"
        if known.status is ApprovalStatus.DENIED and known.decided_at is not None:
            left = known.decided_at + self._timeout - now
            if left > 0:
                why = f": {known.decision_reason}" if known.decision_reason else ""
                again = f"ask again in {messages.duration(left)} at the soonest"
                return f"{known.decided_by} has denied it{why}; {again}"
        return None

    async def approve(self, approval_id: str, *, by: str, reason: str = "") -> Approval:
        """
        Allow it, and do it; everything is looked at again first, and a request that is over becomes void.

        Args:
            approval_id: Which.
            by: Who allows it; not whoever asked.
            reason: Why, if there is more to say.

        Returns:
            The request with the ``outcome`` of the termination.

        Raises:
            ApprovalNotFoundError: There is none of this id.
            ApprovalClosedError: It has been answered, its time is over, or it is void: the error says why.
            ActionRefusedError: Nobody may be stopped now; the request still waits.
            StoreError: It could not be written down; an answer that was is carried out later.
        """
        one = await self._asked(approval_id)
        if by.strip().casefold() == one.asked_by.casefold():
            raise ActionRefusedError(
                ActionKind.TERMINATE, one.agent_id, f"{by} has asked for it; somebody else approves"
            )
        if (frozen := self._stopped()) is not None:
            raise ActionRefusedError(ActionKind.TERMINATE, one.agent_id, frozen)
        if (gone := over(one, self._monitor.get(*one.target.key))) is not None:
            raise ApprovalClosedError(await self._close(one, ApprovalStatus.VOID, gone))
        approved = await self._close(one, ApprovalStatus.APPROVED, reason, by=by, intervention_id=self._ids())
        return await asyncio.shield(self._start(self._carry_out(approved)))

    async def deny(self, approval_id: str, *, by: str, reason: str = "") -> Approval:
        """
        Say no. For as long as a request lives it is not asked again.

        Raises:
            ApprovalNotFoundError, ApprovalClosedError, StoreError: See ``approve``.
        """
        return await self._close(await self._asked(approval_id), ApprovalStatus.DENIED, reason, by=by)

    async def _asked(self, approval_id: str) -> Approval:
        one = self._open.get(approval_id) or await self.find(approval_id)
        if one is None:
            raise ApprovalNotFoundError(approval_id)
        if one.asks and one.expires_at <= self._clock():
            one = await self._close(one, ApprovalStatus.EXPIRED, "nobody answered in time")
        if not one.asks:
            raise ApprovalClosedError(one)
        return one

    # -- reading ------------------------------------------------------------------------------------

    def pending(self) -> list[Approval]:
        """Return what waits for somebody's word, oldest first."""
        return sorted((one for one in self._open.values() if one.asks), key=lambda one: one.created_at)

    async def find(self, approval_id: str) -> Approval | None:
        """Return one request, however old, or None."""
        return await self._store.read(lambda conn: record.find_approval(conn, approval_id))

    async def history(
        self, *, limit: int, only_open: bool = False, before: Place | None = None
    ) -> list[Approval]:
        """Return the newest requests, newest first; with ``before`` the next page."""
        return list(
            await self._store.read(
                lambda conn: record.read_approvals(conn, limit=limit, only_open=only_open, before=before)
            )
        )

    # -- time and events ----------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when ``advance`` has something to do; None if time alone brings nothing."""
        return min((self._due(one) for one in self._open.values() if self._idle(one)), default=None)

    def _due(self, one: Approval) -> float:
        return one.expires_at if one.asks else self._retry_at.get(one.approval_id, 0.0)

    def _idle(self, one: Approval) -> bool:
        return one.approval_id not in self._doing

    async def advance(self, now: float, *, begin: bool = True) -> None:
        """
        End what is over, and begin what was approved and could not be done at once.

        Args:
            now: Seconds since the epoch.
            begin: False while nothing is to be done to anybody: after a start, or a clock that jumped.
        """
        for one in [one for one in self._open.values() if self._idle(one)]:
            # So soon after a start nobody has been heard yet.
            gone = over(one, self._monitor.get(*one.target.key)) if begin else None
            if one.asks and one.expires_at <= now:
                await self._let_go(one, ApprovalStatus.EXPIRED, "nobody answered in time")
            elif one.asks and gone is not None:
                await self._let_go(one, ApprovalStatus.VOID, gone)
            elif not one.asks and (one.decided_at or 0.0) + self._timeout <= now:
                await self._let_go(one, ApprovalStatus.VOID, "it could not be done in time")
            elif not one.asks and begin and self._due(one) <= now:
                self._retry_at[one.approval_id] = now + _RETRY_SECONDS
                if self._stopped() is None:
                    self._doing.add(one.approval_id)
                    self._start(self._go_on(one))

    async def observe(self, worker: WorkerHealth) -> None:
        """Let a worker that changed act on what was asked about it."""
        for one in [one for one in self._open.values() if one.asks and one.target.key == worker.key]:
            if (gone := over(one, worker)) is not None:
                await self._let_go(one, ApprovalStatus.VOID, gone)

    async def ticket_closed(self, ticket_id: str, reason: str) -> None:
        """Let go of what was asked about a ticket that needs nobody any more."""
        for one in [one for one in self._open.values() if one.asks and one.ticket_id == ticket_id]:
            await self._let_go(one, ApprovalStatus.VOID, reason)

    async def _let_go(self, one: Approval, status: ApprovalStatus, reason: str) -> None:
        with contextlib.suppress(ApprovalClosedError):  # somebody was quicker
            await self._close(one, status, reason)

    # -- doing --------------------------------------------------------------------------------------

    async def _go_on(self, one: Approval) -> None:
        """Do what was approved before, unless it was begun then; nobody waits for it."""
        try:
            begun = await self._store.read(lambda conn: find_intervention(conn, one.intervention_id))
            if begun is not None:
                await self._done(one, begun.outcome, begun.detail)
            else:
                await self._carry_out(one)
        except (ActionRefusedError, ApprovalClosedError) as error:
            _log.info("the approved termination of %s is not done: %s", one.target, error)
        except Exception as error:
            _log.error("the termination of %s failed, and is tried again: %s", one.target, redact(str(error)))
        finally:
            self._doing.discard(one.approval_id)

    async def _carry_out(self, one: Approval) -> Approval:
        self._doing.add(one.approval_id)
        self._retry_at[one.approval_id] = self._clock() + _RETRY_SECONDS
        try:
            done = await self._terminate(
                one.agent_id,
                _why(one),
                session_id=one.session_id,
                incarnation_id=one.incarnation_id,
                by=one.decided_by,
                intervention_id=one.intervention_id,
                unless=lambda worker: over(one, worker),
            )
        except StoreError:
            raise  # what is written down is not known to be undone: it is looked at again
        except QueenrightError as refusal:
            if self._stopped() is not None:
                raise  # frozen meanwhile: it waits for its release, or the end of its time
            why = refusal.reason if isinstance(refusal, ActionRefusedError) else str(refusal)
            raise ApprovalClosedError(await self._close(one, ApprovalStatus.VOID, why)) from refusal
        finally:
            self._doing.discard(one.approval_id)
        return await self._done(one, done.outcome, done.detail)

    async def _done(self, one: Approval, outcome: Outcome, detail: str) -> Approval:
        done = one.model_copy(update={"outcome": outcome, "detail": detail})
        await self._commit(lambda conn: [done])
        return done

    # -- writing down -------------------------------------------------------------------------------

    async def _close(
        self, one: Approval, status: ApprovalStatus, reason: str, *, by: str = "", **more: Any
    ) -> Approval:
        now = self._clock()

        def close(conn: Connection) -> list[Approval]:
            current = record.find_approval(conn, one.approval_id) or one
            if current.status is not one.status or not current.is_open:
                raise ApprovalClosedError(current)  # somebody was quicker
            return [_closed(current, status, reason, now, by=by, **more)]

        [closed] = await self._commit(close)
        return closed

    async def _commit(self, work: Callable[[Connection], list[Approval]]) -> list[Approval]:
        """Write requests, each with its event, in one transaction; then remember and say it."""

        async def commit() -> list[Approval]:
            events: list[AgentEvent] = []

            def transaction(conn: Connection) -> list[Approval]:
                written = work(conn)
                for one in written:
                    record.write_approval(conn, one)
                    self.on_change(conn, one)
                events[:] = [event for one in written if (event := self._event(one)) is not None]
                append_events(conn, events)
                return written

            written = await self._store.transact(transaction)
            for one in written:
                self._remember(one)
            self._publish(*events)
            return written

        # A caller that is cancelled half-way must not leave what was committed unsaid.
        return await asyncio.shield(self._start(commit()))

    def _remember(self, one: Approval) -> None:
        if one.is_open:
            self._open[one.approval_id] = one
            if not one.asks:
                # Whoever approved it begins it; only if that comes to nothing does ``advance``.
                self._retry_at.setdefault(one.approval_id, self._clock() + _RETRY_SECONDS)
        else:
            self._open.pop(one.approval_id, None)
            self._retry_at.pop(one.approval_id, None)

    def _event(self, one: Approval) -> AgentEvent | None:
        if one.outcome is not None:
            return None  # the termination says itself what became of it
        said: dict[str, Any] = {"approval_id": one.approval_id, "ticket_id": one.ticket_id}
        if one.asks:
            type_ = EventType.TERMINATION_REQUESTED
            by = record.by_whom(one.asked_by, one.ordered_by)
            said |= {"reason": one.reason, "by": by, "expires_at": one.expires_at}
        else:
            type_ = EventType.TERMINATION_DECIDED
            said |= {"status": one.status.value, "by": one.decided_by, "reason": one.decision_reason}
        worker = self._monitor.get(*one.target.key)
        return messages.event_about(type_, one, worker, self._clock(), said)

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


def _of_no_use(worker: WorkerHealth) -> str | None:
    if any(finding.kind is FindingKind.PROVIDER_FAILURE for finding in worker.findings):
        return "its model's provider fails: that is not its fault, and to stop it would mend nothing"
    return None


def _closed(
    one: Approval, status: ApprovalStatus, reason: str, now: float, *, by: str = "", **more: Any
) -> Approval:
    # Of what was approved it stays to be seen who did, whatever became of it.
    said = {"decided_by": redact(by, 100)} if by else {}
    update = {"status": status, "decided_at": now, "decision_reason": redact(reason, 1000)}
    return one.model_copy(update=update | said | more)


def _why(one: Approval) -> str:
    added = f" ({one.decision_reason})" if one.decision_reason else ""
    asked = record.by_whom(one.asked_by, one.ordered_by)
    return f"{one.reason} Asked for by the {asked}, approved by {one.decided_by}{added}."
