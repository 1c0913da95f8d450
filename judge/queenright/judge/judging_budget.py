"""
Spending limits of the judge and the queen, in dollars and tokens per hour and day. Spending survives
restarts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from queenright.health.cluster.fleet import FleetState
from queenright.health.store.store import StoreError
from queenright.judge.estimate import Cost, Estimate, Unit
from queenright.judge.settings import BudgetSettings
from queenright.runtime.storage.files import Disk, UnusableFileError, read_json, write_json

_log = logging.getLogger(__name__)

Window = Literal["hour", "day"]

BUDGET_FILE: Final = "judging_spent.json"
"""The name of the file with the spending, in the storage folder."""
SHARED_SPENDING: Final = "judging"
"""The name of the shared value with the spending of all services of a fleet."""

_WINDOW_SECONDS: Final[Mapping[Window, float]] = {"hour": 3600, "day": 86_400}
_WINDOW_DIVISORS: Final[Mapping[Window, int]] = {"hour": 10, "day": 1}
"""The limit of a window is the day's limit divided by this."""
_UNITS: Final[tuple[Unit, ...]] = ("dollars", "tokens")
_SLOT_SECONDS: Final = 300
"""Spending is stored in slots of five minutes. A slot counts until its end leaves the window."""


class Spending:
    """
    The spending of the last day, by role.

    Args:
        rows: A result of the method ``rows``: a list of ``[slot start, role, dollars, tokens]``.

    Raises:
        ValueError: The rows are invalid.
    """

    def __init__(self, rows: object = ()) -> None:
        self._slots: dict[tuple[int, str], tuple[float, int]] = {}
        if not isinstance(rows, list | tuple):
            raise ValueError(f"the spending is not a list but {type(rows).__name__}")
        for row in rows:
            start, role, dollars, tokens = _check_row(row)
            self._slots[start, role] = dollars, tokens

    def add(self, role: str, at: float, dollars: float, tokens: int, now: float | None = None) -> None:
        """
        Add a payment at ``at``, in seconds since the epoch. Payments that are older than a day are dropped.

        A negative payment takes back a part of an earlier payment with the same time. ``now`` is ``at`` by
        default.
        """
        key = int(at // _SLOT_SECONDS) * _SLOT_SECONDS, role
        previous_amounts = self._slots.get(key, (0.0, 0))
        self._slots[key] = (
            max(0.0, round(previous_amounts[0] + dollars, 12)),
            max(0, previous_amounts[1] + tokens),
        )
        for old_key in [
            key for key in self._slots if not _is_within(key[0], now or at, _WINDOW_SECONDS["day"])
        ]:
            del self._slots[old_key]

    def sum_window(self, window: Window, unit: Unit, now: float, role: str | None = None) -> float:
        """Return the spending in the window that ends at ``now``, of one role or of all roles."""
        return sum(
            amounts[_UNITS.index(unit)]
            for (start, payer), amounts in self._slots.items()
            if _is_within(start, now, _WINDOW_SECONDS[window]) and role in (None, payer)
        )

    def rows(self) -> list[list[Any]]:
        """Return the slots as JSON values."""
        return [[start, role, *amounts] for (start, role), amounts in sorted(self._slots.items())]


@dataclass(frozen=True, slots=True)
class ExceededLimit:
    """A limit that has been reached, or that the next call would exceed."""

    window: Window
    unit: Unit
    limit: float
    spent: float
    requested: float = 0
    """The estimated cost of the call that would exceed it."""

    @property
    def seconds(self) -> float:
        """The length of the window."""
        return _WINDOW_SECONDS[self.window]

    def __str__(self) -> str:
        limit, spent, cost = (
            f"{n:.{places}f} $" if self.unit == "dollars" else f"{n:,.0f} tokens"
            for n, places in ((self.limit, 2), (self.spent, 2), (self.requested, 4))
        )
        text = f"judging.budget allows {limit} in any {self.window}, and {spent} are spent"
        return text if self.spent >= self.limit else f"{text}; the next call may cost {cost}"


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """The amount reserved for a call in progress."""

    role: str
    estimate: Estimate
    at: float
    """When the reservation was made, in seconds since the epoch."""


class ModelBudget:
    """
    Decides whether another call may be made, and records the spending.

    The estimated cost of a call is reserved before the call, and counts as spent until the actual cost is
    known, so that concurrent calls cannot spend the same remainder.

    Args:
        file: The file that stores the spending; None keeps it in memory. A damaged file is moved aside, and
            counting starts at 0.
        disk: Writes the file; None creates threads for it.
        fleet: If the fleet has several services, the limits apply to all of them together, and the fleet
            stores the spending instead of the file.
    """

    def __init__(
        self,
        settings: BudgetSettings,
        *,
        clock: Callable[[], float],
        file: Path | None = None,
        disk: Disk | None = None,
        fleet: FleetState | None = None,
    ) -> None:
        self._fleet = fleet if fleet is not None and fleet.is_shared else None
        self._limits: dict[tuple[Window, Unit], float] = {
            (window, unit): limit / part
            for window, part in _WINDOW_DIVISORS.items()
            for unit in _UNITS
            if (limit := getattr(settings, f"{unit}_per_day")) is not None
        }
        self._clock = clock
        self._file = file
        self._spending = Spending() if file is None or self._fleet is not None else _read_file(file)
        self._refused_cost = Cost()
        """The cost of the last refused request; zero if the last request was allowed."""
        self._disk = disk or Disk()
        self._write_lock = asyncio.Lock()

    def limits(self) -> Iterable[tuple[Window, Unit, float]]:
        """Return the configured limits."""
        return [(window, unit, limit) for (window, unit), limit in self._limits.items()]

    def all_spent(self) -> Iterator[tuple[Window, Unit, float]]:
        """
        Yield the spending of each window in each unit.

        A limit that did not allow the last call counts as fully spent, because no model is called.
        """
        limits = {
            (limit.window, limit.unit): limit.limit for limit in self._find_exceeded(self._refused_cost)
        }
        for window in _WINDOW_SECONDS:
            for unit in _UNITS:
                yield window, unit, max(self.sum_spending(window, unit), limits.get((window, unit), 0.0))

    def sum_spending(self, window: Window, unit: Unit, role: str | None = None) -> float:
        """Return the spending and reservations in the window that ends now, of one role or of all roles."""
        return self._spending.sum_window(window, unit, self._clock(), role)

    def find_exceeded_limit(self) -> ExceededLimit | None:
        """Return the exceeded limit with the longest window, or None if another call may be made."""
        return max(self._find_exceeded(self._refused_cost), key=lambda limit: limit.seconds, default=None)

    async def reserve(
        self, role: str, estimate: Estimate, *, force: bool = False
    ) -> Reservation | ExceededLimit:
        """
        Reserve the estimated cost of a call, or return the limit that it would exceed.

        The reservation is on disk on return. If the process is killed before ``settle``, all of it counts.

        Args:
            force: Reserve the cost even if it exceeds a limit.

        Raises:
            StoreError: The spending of the fleet's other services cannot be read.
        """
        reservation = Reservation(role, estimate, self._clock())
        cost = estimate.call
        limits: list[ExceededLimit] = []

        def add() -> bool:
            nonlocal limits
            limits = self._find_exceeded(cost)
            return (force or not limits) and self._add(reservation, cost)

        try:
            await self._change(add)
        except BaseException:
            if self._fleet is None:
                self._add(reservation, Cost(-cost.dollars, -cost.tokens))  # the call is not made
            raise
        self._refused_cost = cost if limits else Cost()
        return max(limits, key=lambda limit: limit.seconds) if limits and not force else reservation

    def _add(self, reservation: Reservation, cost: Cost) -> bool:
        self._spending.add(reservation.role, reservation.at, cost.dollars, cost.tokens, self._clock())
        return bool(cost)

    async def _change(self, change: Callable[[], bool]) -> None:
        """Change the spending, and store it in the fleet or the file if ``change`` returns True."""
        if self._fleet is not None:

            def update(rows: Any) -> Any:
                self._spending = Spending(rows or ())
                return self._spending.rows() if change() else rows

            await self._fleet.update(SHARED_SPENDING, update)
        elif change() and (file := self._file) is not None:
            async with self._write_lock:
                rows = self._spending.rows()
                try:
                    await self._disk.run(lambda: write_json(file, {"spent": rows}))
                except OSError as error:
                    _log.warning("cannot save the spending of judge and queen; a restart loses it: %s", error)

    def replace_spending(self, rows: object) -> None:
        """
        Replace the spending with that of the whole fleet.

        Args:
            rows: The value of `SHARED_SPENDING`.
        """
        self._spending = Spending(rows or ())

    async def settle(self, reservation: Reservation, cost: Cost | None) -> None:
        """
        Replace a reservation with the actual cost.

        Args:
            reservation: The result of ``reserve``.
            cost: The actual cost; None without a reply. The question is then charged, because it was sent.
        """
        estimate = reservation.estimate.call
        cost = reservation.estimate.question if cost is None else cost
        if not cost.is_valid or cost == estimate:
            return
        change = Cost(cost.dollars - estimate.dollars, cost.tokens - estimate.tokens)
        try:
            await self._change(lambda: self._add(reservation, change))
        except StoreError as error:
            _log.warning("cannot save the cost of a model call; its estimate counts: %s", error)

    def _find_exceeded(self, cost: Cost) -> list[ExceededLimit]:
        return [
            ExceededLimit(window, unit, limit, spent, cost.amount(unit))
            for (window, unit), limit in self._limits.items()
            if (spent := self.sum_spending(window, unit)) >= limit or spent + cost.amount(unit) > limit
        ]


def _is_within(start: int, now: float, seconds: float) -> bool:
    # A slot in the future does not count. It was written before the clock was set back.
    return now - seconds - _SLOT_SECONDS < start <= now


def _read_file(file: Path) -> Spending:
    try:
        return Spending(read_json(file)["spent"])
    except FileNotFoundError:
        return Spending()
    except (UnusableFileError, OSError, ValueError, TypeError, KeyError) as error:
        damaged_file = file.with_name(f"{file.name}.damaged")
        _log.error("%s is damaged (%s); moving it to %s, counting starts at 0", file, error, damaged_file)
        try:
            file.replace(damaged_file)
        except OSError as failure:
            _log.warning("cannot move %s: %s", file, failure)
        return Spending()


def _check_row(row: object) -> tuple[int, str, float, int]:
    match row:
        case [int(start), str(role), int() | float() as dollars, int(tokens)] if dollars >= 0 <= tokens:
            return start, role, float(dollars), tokens
    raise ValueError(f"not a spending row: {row!r}"[:200])
