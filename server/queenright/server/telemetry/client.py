"""The dialect of a coding agent: how to read its records and answer its hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import Process

ReadLog = Callable[[Mapping[str, Any], Process, int], Observation | None]
"""Takes a log record's attributes, its process and its time in nanoseconds; raises UnusableRecordError."""
ReadHook = Callable[[Mapping[str, Any], Process, int], Observation | None]
"""Takes the JSON of a hook call, its process and its arrival in nanoseconds; raises UnusableRecordError."""
InstructionAnswer = Callable[[str, str, str], dict[str, Any]]
"""Takes a hook event, an instruction's kind and message; returns the answer that delivers it, or {}."""
PermissionAnswer = Callable[[str, str], dict[str, Any]]
"""Takes a decision, ``allow`` or ``deny``, and a message for the model; returns the answer to the hook."""


@dataclass(frozen=True, slots=True)
class Client:
    """A coding agent."""

    name: str
    """Used in session names and in the path of its hooks."""
    log_scope: str
    read_log: ReadLog
    read_hook: ReadHook
    instruction_answer: InstructionAnswer
    span_scope: str = ""
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The span attributes from which each of our fields is read."""
    spans: Mapping[str, ObservationKind] | None = None
    """The kinds of its spans, by span name."""
    reports_cost: bool = False
    """Whether its log reports the cost of each model call, so the price table is not used."""
    permission_answer: PermissionAnswer | None = None
    """Answers a permission request; None if the client accepts no answer."""
