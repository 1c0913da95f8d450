"""Notifications, and the receipts of their delivery. Values only; ``notification_table`` stores them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Final, Literal

Status = Literal["firing", "resolved"]

NO_PEER: Final = ""
"""Pseudo peer. Its delivery row says that the firing alert, or its end, must not be sent to anyone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One row of the outbox. Times in seconds since the epoch."""

    id: int
    ticket_id: str
    key: str
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: float
    ends_at: float | None = None
    """When it ended, or will end unless another ticket joins it; None if open-ended."""
    created_at: float
    updated_at: float
    fired: dict[str, float] = field(default_factory=dict)
    """When each peer accepted the firing alert."""
    resolved: dict[str, float] = field(default_factory=dict)
    """When each peer accepted its end."""

    def is_firing(self, now: float) -> bool:
        """Return whether it has not ended yet."""
        # If a peer accepted the end, it has ended, even if the clock was set back.
        return self.ends_at is None or (
            not self.resolved and has_not_ended(self.ends_at, self.updated_at, now)
        )

    @property
    def was_delivered_in_time(self) -> bool:
        """Whether the alert ended and some peer accepted it before its end, so that only the end is sent."""
        return self.ends_at is not None and any(at <= self.ends_at for at in self.fired.values())

    @property
    def is_silent(self) -> bool:
        """Whether it needs no delivery: another alert replaced it, or its worker is gone."""
        return NO_PEER in self.fired

    @property
    def is_replaced(self) -> bool:
        """Whether another alert replaced it, so that its end must not be sent."""
        return NO_PEER in self.resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of sending one notification to one peer. ``error`` is the reason of a rejection."""

    notification_id: int
    peer: str
    status: Status
    at: float
    attempts: int
    error: str | None = None


def has_not_ended(ends_at: float | None, updated_at: float, now: float) -> bool:
    """
    Return whether a notification has not ended yet.

    If the clock is set back, an end in the past is in the future. It still counts as past if it was in the
    past when it was written. An alert that is held open for the next ticket is not held longer.
    """
    return ends_at is None or updated_at - (ends_at - updated_at) <= now < ends_at


def alert_key(labels: dict[str, str]) -> str:
    """Return the identity of an alert in Alertmanager: a hash of all labels, as 32 hex digits."""
    return hashlib.sha256(json.dumps(sorted(labels.items())).encode()).hexdigest()[:32]
