"""What a coding agent's dialect gives: how its records are read, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from queenright.server.telemetry.kind import Kind
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import Process

ReadLog = Callable[[Mapping[str, Any], Process, int], Observation | None]
"""Of the attributes of a log record, its process, and its time in nanoseconds; raises UnusableRecordError."""
ReadHook = Callable[[Mapping[str, Any], Process, int], Observation | None]
"""Of the JSON of a hook call, its process, and when it arrived in nanoseconds; raises UnusableRecordError."""
InstructionAnswer = Callable[[str, str, str], dict[str, Any]]
"""Of a hook's event, an instruction's kind and its message: the answer that hands it over, or nothing."""
PermissionAnswer = Callable[[str, str], dict[str, Any]]
"""Of a decision, ``allow`` or ``deny``, and words for the model: the answer to the hook that asks."""


@dataclass(frozen=True, slots=True)
class Client:
    """One coding agent."""

    name: str
    """As in its sessions' names and in the path of its hooks."""
    log_scope: str
    read_log: ReadLog
    read_hook: ReadHook
    instruction_answer: InstructionAnswer
    span_scope: str = ""
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Our field, and the attributes of its spans that it is read from."""
    spans: Mapping[str, Kind] | None = None
    """What its spans are, by their names."""
    reports_cost: bool = False
    """Its log says what each call of its model cost: that holds, and no price table is asked."""
    permission_answer: PermissionAnswer | None = None
    """How the hook of a permission request is answered; None where a client takes no answer to it."""
