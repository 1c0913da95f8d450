"""
The queen as the orchestrator, who decides escalations of workers that did not recover after nudges.

This is another entry point of her graph. A failing model is retried until the escalation's deadline, after
which the default applies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from queenright.health.action_kind import ActionKind
from queenright.health.interventions.escalation import MORE_TIME_SECONDS, OPTIONS, Decision, Escalation
from queenright.health.interventions.target import Target
from queenright.instrumentation import names
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.judge import escalation_policy
from queenright.judge.decision_context import DecisionContext, decision_node
from queenright.judge.messages import escalation_message
from queenright.judge.models import AssignedModel
from queenright.judge.prompting import escalation_prompt
from queenright.judge.rules_model import DECIDE, SUMMARY
from queenright.judge.tracing import child_context
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.execution import Trigger
from queenright.runtime.graphs.graph import EntryPointSpec, NodeSpec
from queenright.runtime.stream import RunNode
from queenright.runtime.tooling.tools import Tool, ToolError

_log = logging.getLogger(__name__)

ESCALATION_RECEIVER: Final = "escalation_receiver"
DECISION_NODE: Final = "escalation_decision"

_FIRST_PAUSE_SECONDS: Final = 30.0
_MAX_PAUSE_SECONDS: Final = 240.0
_MAX_EXTRA_TIMES: Final = 10_000
_NO_DECISION: Final = "undecided"
_ESCALATION_FIELDS: Final = {*Target._fields, "escalation_id", "reason", "options", "context"}

Decide = Callable[..., Awaitable[object]]
"""``decide(escalation_id, decision, by=..., reason=..., more_time_seconds=...)`` carries out a decision."""


class _OpenEscalation(NamedTuple):
    """An undecided escalation, and the (trace id, span id) of the event that triggered it."""

    escalation: Escalation
    trace: tuple[str, str]


class _ExtraTime(NamedTuple):
    """The extra time that a worker has been given since its last progress."""

    progress: float | None
    times: int = 0
    minutes: float = 0.0


class DecideArguments(BaseModel):
    """The decision about the worker."""

    model_config = ConfigDict(extra="forbid")

    escalation_id: str
    decision: Decision
    reason: str = Field(min_length=3, max_length=1000)
    more_time_minutes: float | None = Field(
        default=None,
        gt=0,
        le=escalation_policy.MAX_EXTRA_MINUTES,
        description="With `more_time`: how many minutes; default: the usual.",
    )


class Orchestrator:
    """
    Decides escalations one after another. Each is decided once.

    Args:
        decide: Carries out a decision, or raises a ``QueenrightError`` if it is rejected.
        retry: Requests another attempt to decide the escalation with this id.
    """

    def __init__(
        self, context: DecisionContext, model: AssignedModel, *, decide: Decide, retry: Callable[[str], None]
    ) -> None:
        self._context = context
        self._clock = context.clock
        self._case = context.open_case()
        self._model = model
        self._prompt = escalation_prompt()
        self._decide = decide
        self._retry = retry
        self._open: dict[str, _OpenEscalation] = {}
        self._queue: set[str] = set()
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._current: Escalation | None = None
        self._outcome = _NO_DECISION
        self._extra_time: OrderedDict[Target, _ExtraTime] = OrderedDict()

    def node(self) -> NodeSpec:
        """Return the node that decides."""
        return decision_node(
            DECISION_NODE,
            system_prompt=self._prompt.text,
            output_key="escalation_decision",
            reads=(SUMMARY,),
            decides=(DECIDE,),
            model=self._model,
        )

    def entry(self) -> EntryPointSpec:
        """Return the entry point, which escalations start."""
        return EntryPointSpec(
            id=ESCALATION_RECEIVER,
            node_id=DECISION_NODE,
            trigger_type="event",
            event_types=frozenset({EventType.ESCALATION_TRIGGERED}),
        )

    def tools(self) -> list[Tool]:
        """Return the orchestrator's tools."""
        return [
            self._case.tool(),
            Tool(DECIDE, "Decide what happens to the worker.", DecideArguments, self._decide_by_model),
        ]

    # -- escalations ----------------------------------------------------------------------------

    def handle_event(self, event: AgentEvent) -> None:
        """Add an escalation that was triggered, or drop an escalation that was decided."""
        if event.type is EventType.ESCALATION_DECIDED:
            self._drop(str(event.data["escalation_id"]))
            return
        data = event.data
        self.expect(
            Escalation(
                escalation_id=data["escalation_id"],
                agent_id=event.agent_id,
                session_id=event.session_id,
                incarnation_id=event.incarnation_id,
                reason=str(data.get("reason") or ""),
                options=tuple(data.get("options") or OPTIONS),
                context=dict(data.get("context") or {}),
                created_at=event.time,
                deadline=float(data["deadline"]),
            ),
            trace=(event.trace_id, event.span_id),
        )

    def expect(self, escalation: Escalation, trace: tuple[str, str] = ("", "")) -> None:
        """Add an escalation, and retry it until it is decided or its deadline has passed."""
        key = escalation.escalation_id
        self._open[key] = _OpenEscalation(escalation, trace)
        self._queue.add(key)
        if key not in self._watches:
            watch = asyncio.create_task(self._watch(escalation), name=f"escalation:{key}")
            self._watches[key] = watch
            watch.add_done_callback(lambda _: self._watches.pop(key, None))

    async def stop(self) -> None:
        """Stop retrying. Undecided escalations are in the store and resume after the next start."""
        watches = list(self._watches.values())
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def receive(self, trigger: Trigger, run: RunNode) -> str:
        """Decide the escalation of a trigger. This is the entry point ``escalation_receiver``."""
        key = _get_escalation_id(trigger)
        try:
            open_escalation = self._open.get(key)
            if open_escalation is None or self._clock() >= open_escalation.escalation.deadline:
                return "nothing to decide"
            return await self._decide_escalation(open_escalation, run)
        finally:
            self._queue.discard(key)

    async def _decide_escalation(self, open_escalation: _OpenEscalation, run: RunNode) -> str:
        escalation = open_escalation.escalation
        self._case.select((escalation.agent_id, escalation.session_id))
        summary = self._case.summary()
        if escalation_policy.has_ended(summary):
            self._drop(escalation.escalation_id)
            return "nothing to decide: the session has ended"
        self._current, self._outcome = escalation, _NO_DECISION
        with self._context.tracer.start_as_current_span(
            f"{names.SPAN_TRIAGE} {escalation.agent_id}",
            context=child_context(*open_escalation.trace),
            attributes={
                names.INTERVENTION_KIND: ActionKind.ESCALATE.value,
                names.GEN_AI_AGENT_NAME: escalation.agent_id,
                names.PROMPT_ID: self._prompt.id,
            },
        ) as span:
            try:
                await self._decide_or_run(escalation, summary, run)
            finally:
                self._current = None
            span.set_attribute(names.TRIAGE_DECISION, self._outcome)
        return self._outcome

    async def _decide_or_run(
        self, escalation: Escalation, summary: dict[str, Any] | None, run: RunNode
    ) -> None:
        """Decide by the rules if no action is needed. Otherwise let the model decide."""
        fields = self._build_fields(escalation, summary)
        if summary is not None and escalation_policy.relief(fields, summary) is not None:
            try:
                await self._carry_out(escalation, escalation_policy.answer(fields, summary))
            except ToolError as error:
                _log.info("escalation %s: %s", escalation.escalation_id, error)
            return
        result = await run(escalation_message(fields, summary))
        if escalation.escalation_id in self._open:
            if result.outcome != "no_answer":
                self._model.count_invalid(result.error or "it ended without a decision")
            _log.warning("escalation %s has no decision yet: %s", escalation.escalation_id, result.error)

    # -- the decision ---------------------------------------------------------------------------

    async def _decide_by_model(self, arguments: DecideArguments) -> str:
        escalation = self._require_undecided(arguments.escalation_id)
        if arguments.decision not in escalation.options:
            raise ToolError(
                f"{arguments.decision!r} is not an option; choose one of {', '.join(escalation.options)}"
            )
        summary = self._case.summary()
        if escalation_policy.has_ended(summary):
            self._drop(escalation.escalation_id)
            raise ToolError("the worker's session has ended; there is nothing to decide; end with set_output")
        fields = self._build_fields(escalation, summary)
        reason, minutes = redact(arguments.reason, 1000), arguments.more_time_minutes
        answer = escalation_policy.apply_floor(fields, summary, arguments.decision, reason, minutes=minutes)
        await self._carry_out(escalation, answer)
        if answer.overruled:
            return f"overruled; the decision is {answer.decision}: {answer.reason}"
        return f"decided: {answer.decision}"

    def _require_undecided(self, escalation_id: str) -> Escalation:
        """Return the escalation of a tool call, or raise ``ToolError`` if it must not be decided."""
        current = self._current
        if current is None or escalation_id != current.escalation_id:
            raise ToolError(
                f"escalation {escalation_id[:64]!r} is not the current one; "
                "decide the one in the last message"
            )
        if escalation_id not in self._open:
            raise ToolError(f"escalation {escalation_id!r} is already decided; end with set_output")
        return current

    async def _carry_out(self, escalation: Escalation, answer: escalation_policy.PolicyDecision) -> None:
        """Carry out a decision, or raise ``ToolError`` if it is too late or rejected."""
        key = escalation.escalation_id
        seconds = answer.more_time_seconds
        try:
            await self._decide(
                key, answer.decision, by="queen", reason=answer.reason, more_time_seconds=seconds
            )
        except QueenrightError as error:
            raise ToolError(str(error)) from error
        summary = self._case.summary()
        if answer.decision == "more_time":
            self._count_extra_time(escalation, summary, MORE_TIME_SECONDS if seconds is None else seconds)
        self._outcome = answer.decision
        self._drop(key)

    def _build_fields(self, escalation: Escalation, summary: dict[str, Any] | None) -> dict[str, Any]:
        """Return the escalation as JSON values, for the model and the rules."""
        extra_time = self._get_extra_time(escalation, summary)
        return escalation.model_dump(mode="json", include=_ESCALATION_FIELDS) | {
            "asked_at": escalation.created_at,
            "minutes_left": round(max(escalation.deadline - self._clock(), 0.0) / 60, 1),
            "more_time_given": extra_time.times,
            "more_minutes_given": round(extra_time.minutes, 1),
            "usual_minutes": round(MORE_TIME_SECONDS / 60, 1),
        }

    # -- extra time -----------------------------------------------------------------------------

    def _get_extra_time(self, escalation: Escalation, summary: dict[str, Any] | None) -> _ExtraTime:
        extra_time = self._extra_time.get(escalation.target, _ExtraTime(None))
        has_progress = summary is not None and summary["last_progress"] != extra_time.progress
        return _ExtraTime(None) if has_progress else extra_time

    def _count_extra_time(
        self, escalation: Escalation, summary: dict[str, Any] | None, seconds: float
    ) -> None:
        if (
            summary is not None
            and escalation_policy.relief(self._build_fields(escalation, summary), summary) is not None
        ):
            return  # the worker needs no action, so this does not count as extra time
        extra_time = self._get_extra_time(escalation, summary)
        progress = extra_time.progress if summary is None else summary["last_progress"]
        self._extra_time[escalation.target] = _ExtraTime(
            progress, extra_time.times + 1, extra_time.minutes + seconds / 60
        )
        self._extra_time.move_to_end(escalation.target)
        while len(self._extra_time) > _MAX_EXTRA_TIMES:
            self._extra_time.popitem(last=False)

    # -- retries --------------------------------------------------------------------------------

    async def _watch(self, escalation: Escalation) -> None:
        """Retry after pauses that double, until the deadline."""
        key, pause = escalation.escalation_id, _FIRST_PAUSE_SECONDS
        while (seconds := escalation.deadline - self._clock()) > 0:
            await self._context.sleep(min(pause, seconds))
            if key not in self._open:
                return
            if key not in self._queue and self._clock() < escalation.deadline:
                self._queue.add(key)
                self._retry(key)
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)
        _log.warning("escalation %s: the queen has not decided it before its deadline", key)
        self._drop(key)

    def _drop(self, key: str) -> None:
        self._open.pop(key, None)
        watch = self._watches.get(key)
        if watch is not None and watch is not asyncio.current_task():
            watch.cancel()


def _get_escalation_id(trigger: Trigger) -> str:
    if trigger.event is not None:
        return str(trigger.event.data["escalation_id"])
    return str(trigger.input_data["escalation_id"])
