"""What judging may cost, and has cost: in dollars and tokens, in any hour and any day, over restarts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from queenright.judge.settings import BudgetSettings
from queenright.runtime.storage.files import FileUnusable, read_json, write_json

_log = logging.getLogger(__name__)

Window = Literal["hour", "day"]
Unit = Literal["dollars", "tokens"]

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
    """A limit that is reached."""

    window: Window
    unit: Unit
    limit: float
    paid: float

    @property
    def seconds(self) -> float:
        """How long the window is."""
        return _SECONDS[self.window]

    def __str__(self) -> str:
        limit, paid = (
            f"{n:.2f} $" if self.unit == "dollars" else f"{n:,.0f} tokens" for n in (self.limit, self.paid)
        )
        return f"judging.budget allows {limit} in any {self.window}, and {paid} are spent"


class Budget:
    """
    Says whether another answer may be paid for, and remembers what was.

    It is asked before a call, so that each of those that go on at one time may exceed it once.

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
        self._writing = asyncio.Lock()

    def limits(self) -> Iterable[tuple[Window, Unit, float]]:
        """Return each limit that there is."""
        return [(window, unit, limit) for (window, unit), limit in self._limits.items()]

    def all_spent(self) -> Iterator[tuple[Window, Unit, float]]:
        """Return what is spent, of every window in every unit."""
        for window in _SECONDS:
            for unit in _UNITS:
                yield window, unit, self.spent(window, unit)

    def spent(self, window: Window, unit: Unit, role: str | None = None) -> float:
        """Return what is spent in the window that ends now: by one role, or by all."""
        return self._spending.of(window, unit, self._clock(), role)

    def exhausted(self) -> Spent | None:
        """Return the limit that is reached and holds longest; None if another call may be paid for."""
        reached = [
            Spent(window, unit, limit, paid)
            for (window, unit), limit in self._limits.items()
            if (paid := self.spent(window, unit)) >= limit
        ]
        return max(reached, key=lambda spent: spent.seconds, default=None)

    async def pay(self, role: str, dollars: float, tokens: int) -> None:
        """Remember what an answer cost. A disk that refuses is said in the log; here it still counts."""
        if not dollars and not tokens:
            return
        self._spending.add(role, self._clock(), dollars, tokens)
        if self._file is None:
            return
        async with self._writing:
            try:
                await asyncio.to_thread(write_json, self._file, {"spent": self._spending.rows()})
            except OSError as error:
                _log.warning("what judging costs cannot be kept, and a restart forgets it: %s", error)


def _within(start: int, now: float, seconds: float) -> bool:
    # One that begins later than now was written before the clock was put back.
    return now - seconds - _SLOT < start <= now


def _read(file: Path) -> Spending:
    try:
        return Spending(read_json(file)["spent"])
    except FileNotFoundError:
        return Spending()
    except (FileUnusable, OSError, ValueError, TypeError, KeyError) as error:
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
