"""All circuit breakers of a process, by name."""

from __future__ import annotations

import difflib
import heapq
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final

from queenright.health.breakers.breaker import BreakerState
from queenright.health.breakers.circuit import BreakerChange, BreakerStatus, CircuitBreaker
from queenright.health.breakers.names import BreakerName
from queenright.health.settings import Breaker, CircuitBreakers
from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.events import Clock

_log = logging.getLogger(__name__)

CAPACITY: Final = 10_000
"""So many breakers are known; beyond, those that were not asked for the longest are forgotten."""

_NEAR: Final = 3


class BreakerNotFoundError(QueenrightError):
    """Raised for the name of a breaker that is not there; names those that are spelt like it."""

    def __init__(self, name: str, near: Sequence[str]) -> None:
        hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else "none is called like it."
        super().__init__(f"there is no circuit breaker {name[:200]!r}; {hint}")
        self.name = name


class BreakerRegistry:
    """
    Makes breakers and knows them. For any number of threads.

    Args:
        settings: The default and what differs, by name: a breaker's full name, the same without the agent
            (``tool_execution::search``), without the target (``tool_execution:researcher``), or its kind.
        clock: Seconds since the epoch, for people.
        monotonic: The clock that time-outs go by.
        on_change: Is told each change of state, in order, from whatever thread: it must be quick, must not
            raise and must not wait for another thread.
        capacity: How many breakers are known.
    """

    def __init__(
        self,
        settings: CircuitBreakers,
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
        # One lock for all: a call may need leave of several breakers at once.
        self._lock = threading.RLock()
        self._breakers: OrderedDict[str, CircuitBreaker] = OrderedDict()
        self._open: dict[str, CircuitBreaker] = {}
        self._of_agent: dict[str, dict[str, CircuitBreaker]] = {}

    # -- breakers -------------------------------------------------------------------------------

    def get(
        self, kind: str, agent: str = "", target: str = "", *, parents: Sequence[str] = ()
    ) -> CircuitBreaker:
        """
        Return the breaker ``kind:agent:target``; it is made when it is first asked for.

        Args:
            kind: What it stands before; see ``BreakerKind``.
            agent: The worker whose calls these are.
            target: Where they go.
            parents: Names of breakers that it shares with others: a call needs leave of all of them, and all
                hear how it went. Given once, they stay.

        Raises:
            ValueError: A name is none, or it is its own parent.
        """
        if not kind or ":" in kind:
            raise ValueError(f"kind must be a word without a colon, such as tool_execution, not {kind!r}")
        name = BreakerName(kind, agent, target)
        if str(name) in parents:
            raise ValueError(f"circuit breaker {str(name)!r} cannot be its own parent")
        above = [BreakerName.parse(parent) for parent in parents]
        with self._lock:
            breaker = self._one(name)
            if above:
                breaker.parents = tuple(self._one(parent) for parent in above)
            self._forget_some((breaker, *breaker.parents))
        return breaker

    def policy(self, name: str) -> Breaker:
        """Return the settings of the breaker called ``name``, whether it is there or not."""
        overrides = self._settings.overrides
        found = (overrides[key] for key in BreakerName.parse(name).looked_up_as() if key in overrides)
        return next(found, self._settings.default)

    # -- what they are --------------------------------------------------------------------------

    def status(self, name: str) -> BreakerStatus:
        """
        Return a breaker as it is.

        Raises:
            BreakerNotFoundError: There is none of that name.
        """
        with self._lock:
            return self._find(name).status

    def all(self) -> list[BreakerStatus]:
        """Return every breaker as it is: those that are not closed first, then by name."""
        with self._lock:
            found = [breaker.status for breaker in self._breakers.values()]
        return sorted(found, key=lambda status: (status.state is BreakerState.CLOSED, status.name))

    def of_agent(self, agent_id: str) -> list[BreakerStatus]:
        """Return the breakers of one agent as they are, in no order. Cheap, however many others there are."""
        with self._lock:
            return [breaker.status for breaker in self._of_agent.get(agent_id, {}).values()]

    def page(self, limit: int, *, after: str = "", only_open: bool = False) -> list[BreakerStatus]:
        """
        Return breakers by name, so that one whose state changes between two pages is not missed.

        Args:
            limit: At most so many.
            after: Only names after this one.
            only_open: Only those that are not closed.
        """
        with self._lock:
            if only_open:
                known = [n for n, one in self._breakers.items() if one.state is not BreakerState.CLOSED]
            else:
                known = list(self._breakers)
        names = heapq.nsmallest(limit, (name for name in known if name > after))
        with self._lock:
            return [self._breakers[name].status for name in names if name in self._breakers]

    # -- how they heal ----------------------------------------------------------------------------

    def reset(self, name: str, by: str, reason: str = "") -> BreakerStatus:
        """
        Close a breaker by hand, and return it as it is then. Its parents stay as they are.

        Raises:
            BreakerNotFoundError: There is none of that name.
        """
        with self._lock:
            breaker = self._find(name)
            breaker.reset(by, reason)
            return breaker.status

    def next_deadline(self) -> float | None:
        """Return in how many seconds ``wake`` has something to do; None if nothing is open."""
        with self._lock:
            waits = [left for breaker in self._open.values() if (left := breaker.open_for) is not None]
        return min(waits, default=None)

    def wake(self) -> int:
        """
        Let open breakers whose time is over be half open; return how many there were.

        Without this, one that nobody calls any more stays open for ever, and so does what follows from it.
        """
        with self._lock:
            return sum(breaker.wake() for breaker in list(self._open.values()))

    def restore(self, status: BreakerStatus) -> None:
        """Take up a breaker as another process left it."""
        with self._lock:
            breaker = self._one(BreakerName(status.kind, status.agent_id, status.target))
            breaker.restore(status)
            if breaker.state is BreakerState.OPEN:
                self._open[breaker.name] = breaker
            self._forget_some((breaker,))

    # -- within the lock ------------------------------------------------------------------------

    def _one(self, name: BreakerName) -> CircuitBreaker:
        called = str(name)
        breaker = self._breakers.get(called)
        if breaker is None:
            breaker = self._breakers[called] = CircuitBreaker(
                called,
                self.policy(called),
                kind=name.kind,
                agent_id=name.agent,
                target=name.target,
                clock=self._clock,
                monotonic=self._monotonic,
                lock=self._lock,
                on_change=self._changed,
            )
            self._of_agent.setdefault(name.agent, {})[called] = breaker
        else:
            self._breakers.move_to_end(called)
        return breaker

    def _find(self, name: str) -> CircuitBreaker:
        breaker = self._breakers.get(name)
        if breaker is None:
            raise BreakerNotFoundError(name, difflib.get_close_matches(name, self._breakers, _NEAR, 0.4))
        return breaker

    def _changed(self, breaker: CircuitBreaker, change: BreakerChange) -> None:
        # Somebody may have kept a breaker for so long that it was forgotten here.
        if self._breakers.setdefault(breaker.name, breaker) is not breaker:
            return
        self._of_agent.setdefault(breaker.agent_id, {})[breaker.name] = breaker
        if breaker.state is BreakerState.OPEN:
            self._open[breaker.name] = breaker
            _log.warning("circuit breaker %s is open: %s", breaker.name, change.status.reason)
        else:
            self._open.pop(breaker.name, None)
        if self._on_change is not None:
            self._on_change(change)

    def _forget_some(self, asked_for: Collection[CircuitBreaker]) -> None:
        """
        Keep to the capacity, but for what is asked for just now.

        First those go that are as new, then what is missed least; of equals, who was not asked for longest.
        """
        while len(self._breakers) > max(self._capacity, len(asked_for)):
            others = [breaker for breaker in self._breakers.values() if breaker not in asked_for]
            victim = next((breaker for breaker in others if breaker.untouched), None)
            victim = victim or min(others, key=lambda breaker: _LEAST_MISSED.index(breaker.state))
            # Whoever remembers it as open must hear that it is not any more.
            victim.reset("itself", f"there are more than {self._capacity} circuit breakers")
            del self._breakers[victim.name]
            mine = self._of_agent[victim.agent_id]
            del mine[victim.name]
            if not mine:
                del self._of_agent[victim.agent_id]


_LEAST_MISSED: Final = (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN)
