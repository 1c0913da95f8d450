"""Counts of calls and errors by tool, for a worker's summary."""

from __future__ import annotations

from array import array
from typing import Any, Final

MAX_TOOLS: Final = 16
"""The maximum number of tools with their own counts. The tools that were called first have them."""

OTHER: Final = "other"
"""The name under which all other tools are counted."""

_FIELDS: Final = 3
_MAX_COUNT: Final = 2**32 - 1


class ToolCounts:
    """
    Calls, errors and the time of the last call by tool, in at most about 500 bytes.

    At most ``MAX_TOOLS`` names are kept, even if a worker invents tool names.
    """

    __slots__ = ("_names", "_numbers")

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        # For each name: calls, errors, and the time of the last call in whole seconds since the epoch.
        self._numbers = array("I")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolCounts):
            return NotImplemented
        return self._names == other._names and self._numbers == other._numbers

    def add(self, tool: str, is_failure: bool, at: float) -> None:
        """Count one call that ended at ``at``, in seconds since the epoch."""
        place = self._find_place(tool)
        numbers = self._numbers
        numbers[place] = min(numbers[place] + 1, _MAX_COUNT)
        if is_failure:
            numbers[place + 1] = min(numbers[place + 1] + 1, _MAX_COUNT)
        numbers[place + 2] = max(numbers[place + 2], min(max(int(at), 0), _MAX_COUNT))

    def add_error(self, tool: str) -> None:
        """Count the failure of a call that is already counted."""
        place = self._find_place(tool) + 1
        self._numbers[place] = min(self._numbers[place] + 1, _MAX_COUNT)

    def absorb(self, other: ToolCounts) -> None:
        """Add the counts of ``other``."""
        for index, tool in enumerate(other._names):
            place = self._find_place(tool)
            calls, errors, last = other._numbers[index * _FIELDS : (index + 1) * _FIELDS]
            self._numbers[place] = min(self._numbers[place] + calls, _MAX_COUNT)
            self._numbers[place + 1] = min(self._numbers[place + 1] + errors, _MAX_COUNT)
            self._numbers[place + 2] = max(self._numbers[place + 2], last)

    def has_called(self, prefix: str, since: float) -> bool:
        """Return whether a tool whose name begins with ``prefix`` was called at or after ``since``."""
        return any(
            name.startswith(prefix) and self._numbers[index * _FIELDS + 2] >= since
            for index, name in enumerate(self._names)
        )

    def _find_place(self, tool: str) -> int:
        names = self._names
        try:
            return names.index(tool) * _FIELDS
        except ValueError:
            pass
        if len(names) > MAX_TOOLS:
            return MAX_TOOLS * _FIELDS
        self._names = (*names, tool if len(names) < MAX_TOOLS else OTHER)
        # Create a new array, because appending would overallocate.
        self._numbers = self._numbers + array("I", (0,) * _FIELDS)
        return len(names) * _FIELDS

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return ``{tool: {"calls", "errors", "last_at"}}`` in the order of the first calls."""
        rows: dict[str, dict[str, Any]] = {}
        for index, name in enumerate(self._names):
            calls, errors, last_at = self._numbers[index * _FIELDS : (index + 1) * _FIELDS]
            row = rows.get(name)
            if row is not None:  # a tool may itself be named "other"
                calls, errors = calls + row["calls"], errors + row["errors"]
                last_at = max(last_at, row["last_at"])
            rows[name] = {"calls": calls, "errors": errors, "last_at": float(last_at)}
        return rows
