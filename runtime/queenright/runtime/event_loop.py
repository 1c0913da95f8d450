"""The event-loop node: ask the model, do what it asks for, tell it what came of it, until it is done."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from queenright.runtime.conversation import Conversation
from queenright.runtime.deadline import Sleep, within
from queenright.runtime.events import EventType
from queenright.runtime.graph import NodeSpec
from queenright.runtime.model import LLMProvider, Message, ModelError, ModelReply, ToolCall
from queenright.runtime.tools import Tool, ToolRegistry

SET_OUTPUT: Final = "set_output"

Emit = Callable[[EventType, Mapping[str, Any]], Awaitable[None]]
"""Publishes an event of this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """How a run of a node ended."""

    outcome: Literal["done", "no_answer", "incomplete"]
    """
    ``done``: the outputs are set, or the answer was words where no outputs were asked for.
    ``no_answer``: the model failed or took too long; ``error`` says how.
    ``incomplete``: it answered, but without setting its outputs, or used up its turns.
    """
    outputs: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    turns: int = 0
    error: str = ""


class EventLoopNode:
    """
    One node, ready to run.

    Args:
        spec: What it is.
        model: Who thinks.
        tools: The tools of the graph; the node sees those that its spec names, and ``set_output``.
        conversation: What was said before; everything said from now on is added.
        emit: Publishes the node's events.
        sleep: The clock of the model's time limit.

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
        emit: Emit,
        sleep: Sleep,
    ) -> None:
        self._spec = spec
        self._model = model
        self._conversation = conversation
        self._emit = emit
        self._sleep = sleep
        self._outputs: dict[str, str] = {}
        self._tools = tools.only(spec.tools)
        if spec.output_keys:
            self._tools.add(self._set_output())

    async def run(self, message: str) -> NodeResult:
        """Say ``message`` to the model and go on until it is done; a failing model is a result, no error."""
        self._conversation.compact()
        self._conversation.append(Message(role="user", content=message))
        self._outputs = {}
        await self._emit(EventType.NODE_LOOP_STARTED, {"messages": len(self._conversation)})
        result = await self._loop()
        if result.outcome == "no_answer":
            # Said into the conversation too, so that the next run knows what became of this one.
            self._conversation.append(Message(role="assistant", content=f"(no answer: {result.error})"))
        await self._emit(
            EventType.NODE_LOOP_COMPLETED,
            {
                "outcome": result.outcome,
                "turns": result.turns,
                "outputs": dict(result.outputs),
                "error": result.error,
            },
        )
        return result

    async def _loop(self) -> NodeResult:
        reply = ModelReply()
        for turn in range(1, self._spec.max_turns + 1):
            try:
                reply = await self._ask()
            except (ModelError, TimeoutError) as error:
                return NodeResult(outcome="no_answer", turns=turn, error=str(error) or type(error).__name__)
            except Exception as error:
                return NodeResult(outcome="no_answer", turns=turn, error=f"{type(error).__name__}: {error}")
            said = Message(role="assistant", content=reply.text, tool_calls=reply.tool_calls)
            self._conversation.append(said)
            for call in reply.tool_calls:
                await self._use(call)
            if self._outputs or (not reply.tool_calls and not self._spec.output_keys):
                return NodeResult(outcome="done", outputs=dict(self._outputs), text=reply.text, turns=turn)
            if not reply.tool_calls:
                wanted = ", ".join(self._spec.output_keys)
                error_text = f"ended without setting {wanted}"
                return NodeResult(outcome="incomplete", text=reply.text, turns=turn, error=error_text)
        error_text = f"not done after {self._spec.max_turns} turns"
        return NodeResult(outcome="incomplete", text=reply.text, turns=self._spec.max_turns, error=error_text)

    async def _ask(self) -> ModelReply:
        messages = [Message(role="system", content=self._spec.system_prompt), *self._conversation.messages]
        work = self._model.complete(messages, self._tools.specs())
        reply = await within(self._spec.model_timeout_seconds, _as_coroutine(work), self._sleep)
        tokens = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
        await self._emit(EventType.LLM_CALL_COMPLETED, {"model": self._model.name, **tokens})
        return reply

    async def _use(self, call: ToolCall) -> None:
        result = await self._tools.call(call)
        self._conversation.append(Message(role="tool", content=result.content, tool_call_id=call.id))
        outcome = "error" if result.failed else "ok"
        await self._emit(
            EventType.TOOL_CALL_COMPLETED, {"tool": call.name, "call_id": call.id, "outcome": outcome}
        )

    def _set_output(self) -> Tool:
        """Make the tool that ends the loop; its arguments are the node's output keys."""
        fields: dict[str, Any] = {key: (str, Field(min_length=1)) for key in self._spec.output_keys}
        arguments = create_model("SetOutput", __config__=ConfigDict(extra="forbid"), **fields)

        def run(given: BaseModel) -> str:
            self._outputs.update(given.model_dump())
            return json.dumps(given.model_dump())

        return Tool(SET_OUTPUT, "End this run by saying its result.", arguments, run)


async def _as_coroutine(work: Awaitable[ModelReply]) -> ModelReply:
    return await work
