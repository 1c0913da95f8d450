"""
The event-loop node: ask the model, do what it asks for, tell it what came of it, until it is done.

Everything that a node knows is on the disk before anything is made of it: the conversation, and the cursor
over it. So a visit that was cancelled or killed at any moment is taken up where it stood.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

from queenright.instrumentation.names import Verdict, WaitingReason
from queenright.instrumentation.redaction import redact
from queenright.runtime.breakers import Breakers, model_breaker
from queenright.runtime.deadline import Sleep, alone, within
from queenright.runtime.events import Clock, EventType
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.llm.model import LLMProvider, Message, ModelError, ModelReply, ToolSpec
from queenright.runtime.nodes.cursor import NodeCursor
from queenright.runtime.nodes.digest import digest
from queenright.runtime.nodes.guard import Guard, GuardFinding
from queenright.runtime.nodes.inbox import Inbox, Note
from queenright.runtime.nodes.model_request import ask
from queenright.runtime.nodes.node_judge import JudgeFailed, Judgement, NodeJudge, Turn
from queenright.runtime.nodes.own_tools import ASK_USER, SET_OUTPUT, missing_keys
from queenright.runtime.nodes.reporting import Reporter, StepReport
from queenright.runtime.nodes.tool_use import Approve, ToolUse, told_apart
from queenright.runtime.nodes.turns import Move, assess
from queenright.runtime.nodes.visit import Visit, VisitStoppedError
from queenright.runtime.storage.conversation import Conversation
from queenright.runtime.storage.entries import Draft, EntryKind
from queenright.runtime.storage.files import Disk
from queenright.runtime.tooling.tools import ToolRegistry

__all__ = ["ASK_USER", "SET_OUTPUT", "EventLoopNode", "NodeResult", "Outcome"]

_MAX_RETRIES: Final = 3
"""RETRY verdicts in a visit that nobody watches, where the node names no number of its own."""

Outcome = Literal["done", "no_answer", "incomplete", "escalated", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """How a visit of a node ended."""

    outcome: Outcome
    """
    ``done``: the outputs are set, or the answer was words where no outputs were asked for, and the judge
    accepted. ``no_answer``: the model, or the model that judges, failed or took too long. ``incomplete``:
    it was sent back too often, or used up its turns. ``escalated``: the judge or the guard gave up on it.
    ``failed``: something broke. ``error`` says how in all cases but the first.
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
    One node, ready to be visited; one visit at a time.

    Args:
        spec: What it is.
        model: Who thinks.
        tools: The tools of the graph; the node sees those that its spec names, and its own.
        conversation: Where it talks; nobody else writes there meanwhile.
        folder: Where its cursor and its inbox lie.
        reporter: Is told everything.
        disk: Does the disk work.
        clock: Times of what happens.
        sleep: The clock of time limits and waits.
        judge: Says whether a turn may be the last.
        guard: Looks on, and says when it goes in circles.
        breakers: Gives the circuit breakers before models and, where ``context`` names a worker, tools.
        context: Values for the context parameters of tools.
        random: Jitter of waits, ids of inputs.
        fresh: A visit begins with an empty conversation.
        begun_by_user: Whether a user began the run; an event or a timer did otherwise.
        on_waiting: Is called when the node begins to wait for its user.
        approve: Is asked before each tool of the graph runs; without, all may.

    Raises:
        KeyError: The spec names a tool that is not in ``tools``.
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
        begun_by_user: bool = True,
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
            self._max_retries = None  # whoever watches it sees it first: the guard says when it is enough
        self._tools = ToolUse(
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
        self._begun_by_user = begun_by_user
        self._on_waiting = on_waiting
        self._inbox = Inbox(folder / "inbox", disk=disk, clock=clock, random=random)
        self._input_came = asyncio.Event()
        self._waiting = False

    @property
    def waiting_for_user(self) -> bool:
        """Whether the node waits for input."""
        return self._waiting

    @property
    def question(self) -> str | None:
        """What the node asked its user, while it waits."""
        return self._visit.cursor.question if self._waiting else None

    @property
    def cursor(self) -> NodeCursor:
        """Where the visit stands; only to be read."""
        return self._visit.cursor

    async def inject(self, content: str) -> None:
        """
        Give the node input from its user: taken up at its next turn, or at once where it waits for it.

        On return the input is on the disk: it is not lost if the process ends.

        Raises:
            OSError: The disk refused.
        """
        await self._inbox.put(content)
        self._input_came.set()

    async def tell(self, note: Note) -> None:
        """
        Give the node a note, which it reads before its next turn; one that it had before is nothing new.

        On return the note is on the disk. A node that waits for its user does not read it before that has
        answered.

        Raises:
            OSError: The disk refused.
        """
        if not any(name.endswith(note.suffix) for name in self._visit.cursor.taken):
            await self._inbox.put_note(note)
            self._input_came.set()

    async def run(self, visit_id: str, message: str) -> NodeResult:
        """
        Begin a visit with ``message``, or take it up where it stands, and go on until it ends.

        What goes wrong with the model, a tool or the judge is a result, no error. A visit that ended is not
        gone through again: its result is returned. Only where there was no answer, or something failed,
        the same visit may be run again, and goes on from there.

        Raises:
            OSError: The disk refused; what is on it is whole, and the visit can be taken up.
        """
        visit = self._visit
        await visit.open(visit_id)
        if visit.cursor.awaiting == "done":
            return self._ended()
        self._input_came.set()  # perhaps before we were made
        if visit.cursor.awaiting != "tools":
            # Others may have left off in the middle of a turn, where nodes talk in one thread.
            await visit.repair()
        if visit.cursor.awaiting == "input":
            if self._fresh:
                await visit.conversation.clear()
            await visit.say(visit.draft(EntryKind.INPUT, _user(message), {}))
        if visit.cursor.iteration == 0:
            messages = len(visit.conversation.entries)
            await self._emit(EventType.NODE_LOOP_STARTED, {"messages": messages})
        result = await self._go()
        told = {"outcome": result.outcome, "turns": result.turns, "error": redact(result.error)}
        await self._emit(EventType.NODE_LOOP_COMPLETED, {**told, "outputs": sorted(result.outputs)})
        return result

    async def _go(self) -> NodeResult:
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
                    await self._step()
        except (ModelError, TimeoutError) as error:
            return await self._unfinished("no_answer", error)
        except JudgeFailed as error:
            return await self._unfinished("failed", error)
        return self._ended()

    # -- one turn ---------------------------------------------------------------------------------

    async def _step(self) -> None:
        visit = self._visit
        async with self._reporter.step(self._spec.id, visit.cursor.iteration) as step:
            try:
                if visit.cursor.awaiting == "tools":
                    await self._tools.take_up(visit, step)
                elif visit.cursor.awaiting == "model":
                    await self._think(step)
                    await self._tools.act(visit, step)
                await self._decide(step)
            except VisitStoppedError as stopped:
                step.verdict(Verdict.ESCALATE, stopped.finding.evidence)
                if stopped.finding.hold_seconds <= 0:
                    await self._escalate(stopped.finding)

    async def _think(self, step: StepReport) -> None:
        """Ask the model, and write down what it says."""
        visit = self._visit
        await self._make_room()
        await self._take_in()
        system = Message(role="system", content=self._spec.system_prompt)
        messages = [system, *visit.conversation.messages]
        reply, ended_at = await self._ask(step, self._model, messages, self._tools.specs, streams=True)
        turn = visit.cursor.iteration + 1
        data = {
            "turn": turn,
            "model": self._model.name,
            "input_tokens": reply.input_tokens,
            "output_tokens": reply.output_tokens,
            "cost": reply.cost,
            "ended_at": ended_at,
        }
        said = Message(role="assistant", content=reply.text, tool_calls=told_apart(reply.tool_calls, turn))
        await visit.say(visit.draft(EntryKind.ASSISTANT, said, data))

    async def _make_room(self) -> None:
        limit = self._spec.max_context_tokens
        await self._visit.save_before_compaction()
        await self._visit.conversation.compact(
            max_tokens=limit,
            keep_messages=self._spec.max_messages,
            summary=lambda gone: digest(gone, limit=(limit // 8 - 4) * 4),
        )

    async def _take_in(self) -> None:
        """Take up what the user said meanwhile, what others noted, and what the guard has to say."""
        visit = self._visit
        drafts, ids = await self._inputs()
        for finding in visit.warnings():
            words = _user(f"You may be going in circles: {finding.evidence}. Try something else.")
            data = {"source": "guard", "finding": finding.label}
            drafts.append(visit.draft(EntryKind.FEEDBACK, words, data))
        await visit.say(*drafts)
        await self._inbox.remove(ids)

    async def _inputs(self, *, notes: bool = True) -> tuple[list[Draft], list[str]]:
        """
        Return as drafts what is in the inbox and was not taken up before, and ids of what may go from there.

        Args:
            notes: Whether to take up notes as well; without, they stay.
        """
        if not self._input_came.is_set():
            return [], []
        self._input_came.clear()
        now, incarnation = self._clock(), self._reporter.origin.incarnation_id
        drafts: list[Draft] = []
        done: list[str] = []
        for given in await self._inbox.read():
            if given.note is not None and not notes:
                continue
            done.append(given.id)
            if given.id in self._visit.cursor.taken or given.is_stale(now, incarnation):
                continue
            kind, data = EntryKind.USER, {"inbox": given.id}
            if given.note is not None:
                # Not the user's words: who waits for those is not served with these.
                kind, data = EntryKind.FEEDBACK, {"inbox": given.id, "source": "health"}
            drafts.append(self._visit.draft(kind, _user(given.content), data))
        return drafts, done

    async def _ask(
        self,
        step: StepReport,
        model: LLMProvider,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        streams: bool,
    ) -> tuple[ModelReply, float]:
        """Return a model's answer, and when it was there."""
        visit, breaker = self._visit, None
        if self._breakers is not None:
            breaker = model_breaker(self._breakers, self._agent_id, model.name)

        async def failed(facts: Mapping[str, Any], at: float) -> None:
            visit.cursor.model_failed(facts, at)
            await visit.save()
            visit.check()

        reply, report = await ask(
            step,
            model,
            messages,
            tools,
            spec=self._spec,
            reporter=self._reporter,
            sleep=self._sleep,
            random=self._random,
            on_failure=failed,
            breaker=breaker,
            streams=streams,
        )
        return reply, report.ended_at

    # -- verdicts ---------------------------------------------------------------------------------

    async def _decide(self, step: StepReport) -> None:
        """Judge the turn, and do what follows."""
        visit, cursor = self._visit, self._visit.cursor
        visit.check()
        move = assess(self._spec, cursor, begun_by_user=self._begun_by_user)
        if move.verdict is None:
            judgement = await self._judgement(step)
        else:
            judgement = Judgement(move.verdict, move.feedback)
        late, ids = await self._late_words(judgement)
        if late:
            judgement = Judgement(Verdict.CONTINUE, "")
        verdict, feedback = judgement.verdict, judgement.feedback
        step.verdict(verdict, feedback, cursor.text)
        if late:
            cursor.judged(verdict, "", self._clock())
            await visit.say(*late)
            await visit.save()
            await self._inbox.remove(ids)
            return
        waits = verdict is Verdict.CONTINUE and move.question is not None
        if (end := self._ending(judgement, move)) is not None:
            await self._end(judgement, end)
        elif not waits and (feedback or not cursor.calls):
            # A model is not asked again without a word: it would have nothing to answer.
            data = {"source": "judge", "verdict": verdict.value}
            await visit.say(visit.draft(EntryKind.FEEDBACK, _user(feedback or "Go on."), data))
            await visit.save()
        else:
            cursor.judged(verdict, "", self._clock())
            if waits:
                cursor.awaiting, cursor.question = "user", move.question
            await visit.save()

    async def _late_words(self, judgement: Judgement) -> tuple[list[Draft], list[str]]:
        """Return what the user said while the turn that would be the last was under way: it goes on then."""
        if judgement.verdict is not Verdict.ACCEPT or not self._spec.client_facing:
            return [], []
        return await self._inputs()

    async def _judgement(self, step: StepReport) -> Judgement:
        visit, cursor = self._visit, self._visit.cursor

        async def asked(
            model: LLMProvider, messages: Sequence[Message], tools: Sequence[ToolSpec]
        ) -> ModelReply:
            reply, _ = await self._ask(step, model, messages, tools, streams=False)
            cursor.input_tokens += reply.input_tokens
            cursor.output_tokens += reply.output_tokens
            cursor.cost += reply.cost
            return reply

        turn = Turn(
            spec=self._spec,
            ask=asked,
            outputs=dict(cursor.outputs),
            missing=missing_keys(self._spec, cursor.outputs),
            text=cursor.text,
            tool_calls=tuple(cursor.calls),
            iteration=cursor.iteration,
            user_interaction_count=cursor.user_interaction_count,
            messages=visit.conversation.messages,
        )
        judgement, fault = await alone(self._judge.judge(turn))
        if isinstance(fault, ModelError | TimeoutError | VisitStoppedError):
            raise fault
        if judgement is None:
            raise JudgeFailed(fault or TypeError("it gave no judgement")) from fault
        return judgement

    def _ending(self, judgement: Judgement, move: Move) -> NodeResult | None:
        """Return how the visit ends if this was its last turn."""
        if judgement.verdict is Verdict.ACCEPT:
            return NodeResult(outcome="done")
        if judgement.verdict is Verdict.ESCALATE:
            error = judgement.feedback or "the judge gave up on it"
            return NodeResult(outcome="escalated", error=error, error_type="Escalated")
        limit = self._max_retries
        if judgement.verdict is Verdict.RETRY and limit is not None and self._visit.cursor.retries >= limit:
            return NodeResult(
                outcome="incomplete", error=move.error or judgement.feedback, error_type="SentBack"
            )
        if self._visit.cursor.iteration >= self._spec.max_turns:
            error = f"not done after {self._spec.max_turns} turns"
            return NodeResult(outcome="incomplete", error=error, error_type="OutOfTurns")
        return None

    async def _hold(self, finding: GuardFinding) -> None:
        """
        Wait, and cost nothing, until somebody has given the node something to read; end if nobody does.

        Whoever watches the run sees it stand where it is, and reminds it, ends it, or lets it go on.
        """
        try:
            if finding.hold_seconds > 0:
                await within(finding.hold_seconds, self._input_is_there(), self._sleep)
                await self._visit.release()
                return
        except TimeoutError:
            pass
        await self._escalate(finding)

    async def _input_is_there(self) -> None:
        """Wait for input or a note that was not taken up before, and leave it where it is."""
        while True:
            await self._input_came.wait()
            self._input_came.clear()
            now, incarnation = self._clock(), self._reporter.origin.incarnation_id
            for given in await self._inbox.read():
                if given.id not in self._visit.cursor.taken and not given.is_stale(now, incarnation):
                    self._input_came.set()
                    return

    async def _escalate(self, finding: GuardFinding) -> None:
        ended = NodeResult(outcome="escalated", error=finding.evidence, error_type=finding.kind)
        await self._end(Judgement(Verdict.ESCALATE, finding.evidence), ended)

    async def _end(self, judgement: Judgement, result: NodeResult) -> None:
        cursor = self._visit.cursor
        cursor.judged(judgement.verdict, judgement.feedback, self._clock())
        cursor.awaiting, cursor.question = "done", None
        cursor.accepted = result.outcome == "done"
        # As it is read again: lists for tuples.
        cursor.result = {**asdict(self._told(result)), "verdicts": cursor.verdicts}
        await self._visit.save()

    def _told(self, result: NodeResult) -> NodeResult:
        """Return a result with all that the cursor knows."""
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

    def _ended(self) -> NodeResult:
        known = {"outcome": "done", **(self._visit.cursor.result or {})}
        result = NodeResult(
            **{each.name: known[each.name] for each in fields(NodeResult) if each.name in known}
        )
        return replace(result, verdicts=tuple(result.verdicts))

    async def _unfinished(self, outcome: Outcome, error: Exception) -> NodeResult:
        """End without a verdict: the visit stays where it is, and can be taken up again."""
        visit = self._visit
        text = str(error) or type(error).__name__
        thinking = visit.cursor.awaiting == "model"
        if thinking:
            # Said into the conversation too, so that the next run knows what became of this one.
            words = _user(f"(no answer: {redact(text)})")
            await visit.say(visit.draft(EntryKind.FEEDBACK, words, {"source": "runtime"}))
        await visit.save()
        result = NodeResult(outcome=outcome, error=text, error_type=type(error).__name__)
        return replace(self._told(result), turns=visit.cursor.iteration + thinking)

    # -- the user ---------------------------------------------------------------------------------

    async def _wait_for_user(self) -> None:
        """Wait until the user says something, and take it in."""
        drafts, ids = await self._inputs(notes=False)
        if not drafts:
            self._waiting = True
            try:
                self._on_waiting()
                await self._emit(EventType.CLIENT_INPUT_REQUESTED, {"question": self._visit.cursor.question})
                async with self._reporter.waiting(WaitingReason.USER_INPUT, node_id=self._spec.id):
                    while not drafts:
                        await self._input_came.wait()
                        drafts, more = await self._inputs(notes=False)
                        ids += more
            finally:
                self._waiting = False
        await self._visit.say(*drafts)
        await self._visit.save()
        await self._inbox.remove(ids)
        self._input_came.set()  # for the notes that were left
        await self._emit(EventType.CLIENT_INPUT_RECEIVED, {})

    async def _emit(self, type_: EventType, data: Mapping[str, Any]) -> None:
        await self._reporter.emit(type_, data, node_id=self._spec.id)


def _user(words: str) -> Message:
    return Message(role="user", content=words)
