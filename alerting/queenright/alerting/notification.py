"""Notifications and the receipts of their delivery. ``notification_table`` stores them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Final, Literal

Status = Literal["firing", "resolved"]

NO_PEER: Final = ""
"""Pseudo peer. A delivery row for it says that the firing alert, or its end, must not be sent to any peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One row of the outbox. Times are in seconds since the epoch."""

    id: int
    ticket_id: str
    key: str
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: float
    ends_at: float | None = None
    """When the alert ended, or will end unless another ticket joins it; None if open-ended."""
    created_at: float
    updated_at: float
    fired: dict[str, float] = field(default_factory=dict)
    """When each peer accepted the firing alert."""
    resolved: dict[str, float] = field(default_factory=dict)
    """When each peer accepted the end."""

    def is_firing(self, now: float) -> bool:
        """Return whether the notification has not ended yet."""
        # A notification whose end a peer accepted has ended, even if the clock was set back.
        return self.ends_at is None or (
            not self.resolved and has_not_ended(self.ends_at, self.updated_at, now)
        )

    @property
    def was_delivered_in_time(self) -> bool:
        """Whether the alert ended after some peer had accepted it, so that only the end is sent."""
        return self.ends_at is not None and any(at <= self.ends_at for at in self.fired.values())

    @property
    def is_silent(self) -> bool:
        """Whether the firing alert needs no delivery: another alert replaced it, or its worker is gone."""
        return NO_PEER in self.fired

    @property
    def is_replaced(self) -> bool:
        """Whether another alert replaced this one, so that its end must not be sent."""
        return NO_PEER in self.resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of sending one notification to one peer. ``error`` is the reason for a rejection."""

    notification_id: int
    peer: str
    status: Status
    at: float
    attempts: int
    error: str | None = None


def has_not_ended(ends_at: float | None, updated_at: float, now: float) -> bool:
    """
    Return whether a notification has not ended yet.

    If the clock is set back, a past end seems to be in the future. It still counts as past if it was past
    when it was written, and an alert that is held open for the next ticket is not held for longer.
    """
    return ends_at is None or updated_at - (ends_at - updated_at) <= now < ends_at


def alert_key(labels: dict[str, str]) -> str:
    """Return the identity of an alert in Alertmanager: a hash of all labels, as 32 hex digits."""
    return hashlib.sha256(json.dumps(sorted(labels.items())).encode()).hexdigest()[:32]
