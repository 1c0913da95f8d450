"""An HTTP server for OpenAI's chat completions, which can fail in every way that a provider can."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    An answer of the model, which streaming requests get in pieces and other requests as one document.

    Args:
        text: The pieces of the text, each of which is a delta.
        tool_calls: The id, name and arguments of each call.
        usage: The numbers of prompt and completion tokens; None omits them.
        fragment: Number of characters per piece of a call's arguments.
    """

    text: Sequence[str] = ()
    tool_calls: Sequence[tuple[str, str, str]] = ()
    usage: tuple[int, int] | None = (12, 3)
    finish_reason: str | None = ""
    model: str = "gpt-4o-mini"
    fragment: int = 5

    @property
    def sent_finish_reason(self) -> str | None:
        """The finish reason to send; by default, the one that OpenAI would send."""
        return (
            ("tool_calls" if self.tool_calls else "stop") if self.finish_reason == "" else self.finish_reason
        )

    def build_events(self) -> list[bytes]:
        """Return the answer as server-sent events, without the final ``[DONE]``."""
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if self.text else None}]
        deltas += [{"content": piece} for piece in self.text]
        call_heads = [
            {"index": i, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
            for i, (call_id, name, _) in enumerate(self.tool_calls)
        ]
        deltas += [{"tool_calls": [head]} for head in call_heads]
        # As with OpenAI, the argument pieces of parallel calls are interleaved.
        argument_pieces = [_split_text(arguments, self.fragment) for _, _, arguments in self.tool_calls]
        for n in range(max(map(len, argument_pieces), default=0)):
            deltas += [
                {"tool_calls": [{"index": i, "function": {"arguments": pieces[n]}}]}
                for i, pieces in enumerate(argument_pieces)
                if n < len(pieces)
            ]
        chunks = [
            self._build_chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas
        ]
        if self.sent_finish_reason is not None:
            chunks.append(
                self._build_chunk([{"index": 0, "delta": {}, "finish_reason": self.sent_finish_reason}])
            )
        if self.usage is not None:
            chunks.append(self._build_chunk([]) | {"usage": self._build_usage()})
        return [event(chunk) for chunk in chunks]

    def to_json(self) -> dict[str, Any]:
        """Return the answer as one JSON value."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.text) or None}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for call_id, name, arguments in self.tool_calls
            ]
        row = self._build_chunk([{"index": 0, "message": message, "finish_reason": self.sent_finish_reason}])
        row["object"] = "chat.completion"
        return row | ({} if self.usage is None else {"usage": self._build_usage()})

    def _build_chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        row = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": self.model}
        return row | {"choices": choices}

    def _build_usage(self) -> dict[str, int]:
        assert self.usage is not None
        prompt_tokens, completion_tokens = self.usage
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error response; ``code`` is OpenAI's error code."""

    status: int
    message: str = "no"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """
    Raw events, after which the stream ends, breaks (``is_torn``), or pauses (``is_held``).

    A held stream continues with ``then`` once it is released. Without ``head``, nothing is sent before that,
    not even the status.
    """

    head: bool = True

    events: Sequence[bytes] = ()
    is_torn: bool = False
    is_held: bool = False
    then: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """An answer as one JSON document even to streaming requests, as from a server that cannot stream."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Request:
    """One recorded request."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


Reply = Answer | Refusal | Stream | Whole


class OpenAIServer:
    """
    Answers each request with the next reply, or with status 500 if no reply is left.

    Every connection serves one request. ``requests`` has the requests so far.
    """

    def __init__(self, replies: Iterable[Reply] = ()) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self.url = ""
        self.reply_held = asyncio.Event()
        """Set when the server holds back a reply."""
        self.reply_released = asyncio.Event()
        """Set by the test to release the held reply."""
        self.client_disconnected = asyncio.Event()
        """Set when a client disconnects from a held reply."""
        self._connection_tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._connection_tasks.add(task)
        task.add_done_callback(self._connection_tasks.discard)
        try:
            request = await _read_request(reader)
            self.requests.append(request)
            reply = self.replies.pop(0) if self.replies else Refusal(status=500, message="no reply left")
            await self._answer(reply, request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(
        self, reply: Reply, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        match reply:
            case Refusal():
                error = {"message": reply.message, "type": "error", "code": reply.code}
                await _send_json(writer, reply.status, {"error": error}, reply.headers)
            case Whole():
                await _send_json(writer, 200, reply.answer.to_json())
            case Answer() if not request.body.get("stream"):
                await _send_json(writer, 200, reply.to_json())
            case Answer():
                await _send_stream(writer, [*reply.build_events(), DONE])
                await _end_stream(writer)
            case Stream():
                await self._send_raw_stream(reply, reader, writer)

    async def _send_raw_stream(
        self, reply: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if reply.head:
            await _send_stream(writer, reply.events)
        if reply.is_held:
            self.reply_held.set()
            release_task, close_task = (
                asyncio.ensure_future(self.reply_released.wait()),
                asyncio.ensure_future(reader.read(1)),
            )
            await asyncio.wait((release_task, close_task), return_when=asyncio.FIRST_COMPLETED)
            has_disconnected = close_task.done()
            for task in (release_task, close_task):
                task.cancel()
            if has_disconnected:
                self.client_disconnected.set()
                return
            await _send_chunks(writer, reply.then)
        if reply.is_torn:
            writer.transport.abort()
            return
        await _end_stream(writer)

    async def close(self) -> None:
        """Close every connection."""
        for task in list(self._connection_tasks):
            task.cancel()
        await asyncio.gather(*self._connection_tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def openai_server(*replies: Reply) -> AsyncIterator[OpenAIServer]:
    """Serve ``replies`` on a free local port; ``url`` ends in ``/v1``."""
    server = OpenAIServer(replies)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listener.close()
        await server.close()
        await listener.wait_closed()


def event(value: Mapping[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _split_text(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(request_line.split(" ")[1], headers, json.loads(body or b"{}"))


def _format_head(status: int, headers: Mapping[str, str]) -> bytes:
    rows = {**headers, "connection": "close"}
    phrase = HTTPStatus(status).phrase if status in list(HTTPStatus) else "Unusual"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{k}: {v}" for k, v in rows.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _send_json(
    writer: asyncio.StreamWriter, status: int, value: object, headers: Mapping[str, str] | None = None
) -> None:
    body = json.dumps(value).encode()
    rows = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    writer.write(_format_head(status, rows) + body)
    await writer.drain()


async def _send_stream(writer: asyncio.StreamWriter, events: Iterable[bytes]) -> None:
    writer.write(_format_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
    await _send_chunks(writer, events)


async def _send_chunks(writer: asyncio.StreamWriter, events: Iterable[bytes]) -> None:
    for data in events:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()


async def _end_stream(writer: asyncio.StreamWriter) -> None:
    writer.write(b"0\r\n\r\n")
    await writer.drain()
