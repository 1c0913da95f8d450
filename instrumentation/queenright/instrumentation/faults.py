"""What pydantic says of bad input, as people read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MOST_SAID: Final = 200


def fault_message(fault: Mapping[str, Any]) -> str:
    """Return what a fault says, without the name of the exception that pydantic puts before our own words."""
    return str(fault["msg"]).removeprefix("Value error, ")


def explain_fault(fault: Mapping[str, Any]) -> str:
    """Return where in a body a fault is and what it says, in one line."""
    where = ".".join(str(part) for part in fault["loc"]) or "body"
    return f"{where}: {fault_message(fault)[:_MOST_SAID]}"
