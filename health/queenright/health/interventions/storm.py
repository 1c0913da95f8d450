"""The storm guard: detects that many workers get worse at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from operator import itemgetter
from typing import Final

from queenright.health.findings import WorkerKey
from queenright.health.settings import StormSettings

WINDOW_SECONDS: Final = 30.0
"""Shorter than ``group_wait`` of storms in Alertmanager, so that the first message shows the whole storm."""
QUIET_SECONDS: Final = 120.0
"""A storm is over when too few workers got worse within this time: one judge interval."""


class StormWatch:
    """
    Detects storms.

    Args:
        ids: Returns a new id for a storm. All alerts of the storm share it.
    """

    def __init__(self, settings: StormSettings, *, ids: Callable[[], str]) -> None:
        self._settings = settings
        self._ids = ids
        self._worse: dict[WorkerKey, float] = {}
        self._by_agent: defaultdict[str, dict[WorkerKey, None]] = defaultdict(dict)
        """The keys of ``_worse``, in the same order."""
        self._id = ""
        self._began: float | None = None
        self._victims: set[WorkerKey] = set()
        self._storm_of: dict[WorkerKey, str] = {}
        """The newest storm in which a worker got worse, until another storm begins."""
        self._elsewhere: set[WorkerKey] = set()
        """The workers of ``_worse`` that other services monitor."""

    def record_worse(
        self,
        key: WorkerKey,
        now: float,
        *,
        is_consecutive: Callable[[WorkerKey], bool] = lambda key: False,
    ) -> bool:
        """
        Record that a worker became stuck or failing, and return whether this began a storm.

        Args:
            is_consecutive: Returns whether another session of the agent ran before or after this one, rather
                than at the same time. An agent that crashes repeatedly thus counts once.
        """
        self._forget(now)
        self._add(key, now, is_consecutive)
        self._storm_of.pop(key, None)
        if self._id:
            self._victims.add(key)
            self._storm_of[key] = self._id
            return False
        if len(self._worse) < self._settings.workers:
            return False
        self._begin(self._ids(), now)
        return True

    def _add(self, key: WorkerKey, at: float, is_consecutive: Callable[[WorkerKey], bool]) -> None:
        for other in self._consecutive(key[0], is_consecutive):
            self._remove(other)
            self._victims.discard(other)
        if key in self._worse:
            self._remove(key)
        self._worse[key] = at
        self._by_agent[key[0]][key] = None

    def _begin(self, storm_id: str, at: float) -> None:
        self._id, self._began = storm_id, at
        self._victims = set(self._worse)
        self._storm_of = dict.fromkeys(self._worse, self._id)

    # -- a fleet with several services --------------------------------------------------------------

    def list_local_workers(self, now: float) -> dict[WorkerKey, float]:
        """Return when the workers of this service that count towards a storm got worse."""
        self._forget(now)
        return {key: at for key, at in self._worse.items() if key not in self._elsewhere}

    def join(
        self,
        elsewhere: Mapping[WorkerKey, float],
        storm: tuple[str, float] | None,
        now: float,
        *,
        is_consecutive: Callable[[WorkerKey, WorkerKey], bool],
    ) -> bool:
        """
        Replace the data of other services, and return whether this began a storm that no other service has.

        Args:
            elsewhere: When the workers of other services got worse.
            storm: The id of the storm that another service is in, and when it began; None if there is none.
            is_consecutive: Like that of ``record_worse``, for any two workers.
        """
        if not elsewhere and not self._elsewhere:
            return False
        local_workers = self.list_local_workers(now)
        reports = {**elsewhere, **local_workers}
        new_keys = elsewhere.keys() - self._elsewhere
        self._worse.clear()
        self._by_agent.clear()
        for key, at in sorted(reports.items(), key=itemgetter(1)):
            self._add(key, min(at, now), partial(is_consecutive, key))
        self._elsewhere = (elsewhere.keys() - local_workers.keys()) & self._worse.keys()
        if self._id:
            self._victims |= new_keys & self._worse.keys()
            self._forget(now)
            return False
        self._forget_older(now, QUIET_SECONDS if storm is not None else WINDOW_SECONDS)
        if len(self._worse) < self._settings.workers:
            self._forget(now)
            return False
        self._begin(*(storm or (self._ids(), now)))
        return storm is None

    def inherit(self, keys: Collection[WorkerKey]) -> None:
        """Count these workers of other services as workers of this service, which now monitors them."""
        self._elsewhere.difference_update(keys)

    @property
    def current(self) -> tuple[str, float] | None:
        """The id of the current storm, and when it began, as of the last call; None without a storm."""
        return None if self._began is None else (self._id, self._began)

    # -- reading ------------------------------------------------------------------------------------

    def _consecutive(self, agent_id: str, is_consecutive: Callable[[WorkerKey], bool]) -> list[WorkerKey]:
        """
        Return the consecutive sessions of an agent, newest first. Stop when enough sessions for a storm are
        not consecutive.
        """
        victims, others = [], 0
        for other in reversed(self._by_agent.get(agent_id, {})):
            if is_consecutive(other):
                victims.append(other)
                continue
            others += 1
            if others >= self._settings.workers:
                break
        return victims

    def _remove(self, key: WorkerKey) -> None:
        del self._worse[key]
        self._elsewhere.discard(key)
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
        Return the id of the last storm if the worker got worse in it, otherwise an empty string.

        The last tickets of a storm may be written after it is over.
        """
        return self._storm_of.get(key, "")

    def began_at(self, now: float) -> float | None:
        """Return when the current storm began, in seconds since the epoch, or None."""
        return self._began if self.storm(now) else None

    def count_victims(self, now: float) -> int:
        """Return the number of workers that got worse in the current storm; 0 without a storm."""
        return len(self._victims) if self.storm(now) else 0

    @property
    def workers(self) -> int:
        """The number of workers that got worse within the window, as of the last call."""
        return len(self._worse)

    def _forget(self, now: float) -> None:
        self._forget_older(now, QUIET_SECONDS if self._id else WINDOW_SECONDS)
        if self._id and len(self._worse) < self._settings.workers:
            self._id, self._began = "", None
            self._victims.clear()
            self._forget_older(now, WINDOW_SECONDS)

    def _forget_older(self, now: float, window: float) -> None:
        # Workers are in the order in which they got worse, so the first recent worker ends the search.
        while self._worse:
            key, at = next(iter(self._worse.items()))
            if 0 <= now - at < window:
                break
            self._remove(key)
