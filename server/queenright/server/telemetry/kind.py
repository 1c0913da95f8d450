"""Kinds of observations."""

from __future__ import annotations

from enum import StrEnum


class ObservationKind(StrEnum):
    """The subject of an observation: work, or a momentary event."""

    AGENT = "agent"
    STEP = "step"
    LLM = "llm"
    TOOL = "tool"

    TURN = "turn"
    """From a prompt until the agent waits for the next one."""
    NOTE = "note"
    """Additional data of a call whose end another record reports."""

    TEXT = "text"
    HEARTBEAT = "heartbeat"
    WAIT = "wait"
    CHECKPOINT = "checkpoint"
    OUTPUT = "output"
    RESOURCE = "resource"
    BREAKER = "breaker"
    """A circuit breaker in the worker's own process."""
    MCP_SERVER = "mcp_server"
    """A coding agent's MCP server connected, disconnected or could not be reached."""
