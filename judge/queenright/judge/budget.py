"""What judging may cost, and has cost: in dollars and tokens, in any hour and any day, over restarts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from queenright.judge.estimate import Cost, Estimate, Unit
from queenright.judge.settings import BudgetSettings
from queenright.runtime.storage.files import Disk, UnusableFileError, read_json, write_json

_log = logging.getLogger(__name__)

Window = Literal["hour", "day"]

BUDGET_FILE: Final = "judging_spent.json"
"""In the storage folder: what was spent, so that a restart does not forget it."""

_SECONDS: Final[Mapping[Window, float]] = {"hour": 3600, "day": 86_400}
_UNITS: Final[tuple[Unit, ...]] = ("dollars", "tokens")
_SLOT: Final = 300
"""What is paid is kept by five minutes: it counts until the last of them is out of the window."""


class Spending:
    """
    What was paid within the last day, by role.

    Args:
        rows: As ``rows`` gave them: ``[start of five minutes, role, dollars, tokens]`` each.

    Raises:
        ValueError: They are none.
    """

    def __init__(self, rows: object = ()) -> None:
        self._slots: dict[tuple[int, str], tuple[float, int]] = {}
        if not isinstance(rows, list | tuple):
            raise ValueError(f"not a list of what was spent: {type(rows).__name__}")
        for row in rows:
            start, role, dollars, tokens = _checked(row)
            self._slots[start, role] = dollars, tokens

    def add(self, role: str, at: float, dollars: float, tokens: int) -> None:
        """Add what was paid at ``at``, in seconds since the epoch; what is older than a day is let go of."""
        key = int(at // _SLOT) * _SLOT, role
        before = self._slots.get(key, (0.0, 0))
        self._slots[key] = before[0] + dollars, before[1] + tokens
        for old in [key for key in self._slots if not _within(key[0], at, _SECONDS["day"])]:
            del self._slots[old]

    def of(self, window: Window, unit: Unit, now: float, role: str | None = None) -> float:
        """Return what was paid within the window that ends now: by one role, or by all."""
        paid = [
            amounts[_UNITS.index(unit)]
            for (start, payer), amounts in self._slots.items()
            if _within(start, now, _SECONDS[window]) and role in (None, payer)
        ]
        return sum(paid)

    def rows(self) -> list[list[Any]]:
        """Return all as JSON values."""
        return [[start, role, *amounts] for (start, role), amounts in sorted(self._slots.items())]


@dataclass(frozen=True, slots=True)
class Spent:
    """A limit that is reached, or would be passed."""

    window: Window
    unit: Unit
    limit: float
    paid: float
    wanted: float = 0
    """What a call may cost for which too little is left."""

    @property
    def seconds(self) -> float:
        """How long the window is."""
        return _SECONDS[self.window]

    def __str__(self) -> str:
        limit, paid, wanted = (
            f"{n:.{places}f} $" if self.unit == "dollars" else f"{n:,.0f} tokens"
            for n, places in ((self.limit, 2), (self.paid, 2), (self.wanted, 4))
        )
        said = f"judging.budget allows {limit} in any {self.window}, and {paid} are spent"
        return said if self.paid >= self.limit else f"{said}; the next call may cost {wanted}"


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What is set aside for a call under way."""

    role: str
    estimate: Estimate


class Budget:
    """
    Says whether another call may be paid for, and remembers what was.

    What a call may cost is held before it is made, and counts as spent until it is known what it did cost:
    calls that go on at one time do not all spend the same rest.

    Args:
        settings: The limits.
        clock: Seconds since the epoch.
        file: Where what was spent is kept; None keeps it in memory only. One that cannot be used is put
            aside, and nothing counts as spent then.
    """

    def __init__(
        self, settings: BudgetSettings, *, clock: Callable[[], float], file: Path | None = None
    ) -> None:
        self._limits: dict[tuple[Window, Unit], float] = {
            (window, unit): limit
            for window in _SECONDS
            for unit in _UNITS
            if (limit := getattr(settings, f"{unit}_per_{window}")) is not None
        }
        self._clock = clock
        self._file = file
        self._spending = Spending() if file is None else _read(file)
        self._held: list[Held] = []
        # What was asked for last, if too little was left for it.
        self._refused = Cost()
        self._disk = Disk()
        self._writing = asyncio.Lock()

    def limits(self) -> Iterable[tuple[Window, Unit, float]]:
        """Return each limit that there is."""
        return [(window, unit, limit) for (window, unit), limit in self._limits.items()]

    def all_spent(self) -> Iterator[tuple[Window, Unit, float]]:
        """
        Return what is spent, of every window in every unit.

        Of a limit that leaves too little for the call that was asked for last, all is: no model is asked.
        """
        short = {(s.window, s.unit): s.limit for s in self._reached(self._refused)}
        for window in _SECONDS:
            for unit in _UNITS:
                yield window, unit, max(self.spent(window, unit), short.get((window, unit), 0.0))

    def spent(self, window: Window, unit: Unit, role: str | None = None) -> float:
        """Return what is spent in the window that ends now, and what is held: by one role, or by all."""
        held = [held.estimate.call.of(unit) for held in self._held if role in (None, held.role)]
        return self._spending.of(window, unit, self._clock(), role) + sum(held)

    def exhausted(self) -> Spent | None:
        """Return the limit that is reached and holds longest; None if another call may be paid for."""
        return max(self._reached(self._refused), key=lambda spent: spent.seconds, default=None)

    async def hold(self, role: str, estimate: Estimate, *, whatever: bool = False) -> Held | Spent:
        """
        Set aside what a call may cost, before it is made; or return the limit into which it does not fit.

        It is on the disk on return: a kill before ``settle`` counts all of it.

        Args:
            role: Who pays.
            estimate: What the call may cost.
            whatever: Hold it also where it does not fit.
        """
        reached = self._reached(estimate.call)
        self._refused = estimate.call if reached else Cost()
        if reached and not whatever:
            return max(reached, key=lambda spent: spent.seconds)
        held = Held(role, estimate)
        self._held.append(held)
        try:
            await self._keep(estimate.call)
        except BaseException:  # cancelled: the call is not made
            self._held.remove(held)
            raise
        return held

    async def settle(self, held: Held, paid: Cost | None) -> None:
        """
        Count what a call did cost in place of what was held for it.

        Args:
            held: As ``hold`` gave it.
            paid: None if nobody answered: then the question counts, which was read.
        """
        paid = held.estimate.question if paid is None else paid
        if not paid.sound:
            paid = held.estimate.call
        self._held.remove(held)
        if paid:
            self._spending.add(held.role, self._clock(), paid.dollars, paid.tokens)
        if paid != held.estimate.call:
            await self._keep(paid or held.estimate.call)

    def _reached(self, wanted: Cost) -> list[Spent]:
        return [
            Spent(window, unit, limit, paid, wanted.of(unit))
            for (window, unit), limit in self._limits.items()
            if (paid := self.spent(window, unit)) >= limit or paid + wanted.of(unit) > limit
        ]

    async def _keep(self, changed: Cost) -> None:
        """Write it down. A disk that refuses is said in the log; here it still counts."""
        if self._file is None or not changed:
            return
        file = self._file
        async with self._writing:
            rows = self._rows()
            try:
                await self._disk.run(lambda: write_json(file, {"spent": rows}))
            except OSError as error:
                _log.warning("what judging costs cannot be kept, and a restart forgets it: %s", error)

    def _rows(self) -> list[list[Any]]:
        """Return what is spent, with what is held: a life after a kill cannot know what it did cost."""
        spending, now = Spending(self._spending.rows()), self._clock()
        for held in self._held:
            spending.add(held.role, now, held.estimate.call.dollars, held.estimate.call.tokens)
        return spending.rows()


def _within(start: int, now: float, seconds: float) -> bool:
    # One that begins later than now was written before the clock was put back.
    return now - seconds - _SLOT < start <= now


def _read(file: Path) -> Spending:
    try:
        return Spending(read_json(file)["spent"])
    except FileNotFoundError:
        return Spending()
    except (UnusableFileError, OSError, ValueError, TypeError, KeyError) as error:
        aside = file.with_name(f"{file.name}.damaged")
        _log.error(
            "%s says nothing usable (%s); it is moved to %s, and counting begins at 0", file, error, aside
        )
        try:
            file.replace(aside)
        except OSError as refused:
            _log.warning("%s could not be moved: %s", file, refused)
        return Spending()


def _checked(row: object) -> tuple[int, str, float, int]:
    match row:
        case [int(start), str(role), int() | float() as dollars, int(tokens)] if dollars >= 0 <= tokens:
            return start, role, float(dollars), tokens
    raise ValueError(f"not what was spent: {row!r}"[:200])
