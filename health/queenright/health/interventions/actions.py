"""
Actions: nudge, escalate, terminate, each written down before it is done, and again when its end is known.

Every one takes a permit, which is given for one life of one worker as things stand at that moment, and asked
for again once the action is written down: the disk may have taken its time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from queenright.health.interventions import messages
from queenright.health.interventions.control import Delivery, Stopped, WorkerControl, WorkerUnreachableError
from queenright.health.interventions.ladder import Ladder, Level
from queenright.health.interventions.ledger import Ledger
from queenright.health.interventions.permit import ActionRefusedError, Permit, permit
from queenright.health.interventions.record import Escalation, Intervention, Outcome
from queenright.health.interventions.target import ActionKind, Target
from queenright.health.monitor import HealthMonitor
from queenright.health.settings import Intervention as InterventionSettings
from queenright.health.summary import summarise
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, Clock, EventType

_log = logging.getLogger(__name__)

_WORDS: Final = 2000
_NUDGE_LIFETIME_SECONDS: Final = 600.0
"""A nudge that is not fetched by then is dropped: what it speaks of is over."""

Sign = Callable[[AgentEvent], AgentEvent]
"""Returns an event with a signature over what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rungs:
    """Where a ladder stands while a worker is stopped, once it certainly has, and if it may not have."""

    during: Ladder | None
    done: Ladder | None
    otherwise: Ladder | None


class Actions:
    """
    Does things to workers, and keeps what was done.

    Args:
        ledger: Where it is kept.
        monitor: Knows the workers.
        controls: Reach workers; the first that reaches one is taken.
        settings: How long things take.
        stopped: Says why nothing may be done to anybody, or None.
        clock: Seconds since the epoch.
        ids: Makes ids.
        sign: Signs the word that a worker was terminated.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        monitor: HealthMonitor,
        controls: Iterable[WorkerControl],
        settings: InterventionSettings,
        stopped: Callable[[], str | None],
        clock: Clock,
        ids: Callable[[], str],
        sign: Sign,
    ) -> None:
        self._ledger = ledger
        self._monitor = monitor
        self._controls = controls
        self._settings = settings
        self._stopped = stopped
        self._clock = clock
        self._ids = ids
        self._sign = sign

    def permit(self, kind: ActionKind, target: Target) -> Permit:
        """
        Return the permit for an action, as things stand now.

        Raises:
            ActionRefusedError: See ``permit``.
        """
        return permit(kind, target, self._monitor.get(*target.key), stopped=self._stopped())

    async def nudge(
        self,
        given: Permit,
        *,
        message: str,
        by: str,
        reason: str,
        attempt: int,
        ladder: Ladder | None,
        since: float | None = None,
        dry: bool = False,
    ) -> Intervention:
        """
        Put a message into the worker's context; the outcome says how far it got.

        The worker is told the message as it is; what is kept of it has its secrets masked.

        Args:
            given: The permit.
            message: What it is told.
            by: Who wants it.
            reason: Why.
            attempt: The number of the nudge on this ladder, from 1; 0 for a person's, which is no rung.
            ladder: Where the ladder stands with it done.
            since: When the trouble began.
            dry: It is only written down, whatever the settings say.

        Raises:
            StoreError: It could not be written down; nothing was done.
        """
        one = self._new(given, by=by, reason=reason, attempt=attempt, since=since, message=message)
        if dry or self._settings.is_dry(ActionKind.NUDGE):
            return await self._end(one, Outcome.DRY_RUN, ladder)
        ladder = _delivered(ladder, True)
        await self._begin(one, ladder)
        expires_at = one.created_at + _NUDGE_LIFETIME_SECONDS
        try:
            self.permit(given.kind, given.target)
            delivery = await self._control(given.target).nudge(
                given.target, message, instruction_id=one.intervention_id, expires_at=expires_at
            )
        except Exception as error:
            missed = _delivered(ladder, False)
            return await self._end(one, _outcome(error), missed, detail=_described(error))
        outcome = Outcome.DONE if delivery is Delivery.INJECTED else Outcome.QUEUED
        said = self._event(
            EventType.NUDGE_SENT,
            one,
            {
                "attempt": attempt,
                "message": one.message,
                "delivery": delivery.value,
                "instruction_id": one.intervention_id,
                "by": one.by,
                "expires_at": expires_at,
                "since": since,
            },
        )
        return await self._end(one, outcome, ladder, events=[said])

    async def escalate(
        self,
        given: Permit,
        *,
        by: str,
        reason: str,
        ladder: Ladder,
        context: dict[str, Any],
    ) -> tuple[Intervention, Escalation | None, Ladder]:
        """
        Ask the orchestrator; the question is in the event log when this returns.

        Raises:
            StoreError: It could not be written down; nobody was asked.
        """
        one = self._new(given, by=by, reason=reason, since=ladder.trouble_since)
        now = one.created_at
        deadline = now + self._settings.escalation.timeout_seconds
        climbed = ladder.model_copy(
            update={"level": Level.ESCALATED, "acted_at": now, "until": deadline, "escalation_id": ""}
        )
        if self._settings.is_dry(ActionKind.ESCALATE):
            return await self._end(one, Outcome.DRY_RUN, climbed), None, climbed
        worker = self._monitor.get(one.agent_id, one.session_id)
        question = Escalation(
            escalation_id=self._ids(),
            agent_id=one.agent_id,
            session_id=one.session_id,
            incarnation_id=one.incarnation_id,
            reason=one.reason,
            context=(summarise(worker, now) if worker is not None else {}) | context,
            created_at=now,
            deadline=deadline,
        )
        climbed = climbed.model_copy(update={"escalation_id": question.escalation_id})
        one = one.model_copy(
            update={
                "escalation_id": question.escalation_id,
                "outcome": Outcome.DONE,
                "finished_at": now,
            }
        )
        said = self._event(
            EventType.ESCALATION_TRIGGERED,
            one,
            {
                "escalation_id": question.escalation_id,
                "reason": question.reason,
                "options": list(question.options),
                "deadline": deadline,
                "context": question.context,
                "by": one.by,
                "since": ladder.trouble_since,
            },
        )
        await self._ledger.write(
            given.target.key,
            ladder=climbed,
            now=now,
            intervention=one,
            escalation=question,
            events=[said, self._recorded(one)],
        )
        return one, question, climbed

    async def terminate(
        self,
        given: Permit,
        *,
        by: str,
        reason: str,
        rungs: Rungs,
        since: float | None = None,
        withdrawn: Escalation | None = None,
        said: Sequence[AgentEvent] = (),
        again: Intervention | None = None,
        intervention_id: str = "",
        dry: bool = False,
    ) -> Intervention:
        """
        Stop a worker: save what it has, free what it holds, sign that it was done.

        Args:
            given: The permit.
            by: Who wants it.
            reason: Why.
            rungs: Where the ladder stands before and after.
            since: When the trouble began.
            withdrawn: The question that needs no answer once it has stopped.
            said: What is then said of that.
            again: The same termination, begun before a restart.
            intervention_id: Its id, if it was given one before it was begun.
            dry: It is only written down, whatever the settings say.

        Raises:
            StoreError: It could not be written down: nothing was done, or its end is still to be kept.
        """
        one = again or self._new(given, by=by, reason=reason, since=since, intervention_id=intervention_id)
        if dry or self._settings.is_dry(ActionKind.TERMINATE):
            return await self._end(one, Outcome.DRY_RUN, rungs.otherwise)
        if again is None:
            await self._begin(one, rungs.during)
        try:
            self.permit(given.kind, given.target)
            stopped = await self._control(given.target).terminate(
                given.target,
                one.reason,
                instruction_id=one.intervention_id,
                within=self._settings.termination.cleanup_timeout_seconds,
            )
        except Exception as error:
            return await self._end(one, _outcome(error), rungs.otherwise, detail=_described(error))
        if not stopped.confirmed and self._has_ended(given.target):
            detail = stopped.detail if stopped.lingers else "it has ended"
            stopped = replace(stopped, confirmed=True, detail=detail)
        if not stopped.confirmed:
            # It may be at work still: nobody is told that it is not, and nothing is started in its place.
            return await self._end(one, Outcome.UNCONFIRMED, rungs.otherwise, detail=stopped.detail)
        return await self.confirm(one, stopped, ladder=rungs.done, withdrawn=withdrawn, said=said)

    async def answer(
        self,
        given: Permit,
        *,
        by: str,
        reason: str,
        message: str,
        ladder: Ladder | None,
        deliver: Callable[[], None],
    ) -> Intervention:
        """
        Answer what a worker asks permission for.

        Args:
            given: The permit.
            by: Who answers.
            reason: Why.
            message: The decision, and what was asked.
            ladder: Where the ladder stands; an answer does not move it.
            deliver: Hands the answer to whoever waits for it, or raises ``ActionRefusedError``.

        Raises:
            ActionRefusedError: The answer came too late, or acting was stopped meanwhile; that is written
                down.
            StoreError: It could not be written down; nothing was answered.
        """
        one = self._new(given, by=by, reason=reason, message=message)
        if self._settings.is_dry(ActionKind.ANSWER):
            return await self._end(one, Outcome.DRY_RUN, ladder)
        await self._begin(one, ladder)
        try:
            self.permit(given.kind, given.target)
            deliver()
        except ActionRefusedError as refused:
            await self._end(one, Outcome.REFUSED, ladder, detail=refused.reason)
            raise
        return await self._end(one, Outcome.DONE, ladder)

    async def confirm(
        self,
        one: Intervention,
        stopped: Stopped,
        *,
        ladder: Ladder | None,
        withdrawn: Escalation | None = None,
        said: Sequence[AgentEvent] = (),
    ) -> Intervention:
        """
        Write down, and sign, that a worker has certainly stopped.

        Raises:
            StoreError: It could not be written down; it is known as uncertain, and looked at again.
        """
        one = one.model_copy(update={"checkpoint_id": stopped.checkpoint_id})
        ended = self._event(
            EventType.AGENT_TERMINATED,
            one,
            {
                "reason": one.reason,
                "by": one.by,
                "checkpoint_id": stopped.checkpoint_id,
                "confirmed": True,
                "intervention_id": one.intervention_id,
                "since": one.trouble_since,
            },
        )
        return await self._end(
            one,
            Outcome.DONE,
            ladder,
            detail=stopped.detail,
            events=[self._sign(ended), *said],
            escalation=withdrawn,
        )

    async def note(
        self,
        kind: ActionKind,
        target: Target,
        outcome: Outcome,
        *,
        by: str,
        reason: str,
        detail: str = "",
        ladder: Ladder | None,
        since: float | None = None,
    ) -> Intervention:
        """Write down what was refused, handed on, or only would have been done."""
        one = self._new(Permit(kind, target), by=by, reason=reason, since=since)
        return await self._end(one, outcome, ladder, detail=detail)

    async def interrupted(self, one: Intervention, ladder: Ladder | None, detail: str) -> Intervention:
        """Write down that nothing is known of the end of what was begun."""
        return await self._end(one, Outcome.FAILED, ladder, detail=detail)

    async def answered(self, one: Intervention, outcome: Outcome, detail: str, ladder: Ladder | None) -> None:
        """Write down what became of a nudge that a worker was to fetch."""
        one = one.model_copy(update={"answered_at": self._clock()})
        await self._end(one, outcome, ladder, detail=detail)

    async def unconfirmed(self, one: Intervention, ladder: Ladder | None, detail: str) -> Intervention:
        """Write down that nobody knows whether a worker has stopped, and why."""
        return await self._end(one, Outcome.UNCONFIRMED, ladder, detail=detail)

    # -- writing down -------------------------------------------------------------------------------

    def _new(
        self,
        given: Permit,
        *,
        by: str,
        reason: str,
        attempt: int = 1,
        since: float | None = None,
        message: str = "",
        intervention_id: str = "",
    ) -> Intervention:
        target = given.target
        return Intervention(
            intervention_id=intervention_id or self._ids(),
            agent_id=target.agent_id,
            session_id=target.session_id,
            incarnation_id=target.incarnation_id,
            kind=given.kind,
            outcome=Outcome.STARTED,
            by=redact(by, 100),
            reason=redact(reason, _WORDS),
            attempt=attempt,
            trouble_since=since,
            created_at=self._clock(),
            message=redact(message, 2 * _WORDS),
        )

    async def _begin(self, one: Intervention, ladder: Ladder | None) -> None:
        await self._ledger.write(one.target.key, ladder=ladder, now=one.created_at, intervention=one)

    async def _end(
        self,
        one: Intervention,
        outcome: Outcome,
        ladder: Ladder | None,
        *,
        detail: str = "",
        events: Sequence[AgentEvent] = (),
        escalation: Escalation | None = None,
    ) -> Intervention:
        now = self._clock()
        ended = one.model_copy(
            update={"outcome": outcome, "finished_at": now, "detail": redact(detail, _WORDS)}
        )
        if outcome in (Outcome.FAILED, Outcome.UNREACHABLE, Outcome.UNCONFIRMED):
            # Most workers in other processes fetch nothing: to find that out is no news.
            usual = outcome is Outcome.UNREACHABLE and one.kind is ActionKind.NUDGE
            level = logging.INFO if usual else logging.WARNING
            who = repr(one.agent_id) if usual else one.target
            _log.log(level, "%s of %s: %s: %s", one.kind.value, who, outcome.value, ended.detail)
        await self._ledger.write(
            one.target.key,
            ladder=ladder,
            now=now,
            intervention=ended,
            escalation=escalation,
            events=[*events, self._recorded(ended)],
        )
        return ended

    def _recorded(self, one: Intervention) -> AgentEvent:
        return self._event(EventType.INTERVENTION_RECORDED, one, one.model_dump(mode="json"))

    def _event(self, type_: EventType, one: Intervention, data: dict[str, Any]) -> AgentEvent:
        worker = self._monitor.get(one.agent_id, one.session_id)
        return messages.event_about(type_, one, worker, self._clock(), data)

    def _has_ended(self, target: Target) -> bool:
        """Return whether this life said itself that it is over."""
        worker = self._monitor.get(*target.key)
        return worker is not None and worker.vitals.ended and Target.of(worker.vitals) == target

    def _control(self, target: Target) -> WorkerControl:
        for control in self._controls:
            if control.reaches(target):
                return control
        worker = self._monitor.get(*target.key)
        has_functions = worker is not None and worker.vitals.fetches
        way_out = (
            "Its Worker has an on_nudge or an on_terminate: where it runs, set QUEENRIGHT_ENDPOINT to this "
            "service's URL"
            if has_functions
            else "Where it runs, give its Worker an on_nudge and an on_terminate, and set "
            "QUEENRIGHT_ENDPOINT to this service's URL"
        )
        raise WorkerUnreachableError(
            "it cannot be reached from here: nobody has asked this service for its instructions. "
            f"{way_out}; or see to its process yourself"
        )


def _delivered(ladder: Ladder | None, got_there: bool) -> Ladder | None:
    return None if ladder is None else ladder.model_copy(update={"delivered": got_there})


def _outcome(error: Exception) -> Outcome:
    if isinstance(error, WorkerUnreachableError):
        return Outcome.UNREACHABLE
    return Outcome.REFUSED if isinstance(error, ActionRefusedError) else Outcome.FAILED


def _described(error: Exception) -> str:
    if isinstance(error, WorkerUnreachableError):
        return str(error)
    return error.reason if isinstance(error, ActionRefusedError) else f"{type(error).__name__}: {error}"
