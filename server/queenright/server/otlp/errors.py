"""Errors for OTLP requests, each with its HTTP status and gRPC code."""

from __future__ import annotations

from queenright.instrumentation.errors import QueenrightError

OTLP_PATHS = frozenset({"/v1/traces", "/v1/logs", "/v1/metrics"})

INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12
UNAVAILABLE = 14


class RejectedRequestError(QueenrightError):
    """Raised to respond to a request with an HTTP ``status`` and a gRPC ``code``."""

    def __init__(
        self, status: int, code: int, reason: str, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.headers = headers


class OverloadedError(QueenrightError):
    """Raised by an ingest function that temporarily cannot accept more events."""

    def __init__(self, *, retry_after: int = 5) -> None:
        super().__init__("the service is overloaded; retry later")
        self.retry_after = retry_after


def describe_wrong_port(otlp_url: str) -> str:
    """Return the error text for a client that sends telemetry to the port of the API."""
    return (
        "this is the port of the API; send telemetry over HTTP to the telemetry port: set "
        f"OTEL_EXPORTER_OTLP_ENDPOINT={otlp_url} and OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
    )


def make_malformed_error(reason: str) -> RejectedRequestError:
    """Return the error for a body that does not match its headers (400)."""
    return RejectedRequestError(400, INVALID_ARGUMENT, reason)


def make_too_large_error(subject: str, limit: int) -> RejectedRequestError:
    """Return the error for a body that is longer than ``limit`` bytes (413)."""
    # The rest of the body is not read, so the connection cannot be reused.
    return RejectedRequestError(
        413,
        RESOURCE_EXHAUSTED,
        f"{subject} is longer than {limit} bytes; send smaller batches (OTEL_BSP_MAX_EXPORT_BATCH_SIZE)",
        ((b"connection", b"close"),),
    )


def make_too_many_error(items: str, limit: int) -> RejectedRequestError:
    """Return the error for a body with more than ``limit`` items (413)."""
    return RejectedRequestError(
        413, RESOURCE_EXHAUSTED, f"the body has more than {limit} {items}; send smaller batches"
    )


def make_unavailable_error(reason: str, retry_after: int) -> RejectedRequestError:
    """Return the error for a valid request that cannot be accepted now (503). Clients retry it."""
    return RejectedRequestError(503, UNAVAILABLE, reason, ((b"retry-after", str(retry_after).encode()),))
