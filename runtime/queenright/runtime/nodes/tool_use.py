"""Using tools: all calls of a turn at once, each answer written down as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final

from queenright.runtime.breakers import BreakerKind, Breakers, CallRefused
from queenright.runtime.deadline import Sleep, all_ended, within
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.llm.model import Message, ToolCall
from queenright.runtime.nodes.own_tools import effect, own_tools
from queenright.runtime.nodes.reporting import StepReport, ToolReport
from queenright.runtime.nodes.visit import Visit
from queenright.runtime.storage.entries import EntryKind
from queenright.runtime.tooling.tools import ToolError, ToolRegistry, ToolResult, ToolUnavailable

Approve = Callable[[ToolCall], Awaitable[None]]
"""Returns if a call may be made, raises ``ToolError`` if not."""

_GRACE_SECONDS: Final = 5.0
"""A tool whose time is up, or that is cancelled, has so long to stop."""


class ToolUse:
    """
    The hands of a node.

    Args:
        spec: The node.
        tools: The tools of the graph; the node has those that its spec names, and its own.
        context: Values for the context parameters of tools.
        sleep: The clock of time limits.
        breakers: Gives the circuit breakers before tools, one for each tool of each worker.
        agent_id: The worker; without a name there are no breakers.
        approve: Is asked before each tool of the graph runs; raises ``ToolError`` if it may not.

    Raises:
        KeyError: The spec names a tool that is not in ``tools``.
    """

    def __init__(
        self,
        spec: NodeSpec,
        tools: ToolRegistry,
        *,
        context: Mapping[str, object],
        sleep: Sleep,
        breakers: Breakers | None = None,
        agent_id: str = "",
        approve: Approve | None = None,
    ) -> None:
        own = own_tools(spec)
        self._approve = approve
        self._seconds = spec.tool_timeout_seconds
        self._own = frozenset(tool.name for tool in own)
        self._tools = tools.only(spec.tools).merge(own)
        self._context = context
        self._sleep = sleep
        # The service's own graphs must act also where everything fails.
        self._breakers = breakers if agent_id else None
        self._agent_id = agent_id
        self.specs = self._tools.specs()
        """What the model is offered."""

    async def act(self, visit: Visit, step: StepReport) -> None:
        """Do what the model asked for."""
        await self._all(visit, step, visit.open_calls())

    async def take_up(self, visit: Visit, step: StepReport) -> None:
        """
        Go on with a turn that was interrupted among its tools.

        The node's own tools touch nothing but the conversation and are simply called again; what the others
        did, nobody knows.
        """
        await self._all(visit, step, [call for call in visit.open_calls() if call.name in self._own])
        await visit.repair()

    async def _all(self, visit: Visit, step: StepReport, calls: Iterable[ToolCall]) -> None:
        tasks = {asyncio.create_task(self._use(step, call), name=f"tool {call.name}"): call for call in calls}
        try:
            while tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in tasks if task in done]:
                    await self._answer(visit, tasks.pop(task), *task.result())
        except BaseException as error:
            for task in tasks:
                task.cancel()
            await all_ended(tasks)
            if isinstance(error, asyncio.CancelledError):
                # Who has answered has answered, and need not be asked again after a resume.
                for task, call in tasks.items():
                    if not task.cancelled() and task.exception() is None:
                        await self._answer(visit, call, *task.result())
            raise
        if visit.cursor.outputs_set:
            await visit.save()

    async def _use(self, step: StepReport, call: ToolCall) -> tuple[ToolResult, ToolReport]:
        tool = self._tools.get(call.name)
        seconds = None
        if tool is not None and call.name not in self._own:
            seconds = tool.timeout_seconds or self._seconds
        refusal = await self._refusal(call) if seconds is not None else None
        declared = tool.effect if tool is not None else ""
        async with step.tool(call.name, call.arguments, call.id, seconds, declared) as report:
            if refusal is not None:
                told = f"error: {call.name} was not run: {refusal}. Do something else, or ask."
                result = ToolResult(told, failed=True, error=refusal)
            elif seconds is None:
                result = await self._tools.call(call, self._context)
            else:
                result = await self._guarded(call, seconds)
            if result.error is not None:
                report.error(result.error)
            else:
                report.result(result.content)
        return result, report

    async def _refusal(self, call: ToolCall) -> ToolError | None:
        """Ask whether a tool may run, before its time begins; return why it may not."""
        if self._approve is not None:
            try:
                await self._approve(call)
            except ToolError as error:
                return error
        return None

    async def _guarded(self, call: ToolCall, seconds: float) -> ToolResult:
        """Run a tool if its breaker lets us, and tell the breaker how it went."""
        if self._breakers is None:
            return await self._limited(call.name, seconds, self._tools.call(call, self._context))
        try:
            permit = self._breakers.get(BreakerKind.TOOL_EXECUTION, self._agent_id, call.name).admit()
        except CallRefused as refusal:
            told = f"error: {call.name} was not run: {refusal} Do something else meanwhile."
            return ToolResult(told, failed=True, error=refusal)
        try:
            result = await self._limited(call.name, seconds, self._tools.call(call, self._context))
        except BaseException:
            permit.given_back()
            raise
        if result.error is None:
            permit.succeeded()
        elif isinstance(result.error, ToolError) and not isinstance(result.error, ToolUnavailable):
            permit.given_back()  # it works, and would not do what it was asked
        else:
            permit.failed(result.error)
        return result

    async def _limited(self, name: str, seconds: float, work: Coroutine[Any, Any, ToolResult]) -> ToolResult:
        try:
            return await within(seconds, work, self._sleep, grace=_GRACE_SECONDS)
        except TimeoutError as error:
            told = f"error: {name}: {error}; it may still be at work: check before doing it again"
            return ToolResult(told, failed=True, error=error)

    async def _answer(self, visit: Visit, call: ToolCall, result: ToolResult, report: ToolReport) -> None:
        data = {**report.facts, "turn": visit.cursor.iteration, "ended_at": report.ended_at}
        if not result.failed and call.name in self._own:
            data |= effect(call.name, call.arguments)
        message = Message(role="tool", content=result.content, tool_call_id=call.id)
        await visit.say(visit.draft(EntryKind.TOOL, message, data))


def told_apart(calls: Collection[ToolCall], turn: int) -> tuple[ToolCall, ...]:
    """Return the calls of a turn with ids that differ, whatever the model gave."""
    seen: set[str] = set()
    apart = []
    for number, call in enumerate(calls, start=1):
        call_id = call.id if call.id and call.id not in seen else f"call_{turn}_{number}"
        seen.add(call_id)
        apart.append(ToolCall(call_id, call.name, call.arguments))
    return tuple(apart)
