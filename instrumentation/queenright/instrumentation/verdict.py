"""The verdict that ends a step."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """The verdict of an agent's own judge on a step."""

    ACCEPT = "ACCEPT"
    RETRY = "RETRY"
    CONTINUE = "CONTINUE"
    ESCALATE = "ESCALATE"
