"""
Heartbeats over HTTP: their format, and the conversion to events.

A heartbeat only shows that a process is alive. An invalid heartbeat is refused with the reason, and has no
effect. A field that is missing or empty is unknown.
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
from pydantic.alias_generators import to_camel, to_snake

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.validation_messages import describe_faults, format_fault
from queenright.runtime.events import LATEST_TIME, AgentEvent, EventType

_DATA_FIELDS: Final = (
    "interval",
    "phase",
    "last_tool_call",
    "token_count",
    "error_count",
    "progress_indicator",
    "task_id",
)

_FREE_TEXT_FIELDS: Final = ("phase", "progress_indicator")
"""Fields whose text the worker writes. Secrets in it are masked."""


class InvalidHeartbeatError(QueenrightError):
    """Raised when a heartbeat is invalid. The message names the field, its value, and what is allowed."""


def parse_moment(value: Any) -> float | None:
    """
    Parse a time into seconds since the epoch, or return None for a missing value.

    Args:
        value: Seconds since the epoch, or an ISO 8601 time; UTC if it has no time zone.

    Raises:
        ValueError: The value is neither of these, or is out of range.
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        time = datetime.fromisoformat(value.strip())
        value = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("it should be ISO 8601 or seconds since 1970")
    if not math.isfinite(value) or not 0 <= value <= LATEST_TIME:
        raise ValueError("it should be between the years 1970 and 9999")
    return float(value)


def _validate_number(value: Any) -> Any:
    # By default pydantic accepts true as 1 and "7" as 7.
    if isinstance(value, bool) or (isinstance(value, str) and value):
        raise ValueError("it should be a number")
    return None if value == "" else value


def _replace_none(value: Any) -> Any:
    return "" if value is None else value


def _forbid_nul(text: str) -> str:
    # PostgreSQL cannot store text with a NUL character.
    if "\0" in text:
        raise ValueError("NUL characters are not allowed")
    return text


def _require_name(text: str) -> str:
    if not text:
        raise ValueError("it must be a name with printable characters; '.' and '..' are not names")
    return text


_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Seconds = Annotated[float, Field(gt=0, le=7 * 86_400, allow_inf_nan=False)]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=1000), AfterValidator(_forbid_nul)]

Moment = Annotated[float | None, BeforeValidator(parse_moment)]
Name = Annotated[str, BeforeValidator(_replace_none), Field(max_length=256), AfterValidator(_forbid_nul)]
CleanName = Annotated[Name, AfterValidator(clean_name)]
"""
A name that is cleaned like names in telemetry, so that it identifies the same worker or task everywhere.
"""
Total = Annotated[_Count | None, BeforeValidator(_validate_number)]


class Heartbeat(BaseModel):
    """
    A heartbeat. Only `agent_id` is required. Field names may be in ``camelCase``.

    Unknown fields are ignored, so that an older service does not take a newer worker for dead.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        validate_by_name=True,
        validate_by_alias=True,
        alias_generator=AliasGenerator(validation_alias=to_camel),
    )

    agent_id: Annotated[CleanName, AfterValidator(_require_name)]
    session_id: CleanName = ""
    incarnation_id: CleanName = ""
    """Empty if unknown. An empty id does not start a new incarnation."""
    task_id: CleanName = ""
    service_name: CleanName = ""
    """``service.name`` of its telemetry, if that does not name the agent (``gen_ai.agent.name``)."""
    service_namespace: CleanName = ""
    """``service.namespace`` of that telemetry. With both, a cluster finds the worker's partition."""
    timestamp: Moment = None
    """When the worker sent it, in seconds since the epoch by its own clock; None for the time of arrival."""
    phase: CleanName = ""
    last_tool_call: Moment = None
    """Seconds since the epoch."""
    token_count: Total = None
    """Tokens used so far."""
    error_count: Total = None
    """Errors so far."""
    progress_indicator: _Text | _Number | None = None
    """Free text or a number. It is shown, but does not count as progress."""
    interval: Annotated[_Seconds | None, BeforeValidator(_validate_number)] = None
    """The seconds until the next heartbeat is due."""

    def make_event(self, now: float, *, session_id: str = "", incarnation_id: str = "") -> AgentEvent:
        """
        Return the event of this heartbeat.

        Args:
            session_id: Used if the heartbeat names no session.
            incarnation_id: Used if the heartbeat names no incarnation.
        """
        values = {name: getattr(self, name) for name in _DATA_FIELDS}
        for name in _FREE_TEXT_FIELDS:
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
    Parse one heartbeat.

    Raises:
        InvalidHeartbeatError: The body is not a valid heartbeat.
    """
    try:
        return Heartbeat.model_validate_json(body)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        if not faults[0]["loc"]:
            raise InvalidHeartbeatError(
                f"This is not a heartbeat: {format_fault(faults[0])}. "
                "Send a JSON object with at least agent_id."
            ) from None
        named_faults = [fault | {"loc": tuple(map(_get_field_name, fault["loc"]))} for fault in faults]
        raise InvalidHeartbeatError(describe_faults(named_faults)) from None


def _get_field_name(part: int | str) -> int | str:
    """Return the documented name of a field, for which pydantic reports the alias."""
    return to_snake(part) if isinstance(part, str) else part
