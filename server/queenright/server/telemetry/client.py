"""The dialect of a coding agent, which reads its records and creates responses to its hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import Process

ReadLog = Callable[[Mapping[str, Any], Process, int], Observation | None]
"""Reads a log record from its attributes, process and time in nanoseconds. Raises UnusableRecordError."""
ReadHook = Callable[[Mapping[str, Any], Process, int], Observation | None]
"""Reads a hook call from its JSON, process and arrival in nanoseconds. Raises UnusableRecordError."""
InstructionAnswer = Callable[[str, str, str], dict[str, Any]]
"""Returns the response to a hook event that delivers an instruction (kind, message), or {}."""
PermissionAnswer = Callable[[str, str], dict[str, Any]]
"""Returns the response to a hook for a decision, ``allow`` or ``deny``, and a message for the model."""


@dataclass(frozen=True, slots=True)
class Client:
    """A coding agent."""

    name: str
    """The name in agent names and in the path of the hooks."""
    log_scope: str
    read_log: ReadLog
    read_hook: ReadHook
    instruction_answer: InstructionAnswer
    span_scope: str = ""
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The span attributes that each field is read from."""
    spans: Mapping[str, ObservationKind] | None = None
    """The kinds of its spans, by span name."""
    reports_cost: bool = False
    """Whether its log reports the cost of each model call, so that the price table is not used."""
    permission_answer: PermissionAnswer | None = None
    """Creates the response to a permission request; None if the client accepts no answer."""
