"""Parts for the tests of instrumentation: a manual clock, an in-memory sender, a real OTLP server."""

from __future__ import annotations

import gzip
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from queenright.instrumentation.delivery import SendResult
from queenright.instrumentation.drop_counter import Signal


class Clock:
    """A manual clock, in seconds since the epoch."""

    def __init__(self, now: float = 1_767_225_600.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Memory:
    """A sender that keeps spans and records in the order of arrival."""

    destination = "memory"

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.records: list[Any] = []
        self.order: list[Any] = []

    def send(self, signal: Signal, batch: Sequence[Any]) -> SendResult:
        (self.spans if signal == "spans" else self.records).extend(batch)
        self.order.extend(batch)
        return SendResult.DELIVERED

    def close(self) -> None:
        """Do nothing."""

    def find_span(self, name: str) -> Any:
        [span] = [span for span in self.spans if span.name == name]
        return span

    def find_record(self, name: str) -> Any:
        [record] = [record for record in self.records if record.name == name]
        return record


class Otlp:
    """A real OTLP/HTTP server that answers with ``status`` and keeps what it accepts."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.logs: list[Any] = []
        self.log_services: list[str] = []
        self.bodies: list[tuple[str, bytes]] = []
        self.requests = 0
        self.status = 200
        self.responses_allowed = threading.Event()
        self.responses_allowed.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests += 1
                outer.responses_allowed.wait(20)
                if outer.status == 200:
                    outer.take(self.path, gzip.decompress(body) if self.headers["Content-Encoding"] else body)
                self.send_response(outer.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, body: bytes) -> None:
        self.bodies.append((path, body))
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        else:
            for logs in ExportLogsServiceRequest.FromString(body).resource_logs:
                self.logs += [record for scope in logs.scope_logs for record in scope.log_records]
                self.log_services.append(read_attributes(logs.resource)["service.name"])

    def stop(self) -> None:
        self.responses_allowed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait until the condition is true. Return whether that happened in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def read_attributes(message: Any) -> dict[str, Any]:
    """Return the attributes of a received span or log record."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in message.attributes}


Script = Callable[..., subprocess.CompletedProcess[str]]
