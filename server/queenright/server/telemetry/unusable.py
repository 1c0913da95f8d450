"""Reasons why a record is rejected or not used."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class RecordFault(StrEnum):
    """The reason why a record or a whole request is rejected. The sender must make a change."""

    INVALID_ID = "invalid_id"
    INVALID_SPAN = "invalid_span"
    NO_NAME = "no_name"
    NO_SESSION = "no_session"
    TOO_LARGE = "too_large"

    UNREADABLE = "unreadable"
    """The body of a request does not match its headers. This and the faults below reject whole requests."""
    UNSUPPORTED = "unsupported"
    """The path, method, content type, encoding or protocol is not supported."""
    TIMEOUT = "timeout"
    """The body did not arrive in time."""
    UNAUTHORIZED = "unauthorized"
    """The request has no valid token, or comes from a web page."""


class UnusedReason(StrEnum):
    """The reason why a valid record is not used."""

    NO_AGENT_WORK = "no_agent_work"
    """The record is not an agent's work, such as a database request or a log line."""
    METRICS = "metrics"
    """Metrics are forwarded, but not read."""
    REPEATED = "repeated"
    """The record was received before, or reports the start of ended work."""
    SAME_WORK = "same_work"
    """Another record reports the same call, or more of the call."""


REMEDIES: Final[Mapping[RecordFault, str]] = {
    RecordFault.INVALID_ID: "set trace ids of 16 bytes and span ids of 8 bytes, not all zero; "
    "write them in hexadecimal in JSON",
    RecordFault.INVALID_SPAN: "write the open span into the record's body as OTLP's TracesData",
    RecordFault.NO_NAME: "set gen_ai.agent.name on the records or on the resource",
    RecordFault.NO_SESSION: "set gen_ai.conversation.id; for a coding agent run `queenright connect`",
    RecordFault.TOO_LARGE: "send fewer attributes and shorter texts",
    RecordFault.UNREADABLE: "send a body that matches Content-Type and Content-Encoding",
    RecordFault.UNSUPPORTED: "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, and the endpoint without a path",
    RecordFault.TIMEOUT: "send smaller batches",
    RecordFault.UNAUTHORIZED: "set a token of role reporter in OTEL_EXPORTER_OTLP_HEADERS",
}
"""The change that the sender must make, by fault."""


class UnusableRecordError(ValueError):
    """
    Raised when a record cannot be used. The message is for its sender.

    Args:
        fault: The reason.
        problem: The problem, with the value.
        remedy: The change to make; by default the fault's entry in ``REMEDIES``.
    """

    def __init__(self, fault: RecordFault, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy or REMEDIES[fault]}")
        self.fault = fault
