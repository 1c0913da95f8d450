"""Why nothing is made of a record."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Fault(StrEnum):
    """Why a record or a whole request is rejected: its sender is told, and has to change something."""

    INVALID_ID = "invalid_id"
    INVALID_SPAN = "invalid_span"
    NO_NAME = "no_name"
    NO_SESSION = "no_session"
    TOO_LARGE = "too_large"

    UNREADABLE = "unreadable"
    """Of a whole request, as those below: its body is not what its headers say."""
    UNSUPPORTED = "unsupported"
    """Another path, method, content type or encoding."""
    TIMEOUT = "timeout"
    """Its body did not arrive in time."""
    UNAUTHORIZED = "unauthorized"
    """It has no valid token, or comes from a web page."""


class Unused(StrEnum):
    """Why a record that can be read is not used."""

    NO_AGENT_WORK = "no_agent_work"
    """It is nothing that an agent did: a request to a database, a log line."""
    METRICS = "metrics"
    """A metric: they are passed on and not read."""
    REPEATED = "repeated"
    """It was received before, or says that something begins that is over."""
    SAME_WORK = "same_work"
    """Another record has told of the same call, or of more of it."""


REMEDIES: Final[Mapping[Fault, str]] = {
    Fault.INVALID_ID: "set trace ids of 16 bytes and span ids of 8 bytes, not all zero; "
    "in JSON they are hexadecimal",
    Fault.INVALID_SPAN: "write the open span into the record's body as OTLP's TracesData",
    Fault.NO_NAME: "set gen_ai.agent.name on the records or on the resource",
    Fault.NO_SESSION: "set gen_ai.conversation.id; of a coding agent, what `queenright connect` sets",
    Fault.TOO_LARGE: "send fewer attributes and shorter texts",
    Fault.UNREADABLE: "send the body that Content-Type and Content-Encoding announce",
    Fault.UNSUPPORTED: "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, and the endpoint without a path",
    Fault.TIMEOUT: "send smaller batches",
    Fault.UNAUTHORIZED: "set a token of role reporter in OTEL_EXPORTER_OTLP_HEADERS",
}
"""What a sender has to change."""


class UnusableRecordError(ValueError):
    """
    Raised for a record that cannot be used; the message is for its sender.

    Args:
        fault: Why.
        problem: What is wrong, of which value.
        remedy: What to change; what ``REMEDIES`` says of the fault where nothing more exact is known.
    """

    def __init__(self, fault: Fault, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy or REMEDIES[fault]}")
        self.fault = fault
