"""Why nothing is made of a record."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """Why a record is rejected: its sender is told, and has to change something."""

    INVALID_ID = "invalid_id"
    INVALID_SPAN = "invalid_span"
    NO_NAME = "no_name"
    NO_SESSION = "no_session"
    TOO_LARGE = "too_large"


class Unused(StrEnum):
    """Why a record that can be read is not used."""

    NO_AGENT_WORK = "no_agent_work"
    """It is nothing that an agent did: a request to a database, a log line."""
    REPEATED = "repeated"
    """It was received before, or says that something begins that is over."""
    SAME_WORK = "same_work"
    """Another record has told of the same call, or of more of it."""


class UnusableRecord(ValueError):
    """Raised for a record that cannot be used; the message is for its sender."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault
