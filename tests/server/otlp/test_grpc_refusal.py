"""A gRPC client on an HTTP port gets an error that names the setting to change. The service logs it too."""

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

    exporter = [
        record.getMessage() for record in caplog.records if record.name.startswith("opentelemetry.exporter")
    ]
    service = [record.getMessage() for record in caplog.records if record.name.startswith("queenright")]
    assert any("UNIMPLEMENTED" in line and SETTING in line for line in exporter), exporter
    assert [line for line in service if "gRPC" in line and SETTING in line and "127.0.0.1" in line] == service
    assert len(service) == 1, "logged once, not once per connection"


async def test_grpc_exporter_on_the_api_port_prints_the_telemetry_address(
    running: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    def call_unknown_method() -> str:
        with grpc.insecure_channel(running.url.removeprefix("http://")) as channel:
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary("/opentelemetry.TraceService/Export")(b"", timeout=10)
            return str(error.value.details())

    reason = await asyncio.to_thread(call_unknown_method)

    assert SETTING in reason
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT={running.otlp_url}" in reason
    assert f"A gRPC client at 127.0.0.1 was refused: {reason}." in caplog.messages
    assert not [record for record in caplog.records if record.name == "uvicorn.error"]


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs", "/v1/metrics"])
async def test_otlp_request_to_the_api_port_is_answered_with_the_telemetry_address(
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


async def test_refused_grpc_connections_are_listed_with_the_reason(running: RunningService) -> None:
    await asyncio.to_thread(_export_span, running.otlp_url)

    async with httpx.AsyncClient(trust_env=False, base_url=running.url) as http:
        refused_connections = (await http.get("/api/telemetry")).json()["refused"]
    [refusal] = refused_connections
    assert (refusal["path"], refusal["status"], refusal["count"]) == (GRPC_PATH, 505, 1)
    assert SETTING in refusal["reason"]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_refusal_does_not_depend_on_how_frames_are_split(size: int) -> None:
    client_bytes = SETTINGS_FRAME + HEADERS_FRAME
    refusal = GrpcRefusal(GRPC_REASON)

    reply = b"".join(
        refusal.receive(client_bytes[offset : offset + size]) for offset in range(0, len(client_bytes), size)
    )

    assert reply == GrpcRefusal(GRPC_REASON).receive(client_bytes)
    assert reply.startswith(SETTINGS_FRAME)
    assert b"grpc-status\x0212" in reply
    assert not refusal.is_finished


@pytest.mark.parametrize("client_bytes", [b"\xff\xff\xff\1\0\0\0\0\1", HEADERS_FRAME * 1000])
def test_refusal_ends_after_a_long_frame_and_after_many_calls(client_bytes: bytes) -> None:
    refusal = GrpcRefusal(GRPC_REASON)

    reply = refusal.receive(client_bytes)

    assert refusal.is_finished
    assert reply.endswith(GRPC_REASON.encode())
    assert len(reply) < 100_000


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_http2_preface_and_requests_are_distinguished_when_split(
    running: RunningService, size: int
) -> None:
    port = int(running.otlp_url.rpartition(":")[2])
    request = b"PUT /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
    for request_bytes, answer in ((PREFACE + SETTINGS_FRAME, SETTINGS_FRAME), (request, b"HTTP/1.1 405")):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for offset in range(0, len(request_bytes), size):
            writer.write(request_bytes[offset : offset + size])
            await writer.drain()
            await asyncio.sleep(0)

        assert await reader.readexactly(len(answer)) == answer
        writer.close()
        await writer.wait_closed()
