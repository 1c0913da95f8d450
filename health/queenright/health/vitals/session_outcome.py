"""The status of a session, which is also the outcome of a session that has ended."""

from __future__ import annotations

from enum import StrEnum


class WorkerStatus(StrEnum):
    """The status of a session. Unrecognized values become ``unknown``."""

    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> WorkerStatus:
        return cls.UNKNOWN
