"""
A model provider on loopback that follows a script, in the three protocols that the clients speak.

Which turn comes next is read from the request: as many turns are over as it carries tool results. So a
retried request gets the same answer, and two clients can be served at once. Requests without tools (titles,
summaries, probes) are answered with a word.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.clients.scenarios import MODEL_SECONDS, Call, Fail, Say, Turn

_INPUT_TOKENS: Final = 1000
_OUTPUT_TOKENS: Final = 20
_ASIDE: Final = Say("Notes")
"""What a request beside the run's turns is answered with."""


def next_turn(turns: tuple[Turn, ...], results: int, *, has_tools: bool) -> Turn:
    """Return the turn that follows ``results`` tool results."""
    if isinstance(turns[0], Fail):
        return turns[0]
    if not has_tools:
        return _ASIDE
    return turns[min(results, len(turns) - 1)]


def count_anthropic_results(body: Mapping[str, Any]) -> int:
    """Count the tool results in a request of the Messages API."""
    contents = [message["content"] for message in body["messages"]]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return sum(block["type"] == "tool_result" for block in blocks)


def anthropic_events(turn: Call | Say, number: int, model: str) -> Iterator[dict[str, Any]]:
    """Yield the server-sent events of one answer of the Messages API."""
    usage = {"input_tokens": _INPUT_TOKENS, "output_tokens": 1}
    message = {"id": f"msg_{number:04}", "type": "message", "role": "assistant", "model": model}
    yield {"type": "message_start", "message": message | {"content": [], "stop_reason": None, "usage": usage}}
    if isinstance(turn, Call):
        arguments = {"command": turn.command, "description": "Run a command"}
        block: dict[str, Any] = {"type": "tool_use", "id": f"toolu_{number:04}", "name": "Bash", "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        reason = "tool_use"
    else:
        block = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": turn.text}
        reason = "end_turn"
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": _OUTPUT_TOKENS},
    }
    yield {"type": "message_stop"}


def count_responses_results(body: Mapping[str, Any]) -> int:
    """Count the tool results in a request of the Responses API."""
    return sum(item["type"] == "function_call_output" for item in body["input"])


def responses_events(turn: Call | Say, number: int, model: str) -> Iterator[dict[str, Any]]:
    """Yield the server-sent events of one answer of the Responses API."""
    response = {"id": f"resp_{number:04}", "object": "response", "model": model, "output": []}
    yield {"type": "response.created", "response": response | {"status": "in_progress"}}
    if isinstance(turn, Call):
        item: dict[str, Any] = {
            "type": "function_call",
            "id": f"fc_{number:04}",
            "call_id": f"call_{number:04}",
            "name": "exec_command",
            "arguments": json.dumps({"cmd": turn.command}),
        }
    else:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        item = {"type": "message", "id": f"msg_{number:04}", "role": "assistant", "content": content}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    usage = {
        "input_tokens": _INPUT_TOKENS,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": _OUTPUT_TOKENS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": _INPUT_TOKENS + _OUTPUT_TOKENS,
    }
    yield {"type": "response.completed", "response": response | {"status": "completed", "usage": usage}}


async def _stream(events: Iterator[dict[str, Any]]) -> AsyncIterator[str]:
    await asyncio.sleep(MODEL_SECONDS)
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        yield f"{name}data: {json.dumps(event)}\n\n"


class Provider:
    """Answers model requests by a script."""

    def __init__(self, turns: tuple[Turn, ...]) -> None:
        self._turns = turns
        self._answers = 0
        self.last_call = asyncio.Event()
        """Set when the last tool call of the script was sent."""

    @property
    def routes(self) -> list[Route]:
        """The routes of the three protocols."""
        return [
            Route("/v1/messages", self._messages, methods=["POST"]),
            Route("/v1/responses", self._responses, methods=["POST"]),
        ]

    async def _messages(self, request: Request) -> Response:
        body = await request.json()
        turn = next_turn(self._turns, count_anthropic_results(body), has_tools=bool(body.get("tools")))
        if isinstance(turn, Fail):
            kind = {429: "rate_limit_error", 529: "overloaded_error"}.get(turn.status, "api_error")
            error = {"type": "error", "error": {"type": kind, "message": "Scripted failure"}}
            return JSONResponse(error, turn.status)
        self._answer(turn)
        events = anthropic_events(turn, self._answers, body["model"])
        return StreamingResponse(_stream(events), media_type="text/event-stream")

    async def _responses(self, request: Request) -> Response:
        body = await request.json()
        turn = next_turn(self._turns, count_responses_results(body), has_tools=bool(body.get("tools")))
        if isinstance(turn, Fail):
            return JSONResponse(
                {"error": {"type": "server_error", "message": "Scripted failure"}}, turn.status
            )
        self._answer(turn)
        events = responses_events(turn, self._answers, body["model"])
        return StreamingResponse(_stream(events), media_type="text/event-stream")

    def _answer(self, turn: Turn) -> None:
        self._answers += 1
        if isinstance(turn, Call) and turn is self._turns[-2]:
            self.last_call.set()
