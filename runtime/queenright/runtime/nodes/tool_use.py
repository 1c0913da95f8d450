"""Runs the tool calls of a turn concurrently, and records each answer as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final

from queenright.runtime.breaker_protocols import BreakerKind, Breakers, CallRefusedError
from queenright.runtime.deadline import Sleep, wait_all, within
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.llm.model import Message, ToolCall
from queenright.runtime.nodes.own_tools import call_effect, make_builtin_tools
from queenright.runtime.nodes.reporting import StepReport, ToolReport
from queenright.runtime.nodes.visit import Visit
from queenright.runtime.storage.entries import EntryKind
from queenright.runtime.tooling.tools import ToolError, ToolRegistry, ToolResult, ToolUnavailableError

Approve = Callable[[ToolCall], Awaitable[None]]
"""Returns if a call may be made; raises ``ToolError`` if not."""

_GRACE_SECONDS: Final = 5.0
"""How long a tool may take to stop after a timeout or a cancellation."""


class ToolRunner:
    """
    Runs the tool calls of a node.

    Args:
        tools: Tools of the graph; the node uses those its specification names, and its built-in ones.
        agent_id: The worker; empty disables breakers.
        approve: Called before each of the graph's tools runs; raises ``ToolError`` to reject the call.

    Raises:
        KeyError: The specification names a tool that is not in ``tools``.
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
        builtin = make_builtin_tools(spec)
        self._approve = approve
        self._timeout_seconds = spec.tool_timeout_seconds
        self._builtin_names = frozenset(tool.name for tool in builtin)
        self._tools = tools.select(spec.tools).merge(builtin)
        self._context = context
        self._sleep = sleep
        # The service's own graphs must be able to act even if everything fails.
        self._breakers = breakers if agent_id else None
        self._agent_id = agent_id
        self.specs = self._tools.specs()
        """Tool specifications for the model."""

    async def run_calls(self, visit: Visit, step: StepReport) -> None:
        """Run the tool calls of the newest turn."""
        await self._run_concurrently(visit, step, visit.list_unanswered_calls())

    async def resume(self, visit: Visit, step: StepReport) -> None:
        """
        Resume a turn that was interrupted during its tool calls.

        Built-in tools only affect the conversation and are called again. The effect of the others is
        unknown, so their calls are answered with an error.
        """
        await self._run_concurrently(
            visit, step, [call for call in visit.list_unanswered_calls() if call.name in self._builtin_names]
        )
        await visit.repair()

    async def _run_concurrently(self, visit: Visit, step: StepReport, calls: Iterable[ToolCall]) -> None:
        tasks = {
            asyncio.create_task(self._run_call(step, call), name=f"tool {call.name}"): call for call in calls
        }
        try:
            while tasks:
                done_tasks, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in tasks if task in done_tasks]:
                    await self._record_answer(visit, tasks.pop(task), *task.result())
        except BaseException as error:
            for task in tasks:
                task.cancel()
            await wait_all(tasks)
            if isinstance(error, asyncio.CancelledError):
                # Record the answers that arrived, so that these calls are not repeated after a resume.
                for task, call in tasks.items():
                    if not task.cancelled() and task.exception() is None:
                        await self._record_answer(visit, call, *task.result())
            raise
        if visit.cursor.outputs_set:
            await visit.save()

    async def _run_call(self, step: StepReport, call: ToolCall) -> tuple[ToolResult, ToolReport]:
        tool = self._tools.get(call.name)
        seconds = None
        if tool is not None and call.name not in self._builtin_names:
            seconds = tool.timeout_seconds or self._timeout_seconds
        refusal = await self._check_approval(call) if seconds is not None else None
        effect = tool.effect if tool is not None else ""
        async with step.tool(call.name, call.arguments, call.id, seconds, effect) as report:
            if refusal is not None:
                text = f"error: {call.name} was not run: {refusal}. Do something else, or ask."
                result = ToolResult(text, failed=True, error=refusal)
            elif seconds is None:
                result = await self._tools.call(call, self._context)
            else:
                result = await self._run_guarded(call, seconds)
            if result.error is not None:
                report.error(result.error)
            else:
                report.result(result.content)
        return result, report

    async def _check_approval(self, call: ToolCall) -> ToolError | None:
        """Ask for approval, before the call's time limit starts; return the reason for a rejection."""
        if self._approve is not None:
            try:
                await self._approve(call)
            except ToolError as error:
                return error
        return None

    async def _run_guarded(self, call: ToolCall, seconds: float) -> ToolResult:
        """Run a tool if its circuit breaker admits the call, and report the outcome to the breaker."""
        if self._breakers is None:
            return await self._run_limited(call.name, seconds, self._tools.call(call, self._context))
        try:
            permit = self._breakers.get(BreakerKind.TOOL_EXECUTION, self._agent_id, call.name).admit()
        except CallRefusedError as refusal:
            text = f"error: {call.name} was not run: {refusal} Do something else in the meantime."
            return ToolResult(text, failed=True, error=refusal)
        try:
            result = await self._run_limited(call.name, seconds, self._tools.call(call, self._context))
        except BaseException:
            permit.release()
            raise
        if result.error is None:
            permit.record_success()
        elif isinstance(result.error, ToolError) and not isinstance(result.error, ToolUnavailableError):
            permit.release()  # the tool works; it rejected this request
        else:
            permit.record_failure(result.error)
        return result

    async def _run_limited(
        self, name: str, seconds: float, work: Coroutine[Any, Any, ToolResult]
    ) -> ToolResult:
        try:
            return await within(seconds, work, self._sleep, grace=_GRACE_SECONDS)
        except TimeoutError as error:
            text = f"error: {name}: {error}; it may still be running: check before calling it again"
            return ToolResult(text, failed=True, error=error)

    async def _record_answer(
        self, visit: Visit, call: ToolCall, result: ToolResult, report: ToolReport
    ) -> None:
        data = {**report.facts, "turn": visit.cursor.iteration, "ended_at": report.ended_at}
        if not result.failed and call.name in self._builtin_names:
            data |= call_effect(call.name, call.arguments)
        message = Message(role="tool", content=result.content, tool_call_id=call.id)
        await visit.append(visit.make_draft(EntryKind.TOOL, message, data))


def with_unique_ids(calls: Collection[ToolCall], turn: int) -> tuple[ToolCall, ...]:
    """Return the calls of a turn with unique ids, even if the model repeated ids."""
    known_ids: set[str] = set()
    unique_calls = []
    for number, call in enumerate(calls, start=1):
        call_id = call.id if call.id and call.id not in known_ids else f"call_{turn}_{number}"
        known_ids.add(call_id)
        unique_calls.append(ToolCall(call_id, call.name, call.arguments))
    return tuple(unique_calls)
