"""What a piece of work is."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What a record is about: a piece of work, or something that happens at one moment."""

    AGENT = "agent"
    STEP = "step"
    LLM = "llm"
    TOOL = "tool"

    TEXT = "text"
    HEARTBEAT = "heartbeat"
    WAIT = "wait"
    CHECKPOINT = "checkpoint"
    OUTPUT = "output"
