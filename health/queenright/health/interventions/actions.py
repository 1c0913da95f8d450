"""
Actions on workers: nudge, escalate, terminate, answer. Every action needs a permit for one incarnation of one
worker.

Every action except an escalation is recorded before it begins and when it ends. Its permit is checked again
after the first record, because the write may have taken long. An escalation is a single write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from queenright.health.action_kind import ActionKind
from queenright.health.interventions import messages
from queenright.health.interventions.escalation import Escalation
from queenright.health.interventions.intervention import Intervention, InterventionOutcome
from queenright.health.interventions.ladder import Ladder, Level
from queenright.health.interventions.ledger import InterventionLedger
from queenright.health.interventions.permit import ActionRefusedError, Permit, permit
from queenright.health.interventions.target import Target
from queenright.health.interventions.worker_control import (
    NudgeDelivery,
    StopResult,
    WorkerControl,
    WorkerUnreachableError,
)
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.monitoring.worker_summary import summarise
from queenright.health.settings import InterventionSettings
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, Clock, EventType

_log = logging.getLogger(__name__)

_TEXT_LIMIT: Final = 2000
_NUDGE_LIFETIME_SECONDS: Final = 600.0
"""A nudge that is not fetched within this time has lost its relevance, and expires."""

SignEvent = Callable[[AgentEvent], AgentEvent]
"""Returns an event with a signature over its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminationLadders:
    """
    The ladder of a worker during its termination, after a confirmed stop, and after an unconfirmed stop.
    """

    during: Ladder | None
    after_confirmed_stop: Ladder | None
    after_unconfirmed_stop: Ladder | None


class Actions:
    """
    Executes actions on workers and records them.

    Args:
        controls: Worker controls of this service. The first that reaches the worker is used.
        mailbox: The control of workers that fetch their instructions.
        stop_reason: Returns why all actions are stopped, or None.
    """

    def __init__(
        self,
        ledger: InterventionLedger,
        *,
        monitor: HealthMonitor,
        controls: Iterable[WorkerControl],
        mailbox: WorkerControl,
        settings: InterventionSettings,
        stop_reason: Callable[[], str | None],
        clock: Clock,
        ids: Callable[[], str],
        sign: SignEvent,
    ) -> None:
        self._ledger = ledger
        self._monitor = monitor
        self._controls = controls
        self._mailbox = mailbox
        self._settings = settings
        self._stop_reason = stop_reason
        self._clock = clock
        self._ids = ids
        self._sign = sign

    def permit(self, kind: ActionKind, target: Target) -> Permit:
        """
        Return the permit for an action now.

        Raises:
            ActionRefusedError: See ``permit.permit``.
        """
        return permit(kind, target, self._monitor.find(*target.key), stop_reason=self._stop_reason())

    async def nudge(
        self,
        grant: Permit,
        *,
        message: str,
        by: str,
        reason: str,
        attempt: int,
        ladder: Ladder | None,
        since: float | None = None,
    ) -> Intervention:
        """
        Put a message into the worker's context. The outcome states whether it was delivered.

        The worker gets the original message. In the record, its secrets are masked.

        Args:
            attempt: The number of the nudge on this ladder, from 1; 0 for a nudge by a person, which is not
                part of the ladder.

        Raises:
            StoreError: Recording failed, so nothing was done.
        """
        intervention = self._make_intervention(
            grant, by=by, reason=reason, attempt=attempt, since=since, message=message
        )
        if self._settings.is_dry(ActionKind.NUDGE):
            return await self.end(intervention, InterventionOutcome.DRY_RUN, ladder)
        ladder = _mark_undelivered(ladder, "")
        await self._begin(intervention, ladder)
        expires_at = intervention.created_at + _NUDGE_LIFETIME_SECONDS
        try:
            self.permit(grant.kind, grant.target)
            delivery = await self._find_control(grant).nudge(
                grant.target, message, instruction_id=intervention.intervention_id, expires_at=expires_at
            )
        except Exception as error:
            detail = _describe_error(error)
            return await self.end(
                intervention, _classify_error(error), _mark_undelivered(ladder, detail), detail=detail
            )
        outcome = (
            InterventionOutcome.DONE if delivery is NudgeDelivery.INJECTED else InterventionOutcome.QUEUED
        )
        data = intervention.model_dump(mode="json", include={"attempt", "message", "by"}) | {
            "delivery": delivery.value,
            "instruction_id": intervention.intervention_id,
            "expires_at": expires_at,
            "since": since,
        }
        event = self._build_event(EventType.NUDGE_SENT, intervention, data)
        return await self.end(intervention, outcome, ladder, events=[event])

    async def escalate(
        self,
        grant: Permit,
        *,
        by: str,
        reason: str,
        ladder: Ladder,
        context: dict[str, Any],
    ) -> tuple[Intervention, Escalation | None, Ladder]:
        """
        Escalate to the orchestrator. The escalation is in the event log on return.

        Raises:
            StoreError: Recording failed, so the orchestrator was not asked.
        """
        intervention = self._make_intervention(grant, by=by, reason=reason, since=ladder.trouble_since)
        now = intervention.created_at
        deadline = now + self._settings.escalation.timeout_seconds
        next_ladder = ladder.model_copy(
            update={"level": Level.ESCALATED, "acted_at": now, "until": deadline, "escalation_id": ""}
        )
        if self._settings.is_dry(ActionKind.ESCALATE):
            return await self.end(intervention, InterventionOutcome.DRY_RUN, next_ladder), None, next_ladder
        worker = self._monitor.get(intervention.agent_id, intervention.session_id)
        question = Escalation(
            escalation_id=self._ids(),
            **grant.target._asdict(),
            reason=intervention.reason,
            context=(summarise(worker, now) if worker is not None else {}) | context,
            created_at=now,
            deadline=deadline,
        )
        next_ladder = next_ladder.model_copy(update={"escalation_id": question.escalation_id})
        intervention = intervention.model_copy(
            update={
                "escalation_id": question.escalation_id,
                "outcome": InterventionOutcome.DONE,
                "finished_at": now,
            }
        )
        question_fields = {"escalation_id", "reason", "options", "deadline", "context"}
        data = question.model_dump(mode="json", include=question_fields)
        data |= {"by": intervention.by, "since": ladder.trouble_since}
        event = self._build_event(EventType.ESCALATION_TRIGGERED, intervention, data)
        await self._ledger.write(
            grant.target.key,
            ladder=next_ladder,
            now=now,
            intervention=intervention,
            escalation=question,
            events=[event, self._build_record_event(intervention)],
        )
        return intervention, question, next_ladder

    async def terminate(
        self,
        grant: Permit,
        *,
        by: str,
        reason: str,
        ladders: TerminationLadders,
        since: float | None = None,
        withdrawn: Escalation | None = None,
        events: Sequence[AgentEvent] = (),
        earlier: Intervention | None = None,
        intervention_id: str = "",
    ) -> Intervention:
        """
        Stop a worker. Its control saves its state and frees its resources. The record is signed.

        Args:
            ladders: The ladder during and after the termination.
            withdrawn: The worker's pending escalation, which is withdrawn when the worker has stopped.
            events: The events of the withdrawal.
            earlier: The same termination if it began before a restart.
            intervention_id: The id of the termination, if it has one already.

        Raises:
            StoreError: Recording failed. Either nothing was done, or the outcome is recorded later.
        """
        intervention = earlier or self._make_intervention(
            grant, by=by, reason=reason, since=since, intervention_id=intervention_id
        )
        if self._settings.is_dry(ActionKind.TERMINATE):
            return await self.end(intervention, InterventionOutcome.DRY_RUN, ladders.after_unconfirmed_stop)
        if earlier is None:
            await self._begin(intervention, ladders.during)
        try:
            self.permit(grant.kind, grant.target)
            stop = await self._find_control(grant).terminate(
                grant.target,
                intervention.reason,
                instruction_id=intervention.intervention_id,
                within=self._settings.termination.cleanup_timeout_seconds,
            )
        except Exception as error:
            return await self.end(
                intervention,
                _classify_error(error),
                ladders.after_unconfirmed_stop,
                detail=_describe_error(error),
            )
        if not stop.is_confirmed and self._has_ended(grant.target):
            detail = stop.detail if stop.lingers else "it has ended"
            stop = replace(stop, is_confirmed=True, detail=detail)
        if not stop.is_confirmed:
            # The worker may still be running, so no event reports its end and no other worker replaces it.
            return await self.end(
                intervention,
                InterventionOutcome.UNCONFIRMED,
                ladders.after_unconfirmed_stop,
                detail=stop.detail,
            )
        return await self.confirm(
            intervention, stop, ladder=ladders.after_confirmed_stop, withdrawn=withdrawn, events=events
        )

    async def answer(
        self,
        grant: Permit,
        *,
        by: str,
        reason: str,
        message: str,
        ladder: Ladder | None,
        deliver: Callable[[], None],
    ) -> Intervention:
        """
        Answer a permission request of a worker.

        Args:
            deliver: Passes the answer to the waiting caller, or raises ``ActionRefusedError``.

        Raises:
            ActionRefusedError: The answer came too late, or all actions were stopped in the meantime. The
                refusal is recorded.
            StoreError: Recording failed, so nothing was answered.
        """
        intervention = self._make_intervention(grant, by=by, reason=reason, message=message)
        if self._settings.is_dry(ActionKind.ANSWER):
            return await self.end(intervention, InterventionOutcome.DRY_RUN, ladder)
        await self._begin(intervention, ladder)
        try:
            self.permit(grant.kind, grant.target)
            deliver()
        except ActionRefusedError as error:
            await self.end(intervention, InterventionOutcome.REFUSED, ladder, detail=error.reason)
            raise
        return await self.end(intervention, InterventionOutcome.DONE, ladder)

    async def confirm(
        self,
        intervention: Intervention,
        stop: StopResult,
        *,
        ladder: Ladder | None,
        withdrawn: Escalation | None = None,
        events: Sequence[AgentEvent] = (),
    ) -> Intervention:
        """
        Record and sign that a worker has certainly stopped.

        Raises:
            StoreError: Recording failed. The termination stays uncertain and is checked again.
        """
        intervention = intervention.model_copy(update={"checkpoint_id": stop.checkpoint_id})
        fields = {"reason", "by", "checkpoint_id", "intervention_id"}
        data = intervention.model_dump(mode="json", include=fields)
        data |= {"confirmed": True, "since": intervention.trouble_since}
        event = self._build_event(EventType.AGENT_TERMINATED, intervention, data)
        return await self.end(
            intervention,
            InterventionOutcome.DONE,
            ladder,
            detail=stop.detail,
            events=[self._sign(event), *events],
            escalation=withdrawn,
        )

    async def note(
        self,
        kind: ActionKind,
        target: Target,
        outcome: InterventionOutcome,
        *,
        by: str,
        reason: str,
        detail: str = "",
        ladder: Ladder | None,
        since: float | None = None,
    ) -> Intervention:
        """Record an action that was refused, handed over, or only simulated."""
        intervention = self._make_intervention(Permit(kind, target), by=by, reason=reason, since=since)
        return await self.end(intervention, outcome, ladder, detail=detail)

    async def end(
        self,
        intervention: Intervention,
        outcome: InterventionOutcome,
        ladder: Ladder | None,
        *,
        detail: str = "",
        events: Sequence[AgentEvent] = (),
        escalation: Escalation | None = None,
    ) -> Intervention:
        """
        Record the outcome of an action.

        The outcome is also logged if the action failed, or the worker was unreachable or did not confirm.
        """
        now = self._clock()
        result = intervention.model_copy(
            update={"outcome": outcome, "finished_at": now, "detail": redact(detail, _TEXT_LIMIT)}
        )
        if outcome in (
            InterventionOutcome.FAILED,
            InterventionOutcome.UNREACHABLE,
            InterventionOutcome.UNCONFIRMED,
        ):
            # Most workers in other processes cannot be nudged, so that is no reason for a warning.
            is_expected = outcome is InterventionOutcome.UNREACHABLE and intervention.kind is ActionKind.NUDGE
            level = logging.INFO if is_expected else logging.WARNING
            kind, target = intervention.kind.value, intervention.target
            _log.log(level, "%s of %s: %s: %s", kind, target, outcome.value, result.detail)
        await self._ledger.write(
            intervention.target.key,
            ladder=ladder,
            now=now,
            intervention=result,
            escalation=escalation,
            events=[*events, self._build_record_event(result)],
        )
        return result

    # -- records ------------------------------------------------------------------------------------

    def _make_intervention(
        self,
        grant: Permit,
        *,
        by: str,
        reason: str,
        attempt: int = 1,
        since: float | None = None,
        message: str = "",
        intervention_id: str = "",
    ) -> Intervention:
        target = grant.target
        return Intervention(
            intervention_id=intervention_id or self._ids(),
            **target._asdict(),
            kind=grant.kind,
            outcome=InterventionOutcome.STARTED,
            by=redact(by, 100),
            reason=redact(reason, _TEXT_LIMIT),
            attempt=attempt,
            trouble_since=since,
            created_at=self._clock(),
            message=redact(message, 2 * _TEXT_LIMIT),
        )

    async def _begin(self, intervention: Intervention, ladder: Ladder | None) -> None:
        await self._ledger.write(
            intervention.target.key, ladder=ladder, now=intervention.created_at, intervention=intervention
        )

    def _build_record_event(self, intervention: Intervention) -> AgentEvent:
        return self._build_event(
            EventType.INTERVENTION_RECORDED, intervention, intervention.model_dump(mode="json")
        )

    def _build_event(self, type_: EventType, intervention: Intervention, data: dict[str, Any]) -> AgentEvent:
        worker = self._monitor.get(intervention.agent_id, intervention.session_id)
        return messages.event_about(type_, intervention, worker, self._clock(), data)

    def _has_ended(self, target: Target) -> bool:
        """Return whether this incarnation reported its own end. Silence alone is no proof."""
        worker = self._monitor.find(*target.key)
        return (
            worker is not None
            and worker.vitals.has_ended
            and worker.vitals.status is not WorkerStatus.UNKNOWN
            and Target.of(worker.vitals) == target
        )

    def _find_control(self, grant: Permit) -> WorkerControl:
        target = grant.target
        for control in (*self._controls, self._mailbox):
            if control.can_reach(target):
                return control
        worker = self._monitor.find(*target.key)
        if worker is not None and worker.vitals.is_foreign:
            name = quote(target.agent_id, safe="")
            remedy = (
                f"Let it poll GET /api/agents/{name}/instructions, or run it with a Worker that has an "
                "on_nudge and an on_terminate; connect a coding agent with `queenright connect`"
            )
        elif worker is not None and worker.vitals.fetches:
            remedy = (
                "Its Worker has an on_nudge or an on_terminate: set QUEENRIGHT_ENDPOINT in its process to "
                "the URL of this service"
            )
        else:
            remedy = (
                "Give its Worker an on_nudge and an on_terminate, and set QUEENRIGHT_ENDPOINT in its "
                "process to the URL of this service"
            )
        if grant.kind is ActionKind.TERMINATE:
            remedy += "; or stop its process yourself"
        raise WorkerUnreachableError(
            f"the worker does not fetch instructions from this service, so it cannot receive any. {remedy}"
        )


def _mark_undelivered(ladder: Ladder | None, reason: str) -> Ladder | None:
    return None if ladder is None else ladder.model_copy(update={"undelivered": reason})


def _classify_error(error: Exception) -> InterventionOutcome:
    if isinstance(error, WorkerUnreachableError):
        return InterventionOutcome.UNREACHABLE
    return (
        InterventionOutcome.REFUSED if isinstance(error, ActionRefusedError) else InterventionOutcome.FAILED
    )


def _describe_error(error: Exception) -> str:
    if isinstance(error, WorkerUnreachableError):
        return str(error)
    return error.reason if isinstance(error, ActionRefusedError) else f"{type(error).__name__}: {error}"
