"""An observation: what one span, log record or hook call says about one piece of an agent's work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from queenright.server.telemetry.kind import Kind
from queenright.server.telemetry.process import Process


@dataclass(slots=True, kw_only=True)
class Observation:
    """
    What one record says. Times are in nanoseconds since the epoch; names and ids are "" where it says none.

    A dialect makes it, the assembler makes events of it.
    """

    identity: bytes
    """Equal for two arrivals of one record."""
    process: Process
    kind: Kind | None
    """None for a span that is no work of an agent's."""
    start: int
    end: int
    """0 while the work goes on, and for what happens at one moment."""
    trace_id: bytes = b""
    span_id: bytes = b""
    parent_id: bytes = b""
    is_outermost: bool = False
    """It has no parent in its own process, as far as can be told."""
    is_own: bool = False
    """It is of our own instrumentation, which says itself when work begins and what a step is."""
    report_interval: float | None = None
    """In how many seconds its sender says again that this is open; None if it does not."""
    awaits_span: bool = False
    """A record of the end of a span, which says more when it arrives."""
    client: str = ""
    """The coding agent that it is of: its session is one run, whatever tells of it."""
    source: str = ""
    """What told: of one call, each source tells at most once."""
    call: str = ""
    """The sender's own id of the call or the turn; "" where it has none."""
    continuation: str = ""
    """Of a call that goes on after its answer, and of its end: what the client knows it by."""
    requested_tools: tuple[str, ...] | None = None
    """Of an answer of the model: the tools that it calls. None where the record does not say."""
    request_messages: str = ""
    """Of a model call: the messages that were sent, in JSON, where they were recorded."""
    response_messages: str = ""
    """Likewise what the model answered."""
    is_step: bool = True
    """Of a model call: whether it is a turn of the agent, and no aside such as the choice of a model."""
    agent: str = ""
    clock_shift: int | None = None
    """By how much its times were moved, as its sender's clock is ahead; None where they are of our clock."""
    is_subagent: bool = False
    """A sub-agent of a coding agent did it, which may work on after the turn of its parent."""
    folder: str = ""
    """Where a coding agent works, without the folders around it."""
    session: str = ""
    incarnation: str = ""
    graph: str = ""
    node: str = ""
    name: str = ""
    """What the span itself names: the agent or the tool, where no attribute does."""
    library: str = ""
    version: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    """What else it says, by the names that events have for it."""
