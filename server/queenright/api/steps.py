"""The timeline of a session: what the worker did, and what happened to it."""

from __future__ import annotations

from pydantic import Field

from queenright.api.terms import FindingKind, StepKind, StepPhase
from queenright.api.wire import Wire


class Step(Wire):
    """
    A turn, tool call, wait or event of a session. Times are in seconds since the epoch.

    A step that is open and ends later keeps its `step_id`.
    """

    step_id: str = Field(description="The event that began it.")
    type: str = Field(description="The type of its last event; empty: none was reported.")
    kind: StepKind = Field(description="`turn`: a model call, or a step of the worker's own loop.")
    phase: StepPhase = Field(description="`instant`: it has no duration.")
    name: str = Field(description="The tool, the model, the reason of a wait, the kind of a finding.")
    at: float = Field(description="When it ended; for an open one, when it began.")
    started_at: float
    ended_at: float | None = Field(description="Null while it is open, or if no end was reported.")
    text: str = Field(description="What is recorded of its content, secrets masked; empty: nothing.")
    detail: str = Field(description="Verdict, outcome or class of error.")
    tokens_in: int
    tokens_out: int
    cost_usd: float | None = Field(description="US dollars; null if the price is unknown.")
    signature: str = Field(
        description="Equal for tool calls that the loop detector counts as equal; empty: not comparable."
    )
    severity: str = Field(description="Of a finding or ticket; otherwise empty.")
    ref: str = Field(description="The ticket, intervention or recovery that it is about; empty: none.")
    fires_at: float | None = Field(description="Of open work: when it counts as stalled; null: never.")
    limit_seconds: float | None = Field(description="Of open work: how long it may take.")
    reason: str = Field(description="Of open work: where that limit is from.")


class DetectorClock(Wire):
    """A detector that fires when time has passed. Times are in seconds since the epoch."""

    detector: FindingKind
    since: float
    limit_seconds: float
    fires_at: float


class Steps(Wire):
    """Steps of a session, in the order in which they ended."""

    session_id: str
    incarnation_id: str = Field(description="Empty: unknown, or the session is not monitored any more.")
    items: list[Step]
    first: str | None = Field(description="Send it as `before` for earlier steps; null: there are no steps.")
    last: str | None = Field(description="Send it as `after` for later steps; null: there are no steps.")
    more: bool = Field(description="There are more steps in the direction that was asked for.")
    open: list[Step] = Field(description="What the worker does now.")
    clocks: list[DetectorClock] = Field(
        description="Detectors that fire if nothing happens until then, the next one first."
    )
