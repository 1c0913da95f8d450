"""What a piece of work is."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What a record is about: a piece of work, or something that happens at one moment."""

    AGENT = "agent"
    STEP = "step"
    LLM = "llm"
    TOOL = "tool"

    TURN = "turn"
    """From a prompt to the answer after which the agent waits for the next."""
    NOTE = "note"
    """Something more about a call that another record tells the end of."""

    TEXT = "text"
    HEARTBEAT = "heartbeat"
    WAIT = "wait"
    CHECKPOINT = "checkpoint"
    OUTPUT = "output"
    RESOURCE = "resource"
    BREAKER = "breaker"
    """A circuit breaker in the worker's own process."""
    MCP_SERVER = "mcp_server"
    """An MCP server of a coding agent was connected, lost, or could not be reached."""
