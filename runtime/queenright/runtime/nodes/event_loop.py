"""
The event-loop node: calls the model, runs the requested tools and returns their results, until it is done.

All state is on disk before it is acted on: the conversation, and the cursor over it. A visit that was
cancelled or killed at any point is resumed from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

from queenright.instrumentation.errors import ConflictError
from queenright.instrumentation.names import WaitingReason
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.verdict import Verdict
from queenright.runtime.breaker_protocols import Breakers, get_model_breaker
from queenright.runtime.deadline import Sleep, run_isolated, within
from queenright.runtime.events import Clock, EventType
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.llm.model import LLMProvider, Message, ModelError, ModelReply, ToolSpec
from queenright.runtime.nodes.cursor import NodeCursor
from queenright.runtime.nodes.digest import digest
from queenright.runtime.nodes.inbox import Inbox, Note
from queenright.runtime.nodes.model_request import request_reply
from queenright.runtime.nodes.node_guard import Guard, GuardFinding
from queenright.runtime.nodes.node_judge import JudgeFailedError, Judgement, NodeJudge, Turn
from queenright.runtime.nodes.own_tools import ASK_USER, SET_OUTPUT, find_missing_output_keys
from queenright.runtime.nodes.reporting import Reporter, StepReport
from queenright.runtime.nodes.tool_use import Approve, ToolRunner, with_unique_ids
from queenright.runtime.nodes.turn_verdict import NextAction, assess_turn
from queenright.runtime.nodes.visit import Visit, VisitStoppedError
from queenright.runtime.storage.conversation import Conversation
from queenright.runtime.storage.entries import Draft, EntryKind
from queenright.runtime.storage.files import Disk
from queenright.runtime.tooling.tools import ToolRegistry

__all__ = ["ASK_USER", "SET_OUTPUT", "EventLoopNode", "NodeResult", "Outcome", "QuestionAnsweredError"]

_MAX_RETRIES: Final = 3
"""RETRY verdicts allowed in a visit without a guard, unless the node sets its own limit."""

Outcome = Literal["done", "no_answer", "incomplete", "escalated", "failed"]


class QuestionAnsweredError(ConflictError):
    """Raised for an answer to a question that is no longer open."""

    def __init__(self, answer: str | None) -> None:
        state = "is no longer open" if answer is None else f"was answered already: {redact(answer, 200)!r}"
        super().__init__(f"the question {state}; this answer was not sent")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """Result of a visit of a node."""

    outcome: Outcome
    """
    ``done``: the outputs are set, or it answered in words where none are required, and the judge accepted.
    ``no_answer``: the model or the judging model failed or timed out. ``incomplete``: too many retries or
    turns. ``escalated``: the judge or the guard gave up. ``failed``: an error. ``error`` gives the details
    in all cases but the first.
    """
    outputs: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    turns: int = 0
    error: str = ""
    error_type: str = ""
    verdicts: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    """In dollars."""
    tool_calls: int = 0


class EventLoopNode:
    """
    One model-driven node, ready to be visited; one visit at a time.

    Args:
        tools: Tools of the graph; the node uses those its specification names, and its built-in ones.
        conversation: The node's conversation; it must be the only writer.
        judge: Decides whether a turn may be the last.
        breakers: Provides circuit breakers for models and, if ``context`` names a worker, tools.
        fresh: Whether a visit starts with an empty conversation.
        started_by_user: Whether a user started the run, rather than an event or a timer.
        on_waiting: Called when the node starts to wait for its user.
        approve: Approves each tool call of the graph's tools; None approves all.

    Raises:
        KeyError: The specification names a tool that is not in ``tools``.
    """

    def __init__(
        self,
        spec: NodeSpec,
        *,
        model: LLMProvider,
        tools: ToolRegistry,
        conversation: Conversation,
        folder: Path,
        reporter: Reporter,
        disk: Disk,
        clock: Clock,
        sleep: Sleep,
        judge: NodeJudge,
        guard: Guard | None,
        context: Mapping[str, object],
        random: Random,
        fresh: bool,
        breakers: Breakers | None = None,
        started_by_user: bool = True,
        on_waiting: Callable[[], None] = lambda: None,
        approve: Approve | None = None,
    ) -> None:
        self._spec = spec
        self._model = model
        self._agent_id = str(context.get("agent_id") or "")
        self._breakers = breakers
        self._max_retries = spec.max_retries
        if guard is None:
            self._max_retries = _MAX_RETRIES if spec.max_retries is None else spec.max_retries
        elif guard.hold_seconds > 0:
            self._max_retries = None  # the guard decides, after the judge has seen it
        self._tools = ToolRunner(
            spec,
            tools,
            context=context,
            sleep=sleep,
            breakers=breakers,
            agent_id=self._agent_id,
            approve=approve,
        )
        self._visit = Visit(
            spec.id, conversation=conversation, folder=folder, disk=disk, reporter=reporter, guard=guard
        )
        self._reporter = reporter
        self._clock = clock
        self._sleep = sleep
        self._judge = judge
        self._random = random
        self._fresh = fresh
        self._started_by_user = started_by_user
        self._on_waiting = on_waiting
        self._inbox = Inbox(folder / "inbox", disk=disk, clock=clock, random=random)
        self._input_event = asyncio.Event()
        self._waiting = False
        self._answer: tuple[str, str] | None = None
        """The newest answered question's id, and its answer."""

    @property
    def is_waiting_for_user(self) -> bool:
        """Whether the node waits for user input."""
        return self._waiting

    @property
    def question(self) -> str | None:
        """The open question to the user while the node waits."""
        return self._visit.cursor.question if self._waiting else None

    @property
    def question_id(self) -> str | None:
        """Identifies the open question within the session while the node waits."""
        cursor = self._visit.cursor
        return f"{cursor.visit_id}:{cursor.iteration}" if self._waiting else None

    @property
    def cursor(self) -> NodeCursor:
        """The progress of the visit; read-only."""
        return self._visit.cursor

    async def inject(self, content: str, question_id: str | None = None) -> None:
        """
        Send user input to the node, which reads it before its next turn.

        The input is durable when this returns. A question accepts one answer, the first.

        Args:
            question_id: The question that it answers; by default the open one, if there is one.

        Raises:
            QuestionAnsweredError: The question has an answer.
            OSError: The disk write failed.
        """
        open_id, previous = self.question_id, self._answer
        answered_id, answer = previous or (None, None)
        question_id = question_id or open_id
        if question_id != open_id or (open_id is not None and open_id == answered_id):
            raise QuestionAnsweredError(answer if question_id == answered_id else None)
        if open_id is not None:
            self._answer = open_id, content
        try:
            await self._inbox.put(content)
        except OSError:
            self._answer = previous
            raise
        finally:
            # A cancelled write is finished nevertheless.
            self._input_event.set()

    async def send_note(self, note: Note) -> None:
        """
        Send a note to the node, which reads it before its next turn; a repeated note is ignored.

        The note is durable when this returns. A node that waits for its user reads it after the user has
        answered.

        Raises:
            OSError: The disk write failed.
        """
        if not any(name.endswith(note.suffix) for name in self._visit.cursor.taken):
            await self._inbox.put_note(note)
            self._input_event.set()

    async def run(self, visit_id: str, message: str) -> NodeResult:
        """
        Start a visit with ``message``, or resume it, and run it to its end.

        Failures of the model, a tool or the judge are results, not exceptions. For a visit that has ended,
        the stored result is returned; after ``no_answer`` or ``failed`` the same visit can be run again and
        continues.

        Raises:
            OSError: The disk write failed; the state on disk is consistent, and the visit can be resumed.
        """
        visit = self._visit
        await visit.open(visit_id)
        if visit.cursor.awaiting == "done":
            return self._load_stored_result()
        self._input_event.set()  # there may be input from before this object existed
        if visit.cursor.awaiting != "tools":
            # Nodes that share a thread may have been interrupted in the middle of a turn.
            await visit.repair()
        if visit.cursor.awaiting == "input":
            if self._fresh:
                await visit.conversation.clear()
            await visit.append(visit.make_draft(EntryKind.INPUT, _make_user_message(message), {}))
        if visit.cursor.iteration == 0:
            messages = len(visit.conversation.entries)
            await self._emit(EventType.NODE_LOOP_STARTED, {"messages": messages})
        result = await self._run_steps()
        data = {"outcome": result.outcome, "turns": result.turns, "error": redact(result.error)}
        await self._emit(EventType.NODE_LOOP_COMPLETED, {**data, "outputs": sorted(result.outputs)})
        return result

    async def _run_steps(self) -> NodeResult:
        visit = self._visit
        try:
            while visit.cursor.awaiting != "done":
                if visit.cursor.awaiting == "user":
                    await self._wait_for_user()
                    if visit.stop is not None:
                        await visit.release()
                elif visit.stop is not None:
                    await self._hold(visit.stop)
                else:
                    await self._run_step()
        except (ModelError, TimeoutError) as error:
            return await self._end_unfinished("no_answer", error)
        except JudgeFailedError as error:
            return await self._end_unfinished("failed", error)
        return self._load_stored_result()

    # -- one turn ---------------------------------------------------------------------------------

    async def _run_step(self) -> None:
        visit = self._visit
        async with self._reporter.step(self._spec.id, visit.cursor.iteration) as step:
            try:
                if visit.cursor.awaiting == "tools":
                    await self._tools.resume(visit, step)
                elif visit.cursor.awaiting == "model":
                    await self._call_model(step)
                    await self._tools.run_calls(visit, step)
                await self._decide(step)
            except VisitStoppedError as stop:
                step.verdict(Verdict.ESCALATE, stop.finding.evidence)
                if stop.finding.hold_seconds <= 0:
                    await self._escalate(stop.finding)

    async def _call_model(self, step: StepReport) -> None:
        """Call the model, and append its reply to the conversation."""
        visit = self._visit
        await self._compact()
        await self._read_inbox()
        system = Message(role="system", content=self._spec.system_prompt)
        messages = [system, *visit.conversation.messages]
        reply, ended_at = await self._request_reply(
            step, self._model, messages, self._tools.specs, streams=True
        )
        turn = visit.cursor.iteration + 1
        data = {
            "turn": turn,
            "model": self._model.name,
            "input_tokens": reply.input_tokens,
            "output_tokens": reply.output_tokens,
            "cost": reply.cost,
            "ended_at": ended_at,
        }
        calls = with_unique_ids(reply.tool_calls, turn)
        message = Message(role="assistant", content=reply.text, tool_calls=calls)
        await visit.append(visit.make_draft(EntryKind.ASSISTANT, message, data))

    async def _compact(self) -> None:
        limit = self._spec.max_context_tokens
        await self._visit.save_before_compaction()
        await self._visit.conversation.compact(
            max_tokens=limit,
            keep_messages=self._spec.max_messages,
            summary=lambda entries: digest(entries, limit=(limit // 8 - 4) * 4),
        )

    async def _read_inbox(self) -> None:
        """Append new user input, notes and guard warnings to the conversation."""
        visit = self._visit
        drafts, ids = await self._read_inputs()
        for finding in visit.list_new_warnings():
            message = _make_user_message(
                f"You may be going in circles: {finding.evidence}. Try something else."
            )
            data = {"source": "guard", "finding": finding.label}
            drafts.append(visit.make_draft(EntryKind.FEEDBACK, message, data))
        await visit.append(*drafts)
        await self._inbox.remove(ids)

    async def _read_inputs(self, *, notes: bool = True) -> tuple[list[Draft], list[str]]:
        """
        Return the new inputs of the inbox as drafts, and the ids that can be removed from it.

        Args:
            notes: Whether to read notes as well; otherwise they stay in the inbox.
        """
        if not self._input_event.is_set():
            return [], []
        self._input_event.clear()
        now, incarnation = self._clock(), self._reporter.origin.incarnation_id
        drafts: list[Draft] = []
        ids: list[str] = []
        for item in await self._inbox.read():
            if item.note is not None and not notes:
                continue
            ids.append(item.id)
            if item.id in self._visit.cursor.taken or item.is_stale(now, incarnation):
                continue
            kind, data = EntryKind.USER, {"inbox": item.id}
            if item.note is not None:
                # Not user input: it must not end a wait for the user.
                kind, data = EntryKind.FEEDBACK, {"inbox": item.id, "source": "health"}
            drafts.append(self._visit.make_draft(kind, _make_user_message(item.content), data))
        return drafts, ids

    async def _request_reply(
        self,
        step: StepReport,
        model: LLMProvider,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        streams: bool,
    ) -> tuple[ModelReply, float]:
        """Return a model's reply, and the time it arrived."""
        visit, breaker = self._visit, None
        if self._breakers is not None:
            breaker = get_model_breaker(self._breakers, self._agent_id, model.name)

        async def record_failure(facts: Mapping[str, Any], at: float) -> None:
            visit.cursor.record_model_failure(facts, at)
            await visit.save()
            visit.raise_if_stopped()

        reply, report = await request_reply(
            step,
            model,
            messages,
            tools,
            spec=self._spec,
            reporter=self._reporter,
            sleep=self._sleep,
            random=self._random,
            on_failure=record_failure,
            breaker=breaker,
            streams=streams,
        )
        return reply, report.ended_at

    # -- verdicts ---------------------------------------------------------------------------------

    async def _decide(self, step: StepReport) -> None:
        """Judge the turn, and act on the verdict."""
        visit, cursor = self._visit, self._visit.cursor
        visit.raise_if_stopped()
        action = assess_turn(self._spec, cursor, started_by_user=self._started_by_user)
        if action.verdict is None:
            judgement = await self._get_judgement(step)
        else:
            judgement = Judgement(action.verdict, action.feedback)
        late_inputs, ids = await self._read_late_user_input(judgement)
        if late_inputs:
            judgement = Judgement(Verdict.CONTINUE, "")
        verdict, feedback = judgement.verdict, judgement.feedback
        step.verdict(verdict, feedback, cursor.text)
        if late_inputs:
            cursor.record_verdict(verdict, "", self._clock())
            await visit.append(*late_inputs)
            await visit.save()
            await self._inbox.remove(ids)
            return
        should_wait = verdict is Verdict.CONTINUE and action.question is not None
        if (end := self._find_ending(judgement, action)) is not None:
            await self._end(judgement, end)
        elif not should_wait and (feedback or not cursor.calls):
            # The next model call needs a new message to respond to.
            data = {"source": "judge", "verdict": verdict.value}
            await visit.append(
                visit.make_draft(EntryKind.FEEDBACK, _make_user_message(feedback or "Go on."), data)
            )
            await visit.save()
        else:
            cursor.record_verdict(verdict, "", self._clock())
            if should_wait:
                cursor.awaiting, cursor.question = "user", action.question
            await visit.save()

    async def _read_late_user_input(self, judgement: Judgement) -> tuple[list[Draft], list[str]]:
        """Return input that the user sent during the turn that would end the visit: the visit continues."""
        if judgement.verdict is not Verdict.ACCEPT or not self._spec.client_facing:
            return [], []
        return await self._read_inputs()

    async def _get_judgement(self, step: StepReport) -> Judgement:
        visit, cursor = self._visit, self._visit.cursor

        async def ask_model(
            model: LLMProvider, messages: Sequence[Message], tools: Sequence[ToolSpec]
        ) -> ModelReply:
            reply, _ = await self._request_reply(step, model, messages, tools, streams=False)
            cursor.input_tokens += reply.input_tokens
            cursor.output_tokens += reply.output_tokens
            cursor.cost += reply.cost
            return reply

        turn = Turn(
            spec=self._spec,
            ask=ask_model,
            outputs=dict(cursor.outputs),
            missing=find_missing_output_keys(self._spec, cursor.outputs),
            text=cursor.text,
            tool_calls=tuple(cursor.calls),
            iteration=cursor.iteration,
            user_interaction_count=cursor.user_interaction_count,
            messages=visit.conversation.messages,
        )
        judgement, fault = await run_isolated(self._judge.judge(turn))
        if isinstance(fault, ModelError | TimeoutError | VisitStoppedError):
            raise fault
        if judgement is None:
            raise JudgeFailedError(fault or TypeError("the judge returned no judgement")) from fault
        return judgement

    def _find_ending(self, judgement: Judgement, action: NextAction) -> NodeResult | None:
        """Return the result if this was the visit's last turn, otherwise None."""
        if judgement.verdict is Verdict.ACCEPT:
            return NodeResult(outcome="done")
        if judgement.verdict is Verdict.ESCALATE:
            error = judgement.feedback or "the judge escalated without a reason"
            return NodeResult(outcome="escalated", error=error, error_type="Escalated")
        limit = self._max_retries
        if judgement.verdict is Verdict.RETRY and limit is not None and self._visit.cursor.retries >= limit:
            return NodeResult(
                outcome="incomplete", error=action.error or judgement.feedback, error_type="SentBack"
            )
        if self._visit.cursor.iteration >= self._spec.max_turns:
            error = f"not done after {self._spec.max_turns} turns (max_turns)"
            return NodeResult(outcome="incomplete", error=error, error_type="OutOfTurns")
        return None

    async def _hold(self, finding: GuardFinding) -> None:
        """
        Wait for new input or a note, without calling the model; escalate after ``hold_seconds``.

        The health layer sees the held run and can nudge it, terminate it or let it continue.
        """
        try:
            if finding.hold_seconds > 0:
                async with self._reporter.waiting(
                    WaitingReason.HELD, node_id=self._spec.id, finding=finding.kind
                ):
                    await within(finding.hold_seconds, self._wait_for_input(), self._sleep)
                await self._visit.release()
                return
        except TimeoutError:
            pass
        await self._escalate(finding)

    async def _wait_for_input(self) -> None:
        """Wait for new input or a note, and leave it in the inbox."""
        while True:
            await self._input_event.wait()
            self._input_event.clear()
            now, incarnation = self._clock(), self._reporter.origin.incarnation_id
            for item in await self._inbox.read():
                if item.id not in self._visit.cursor.taken and not item.is_stale(now, incarnation):
                    self._input_event.set()
                    return

    async def _escalate(self, finding: GuardFinding) -> None:
        result = NodeResult(outcome="escalated", error=finding.evidence, error_type=finding.kind)
        await self._end(Judgement(Verdict.ESCALATE, finding.evidence), result)

    async def _end(self, judgement: Judgement, result: NodeResult) -> None:
        cursor = self._visit.cursor
        cursor.record_verdict(judgement.verdict, judgement.feedback, self._clock())
        cursor.awaiting, cursor.question = "done", None
        cursor.accepted = result.outcome == "done"
        # Lists instead of tuples, as it will be read back.
        cursor.result = {**asdict(self._add_totals(result)), "verdicts": cursor.verdicts}
        await self._visit.save()

    def _add_totals(self, result: NodeResult) -> NodeResult:
        """Complete a result with the cursor's outputs and totals."""
        cursor = self._visit.cursor
        return replace(
            result,
            outputs=dict(cursor.outputs),
            text=cursor.text,
            turns=cursor.iteration,
            verdicts=tuple(cursor.verdicts),
            input_tokens=cursor.input_tokens,
            output_tokens=cursor.output_tokens,
            cost=cursor.cost,
            tool_calls=cursor.tool_calls,
        )

    def _load_stored_result(self) -> NodeResult:
        row = {"outcome": "done", **(self._visit.cursor.result or {})}
        result = NodeResult(**{f.name: row[f.name] for f in fields(NodeResult) if f.name in row})
        return replace(result, verdicts=tuple(result.verdicts))

    async def _end_unfinished(self, outcome: Outcome, error: Exception) -> NodeResult:
        """End without a verdict: the visit can be resumed."""
        visit = self._visit
        text = str(error) or type(error).__name__
        was_calling_model = visit.cursor.awaiting == "model"
        if was_calling_model:
            # Add it to the conversation too, so that the next run knows how this one ended.
            message = _make_user_message(f"(no answer: {redact(text)})")
            await visit.append(visit.make_draft(EntryKind.FEEDBACK, message, {"source": "runtime"}))
        await visit.save()
        result = NodeResult(outcome=outcome, error=text, error_type=type(error).__name__)
        return replace(self._add_totals(result), turns=visit.cursor.iteration + was_calling_model)

    # -- the user ---------------------------------------------------------------------------------

    async def _wait_for_user(self) -> None:
        """Wait for user input, and append it to the conversation."""
        drafts, ids = await self._read_inputs(notes=False)
        if not drafts:
            self._waiting = True
            try:
                self._on_waiting()
                await self._emit(EventType.CLIENT_INPUT_REQUESTED, {"question": self._visit.cursor.question})
                async with self._reporter.waiting(WaitingReason.USER_INPUT, node_id=self._spec.id):
                    while not drafts:
                        await self._input_event.wait()
                        drafts, new_ids = await self._read_inputs(notes=False)
                        ids += new_ids
            finally:
                self._waiting = False
        await self._visit.append(*drafts)
        await self._visit.save()
        await self._inbox.remove(ids)
        self._input_event.set()  # notes may still be in the inbox
        await self._emit(EventType.CLIENT_INPUT_RECEIVED, {})

    async def _emit(self, type_: EventType, data: Mapping[str, Any]) -> None:
        await self._reporter.emit(type_, data, node_id=self._spec.id)


def _make_user_message(text: str) -> Message:
    return Message(role="user", content=text)
