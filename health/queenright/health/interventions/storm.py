"""The storm guard: detects that many workers get worse at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Final

from queenright.health.findings import WorkerKey
from queenright.health.settings import StormSettings

WINDOW_SECONDS: Final = 30.0
"""Shorter than ``group_wait`` of storms in Alertmanager, so that the first message has the whole storm."""
QUIET_SECONDS: Final = 120.0
"""A storm is over once fewer workers than it needs got worse within so long: one judge interval."""


class StormWatch:
    """
    Detects storms.

    Args:
        ids: Makes the id of a storm, which its alerts share.
    """

    def __init__(self, settings: StormSettings, *, ids: Callable[[], str]) -> None:
        self._settings = settings
        self._ids = ids
        self._worse: dict[WorkerKey, float] = {}
        self._by_agent: defaultdict[str, dict[WorkerKey, None]] = defaultdict(dict)
        """The keys of ``_worse``, in the same order."""
        self._id = ""
        self._began: float | None = None
        self._struck: set[WorkerKey] = set()
        self._storm_of: dict[WorkerKey, str] = {}
        """The newest storm in which a worker got worse, until another storm begins."""

    def record_worse(
        self,
        key: WorkerKey,
        now: float,
        *,
        is_consecutive: Callable[[WorkerKey], bool] = lambda key: False,
    ) -> bool:
        """
        Record that a worker became stuck or failing; return whether this began a storm.

        Args:
            is_consecutive: Returns whether another session of its agent was before or after this one, not at
                the same time: an agent that crashes repeatedly counts once.
        """
        self._forget(now)
        for other in self._consecutive(key[0], is_consecutive):
            self._remove(other)
            self._struck.discard(other)
        if key in self._worse:
            self._remove(key)
        self._worse[key] = now
        self._by_agent[key[0]][key] = None
        self._storm_of.pop(key, None)
        if self._id:
            self._struck.add(key)
            self._storm_of[key] = self._id
            return False
        if len(self._worse) < self._settings.workers:
            return False
        self._id = self._ids()
        self._began = now
        self._struck = set(self._worse)
        self._storm_of = dict.fromkeys(self._worse, self._id)
        return True

    def _consecutive(self, agent_id: str, is_consecutive: Callable[[WorkerKey], bool]) -> list[WorkerKey]:
        """Return the consecutive sessions of an agent, newest first, until enough for a storm are not."""
        found, others = [], 0
        for other in reversed(self._by_agent.get(agent_id, {})):
            if is_consecutive(other):
                found.append(other)
                continue
            others += 1
            if others >= self._settings.workers:
                break
        return found

    def _remove(self, key: WorkerKey) -> None:
        del self._worse[key]
        sessions = self._by_agent[key[0]]
        del sessions[key]
        if not sessions:
            del self._by_agent[key[0]]

    def storm(self, now: float) -> str:
        """Return the id of the current storm, or an empty string."""
        self._forget(now)
        return self._id

    def storm_of(self, key: WorkerKey) -> str:
        """
        Return the id of the last storm if a worker got worse in it; else empty.

        The last tickets of a storm may be written after it is over.
        """
        return self._storm_of.get(key, "")

    def began_at(self, now: float) -> float | None:
        """Return when the current storm began, in seconds since the epoch, or None."""
        return self._began if self.storm(now) else None

    def struck(self, now: float) -> int:
        """Return the number of workers that got worse in the current storm; 0 without one."""
        return len(self._struck) if self.storm(now) else 0

    @property
    def workers(self) -> int:
        """The number of workers that got worse within the window, as of the last call."""
        return len(self._worse)

    def _forget(self, now: float) -> None:
        self._forget_older(now, QUIET_SECONDS if self._id else WINDOW_SECONDS)
        if self._id and len(self._worse) < self._settings.workers:
            self._id, self._began = "", None
            self._struck.clear()
            self._forget_older(now, WINDOW_SECONDS)

    def _forget_older(self, now: float, window: float) -> None:
        # In the order in which they got worse, so the first recent one ends the search.
        while self._worse:
            key, at = next(iter(self._worse.items()))
            if 0 <= now - at < window:
                break
            self._remove(key)
