"""The timeline of a session, and its replay through the detectors."""

from __future__ import annotations

from pydantic import Field

from queenright.api.base_model import ApiModel
from queenright.api.terms import FindingKind, Severity, State, StepKind, StepPhase


class Step(ApiModel):
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
    started_at: float = Field(description="For a finding: when its condition began, before it was found.")
    ended_at: float | None = Field(description="Null while it is open, or if no end was reported.")
    text: str = Field(description="Recorded content, with secrets masked; empty: none.")
    detail: str = Field(description="Verdict, outcome or class of error.")
    tokens_in: int
    tokens_out: int
    cost_usd: float | None = Field(description="US dollars; null if the price is unknown.")
    signature: str = Field(
        description="Equal for tool calls that the loop detector counts as identical; empty: not comparable."
    )
    severity: str = Field(description="Severity of a finding or ticket; otherwise empty.")
    ref: str = Field(description="The ticket, intervention or recovery that it is about; empty: none.")
    fires_at: float | None = Field(description="For open work: when it counts as stalled; null: never.")
    limit_seconds: float | None = Field(description="For open work: its time limit.")
    reason: str = Field(description="For open work: the source of that limit.")


class DetectorClock(ApiModel):
    """A detector that fires when time has passed. Times are in seconds since the epoch."""

    detector: FindingKind
    since: float
    limit_seconds: float
    fires_at: float


class DetectorValue(ApiModel):
    """The value of a detector at a moment, and its threshold."""

    detector: FindingKind
    value: float
    limit: float = Field(description="The detector fires at this value.")
    text: str = Field(description="What is counted; `seconds` for a clock.")


class Steps(ApiModel):
    """Steps of a session, in the order in which they ended."""

    session_id: str
    incarnation_id: str = Field(description="Empty: unknown, or the session is no longer monitored.")
    items: list[Step]
    first: str | None = Field(description="Send it as `before` for earlier steps; null: there are no steps.")
    last: str | None = Field(description="Send it as `after` for later steps; null: there are no steps.")
    more: bool = Field(description="Whether there are more steps in the requested direction.")
    open: list[Step] = Field(description="Current activity of the worker.")
    clocks: list[DetectorClock] = Field(
        description="Detectors that fire if nothing happens until then, the next one first."
    )
    counts: list[DetectorValue] = Field(
        description="Values of the detectors that fire on events, the one nearest to its limit first."
    )


class ReplayFinding(ApiModel):
    """A finding at a moment of a replay."""

    kind: FindingKind
    severity: Severity
    evidence: str
    shadow: bool = Field(description="Whether its detector is in shadow mode.")


class FiredFinding(ReplayFinding):
    """A finding when it appears, and again when it gets worse."""

    at: float = Field(description="Seconds since the epoch.")
    step_id: str = Field(description="The last step before it.")
    cleared_at: float | None = Field(description="Null: it holds at the end.")


class Moment(ApiModel):
    """Detector values after a step, or when a clock runs out between two steps."""

    step_id: str
    at: float = Field(description="Seconds since the epoch.")
    health: State
    findings: list[ReplayFinding]
    holds: list[DetectorValue] = Field(description="Detectors that have counted anything.")


class Threshold(ApiModel):
    """A threshold of a detector."""

    name: str = Field(
        description="Its name in `queenright.yaml`.", examples=["health_monitoring.loops.repeats"]
    )
    value: float = Field(description="The value of this replay.")
    default: float
    minimum: float | None = Field(description="Null: none.")
    maximum: float | None = Field(description="Null: none.")
    unit: str = Field(description="`s`: seconds; empty: a count or a share.")
    help: str


class Evaluation(ApiModel):
    """A session, replayed through the detectors."""

    session_id: str
    moments: list[Moment]
    fired: list[FiredFinding]
    settings: list[Threshold]
    truncated: bool = Field(description="Whether the session has more events; only the newest were replayed.")
