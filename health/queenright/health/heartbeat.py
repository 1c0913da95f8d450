"""
A heartbeat as it comes in over HTTP: what it must look like, and the event that it becomes.

A heartbeat says that a process lives, and nothing else. What cannot be read in it is refused as a whole
with the reason, and changes nobody's state; what is left out or empty is not known.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    AliasGenerator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic.alias_generators import to_camel

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.faults import fault_message
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, EventType

_LATEST: Final = 253_402_300_799.0
"""The end of the year 9999."""
_DATA: Final = (
    "interval",
    "phase",
    "last_tool_call",
    "token_count",
    "error_count",
    "progress_indicator",
    "task_id",
)

_WORDS: Final = ("phase", "progress_indicator")
"""What a worker says in its own words: no secret of it is kept."""


class InvalidHeartbeatError(QueenrightError):
    """Raised for a heartbeat that cannot be read; says which field, its value, and what is allowed."""


def moment(value: Any) -> float | None:
    """
    Return a time in seconds since the epoch; None for none.

    Args:
        value: Seconds, or ISO 8601; a time without a zone is in UTC.

    Raises:
        ValueError: it is neither, or not of this era.
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        parsed = datetime.fromisoformat(value.strip())
        value = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("it should be ISO 8601 or seconds since 1970")
    if not math.isfinite(value) or not 0 <= value <= _LATEST:
        raise ValueError("it should be between the years 1970 and 9999")
    return float(value)


def _number(value: Any) -> Any:
    # Left to itself, pydantic reads true as 1 and "7" as 7.
    if isinstance(value, bool) or (isinstance(value, str) and value):
        raise ValueError("it should be a number")
    return None if value == "" else value


def _or_empty(value: Any) -> Any:
    return "" if value is None else value


def _clean(text: str) -> str:
    # PostgreSQL keeps no text with a zero byte in it.
    if "\0" in text:
        raise ValueError("it should have no zero byte")
    return text


def _named(text: str) -> str:
    if not text:
        raise ValueError("it should name somebody, in letters that show; '.' and '..' name nobody")
    return text


_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Seconds = Annotated[float, Field(gt=0, le=7 * 86_400, allow_inf_nan=False)]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=1000), AfterValidator(_clean)]

Moment = Annotated[float | None, BeforeValidator(moment)]
Name = Annotated[str, BeforeValidator(_or_empty), Field(max_length=256), AfterValidator(_clean)]
Who = Annotated[Name, AfterValidator(clean_name)]
"""As telemetry names it: one raw name is one worker, or one task, whatever says it."""
Total = Annotated[_Count | None, BeforeValidator(_number)]


class Heartbeat(BaseModel):
    """
    One heartbeat. Only `agent_id` must be there; names are accepted in ``camelCase`` too.

    Fields that are not known are let pass: a newer worker must not seem dead to an older service.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        validate_by_name=True,
        validate_by_alias=True,
        alias_generator=AliasGenerator(validation_alias=to_camel),
    )

    agent_id: Annotated[Who, AfterValidator(_named)]
    session_id: Who = ""
    incarnation_id: Who = ""
    """Empty: not known; it is nobody's new life."""
    task_id: Who = ""
    timestamp: Moment = None
    """On the worker's clock, in seconds since the epoch; None: when it came in."""
    phase: Who = ""
    last_tool_call: Moment = None
    """Seconds since the epoch."""
    token_count: Total = None
    """Tokens used so far."""
    error_count: Total = None
    """Errors so far."""
    progress_indicator: _Text | _Number | None = None
    """Whatever the worker calls its progress. It is shown, and never taken for progress."""
    interval: Annotated[_Seconds | None, BeforeValidator(_number)] = None
    """Seconds until the next one is due."""

    def event(self, now: float, *, session_id: str = "", incarnation_id: str = "") -> AgentEvent:
        """
        Return the event that it is on the bus.

        Args:
            now: Seconds since the epoch: when it came in.
            session_id: The session it is of, where it names none itself.
            incarnation_id: The life it is of, where it names none itself.
        """
        values = {name: getattr(self, name) for name in _DATA}
        for name in _WORDS:
            if isinstance(values[name], str):
                values[name] = redact(clean_name(values[name], 1000), 1000)
        return AgentEvent(
            type=EventType.AGENT_HEARTBEAT,
            time=now if self.timestamp is None else self.timestamp,
            agent_id=self.agent_id,
            session_id=self.session_id or session_id,
            incarnation_id=self.incarnation_id or incarnation_id,
            data={name: value for name, value in values.items() if value not in (None, "")},
        )


def parse_heartbeat(body: bytes | str) -> Heartbeat:
    """
    Read one heartbeat.

    Args:
        body: A JSON object.

    Raises:
        InvalidHeartbeatError: it is torn, empty or no heartbeat.
    """
    try:
        return Heartbeat.model_validate_json(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        raise InvalidHeartbeatError("; ".join(_fault(fault) for fault in faults[:5])) from None


def _fault(fault: Any) -> str:
    said = fault_message(fault)
    if not fault["loc"]:
        return f"This is no heartbeat: {said}. Send a JSON object with at least agent_id."
    if fault["type"] == "missing":
        return f"{fault['loc'][0]} is missing"
    return f"{fault['loc'][0]}: {redact(repr(fault['input']), 80)} is refused: {said}"
