"""Kinds of spans."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """The kind of work that a span records."""

    AGENT = "agent"
    STEP = "step"
    LLM = "llm"
    TOOL = "tool"
