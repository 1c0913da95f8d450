"""
Instructions: messages that workers in other processes fetch.

An instruction is durable before it can be fetched. It is delivered again until the worker has answered, so
the worker must ignore repeated ids. It expires, and is meant for one incarnation only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, select

from queenright.health.findings import WorkerKey
from queenright.health.interventions.target import Target
from queenright.health.interventions.worker_control import NudgeDelivery, StopResult, WorkerUnreachableError
from queenright.health.store.rows import ModelTable
from queenright.health.store.store import Store
from queenright.health.store.tables import INSTRUCTIONS
from queenright.instrumentation.errors import ConflictError, NotFoundError
from queenright.instrumentation.redaction import redact
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import Clock

REACHABLE_SECONDS: Final = 120.0
"""A worker that fetched within this time is reachable."""

MAX_WAIT_SECONDS: Final = 60.0
_DETAIL_LIMIT: Final = 500

Kind = Literal["nudge", "terminate"]
AnswerOutcome = Literal["done", "refused", "failed"]


class InstructionStatus(StrEnum):
    """The status of an instruction."""

    QUEUED = "queued"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    EXPIRED = "expired"
    """No answer arrived in time."""


class Instruction(BaseModel):
    """An instruction for a worker. Times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    instruction_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    kind: Kind
    message: str
    created_at: float
    expires_at: float
    status: InstructionStatus = InstructionStatus.QUEUED
    answered_at: float | None = None
    detail: str = ""
    checkpoint_id: str | None = None


_TABLE: Final = ModelTable(INSTRUCTIONS, Instruction)


class InstructionNotFoundError(NotFoundError):
    """Raised when a worker answers an instruction that it never received."""

    def __init__(self, instruction_id: str) -> None:
        super().__init__(f"there is no instruction {instruction_id[:64]!r} for this worker")


class InstructionClosedError(ConflictError):
    """Raised when a worker answers too late, or in another incarnation."""


class InstructionMailbox:
    """
    The mailbox of workers that fetch instructions, and the ``WorkerControl`` that fills it. It belongs to one
    event loop.

    Args:
        on_closed: Called with each instruction that is answered or expires.
        why_withheld: Returns why instructions are withheld (the emergency stop, a wait), or None.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        on_closed: Callable[[Instruction], None] = lambda _: None,
        why_withheld: Callable[[Target], str | None] = lambda _: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._sleep = sleep
        self._on_closed = on_closed
        self._why_withheld = why_withheld
        self._queues: dict[WorkerKey, dict[str, Instruction]] = {}
        self._fetched_at: dict[Target, float] = {}
        self._waiting_fetches: dict[Target, set[asyncio.Future[None]]] = {}
        self._answers: dict[str, asyncio.Future[Instruction]] = {}

    async def load(self) -> None:
        """Load the queued instructions."""

        def read(conn: Connection) -> list[Instruction]:
            is_queued = INSTRUCTIONS.c.status == InstructionStatus.QUEUED.value
            return _TABLE.read(conn, select(INSTRUCTIONS.c.body).where(is_queued))

        for instruction in await self._store.read(read):
            self._queues.setdefault((instruction.agent_id, instruction.session_id), {})[
                instruction.instruction_id
            ] = instruction

    # -- WorkerControl ------------------------------------------------------------------------------

    def can_reach(self, target: Target) -> bool:
        """Return whether this incarnation fetched recently, or is waiting for instructions now."""
        at = self._fetched_at.get(target)
        return target in self._waiting_fetches or (at is not None and self._clock() - at < REACHABLE_SECONDS)

    async def nudge(
        self, target: Target, message: str, *, instruction_id: str, expires_at: float
    ) -> NudgeDelivery:
        """
        Queue a nudge; see ``WorkerControl.nudge``.

        Raises:
            WorkerUnreachableError: This incarnation has not fetched recently.
            StoreError: Writing failed.
        """
        await self._queue(target, "nudge", message, instruction_id, expires_at)
        return NudgeDelivery.QUEUED

    async def terminate(
        self, target: Target, reason: str, *, instruction_id: str, within: float
    ) -> StopResult:
        """
        Ask the worker to stop and wait for its answer; see ``WorkerControl.terminate``.

        Raises:
            WorkerUnreachableError: This incarnation has not fetched recently.
            StoreError: Writing failed.
        """
        answer: asyncio.Future[Instruction] = asyncio.get_running_loop().create_future()
        self._answers[instruction_id] = answer
        timer = asyncio.ensure_future(self._sleep(within))
        try:
            await self._queue(target, "terminate", reason, instruction_id, self._clock() + within)
            await asyncio.wait((answer, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            del self._answers[instruction_id]
        if not answer.done():
            return StopResult(is_confirmed=False, detail=f"it did not answer within {within:g} s")
        answer_given = answer.result()
        return StopResult(
            is_confirmed=answer_given.status is InstructionStatus.DONE,
            checkpoint_id=answer_given.checkpoint_id,
            detail=answer_given.detail or f"it answered: {answer_given.status.value}",
        )

    async def _queue(
        self, target: Target, kind: Kind, message: str, instruction_id: str, expires_at: float
    ) -> None:
        if not self.can_reach(target):
            raise WorkerUnreachableError(
                "it does not fetch instructions; give its Worker an on_nudge and an on_terminate"
            )
        queue = self._queues.setdefault(target.key, {})
        if instruction_id in queue:
            return
        instruction = Instruction(
            instruction_id=instruction_id,
            **target._asdict(),
            kind=kind,
            message=message,
            created_at=self._clock(),
            expires_at=expires_at,
        )
        await self._store.transact(lambda conn: _TABLE.write(conn, instruction))
        queue[instruction_id] = instruction
        for arrival in self._waiting_fetches.get(target, ()):
            if not arrival.done():
                arrival.set_result(None)

    # -- workers ------------------------------------------------------------------------------------

    async def pull(self, target: Target, wait: float) -> list[Instruction]:
        """
        Return the unanswered instructions for this incarnation. If there is none, wait for one.

        Args:
            wait: The maximum number of seconds to wait.
        """
        self._fetched_at[target] = self._clock()
        instructions = await self._list_deliverable(target)
        if instructions or wait <= 0:
            return instructions
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        arrivals = self._waiting_fetches.setdefault(target, set())
        arrivals.add(arrival)
        timer = asyncio.ensure_future(self._sleep(min(wait, MAX_WAIT_SECONDS)))
        try:
            await asyncio.wait((arrival, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            arrivals.discard(arrival)
            if not arrivals:
                self._waiting_fetches.pop(target, None)
            self._fetched_at[target] = self._clock()
        return await self._list_deliverable(target)

    async def answer(
        self,
        target: Target,
        instruction_id: str,
        outcome: AnswerOutcome,
        *,
        detail: str = "",
        checkpoint_id: str | None = None,
    ) -> None:
        """
        Record a worker's answer. A repeated answer has no effect.

        Raises:
            InstructionNotFoundError: The worker never received this instruction.
            InstructionClosedError: The instruction is for another incarnation, or has expired.
            StoreError: Writing failed.
        """
        instruction = self._queues.get(target.key, {}).get(instruction_id)
        if instruction is None:
            instruction = await self._store.read(lambda conn: _TABLE.find(conn, instruction_id))
            if instruction is None or (instruction.agent_id, instruction.session_id) != target.key:
                raise InstructionNotFoundError(instruction_id)
            if instruction.status.value == outcome:
                return
            raise InstructionClosedError(
                f"instruction {instruction_id!r} is {instruction.status.value}: the answer is too late"
            )
        if instruction.incarnation_id != target.incarnation_id:
            raise InstructionClosedError(
                f"instruction {instruction_id!r} was for incarnation {instruction.incarnation_id!r}, "
                f"not {target.incarnation_id!r}"
            )
        await self._close(
            instruction,
            status=InstructionStatus(outcome),
            answered_at=self._clock(),
            detail=redact(detail, _DETAIL_LIMIT),
            checkpoint_id=checkpoint_id,
        )

    async def _list_deliverable(self, target: Target) -> list[Instruction]:
        now = self._clock()
        instructions = []
        for instruction in list(self._queues.get(target.key, {}).values()):
            if instruction.expires_at <= now:
                await self._close(instruction, status=InstructionStatus.EXPIRED)
            # Instructions for other incarnations stay, because the incarnation that hangs may not be the one
            # that fetches.
            elif instruction.incarnation_id == target.incarnation_id and self._why_withheld(target) is None:
                instructions.append(instruction)
        return instructions

    async def expire(self, now: float) -> None:
        """Expire instructions that were not answered in time, and remove workers that no longer fetch."""
        expired_instructions = [
            instruction
            for by_id in self._queues.values()
            for instruction in by_id.values()
            if instruction.expires_at <= now
        ]
        for instruction in expired_instructions:
            await self._close(instruction, status=InstructionStatus.EXPIRED)
        for target, at in list(self._fetched_at.items()):
            if now - at > REACHABLE_SECONDS and target not in self._waiting_fetches:
                del self._fetched_at[target]

    async def _close(self, instruction: Instruction, **changes: object) -> None:
        result = instruction.model_copy(update=changes)
        await self._store.transact(lambda conn: _TABLE.write(conn, result))
        key = (instruction.agent_id, instruction.session_id)
        queue = self._queues.get(key, {})
        queue.pop(instruction.instruction_id, None)
        if not queue:
            self._queues.pop(key, None)
        answer = self._answers.get(instruction.instruction_id)
        if answer is not None and not answer.done():
            answer.set_result(result)
        self._on_closed(result)
