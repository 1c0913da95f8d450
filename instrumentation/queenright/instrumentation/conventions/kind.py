"""What a span is a record of."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What a span is a record of."""

    AGENT = "agent"
    STEP = "step"
    LLM = "llm"
    TOOL = "tool"
