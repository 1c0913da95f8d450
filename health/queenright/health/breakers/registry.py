"""All circuit breakers of a process, by name."""

from __future__ import annotations

import difflib
import heapq
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from queenright.health.breakers.circuit_breaker import BreakerChange, BreakerStatus, CircuitBreaker
from queenright.health.breakers.state_machine import BreakerState
from queenright.health.settings import BreakerSettings, CircuitBreakerSettings
from queenright.instrumentation.errors import NotFoundError
from queenright.runtime.events import Clock

_log = logging.getLogger(__name__)

CAPACITY: Final = 10_000
"""The maximum number of breakers. Beyond it, unused breakers are dropped first, open ones last."""

_SUGGESTIONS: Final = 3


class BreakerName(NamedTuple):
    """
    The name of a circuit breaker: ``kind:agent:target``, where empty parts at the end are left out.

    Examples: ``tool_execution:researcher:search``, ``checkpoint_write:researcher``, ``external_api::openai``.
    """

    kind: str
    agent: str = ""
    target: str = ""

    def __str__(self) -> str:
        # The target is the last part, so its colons need no escape.
        agent = self.agent.replace("%", "%25").replace(":", "%3A")
        if self.target:
            return f"{self.kind}:{agent}:{self.target}"
        return f"{self.kind}:{agent}" if agent else self.kind

    @classmethod
    def parse(cls, name: str) -> BreakerName:
        """
        Parse a name.

        Raises:
            ValueError: The name has no kind.
        """
        kind, _, agent_and_target = name.partition(":")
        agent, _, target = agent_and_target.partition(":")
        if not kind or kind != kind.strip():
            raise ValueError(f"{name!r} is not the name of a breaker; write kind:agent:target or kind")
        return cls(kind, agent.replace("%3A", ":").replace("%25", "%"), target)

    def setting_keys(self) -> Iterator[str]:
        """Yield the names under which the breaker's settings are looked up, the most specific first."""
        yield str(self)
        if self.agent and self.target:
            yield str(BreakerName(self.kind, "", self.target))
            yield str(BreakerName(self.kind, self.agent))
        if self.agent or self.target:
            yield self.kind


class BreakerNotFoundError(NotFoundError):
    """Raised when no breaker has this name. The message suggests similar names."""

    def __init__(self, name: str, suggestions: Sequence[str]) -> None:
        hint = (
            f"did you mean {' or '.join(repr(n) for n in suggestions)}?"
            if suggestions
            else "list them: queenright breakers"
        )
        super().__init__(f"there is no circuit breaker {name[:200]!r}; {hint}")
        self.name = name


class BreakerRegistry:
    """
    Creates and keeps circuit breakers. Thread-safe.

    Args:
        settings: The default, and overrides by name: a breaker's full name, the same without the agent
            (``tool_execution::search``) or without the target (``tool_execution:researcher``), or its kind.
        on_change: Called with each change of state, in order, from any thread. It must be quick, must not
            raise and must not wait for another thread.
    """

    def __init__(
        self,
        settings: CircuitBreakerSettings,
        *,
        clock: Clock = time.time,
        monotonic: Clock = time.monotonic,
        on_change: Callable[[BreakerChange], None] | None = None,
        capacity: int = CAPACITY,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._monotonic = monotonic
        self._on_change = on_change
        self._capacity = capacity
        # All breakers share one lock, because a call may need the permission of several breakers at once.
        self._lock = threading.RLock()
        self._breakers: OrderedDict[str, CircuitBreaker] = OrderedDict()
        self._open: dict[str, CircuitBreaker] = {}
        self._breakers_by_agent: dict[str, dict[str, CircuitBreaker]] = {}

    # -- breakers -------------------------------------------------------------------------------

    def get(
        self, kind: str, agent: str = "", target: str = "", *, parents: Sequence[str] = ()
    ) -> CircuitBreaker:
        """
        Return the breaker ``kind:agent:target``. Create it on first use.

        Args:
            parents: Names of shared breakers. A call needs the permission of all of them, and all get its
                outcome. Later calls without ``parents`` keep them.

        Raises:
            ValueError: A name is invalid, or it is its own parent.
        """
        if not kind or ":" in kind:
            raise ValueError(f"kind must be a word without a colon, such as tool_execution, not {kind!r}")
        name = BreakerName(kind, agent, target)
        if str(name) in parents:
            raise ValueError(f"circuit breaker {str(name)!r} cannot be its own parent")
        above = [BreakerName.parse(parent) for parent in parents]
        with self._lock:
            breaker = self._get_or_create(name)
            if above:
                breaker.parents = tuple(self._get_or_create(parent) for parent in above)
            self._enforce_capacity((breaker, *breaker.parents))
        return breaker

    def policy(self, name: str) -> BreakerSettings:
        """Return the settings of the breaker ``name``, even if it does not exist."""
        overrides = self._settings.overrides
        policies = (overrides[key] for key in BreakerName.parse(name).setting_keys() if key in overrides)
        return next(policies, self._settings.default)

    # -- reading --------------------------------------------------------------------------------

    def status(self, name: str) -> BreakerStatus:
        """
        Return the status of a breaker.

        Raises:
            BreakerNotFoundError: No breaker has this name.
        """
        with self._lock:
            return self._find(name).status

    def all(self) -> list[BreakerStatus]:
        """Return the status of every breaker, sorted by name. Those that are not closed come first."""
        with self._lock:
            statuses = [breaker.status for breaker in self._breakers.values()]
        return sorted(statuses, key=lambda status: (status.state is BreakerState.CLOSED, status.name))

    def of_agent(self, agent_id: str) -> list[BreakerStatus]:
        """Return the status of an agent's breakers, unordered. The cost does not depend on other agents."""
        with self._lock:
            return [breaker.status for breaker in self._breakers_by_agent.get(agent_id, {}).values()]

    def page(self, limit: int, *, after: str = "", only_open: bool = False) -> list[BreakerStatus]:
        """
        Return a page of breakers, sorted by name. A breaker whose state changes between pages is not missed.

        Args:
            only_open: Return only breakers that are not closed.
        """
        with self._lock:
            if only_open:
                candidates = [
                    n for n, breaker in self._breakers.items() if breaker.state is not BreakerState.CLOSED
                ]
            else:
                candidates = list(self._breakers)
        names = heapq.nsmallest(limit, (name for name in candidates if name > after))
        with self._lock:
            return [self._breakers[name].status for name in names if name in self._breakers]

    # -- changes ----------------------------------------------------------------------------------

    def reset(self, name: str, by: str, reason: str = "") -> BreakerStatus:
        """
        Close a breaker manually, and return its status. Its parents are unchanged.

        Raises:
            BreakerNotFoundError: No breaker has this name.
        """
        with self._lock:
            breaker = self._find(name)
            breaker.reset(by, reason)
            return breaker.status

    def next_deadline(self) -> float | None:
        """Return the seconds until the first open breaker becomes half-open, or None if none is open."""
        with self._lock:
            waits = [seconds for breaker in self._open.values() if (seconds := breaker.open_for) is not None]
        return min(waits, default=None)

    def half_open_if_due(self) -> int:
        """
        Make the open breakers whose timeout has passed half-open, and return their number.

        Otherwise a breaker that is never called again would stay open, and its worker would count as failing.
        """
        with self._lock:
            return sum(breaker.half_open_if_due() for breaker in list(self._open.values()))

    def restore(self, status: BreakerStatus) -> None:
        """Restore a breaker from another process."""
        with self._lock:
            breaker = self._get_or_create(BreakerName(status.kind, status.agent_id, status.target))
            breaker.restore(status)
            if breaker.state is BreakerState.OPEN:
                self._open[breaker.name] = breaker
            self._enforce_capacity((breaker,))

    # -- helpers; the caller holds the lock -----------------------------------------------------

    def _get_or_create(self, name: BreakerName) -> CircuitBreaker:
        key = str(name)
        breaker = self._breakers.get(key)
        if breaker is None:
            breaker = self._breakers[key] = CircuitBreaker(
                key,
                self.policy(key),
                kind=name.kind,
                agent_id=name.agent,
                target=name.target,
                clock=self._clock,
                monotonic=self._monotonic,
                lock=self._lock,
                on_change=self._report_change,
            )
            self._breakers_by_agent.setdefault(name.agent, {})[key] = breaker
        else:
            self._breakers.move_to_end(key)
        return breaker

    def _find(self, name: str) -> CircuitBreaker:
        breaker = self._breakers.get(name)
        if breaker is None:
            suggestions = difflib.get_close_matches(name, self._breakers, _SUGGESTIONS, 0.4)
            raise BreakerNotFoundError(name, suggestions)
        return breaker

    def _report_change(self, breaker: CircuitBreaker, change: BreakerChange) -> None:
        # A caller may have kept a breaker for so long that the registry has dropped it.
        if self._breakers.setdefault(breaker.name, breaker) is not breaker:
            return
        self._breakers_by_agent.setdefault(breaker.agent_id, {})[breaker.name] = breaker
        if breaker.state is BreakerState.OPEN:
            self._open[breaker.name] = breaker
            _log.warning("circuit breaker %s is open: %s", breaker.name, change.status.reason)
        else:
            self._open.pop(breaker.name, None)
        if self._on_change is not None:
            self._on_change(change)

    def _enforce_capacity(self, newest: Collection[CircuitBreaker]) -> None:
        """
        Drop breakers beyond the capacity, except the newest.

        Unused breakers are dropped first, then closed, half-open and open ones. Among equal breakers, the
        least recently used is dropped first.
        """
        while len(self._breakers) > max(self._capacity, len(newest)):
            others = [breaker for breaker in self._breakers.values() if breaker not in newest]
            victim = next((breaker for breaker in others if breaker.is_untouched), None)
            victim = victim or min(others, key=lambda breaker: _FORGET_ORDER.index(breaker.state))
            # Subscribers that know the breaker as open need an event that it closed.
            victim.reset("itself", f"there are more than {self._capacity} circuit breakers")
            del self._breakers[victim.name]
            agent_breakers = self._breakers_by_agent[victim.agent_id]
            del agent_breakers[victim.name]
            if not agent_breakers:
                del self._breakers_by_agent[victim.agent_id]


_FORGET_ORDER: Final = (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN)
