"""The provider of judge and queen: speaks OpenAI's protocol, thinks by the rules, has bad moments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queenright.judge.quoting import unquote
from queenright.judge.rules_model import DISMISS, NOTIFY, RulesModel
from queenright.runtime.llm.litellm_provider import LiteLlmProvider
from queenright.runtime.llm.model import Message, ModelReply, ToolCall, ToolSpec
from tests.runtime.openai_server import Answer, OpenAIServer, Refusal, Reply, Request, Stream

JUDGE: Final = "gpt-4o-mini"
QUEEN: Final = "gpt-4o"
"""Real names, so that each answer has its real price."""

USAGE: Final = {JUDGE: (3_000, 150), QUEEN: (4_000, 250)}
CACHED: Final = 2_048

UNIMPORTANT: Final = "clerk"
"""The agent about whom the queen finds that it need not trouble anybody."""


class Thought(Answer):
    """An answer of whose question a part was in the provider's cache."""

    def _usage(self) -> dict[str, Any]:
        return {**super()._usage(), "prompt_tokens_details": {"cached_tokens": CACHED}}


class Provider(OpenAIServer):
    """
    Answers every question as the rules would.

    But of the questions about anybody else, the judge's first is answered with status 500 and the second
    with words where a tool call is due; the queen's first is never answered at all.
    """

    def __init__(self) -> None:
        super().__init__()
        self._request_counts = {JUDGE: 0, QUEEN: 0}

    async def _answer(
        self, reply: Reply, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await super()._answer(await self._think(request.body), request, reader, writer)

    async def _think(self, body: Mapping[str, Any]) -> Reply:
        model = str(body["model"])
        messages = [_message(row) for row in body["messages"]]
        tools = [ToolSpec(row["function"]["name"], "", {}) for row in body.get("tools", ())]
        if not tools:
            return Thought(text=["Good morning."], usage=(10, 3), model=model)
        if not _about(UNIMPORTANT, messages):
            self._request_counts[model] += 1
            match model, self._request_counts[model]:
                case (str(), 1) if model == JUDGE:
                    return Refusal(status=500, message="overloaded")
                case (str(), 2) if model == JUDGE:
                    return Thought(text=["All seems well."], usage=USAGE[model], model=model)
                case (str(), 1) if model == QUEEN:
                    return Stream(head=False, held=True)
        result = _dismissal(messages, tools) or await RulesModel().complete(messages, tools)
        calls = [(call.id, call.name, call.arguments) for call in result.tool_calls]
        return Thought(
            text=[result.text] if result.text else (), tool_calls=calls, usage=USAGE[model], model=model
        )


async def warm() -> None:
    """Ask both models for nothing: the first question takes seconds, for all that is imported then."""
    for model in (JUDGE, QUEEN):
        result = [Message(role="user", content="Good morning.")]
        await LiteLlmProvider(f"openai/{model}", timeout_seconds=60).complete(result, [])


def _message(row: Mapping[str, Any]) -> Message:
    content = row.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text", "") for part in content)
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in row.get("tool_calls") or ()
    )
    return Message(
        role=row["role"], content=content, tool_calls=calls, tool_call_id=row.get("tool_call_id", "")
    )


def _about(agent: str, messages: Sequence[Message]) -> bool:
    questions = [message.content for message in messages if message.role == "user"]
    return f'"{agent}"' in questions[-1]


def _dismissal(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply | None:
    """Return the dismissal of a ticket that need not trouble anybody."""
    if NOTIFY not in {tool.name for tool in tools} or messages[-1].role != "user":
        return None
    ticket = unquote("ticket", messages[-1].content.partition("<worker>")[0]) or {}
    if ticket.get("agent_id") != UNIMPORTANT:
        return None
    reason = "it retries a lot, and nobody waits for what it does"
    arguments = json.dumps({"ticket_id": ticket["ticket_id"], "reason": reason})
    return ModelReply(tool_calls=(ToolCall("call_1", DISMISS, arguments),))
