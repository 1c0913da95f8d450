"""Failures of tool calls that only their results tell."""

from __future__ import annotations

import json
from typing import Any

from queenright.instrumentation.effects import effect_of_tool
from queenright.instrumentation.error_class import unreported_failure
from queenright.instrumentation.names import ToolOutcome
from queenright.instrumentation.redaction import redact


def add_unreported_failure(data: dict[str, Any], result: Any, arguments: Any) -> None:
    """Mark a call that reports success as failed if its result tells otherwise; ``data`` is its event's."""
    if data["outcome"] != ToolOutcome.OK.value:
        return
    effect = data.get("effect") or effect_of_tool(data["tool"])
    kind = unreported_failure(result, effect, arguments)
    if kind:
        text = result if isinstance(result, str) else json.dumps(result, default=str)
        data |= {"outcome": ToolOutcome.ERROR.value, "error_type": kind, "error": redact(text)}
