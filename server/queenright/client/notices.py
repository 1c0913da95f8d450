"""Notices of an event stream about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from queenright.instrumentation.errors import QueenrightError

NoticeKind = Literal["connected", "lost", "dropped", "reset"]


@dataclass(frozen=True, slots=True)
class Notice:
    """
    A notice of an event stream.

    Attributes:
        kind: ``connected``: events arrive from now on; ``lost``: the connection broke and is retried;
            ``dropped``: the service dropped deltas that were not read fast enough; ``reset``: the service
            does not know the event to continue after, and continues with its newest.
        error: Why the connection was lost.
        data: Data of the notice: ``count`` of dropped deltas; ``reason`` of a reset.
    """

    kind: NoticeKind
    error: QueenrightError | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


def ignore(notice: Notice) -> None:
    """Ignore a notice."""
