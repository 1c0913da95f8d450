"""HTTP servers that answer like Prometheus and Tempo, for tests of the stack."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs

from queenright.server.ops.sockets import listen, make_socket_url, serve_app

AnswerFunction = Callable[[str, dict[str, str]], tuple[int, Any]]


class ApiServer:
    """An HTTP server whose answers a function computes. It keeps the requests and their credentials."""

    def __init__(self, answer: AnswerFunction) -> None:
        self.answer = answer
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.authorization: list[str] = []
        self.should_hang = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, has_more = b"", True
        while has_more:
            message = await receive()
            body, has_more = body + message.get("body", b""), message.get("more_body", False)
        query = parse_qs((scope["query_string"] + b"&" + body).decode())
        params = {key: values[0] for key, values in query.items()}
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        self.authorization.append(headers.get("authorization", ""))
        self.requests.append((scope["path"], params))
        if self.should_hang:
            await asyncio.Event().wait()
        status, answer = self.answer(scope["path"], params)
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": content})


@contextlib.asynccontextmanager
async def serve_answers(answer: AnswerFunction) -> AsyncIterator[tuple[ApiServer, str]]:
    """Serve the answers of ``answer``. Yield the server and its URL."""
    server = ApiServer(answer)
    sock = listen("127.0.0.1", 0, what="a stand-in", option="")
    with contextlib.closing(sock):
        async with serve_app(server, sock):
            yield server, make_socket_url(sock)


def make_vector(*rows: tuple[dict[str, str], float], time: float = 1_800_000_000.0) -> dict[str, Any]:
    """Return an instant vector in Prometheus' format."""
    series = [{"metric": labels, "value": [time, str(value)]} for labels, value in rows]
    return {"status": "success", "data": {"resultType": "vector", "result": series}}


def make_matrix(*rows: tuple[dict[str, str], list[tuple[float, float]]]) -> dict[str, Any]:
    """Return a range vector in Prometheus' format."""
    series = [
        {"metric": labels, "values": [[time, str(value)] for time, value in points]}
        for labels, points in rows
    ]
    return {"status": "success", "data": {"resultType": "matrix", "result": series}}


def make_otlp_span(
    name: str,
    start: float,
    end: float,
    *,
    span_id: str = "b7ad6b7169203331",
    parent_id: str = "",
    error: str = "",
    **attributes: Any,
) -> dict[str, Any]:
    """Return a span in OTLP JSON as Tempo encodes it: ids in base64, numbers as text."""
    return {
        "traceId": base64.b64encode(bytes.fromhex("0af7651916cd43dd8448eb211c80319c")).decode(),
        "spanId": base64.b64encode(bytes.fromhex(span_id)).decode(),
        "parentSpanId": base64.b64encode(bytes.fromhex(parent_id)).decode() if parent_id else "",
        "name": name,
        "startTimeUnixNano": str(int(start * 1e9)),
        "endTimeUnixNano": str(int(end * 1e9)),
        "attributes": [
            {"key": key, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}}
            for key, v in attributes.items()
        ],
        "status": {"code": "STATUS_CODE_ERROR", "message": error} if error else {},
    }


def make_tempo_trace(*spans: dict[str, Any], agent: str = "researcher") -> dict[str, Any]:
    """Return a trace in the format of ``/api/traces/{id}``."""
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": agent}}]}
    return {"batches": [{"resource": resource, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def make_loop_trace(agent: str, *, begin: float, calls: int, result: str = "r1") -> dict[str, Any]:
    """Return a trace of an agent that makes the same call with the same result, one call per step."""
    spans = []
    for number in range(calls):
        time, step_id = begin + number * 2.0, f"{number + 1:016x}"
        common = {"gen_ai.agent.name": agent, "queenright.node.id": "search_node"}
        spans.append(
            make_otlp_span(
                "execute_tool search",
                time,
                time + 0.5,
                span_id=f"{number + 1000:016x}",
                parent_id=step_id,
                **common,
                **{
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": "search",
                    "queenright.tool.arguments.hash": "a1",
                    "queenright.tool.result.hash": result,
                },
            )
        )
        verdict = {"queenright.step.verdict": "CONTINUE"}
        spans.append(
            make_otlp_span("step search_node", time, time + 1.0, span_id=step_id, **common, **verdict)
        )
    return make_tempo_trace(*spans, agent=agent)
