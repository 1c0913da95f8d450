"""
A scripted model provider on loopback, in the four protocols of clients and frameworks.

The number of tool results in a request selects the turn. A retried request therefore gets the same answer,
and two clients can be served concurrently. Requests without a shell tool (titles, summaries, probes) are
answered with one word.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.clients.scenarios import MODEL_SECONDS, Call, Delegate, Fail, Say, Turn

_INPUT_TOKENS: Final = 1000
_OUTPUT_TOKENS: Final = 20
_RESPONSES_USAGE: Final = {
    "input_tokens": _INPUT_TOKENS,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": _OUTPUT_TOKENS,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": _INPUT_TOKENS + _OUTPUT_TOKENS,
}
_CHAT_USAGE: Final = {
    "prompt_tokens": _INPUT_TOKENS,
    "completion_tokens": _OUTPUT_TOKENS,
    "total_tokens": _INPUT_TOKENS + _OUTPUT_TOKENS,
}
_RESPONSES_RESULT_TYPES: Final = {"function_call_output", "custom_tool_call_output"}
SHELL: Final = "run_shell_command"
"""The shell tool's name in Gemini CLI and in the programs of ``tests/frameworks``."""
FINAL_ANSWER: Final = "final_answer"
"""The tool through which agents of smolagents answer; their models never answer with text alone."""
_OBSERVATION_PREFIX: Final = "Observation:"
"""The prefix of tool results in smolagents, which sends them as user messages."""
_RUNNING_PATTERN: Final = re.compile(r"Process running with session ID (\d+)")
"""The result of Codex's shell tool for a command that is still running after some seconds."""
_CODE_TEMPLATE: Final = """\
let result = await tools.exec_command({arguments});
while (result.session_id) {{
  result = await tools.write_stdin({{session_id: result.session_id, chars: ""}});
}}
text(result.output);"""
_MODEL_CHOICE: Final = Say(json.dumps({"complexity_reasoning": "One command.", "complexity_score": 10}))
"""The answer when Gemini CLI asks which model to use."""
_UNSCRIPTED_ANSWER: Final = Say("Notes")
"""The answer to a request that does not belong to the script."""


def find_next_turn(turns: Sequence[Turn], results: int, *, has_shell: bool) -> Turn:
    """Return the turn that follows ``results`` tool results."""
    if isinstance(turns[0], Fail):
        return turns[0]
    if not has_shell:
        return _UNSCRIPTED_ANSWER
    return turns[min(results, len(turns) - 1)]


def has_tool(body: Mapping[str, Any], name: str) -> bool:
    """Return whether a request offers the model a tool with this name."""
    tools = [
        declared
        for tool in body.get("tools") or ()
        for declared in tool.get("functionDeclarations", [tool.get("function", tool)])
    ]
    return any(tool.get("name") == name for tool in tools)


def count_anthropic_results(body: Mapping[str, Any]) -> int:
    """Count the tool results in a request of the Messages API."""
    contents = [message["content"] for message in body["messages"]]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return sum(block["type"] == "tool_result" for block in blocks)


def find_anthropic_turns(turns: Sequence[Turn], body: Mapping[str, Any]) -> Sequence[Turn]:
    """Return the script of the agent or sub-agent that sent a request of the Messages API."""
    first_message = json.dumps(body["messages"][0])
    delegations = (turn for turn in turns if isinstance(turn, Delegate) and turn.task in first_message)
    return next((turn.turns for turn in delegations), turns)


def build_anthropic_events(turn: Call | Delegate | Say, number: int, model: str) -> Iterator[dict[str, Any]]:
    """Yield the server-sent events of one answer of the Messages API."""
    usage = {"input_tokens": _INPUT_TOKENS, "output_tokens": 1}
    message = {"id": f"msg_{number:04}", "type": "message", "role": "assistant", "model": model}
    yield {"type": "message_start", "message": message | {"content": [], "stop_reason": None, "usage": usage}}
    if isinstance(turn, Say):
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": turn.text}
        reason = "end_turn"
    else:
        name, arguments = _build_anthropic_tool(turn)
        block = {"type": "tool_use", "id": f"toolu_{number:04}", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        reason = "tool_use"
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": _OUTPUT_TOKENS},
    }
    yield {"type": "message_stop"}


def _build_anthropic_tool(turn: Call | Delegate) -> tuple[str, dict[str, Any]]:
    """Return the name and arguments of Claude Code's tool for a turn."""
    if isinstance(turn, Call):
        return "Bash", {"command": turn.command, "description": "Run a command"}
    task = {"description": "Count lines", "prompt": turn.task, "subagent_type": "general-purpose"}
    return "Agent", task | {"run_in_background": False}


def read_responses_results(body: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return the number of finished calls in a Responses request, and the session of a running one."""
    items = body["input"] if isinstance(body["input"], list) else []
    results = [json.dumps(item["output"]) for item in items if item.get("type") in _RESPONSES_RESULT_TYPES]
    matches = [_RUNNING_PATTERN.search(result) for result in results]
    last_match = matches[-1] if matches else None
    return sum(match is None for match in matches), int(last_match[1]) if last_match else None


def has_code_tool(body: Mapping[str, Any]) -> bool:
    """Return whether the model of a Responses request calls tools from code that it writes."""
    return any(item.get("type") == "additional_tools" for item in body["input"] if isinstance(item, dict))


def build_responses_answer(turn: Call | Say, number: int, model: str) -> dict[str, Any]:
    """Return a complete answer of the Responses API that calls a framework's shell tool."""
    if isinstance(turn, Say):
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        item: dict[str, Any] = {"type": "message", "role": "assistant", "content": content}
        item |= {"id": f"msg_{number:04}", "status": "completed"}
    else:
        arguments = json.dumps({"command": turn.command})
        item = {"type": "function_call", "name": SHELL, "arguments": arguments, "status": "completed"}
        item |= {"id": f"fc_{number:04}", "call_id": f"call_{number:04}"}
    return {
        "id": f"resp_{number:04}",
        "object": "response",
        "created_at": 0,
        "model": model,
        "status": "completed",
        "output": [item],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": _RESPONSES_USAGE,
    }


def count_chat_results(body: Mapping[str, Any]) -> int:
    """Count the tool results in a request of the Chat Completions API."""
    return sum(
        message["role"] == "tool"
        or (message["role"] == "user" and _OBSERVATION_PREFIX in str(message["content"]))
        for message in body["messages"]
    )


def build_chat_answer(
    turn: Call | Say, number: int, model: str, *, answers_by_tool: bool = False
) -> dict[str, Any]:
    """Return an answer of the Chat Completions API."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if isinstance(turn, Say) and not answers_by_tool:
        message["content"] = turn.text
    else:
        function = (
            {"name": FINAL_ANSWER, "arguments": json.dumps({"answer": turn.text})}
            if isinstance(turn, Say)
            else {"name": SHELL, "arguments": json.dumps({"command": turn.command})}
        )
        message["tool_calls"] = [{"id": f"call_{number:04}", "type": "function", "function": function}]
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": f"chatcmpl-{number:04}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": _CHAT_USAGE,
    }


def build_chat_chunks(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an answer of the Chat Completions API as a stream: its message and usage."""
    base = {name: answer[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    [choice] = answer["choices"]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [call | {"index": index} for index, call in enumerate(delta["tool_calls"])]
    yield base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield base | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    yield base | {"choices": [], "usage": answer["usage"]}


def build_responses_events(
    turn: Call | Say, number: int, model: str, *, in_code: bool, running: int | None
) -> Iterator[dict[str, Any]]:
    """Yield the server-sent events of an answer of the Responses API."""
    response = {"id": f"resp_{number:04}", "object": "response", "model": model, "output": []}
    yield {"type": "response.created", "response": response | {"status": "in_progress"}}
    if isinstance(turn, Say):
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        item = {"type": "message", "id": f"msg_{number:04}", "role": "assistant", "content": content}
    elif running is not None:
        arguments: dict[str, Any] = {"session_id": running, "chars": ""}
        item = {"id": f"fc_{number:04}", "call_id": f"call_{number:04}"}
        item |= {"type": "function_call", "name": "write_stdin", "arguments": json.dumps(arguments)}
    else:
        arguments = {"cmd": turn.command}
        if turn.is_escalated:
            arguments |= {"sandbox_permissions": "require_escalated", "justification": "May I create it?"}
        item = {"id": f"fc_{number:04}", "call_id": f"call_{number:04}"}
        if in_code:
            code = _CODE_TEMPLATE.format(arguments=json.dumps(arguments))
            item |= {"type": "custom_tool_call", "name": "exec", "input": code}
        else:
            item |= {"type": "function_call", "name": "exec_command", "arguments": json.dumps(arguments)}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    completed = response | {"status": "completed", "usage": _RESPONSES_USAGE}
    yield {"type": "response.completed", "response": completed}


def count_gemini_results(body: Mapping[str, Any]) -> int:
    """Count the tool results in a request of the Gemini API."""
    parts = [part for content in body["contents"] for part in content["parts"]]
    return sum("functionResponse" in part for part in parts)


def build_gemini_answer(turn: Call | Say, number: int, model: str) -> dict[str, Any]:
    """Return an answer of the Gemini API."""
    if isinstance(turn, Call):
        call = {"id": f"call_{number:04}", "name": SHELL, "args": {"command": turn.command}}
        part: dict[str, Any] = {"functionCall": call}
    else:
        part = {"text": turn.text}
    return {
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": _INPUT_TOKENS,
            "candidatesTokenCount": _OUTPUT_TOKENS,
            "totalTokenCount": _INPUT_TOKENS + _OUTPUT_TOKENS,
        },
        "modelVersion": model,
        "responseId": f"response_{number:04}",
    }


async def _stream_events(events: Iterator[dict[str, Any]]) -> AsyncIterator[str]:
    await asyncio.sleep(MODEL_SECONDS)
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        yield f"{name}data: {json.dumps(event)}\n\n"


class Provider:
    """Answers model requests from a script."""

    def __init__(self, turns: tuple[Turn, ...]) -> None:
        self._turns = turns
        self._answer_count = 0
        self.last_call_sent = asyncio.Event()
        """Set once the last tool call of the script, or the first failure, has been sent."""
        self._closing = asyncio.Event()
        self._requests: list[bytes] = []

    @property
    def routes(self) -> list[Route]:
        """Return the routes of the four protocols, and the route that a hanging tool requests."""
        return [
            Route("/v1/messages", self._answer_messages, methods=["POST"]),
            Route("/v1/responses", self._answer_responses, methods=["POST"]),
            Route("/v1/chat/completions", self._answer_chat, methods=["POST"]),
            Route("/v1beta/models/{model}:{method}", self._answer_gemini, methods=["POST"]),
            Route("/wait", self._hang_until_closed),
        ]

    def close(self) -> None:
        """Release the hanging tools."""
        self._closing.set()

    async def _answer_messages(self, request: Request) -> Response:
        body = await self._read_body(request)
        turns = find_anthropic_turns(self._turns, body)
        turn = self._take_turn(turns, count_anthropic_results(body), has_shell=has_tool(body, "Bash"))
        if isinstance(turn, Fail):
            kind = {429: "rate_limit_error", 529: "overloaded_error"}.get(turn.status, "api_error")
            error = {"type": "error", "error": {"type": kind, "message": "Scripted failure"}}
            return JSONResponse(error, turn.status)
        events = build_anthropic_events(turn, self._answer_count, body["model"])
        return StreamingResponse(_stream_events(events), media_type="text/event-stream")

    async def _answer_responses(self, request: Request) -> Response:
        body = await self._read_body(request)
        in_code = has_code_tool(body)
        results, running = read_responses_results(body)
        has_shell = in_code or has_tool(body, "exec_command") or has_tool(body, SHELL)
        turn = self._take_own_turn(results, has_shell=has_shell)
        if isinstance(turn, Fail):
            return JSONResponse(
                {"error": {"type": "server_error", "message": "Scripted failure"}}, turn.status
            )
        if not body.get("stream"):
            await asyncio.sleep(MODEL_SECONDS)
            return JSONResponse(build_responses_answer(turn, self._answer_count, body["model"]))
        events = build_responses_events(
            turn, self._answer_count, body["model"], in_code=in_code, running=running
        )
        return StreamingResponse(_stream_events(events), media_type="text/event-stream")

    async def _answer_chat(self, request: Request) -> Response:
        body = await request.json()
        turn = self._take_own_turn(count_chat_results(body), has_shell=has_tool(body, SHELL))
        if isinstance(turn, Fail):
            error = {"message": "Scripted failure", "type": "server_error"}
            return JSONResponse({"error": error}, turn.status)
        answers_by_tool = has_tool(body, FINAL_ANSWER)
        answer = build_chat_answer(turn, self._answer_count, body["model"], answers_by_tool=answers_by_tool)
        if body.get("stream"):
            return StreamingResponse(
                _stream_events(build_chat_chunks(answer)), media_type="text/event-stream"
            )
        await asyncio.sleep(MODEL_SECONDS)
        return JSONResponse(answer)

    async def _answer_gemini(self, request: Request) -> Response:
        body = await self._read_body(request)
        model, method = request.path_params["model"], request.path_params["method"]
        if method == "countTokens":
            return JSONResponse({"totalTokens": _INPUT_TOKENS})
        turn = self._take_own_turn(count_gemini_results(body), has_shell=has_tool(body, SHELL))
        if isinstance(turn, Fail):
            status = {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL"}.get(turn.status, "UNAVAILABLE")
            error = {"code": turn.status, "message": "Scripted failure", "status": status}
            return JSONResponse({"error": error}, turn.status)
        if body.get("generationConfig", {}).get("responseMimeType") == "application/json":
            turn = _MODEL_CHOICE
        answer = build_gemini_answer(turn, self._answer_count, model)
        if method == "generateContent":
            return JSONResponse(answer)
        return StreamingResponse(_stream_events(iter([answer])), media_type="text/event-stream")

    async def _hang_until_closed(self, request: Request) -> Response:
        await self._closing.wait()
        return Response(b"")

    def has_received(self, text: str) -> bool:
        """Return whether a request to the model contained the text."""
        return any(text.encode() in request for request in self._requests)

    async def _read_body(self, request: Request) -> Any:
        self._requests.append(await request.body())
        return await request.json()

    def _take_turn(self, turns: Sequence[Turn], results: int, *, has_shell: bool) -> Turn:
        turn = find_next_turn(turns, results, has_shell=has_shell)
        self._answer_count += 1
        if isinstance(turn, Fail) or turn is self._turns[-2]:
            self.last_call_sent.set()
        return turn

    def _take_own_turn(self, results: int, *, has_shell: bool) -> Call | Say | Fail:
        turn = self._take_turn(self._turns, results, has_shell=has_shell)
        if isinstance(turn, Delegate):
            raise TypeError(
                "only Claude Code can delegate; add the scenario to the client's `excluded_scenarios`"
            )
        return turn
