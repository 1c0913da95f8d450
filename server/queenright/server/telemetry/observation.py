"""Observations: the data that a span, log record or hook call reports about an agent's work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.process import Process


@dataclass(slots=True, kw_only=True)
class Observation:
    """
    A record, as a dialect reads it. The assembler turns it into events.

    Times are nanoseconds since the epoch. Names and ids are "" if the record has none.
    """

    identity: bytes
    """Identifies the record: equal if the same record arrives twice."""
    process: Process
    kind: ObservationKind | None
    """None for a span that is not an agent's work."""
    start: int
    end: int
    """0 for open work and momentary events."""
    trace_id: bytes = b""
    span_id: bytes = b""
    parent_id: bytes = b""
    is_outermost: bool = False
    """Whether the span has no known parent in its process."""
    is_own: bool = False
    """Whether the record comes from Queenright's instrumentation, which reports starts and steps itself."""
    report_interval: float | None = None
    """Seconds between reports of open work; None if the sender does not repeat them."""
    awaits_span: bool = False
    """Whether the record reports the end of a span that will arrive later with more data."""
    client: str = ""
    """The coding agent. Its session is one run, even if several sources report it."""
    source: str = ""
    """The reporting source: "hook", "log" or "span". Each reports a call at most once."""
    call: str = ""
    """The sender's id of the call or turn."""
    continuation: str = ""
    """The client's id that connects a call that continues after its first result with its end."""
    requested_tools: tuple[str, ...] | None = None
    """The tools that a model response calls; None if unknown."""
    request_messages: str = ""
    """The messages sent to the model, as JSON, if they were recorded."""
    response_messages: str = ""
    """The messages of the response, as JSON, if they were recorded."""
    is_step: bool = True
    """Whether a model call is a turn of the agent; False for auxiliary calls such as model routing."""
    agent: str = ""
    clock_shift: int | None = None
    """Nanoseconds by which its times were reduced for the sender's clock; None for the service's clock."""
    is_of_open_call: bool = False
    """Whether the record is a permission prompt for an open tool call that it does not name."""
    subagent: str = ""
    """The id of the sub-agent that did the work. It may continue after the turn of its parent."""
    user: str = ""
    """The user in the record, such as an email address."""
    folder: str = ""
    """The name of the folder that a coding agent works in."""
    session: str = ""
    incarnation: str = ""
    graph: str = ""
    node: str = ""
    name: str = ""
    """The agent's or tool's name from the span's name, if no attribute has it."""
    library: str = ""
    version: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    """Other data, by field name in events."""

    @property
    def failure(self) -> dict[str, Any]:
        """``error_type`` and ``error``; empty if the work did not fail."""
        return read_failure(self.data)


def read_failure(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``error_type`` and ``error`` of an event's data, if it has them."""
    return {key: data[key] for key in ("error_type", "error") if key in data}
