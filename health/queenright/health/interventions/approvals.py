"""
Durable approval requests: terminations that a person must allow.

A request is stored before it is published, and an answer before it takes effect. An approved termination runs
only once: its id is stored with the answer, so that the service knows after a restart whether it had started.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sqlalchemy import Connection

from queenright.health.action_kind import ActionKind
from queenright.health.findings import FindingKind
from queenright.health.interventions import messages
from queenright.health.interventions.approval import (
    Approval,
    ApprovalStatus,
    approval_table,
    describe_requester,
    latest_about,
    void_reason,
)
from queenright.health.interventions.intervention import Intervention, InterventionOutcome, intervention_table
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.interventions.target import Target
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.store.event_log import append_events
from queenright.health.store.rows import Place
from queenright.health.store.store import Store, StoreError
from queenright.instrumentation.errors import ConflictError, NotFoundError, QueenrightError
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.sentences import sentence
from queenright.runtime.deadline import TaskSet
from queenright.runtime.events import AgentEvent, Clock, EventType

_log = logging.getLogger(__name__)

_MAX_LOADED: Final = 10_000
_RETRY_SECONDS: Final = 5.0

ApprovalChange = Callable[[Connection, Approval], None]


Terminate = Callable[..., Awaitable[Intervention]]
"""Terminates a worker: ``InterventionService.terminate``."""


class ApprovalNotFoundError(NotFoundError):
    """Raised when no request has this id."""

    def __init__(self, approval_id: str) -> None:
        super().__init__(f"there is no approval {approval_id[:64]!r}; list them: queenright approvals")


class ApprovalClosedError(ConflictError):
    """Raised when a request that is no longer pending is answered."""

    def __init__(self, approval: Approval) -> None:
        is_answered = approval.status in (ApprovalStatus.APPROVED, ApprovalStatus.DENIED)
        by = f" by {approval.decided_by}" if is_answered else ""
        reason = f": {approval.decision_reason}" if approval.decision_reason else ""
        super().__init__(f"approval {approval.approval_id} is {approval.status.value}{by}{reason}")


class Approvals:
    """
    All approval requests of one store. It belongs to one event loop.

    Args:
        timeout: The seconds after which a request expires, or an approved termination that could not begin
            becomes void.
        stop_reason: Returns why all actions are stopped, or None.
        on_change: Called in the transaction of every change, for notifications. It must use only the
            connection that it gets.
    """

    def __init__(
        self,
        store: Store,
        *,
        timeout: float = 1800.0,
        monitor: HealthMonitor,
        terminate: Terminate,
        stop_reason: Callable[[], str | None],
        clock: Clock,
        publish: Callable[..., None],
        ids: Callable[[], str] = new_id,
        on_change: ApprovalChange = lambda conn, approval: None,
    ) -> None:
        self._store = store
        self._timeout = timeout
        self._monitor = monitor
        self._terminate = terminate
        self._stop_reason = stop_reason
        self._clock = clock
        self._publish = publish
        self._ids = ids
        self.on_change = on_change
        self._open: dict[str, Approval] = {}
        self._in_progress: set[str] = set()
        self._retry_at: dict[str, float] = {}
        self._tasks = TaskSet()

    # -- start and stop -----------------------------------------------------------------------------

    async def load(self) -> None:
        """
        Load open requests. Call it after the interventions are loaded. A termination that had started is not
        started again.

        ``advance`` starts approved terminations that had not started, if they are still allowed.
        """

        def read(conn: Connection) -> list[tuple[Approval, Intervention | None]]:
            rows = approval_table.newest(conn, _MAX_LOADED, is_open=True)
            return [(row, intervention_table.find(conn, row.intervention_id)) for row in rows]

        for approval, termination in await self._store.read(read):
            self._open[approval.approval_id] = approval
            if termination is not None:
                await self._record_outcome(approval, termination.outcome, termination.detail)

    async def close(self) -> None:
        """Stop. Unfinished work resumes after the next start."""
        await self._tasks.cancel()

    async def wait_until_idle(self) -> None:
        """Wait until all work in progress is done."""
        await self._tasks.wait()

    # -- requests and answers -----------------------------------------------------------------------

    async def request(
        self, worker: WorkerHealth, *, ticket_id: str, reason: str, by: str, ordered_by: str = ""
    ) -> Approval:
        """
        Ask an operator whether to stop a worker. The request is durable on return.

        Args:
            by: The requester. A person with this name may not approve the request.
            ordered_by: The person on whose behalf ``by`` acts, if any. This person may approve the request,
                because they could also stop the worker themselves.

        Raises:
            ActionRefusedError: A request is pending, was denied within the timeout, or cannot be approved.
            StoreError: Recording failed, so no one was asked.
        """
        v, now = worker.vitals, self._clock()
        approval = Approval(
            approval_id=self._ids(),
            ticket_id=ticket_id,
            **Target.of(v)._asdict(),
            reason=redact(reason, 1000),
            asked_by=redact(by, 100),
            ordered_by=redact(ordered_by, 100) if ordered_by else "",
            created_at=now,
            expires_at=now + self._timeout,
            progress_before=v.last_progress,
        )
        if (
            objection := self._stop_reason() or void_reason(approval, worker) or _find_futility_reason(worker)
        ) is not None:
            raise ActionRefusedError(ActionKind.TERMINATE, approval.agent_id, objection)

        def ask(conn: Connection) -> list[Approval]:
            latest = latest_about(conn, approval.agent_id, approval.session_id)
            requests = [approval]
            if latest is not None and latest.target == approval.target:
                if (objection := self._find_refusal_reason(latest, now)) is not None:
                    raise ActionRefusedError(ActionKind.TERMINATE, approval.agent_id, objection)
            elif latest is not None and latest.is_open:
                # Close the old request first, because a session has at most one open request.
                requests.insert(
                    0,
                    _close_copy(latest, ApprovalStatus.VOID, "the worker was restarted in the meantime", now),
                )
            return requests

        await self._commit(ask)
        return approval

    def _find_refusal_reason(self, latest: Approval, now: float) -> str | None:
        if latest.is_pending:
            return f"approval {latest.approval_id} is pending already; wait for the answer"
        if latest.is_open:
            return f"{latest.decided_by} approved it; it is being stopped"
        if latest.status is ApprovalStatus.DENIED and latest.decided_at is not None:
            remaining = latest.decided_at + self._timeout - now
            if remaining > 0:
                reason = f": {latest.decision_reason}" if latest.decision_reason else ""
                retry = f"ask again in {messages.duration(remaining)} at the earliest"
                return f"{latest.decided_by} denied it{reason}; {retry}"
        return None

    async def approve(self, approval_id: str, *, by: str, reason: str = "") -> Approval:
        """
        Approve a request and terminate the worker. The request is checked again first, and may become void.

        Args:
            by: The approver, who must not be the requester.
            reason: The reason, if any.

        Returns:
            The request with the ``outcome`` of the termination.

        Raises:
            ApprovalNotFoundError: There is no request with this id.
            ApprovalClosedError: The request was answered, has expired or is void; the error has the reason.
            ActionRefusedError: All actions are stopped. The request stays pending.
            StoreError: Recording failed. An answer that was recorded is carried out later.
        """
        approval = await self._require_pending(approval_id)
        if by.strip().casefold() == approval.asked_by.casefold():
            raise ActionRefusedError(
                ActionKind.TERMINATE, approval.agent_id, f"{by} asked for it; somebody else must approve it"
            )
        if (stop_reason := self._stop_reason()) is not None:
            raise ActionRefusedError(ActionKind.TERMINATE, approval.agent_id, stop_reason)
        if (objection := void_reason(approval, self._monitor.find(*approval.target.key))) is not None:
            raise ApprovalClosedError(await self._close(approval, ApprovalStatus.VOID, objection))
        approval = await self._close(
            approval, ApprovalStatus.APPROVED, reason, by=by, intervention_id=self._ids()
        )
        return await self._tasks.run(self._carry_out(approval))

    async def deny(self, approval_id: str, *, by: str, reason: str = "") -> Approval:
        """
        Deny a request. No new request is made until the timeout has passed.

        Raises:
            ApprovalNotFoundError, ApprovalClosedError, StoreError: See ``approve``.
        """
        approval = await self._require_pending(approval_id)
        return await self._close(approval, ApprovalStatus.DENIED, reason, by=by)

    async def _require_pending(self, approval_id: str) -> Approval:
        approval = self._open.get(approval_id) or await self.find(approval_id)
        if approval is None:
            raise ApprovalNotFoundError(approval_id)
        if approval.is_pending and approval.expires_at <= self._clock():
            approval = await self._close(approval, ApprovalStatus.EXPIRED, "no answer in time")
        if not approval.is_pending:
            raise ApprovalClosedError(approval)
        return approval

    # -- reading ------------------------------------------------------------------------------------

    def pending(self) -> list[Approval]:
        """Return pending requests, oldest first."""
        return sorted(
            (approval for approval in self._open.values() if approval.is_pending),
            key=lambda approval: approval.created_at,
        )

    async def find(self, approval_id: str) -> Approval | None:
        """Return a request, however old, or None."""
        return await self._store.read(lambda conn: approval_table.find(conn, approval_id))

    async def find_by_prefix(self, prefix: str, limit: int) -> list[Approval]:
        """Return up to ``limit`` requests whose id begins with ``prefix``, however old, sorted by id."""
        return await self._store.read(lambda conn: approval_table.find_by_prefix(conn, prefix, limit))

    async def history(
        self, *, limit: int, only_open: bool = False, before: Place | None = None
    ) -> list[Approval]:
        """Return a page of requests, newest first. ``before`` is the cursor of the page."""
        is_open = True if only_open else None
        return await self._store.read(
            lambda conn: approval_table.newest(conn, limit, before=before, is_open=is_open)
        )

    # -- time and events ----------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when ``advance`` has work to do, or None if it has none."""
        return min(
            (self._due_at(approval) for approval in self._open.values() if self._is_idle(approval)),
            default=None,
        )

    def _due_at(self, approval: Approval) -> float:
        return approval.expires_at if approval.is_pending else self._retry_at.get(approval.approval_id, 0.0)

    def _is_idle(self, approval: Approval) -> bool:
        return approval.approval_id not in self._in_progress

    async def advance(self, now: float, *, begin: bool = True) -> None:
        """
        Close expired and void requests, and begin approved terminations that could not begin immediately.

        Args:
            begin: False while no action may begin: shortly after a start, or after the clock jumped.
        """
        for approval in [approval for approval in self._open.values() if self._is_idle(approval)]:
            # Shortly after a start, no worker has sent an event yet.
            reason = void_reason(approval, self._monitor.find(*approval.target.key)) if begin else None
            if approval.is_pending and approval.expires_at <= now:
                await self._close_if_open(approval, ApprovalStatus.EXPIRED, "no answer in time")
            elif approval.is_pending and reason is not None:
                await self._close_if_open(approval, ApprovalStatus.VOID, reason)
            elif not approval.is_pending and (approval.decided_at or 0.0) + self._timeout <= now:
                await self._close_if_open(
                    approval, ApprovalStatus.VOID, "the worker could not be terminated in time"
                )
            elif not approval.is_pending and begin and self._due_at(approval) <= now:
                self._retry_at[approval.approval_id] = now + _RETRY_SECONDS
                if self._stop_reason() is None:
                    self._in_progress.add(approval.approval_id)
                    self._tasks.start(self._resume(approval))

    async def observe(self, worker: WorkerHealth) -> None:
        """Close the requests that a change of the worker has made void."""
        for approval in [
            approval
            for approval in self._open.values()
            if approval.is_pending and approval.target.key == worker.key
        ]:
            if (reason := void_reason(approval, worker)) is not None:
                await self._close_if_open(approval, ApprovalStatus.VOID, reason)

    async def void_for_closed_ticket(self, ticket_id: str, reason: str) -> None:
        """Close the requests about a ticket that has closed."""
        for approval in [
            approval
            for approval in self._open.values()
            if approval.is_pending and approval.ticket_id == ticket_id
        ]:
            await self._close_if_open(approval, ApprovalStatus.VOID, reason)

    async def _close_if_open(self, approval: Approval, status: ApprovalStatus, reason: str) -> None:
        with contextlib.suppress(ApprovalClosedError):
            await self._close(approval, status, reason)

    # -- terminations -------------------------------------------------------------------------------

    async def _resume(self, approval: Approval) -> None:
        """Carry out an earlier approval unless its termination has started. Runs in the background."""
        try:
            termination = await self._store.read(
                lambda conn: intervention_table.find(conn, approval.intervention_id)
            )
            if termination is not None:
                await self._record_outcome(approval, termination.outcome, termination.detail)
            else:
                await self._carry_out(approval)
        except (ActionRefusedError, ApprovalClosedError) as error:
            _log.info("the approved termination of %s was not done: %s", approval.target, error)
        except Exception as error:
            _log.error(
                "the termination of %s failed and will be retried: %s", approval.target, redact(str(error))
            )
        finally:
            self._in_progress.discard(approval.approval_id)

    async def _carry_out(self, approval: Approval) -> Approval:
        self._in_progress.add(approval.approval_id)
        self._retry_at[approval.approval_id] = self._clock() + _RETRY_SECONDS
        try:
            intervention = await self._terminate(
                approval.agent_id,
                _describe_termination(approval),
                session_id=approval.session_id,
                incarnation_id=approval.incarnation_id,
                by=approval.decided_by,
                intervention_id=approval.intervention_id,
                unless=lambda worker: void_reason(approval, worker),
            )
        except StoreError:
            raise  # a recorded termination may have begun, so ``_resume`` checks it again
        except QueenrightError as refusal:
            if self._stop_reason() is not None:
                raise  # the request waits until the emergency stop is off, or expires
            reason = refusal.reason if isinstance(refusal, ActionRefusedError) else str(refusal)
            raise ApprovalClosedError(await self._close(approval, ApprovalStatus.VOID, reason)) from refusal
        finally:
            self._in_progress.discard(approval.approval_id)
        return await self._record_outcome(approval, intervention.outcome, intervention.detail)

    async def _record_outcome(
        self, approval: Approval, outcome: InterventionOutcome, detail: str
    ) -> Approval:
        approval = approval.model_copy(update={"outcome": outcome, "detail": detail})
        await self._commit(lambda conn: [approval])
        return approval

    # -- records ------------------------------------------------------------------------------------

    async def _close(
        self, approval: Approval, status: ApprovalStatus, reason: str, *, by: str = "", **fields: Any
    ) -> Approval:
        now = self._clock()

        def close(conn: Connection) -> list[Approval]:
            current = approval_table.find(conn, approval.approval_id) or approval
            if current.status is not approval.status or not current.is_open:
                raise ApprovalClosedError(current)
            return [_close_copy(current, status, reason, now, by=by, **fields)]

        [closed_approval] = await self._commit(close)
        return closed_approval

    async def _commit(self, work: Callable[[Connection], list[Approval]]) -> list[Approval]:
        """Write requests, each with its event, in one transaction, then cache and publish them."""

        async def commit() -> list[Approval]:
            events: list[AgentEvent] = []

            def transaction(conn: Connection) -> list[Approval]:
                requests = work(conn)
                for item in requests:
                    approval_table.write(conn, item)
                    self.on_change(conn, item)
                events[:] = [event for item in requests if (event := self._build_event(item)) is not None]
                append_events(conn, events)
                return requests

            requests = await self._store.transact(transaction)
            for item in requests:
                self._cache(item)
            self._publish(*events)
            return requests

        # Cancelling the caller must not keep committed events from being published.
        return await self._tasks.run(commit())

    def _cache(self, approval: Approval) -> None:
        if approval.is_open:
            self._open[approval.approval_id] = approval
            if not approval.is_pending:
                # ``approve`` begins the termination. ``advance`` begins it only if that failed.
                self._retry_at.setdefault(approval.approval_id, self._clock() + _RETRY_SECONDS)
        else:
            self._open.pop(approval.approval_id, None)
            self._retry_at.pop(approval.approval_id, None)

    def _build_event(self, approval: Approval) -> AgentEvent | None:
        if approval.outcome is not None:
            return None  # the termination has its own events
        data: dict[str, Any] = {"approval_id": approval.approval_id, "ticket_id": approval.ticket_id}
        if approval.is_pending:
            type_ = EventType.TERMINATION_REQUESTED
            by = describe_requester(approval.asked_by, approval.ordered_by)
            data |= {"reason": approval.reason, "by": by, "expires_at": approval.expires_at}
        else:
            type_ = EventType.TERMINATION_DECIDED
            data |= {
                "status": approval.status.value,
                "by": approval.decided_by,
                "reason": approval.decision_reason,
            }
        worker = self._monitor.find(*approval.target.key)
        return messages.event_about(type_, approval, worker, self._clock(), data)


def _find_futility_reason(worker: WorkerHealth) -> str | None:
    if any(finding.kind is FindingKind.PROVIDER_FAILURE for finding in worker.findings):
        return "its model provider fails; stopping the worker would not help"
    return None


def _close_copy(
    approval: Approval, status: ApprovalStatus, reason: str, now: float, *, by: str = "", **fields: Any
) -> Approval:
    # A void approval keeps the name of its approver.
    decided_by = {"decided_by": redact(by, 100)} if by else {}
    update = {"status": status, "decided_at": now, "decision_reason": redact(reason, 1000)}
    return approval.model_copy(update=update | decided_by | fields)


def _describe_termination(approval: Approval) -> str:
    note = f" ({approval.decision_reason})" if approval.decision_reason else ""
    requester = describe_requester(approval.asked_by, approval.ordered_by)
    reason = sentence(approval.reason)
    return f"{reason} Requested by the {requester}, approved by {approval.decided_by}{note}."
