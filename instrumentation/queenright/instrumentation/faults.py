"""Readable messages for pydantic validation errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MESSAGE_LIMIT: Final = 200


def fault_message(fault: Mapping[str, Any]) -> str:
    """Return the message of a validation error, without pydantic's ``Value error,`` prefix."""
    return str(fault["msg"]).removeprefix("Value error, ")


def explain_fault(fault: Mapping[str, Any]) -> str:
    """Return the location and message of a validation error, in one line."""
    where = ".".join(str(part) for part in fault["loc"]) or "body"
    return f"{where}: {fault_message(fault)[:_MESSAGE_LIMIT]}"
