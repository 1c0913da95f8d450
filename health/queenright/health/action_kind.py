"""The kinds of actions on workers."""

from __future__ import annotations

from enum import StrEnum


class ActionKind(StrEnum):
    """The kinds of actions, in the order of the intervention ladder."""

    NUDGE = "nudge"
    ESCALATE = "escalate"
    TERMINATE = "terminate"
    RECOVER = "recover"
    ANSWER = "answer"
    """Allow or deny a permission request. A person does this; it is not part of the ladder."""
