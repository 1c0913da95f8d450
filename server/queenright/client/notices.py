"""What a stream of events tells of itself, beside the events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from queenright.instrumentation.errors import QueenrightError

Kind = Literal["connected", "lost", "dropped", "reset"]


@dataclass(frozen=True, slots=True)
class Notice:
    """
    One notice.

    Attributes:
        kind: ``connected``: events come from now on; ``lost``: they do not, and it comes back by itself;
            ``dropped``: the service left out deltas, because they were not read as fast as they came;
            ``reset``: the service does not know the event to go on after, and went on from its newest.
        error: Why it was lost.
        data: What the service said with it: ``count`` of what was dropped; the ``reason`` of a reset.
    """

    kind: Kind
    error: QueenrightError | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
