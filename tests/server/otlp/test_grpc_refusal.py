"""A gRPC client on the HTTP ports gets an error that names the setting to change; the service logs it too."""

from __future__ import annotations

import asyncio
import logging

import grpc  # type: ignore[import-untyped]  # the library has no stubs
import httpx
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from queenright.server.otlp.grpc_refusal import GRPC_REASON, PREFACE, GrpcRefusal
from queenright.server.serving import RunningService
from queenright.server.telemetry.intake import GRPC_PATH

SETTING = "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
SETTINGS_FRAME = b"\0\0\0\4\0\0\0\0\0"
HEADERS_FRAME = b"\0\0\0\1\4\0\0\0\1"


def _export_span(endpoint: str) -> None:
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=5)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("work"):
        pass
    provider.shutdown()


async def test_grpc_exporter_prints_the_setting_to_change(
    running: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await asyncio.to_thread(_export_span, running.otlp_url)
        await asyncio.to_thread(_export_span, running.otlp_url)

    exporter = [r.getMessage() for r in caplog.records if r.name.startswith("opentelemetry.exporter")]
    service = [r.getMessage() for r in caplog.records if r.name.startswith("queenright")]
    assert any("UNIMPLEMENTED" in line and SETTING in line for line in exporter), exporter
    assert [line for line in service if "gRPC" in line and SETTING in line and "127.0.0.1" in line] == service
    assert len(service) == 1, "logged once, not per connection"


async def test_grpc_exporter_on_the_api_port_prints_the_telemetry_address(
    running: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    def call_unknown_method() -> str:
        with grpc.insecure_channel(running.url.removeprefix("http://")) as channel:
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary("/opentelemetry.TraceService/Export")(b"", timeout=10)
            return str(raised.value.details())

    reason = await asyncio.to_thread(call_unknown_method)

    assert SETTING in reason
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT={running.otlp_url}" in reason
    assert f"A gRPC client at 127.0.0.1 was refused: {reason}." in caplog.messages
    assert not [r for r in caplog.records if r.name == "uvicorn.error"]


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs", "/v1/metrics"])
async def test_otlp_on_the_api_port_is_answered_with_the_telemetry_address(
    running: RunningService, path: str
) -> None:
    async with httpx.AsyncClient(trust_env=False, base_url=running.url) as http:
        response = await http.post(path, content=b"x", headers={"content-type": "application/x-protobuf"})

    assert response.status_code == 404
    title = response.json()["title"]
    assert SETTING in title
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT={running.otlp_url}" in title


async def test_https_on_an_http_port_is_logged_with_the_remedy(
    running: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    for url in (running.url, running.otlp_url):
        async with httpx.AsyncClient(trust_env=False, verify=False) as http:
            with pytest.raises(httpx.ConnectError):
                await http.get(url.replace("http://", "https://"))

    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 2
    assert all("127.0.0.1" in line and "HTTPS" in line and "http://" in line for line in lines)


async def test_grpc_connections_are_shown_with_the_reason(running: RunningService) -> None:
    await asyncio.to_thread(_export_span, running.otlp_url)

    async with httpx.AsyncClient(trust_env=False, base_url=running.url) as http:
        refused = (await http.get("/api/telemetry")).json()["refused"]
    [refusal] = refused
    assert (refusal["path"], refusal["status"], refusal["count"]) == (GRPC_PATH, 505, 1)
    assert SETTING in refusal["reason"]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_refusal_does_not_depend_on_how_frames_are_split(size: int) -> None:
    received = SETTINGS_FRAME + HEADERS_FRAME
    refusal = GrpcRefusal(GRPC_REASON)

    sent = b"".join(refusal.receive(received[at : at + size]) for at in range(0, len(received), size))

    assert sent == GrpcRefusal(GRPC_REASON).receive(received)
    assert sent.startswith(SETTINGS_FRAME)
    assert b"grpc-status\x0212" in sent
    assert not refusal.is_finished


@pytest.mark.parametrize("received", [b"\xff\xff\xff\1\0\0\0\0\1", HEADERS_FRAME * 1000])
def test_refusal_ends_on_a_long_frame_and_on_many_calls(received: bytes) -> None:
    refusal = GrpcRefusal(GRPC_REASON)

    sent = refusal.receive(received)

    assert refusal.is_finished
    assert sent.endswith(GRPC_REASON.encode())
    assert len(sent) < 100_000


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_preface_and_requests_are_distinguished_in_pieces(running: RunningService, size: int) -> None:
    port = int(running.otlp_url.rpartition(":")[2])
    request = b"PUT /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
    for data, answer in ((PREFACE + SETTINGS_FRAME, SETTINGS_FRAME), (request, b"HTTP/1.1 405")):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for at in range(0, len(data), size):
            writer.write(data[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)

        assert await reader.readexactly(len(answer)) == answer
        writer.close()
        await writer.wait_closed()
