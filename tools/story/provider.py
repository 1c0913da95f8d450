"""The provider of judge and queen: speaks OpenAI's protocol, answers like the rules, fails at times."""

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

DISMISSED_AGENT: Final = "clerk"
"""The agent whose ticket the queen dismisses."""


class CachedAnswer(Answer):
    """An answer whose usage reports cached prompt tokens."""

    def _build_usage(self) -> dict[str, Any]:
        return {**super()._build_usage(), "prompt_tokens_details": {"cached_tokens": CACHED}}


class Provider(OpenAIServer):
    """
    Answers every request like the rules.

    Among the requests about other agents, the judge's first gets status 500, its second a text instead of a
    tool call, and the queen's first no answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._request_counts = {JUDGE: 0, QUEEN: 0}

    async def _answer(
        self, reply: Reply, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await super()._answer(await self._choose_answer(request.body), request, reader, writer)

    async def _choose_answer(self, body: Mapping[str, Any]) -> Reply:
        model = str(body["model"])
        messages = [_parse_message(row) for row in body["messages"]]
        tools = [ToolSpec(row["function"]["name"], "", {}) for row in body.get("tools", ())]
        if not tools:
            return CachedAnswer(text=["Good morning."], usage=(10, 3), model=model)
        if not _is_about(DISMISSED_AGENT, messages):
            self._request_counts[model] += 1
            match model, self._request_counts[model]:
                case (str(), 1) if model == JUDGE:
                    return Refusal(status=500, message="overloaded")
                case (str(), 2) if model == JUDGE:
                    return CachedAnswer(text=["All seems well."], usage=USAGE[model], model=model)
                case (str(), 1) if model == QUEEN:
                    return Stream(head=False, is_held=True)
        result = _build_dismissal(messages, tools) or await RulesModel().complete(messages, tools)
        calls = [(call.id, call.name, call.arguments) for call in result.tool_calls]
        return CachedAnswer(
            text=[result.text] if result.text else (), tool_calls=calls, usage=USAGE[model], model=model
        )


async def warm_up() -> None:
    """Send a first request to both models: it takes seconds, because of its imports."""
    for model in (JUDGE, QUEEN):
        result = [Message(role="user", content="Good morning.")]
        await LiteLlmProvider(f"openai/{model}", timeout_seconds=60).complete(result, [])


def _parse_message(row: Mapping[str, Any]) -> Message:
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


def _is_about(agent: str, messages: Sequence[Message]) -> bool:
    questions = [message.content for message in messages if message.role == "user"]
    return f'"{agent}"' in questions[-1]


def _build_dismissal(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply | None:
    """Return the dismissal of the unimportant ticket; None for other requests."""
    if NOTIFY not in {tool.name for tool in tools} or messages[-1].role != "user":
        return None
    ticket = unquote("ticket", messages[-1].content.partition("<worker>")[0]) or {}
    if ticket.get("agent_id") != DISMISSED_AGENT:
        return None
    reason = "it retries often, but nobody waits for its results"
    arguments = json.dumps({"ticket_id": ticket["ticket_id"], "reason": reason})
    return ModelReply(tool_calls=(ToolCall("call_1", DISMISS, arguments),))
