"""Hostile requests to a service that listens on loopback."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from urllib.parse import quote, urlsplit

import httpx
import pytest

from queenright.server.serving import RunningService

HOSTILE_TEXT = "<script>alert(1)</script>\x1b[2J\r\nroot: all is well"


async def send_raw(running: RunningService, request: bytes) -> bytes:
    """Send bytes unchanged, and return the whole response."""
    url_parts = urlsplit(running.url)
    reader, writer = await asyncio.open_connection(url_parts.hostname, url_parts.port)
    writer.write(request)
    await writer.drain()
    answer = await asyncio.wait_for(reader.read(65_536), 20)
    writer.close()
    return answer


async def test_path_traversal_is_404(running: RunningService, http: httpx.AsyncClient) -> None:
    for path in (
        "/static/..%2f..%2fsettings.py",
        "/static/%2e%2e/%2e%2e/settings.py",
        "/static//etc/passwd",
        "/runbooks/..%2f..%2f..%2fREADME",
        "/runbooks/%2fetc%2fpasswd",
        "/tickets/..%2f..%2fapi%2fstatus",
        "/api/tickets/..%2f..%2fetc%2fpasswd",
        "/api/tickets/%C0%AE%C0%AE%2f",
        "/api/agents/..%2f..%2fetc%2fpasswd/health",
        "/api/agents/%2fetc%2fpasswd/sessions",
        "/api/agents/x/sessions/..%2f..%2f..%2fetc/messages",
        "/api/agents/\u202e\u0000x/health".replace("\u0000", "%00"),
        f"/api/agents/{'x' * 20_000}/health",
        f"/api/breakers/{'%2e%2e%2f' * 500}etc",
    ):
        response = await http.get(path)

        # Only this path redirects, to the path without the duplicate slash.
        assert response.status_code == 307 or 400 <= response.status_code < 500, path
        assert response.headers.get("location", running.url).startswith(running.url)
        assert "root:" not in response.text
        assert "from __future__" not in response.text


async def test_path_traversal_that_is_not_normalized_is_404(running: RunningService) -> None:
    answer = await send_raw(
        running, b"GET /static/../../settings.py HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    )

    assert answer.split(b" ", 2)[1] in (b"404", b"400")


@pytest.mark.parametrize(
    "lines",
    [
        b"X-A: 1\r\n B: folded",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"X-A: a\x00b",
        b"X-A : 1",
        b"Idempotency-Key: a\rSet-Cookie: b",
    ],
)
async def test_ambiguous_headers_inject_nothing_into_a_response(idle: RunningService, lines: bytes) -> None:
    request = b"POST /api/deadman HTTP/1.1\r\nHost: 127.0.0.1\r\n" + lines + b"\r\nConnection: close\r\n\r\n"
    answer = await send_raw(idle, request)

    assert b"set-cookie" not in answer.lower()
    assert answer.count(b"HTTP/1.1 ") <= 1


async def test_text_of_a_request_is_in_no_response_header(http: httpx.AsyncClient) -> None:
    for path in (
        "/login?next=/%0d%0aSet-Cookie:%20a=b",
        "/agents/%0d%0aSet-Cookie:%20a=b",
        "/api/agents/%0d%0aSet-Cookie:%20a=b/health",
    ):
        response = await http.get(path, headers={"Accept": "text/html"})

        assert "set-cookie" not in response.headers


async def test_worker_name_is_escaped_in_pages_and_terminals(
    running: RunningService, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    now_ns = int(time.time() * 1e9)

    def make_attributes(**values: str) -> list[dict[str, object]]:
        return [
            {"key": key.replace("__", "."), "value": {"stringValue": value}} for key, value in values.items()
        ]

    span = {
        "traceId": "1" * 32,
        "spanId": "2" * 16,
        "name": HOSTILE_TEXT,
        "startTimeUnixNano": str(now_ns - 1000),
        "endTimeUnixNano": str(now_ns),
        "attributes": make_attributes(
            gen_ai__operation__name="execute_tool", gen_ai__tool__name=HOSTILE_TEXT
        ),
    }
    resource = {"attributes": make_attributes(service__name=HOSTILE_TEXT)}
    body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}
    otlp_response = await http.post(f"{running.otlp_url}/v1/traces", json=body)
    assert otlp_response.json() == {}
    assert (
        "<script>" in (await http.get("/api/agents")).text
    )  # This is the agent's name without the characters that move a cursor.

    for path in (
        "/console/",
        "/api/status",
        "/api/agents",
        "/metrics",
        "/agents/?agent=" + quote(HOSTILE_TEXT),
    ):
        response = await http.get(path)
        assert "\x1b" not in response.text
        assert "\nroot:" not in response.text
        if "html" in response.headers.get("content-type", ""):
            assert "<script>alert" not in response.text
    for record in caplog.records:
        assert "\x1b" not in record.getMessage()
        assert "\nroot:" not in record.getMessage()


async def test_json_bomb_is_rejected_and_the_next_request_is_answered(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    deep_response = "[" * 200_000
    wide_response = json.dumps({"message": "x" * 900_000})
    number = '{"more_time_seconds": ' + "9" * 100_000 + ', "decision": "more_time"}'
    for path, body in (
        ("/api/heartbeats", deep_response),
        ("/api/agents/x/nudge", deep_response),
        ("/api/agents/x/nudge", wide_response),
        ("/api/escalations/x/decision", number),
        ("/api/alertmanager/webhook", '{"a":' * 100_000),
    ):
        response = await http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert 400 <= response.status_code < 500, (path, response.text[:200])
        assert len(response.text) < 10_000

    bomb = gzip.compress(b"\x00" * (80 << 20))
    number_response = await http.post(
        f"{running.otlp_url}/v1/traces",
        content=bomb,
        headers={"Content-Type": "application/json", "Content-Encoding": "gzip"},
    )
    assert number_response.status_code == 413
    assert (await http.get("/healthz")).status_code == 200
