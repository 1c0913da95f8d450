"""The recent tool calls of a worker as fingerprints, and the repeats among them."""

from __future__ import annotations

from array import array
from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple

MAX_CYCLE_LENGTH: Final = 4
"""The number of calls in the longest cycle that is detected. A loop ends after as many calls outside it."""

_SIZE: Final = 8
_BLIND: Final = b"\0"
_SUCCESS: Final = b"\1"
_FAILURE: Final = b"\2"
_EDIT: Final = b"\3"
_FAILED_EDIT: Final = b"\4"
_MAX_COUNT: Final = 65_535


class CallNovelty(Enum):
    """Whether the worker has made the same call with the same result before."""

    NEVER = "never"
    BEFORE = "before"
    AFTER_CHANGE = "tried again"
    """The worker made the call before, and has changed something since."""
    PARALLEL = "parallel"
    """The worker made the same call in the same turn. Identical parallel calls count once."""


def digest(*parts: str) -> bytes:
    """
    Return an eight-byte hash of ``parts``. It is the same in every process, because snapshots contain it.
    """
    # Truncating a long digest is faster than computing a short one, which needs a keyword argument.
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass")).digest()[:_SIZE]


def _encode_call(tool: str, args: str, result: str | None, *, is_failure: bool) -> bytes:
    # The first byte encodes whether the result is known and whether the call failed, to save an array.
    if result is None:
        return _BLIND + digest(tool, args)[1:]
    if not result:
        return (_FAILED_EDIT if is_failure else _EDIT) + digest(tool, args, result)[1:]
    return (_FAILURE if is_failure else _SUCCESS) + digest(tool, args, result)[1:]


class Repeat(NamedTuple):
    """
    A current repeat of a call, or of a cycle of calls.

    Attributes:
        times: Repeats of the most frequent call, including those outside the window if the repeat continues.
            Repeats after a change do not count.
        run: Consecutive repeats, including those outside the window.
        in_window: Repeats in the window, except those after a possible change.
        across_changes: Repeats in the window, including those after a change.
        unchanged: Repeats in the window, except those after a certain change.
        period: The length of the cycle; 1 for a single call.
        cycles: The number of completed cycles.
        is_blind: Whether only arguments are compared, because results are not recorded.
        is_edit: Whether the call is an edit, whose result is not compared either.
        is_failure: Whether every call failed.
    """

    tool: str
    times: int
    run: int
    in_window: int
    across_changes: int
    unchanged: int
    period: int
    cycles: int
    since: float
    is_blind: bool
    is_edit: bool
    is_failure: bool


class RecentCalls:
    """
    The last calls of a worker, oldest first. Identical calls of one turn ran in parallel and count once.
    """

    __slots__ = (
        "_alike",
        "_chains",
        "_first",
        "_live",
        "_open_calls",
        "_pairs",
        "_repeats",
        "_runs",
        "_since_change",
        "_since_perhaps",
        "_since_shown",
        "_tools",
        "_turn",
        "_turn_size",
        "_unchanged",
        "_window",
    )

    def __init__(self, window: int) -> None:
        # The buffers are a little larger than the window, so that they contain all of a repeat that has just
        # ended.
        self._window = window
        self._pairs = bytearray()
        self._chains = array("H")
        self._alike = array("H")
        self._unchanged = array("H")
        self._runs = array("H")
        self._first = array("d")
        self._tools: tuple[
            str, ...
        ] = ()  # only those of the newest calls, because no other call can be part of a current repeat
        self._live = 0
        self._repeats: list[Repeat] | None = None
        self._open_calls = b""  # the newest calls without their results
        self._since_change = self._since_perhaps = self._since_shown = window + MAX_CYCLE_LENGTH
        self._turn: object = None
        self._turn_size = 0

    def __len__(self) -> int:
        return len(self._chains)

    @property
    def peak(self) -> int:
        """
        The number of repeats of the most frequent recent call; 1 if no call repeats, 0 without calls.

        This is an upper bound for ``repeats`` that is cheap to compute.
        """
        # A chain is never longer than the number of identical calls, because it omits repeats after a change.
        return max(self._alike[-self._live :]) if self._live else 0

    def add(
        self,
        tool: str,
        args: str,
        result: str | None,
        turn: object,
        at: float,
        *,
        is_failure: bool = False,
        is_check: bool = False,
        is_look: bool = False,
    ) -> CallNovelty:
        """
        Add a call that has ended. Return whether the worker recently made the same call with the same result.

        If a repeated call has a new result, earlier calls had an effect. If these did not fail, they do not
        count as repeats afterwards, except edits, whose arguments contain what they write.

        Args:
            result: The fingerprint of the result; empty for an edit, whose result does not count; None if it
                is not recorded.
            turn: An id that the calls of one turn share, or None.
            at: When the call ended, in seconds since the epoch.
            is_failure: Whether the call failed.
            is_check: Whether the call may check the work done before it.
            is_look: Whether the call may read something that an earlier call changed.
        """
        pair = _encode_call(tool, args, result, is_failure=is_failure)
        pairs = self._pairs
        if turn is not None and turn == self._turn:
            if self._find(pair, len(self) - self._turn_size) >= 0:
                return CallNovelty.PARALLEL
            self._turn_size += 1
        else:
            self._turn = turn
            self._turn_size = 1
        self._repeats = None
        last_index = self._find(pair, 0)
        since = min(self._since_change, self._since_perhaps)
        is_unchanged = last_index >= len(self) - (since if is_check else self._since_change) - 1
        is_repeated = last_index >= len(self) - (since if is_check or is_look else self._since_change) - 1
        may_be_new = bool(result) and not is_failure  # an edit writes the same regardless of its result
        if may_be_new and 0 <= last_index < len(self) - self._since_shown - 1:
            # A call in between showed that the last identical call had an effect, so this call continues the
            # work.
            is_repeated = False
            self._chains.append(1)
            self._alike.append(min(self._alike[last_index] + 1, _MAX_COUNT))
            self._unchanged.append(1)
            self._first.append(self._first[last_index])
        elif last_index >= 0:
            # A call that is repeated after a change checks the effect of the change, and is not a repeat.
            self._chains.append(min(self._chains[last_index] + is_repeated, _MAX_COUNT))
            self._alike.append(min(self._alike[last_index] + 1, _MAX_COUNT))
            self._unchanged.append(min(self._unchanged[last_index] + is_unchanged, _MAX_COUNT))
            self._first.append(self._first[last_index])
        else:
            self._chains.append(1)
            self._alike.append(1)
            self._unchanged.append(1)
            self._first.append(at)
        is_next = bool(pairs) and last_index == len(self._runs) - 1
        self._runs.append(min(self._runs[-1] + 1, _MAX_COUNT) if is_next else 1)
        pairs += pair
        self._tools = (*self._tools[1 - MAX_CYCLE_LENGTH :], tool)
        self._since_change += 1
        self._since_perhaps += 1
        call = digest(tool, args)
        is_shown = last_index < 0 and may_be_new and call in self._open_calls
        self._since_shown = 0 if is_shown else self._since_shown + 1
        self._open_calls = (self._open_calls + call)[-MAX_CYCLE_LENGTH * _SIZE :]
        self._live = min(self._live + 1, MAX_CYCLE_LENGTH)
        if len(self._chains) > self._window + MAX_CYCLE_LENGTH:
            del pairs[:_SIZE], self._chains[0], self._alike[0], self._unchanged[0], self._runs[0]
            del self._first[0]
        if last_index < 0:
            return CallNovelty.NEVER
        return CallNovelty.BEFORE if is_repeated else CallNovelty.AFTER_CHANGE

    def has(self, tool: str, args: str, result: str | None, *, is_failure: bool) -> bool:
        """Return whether this call with this result is among the recent calls."""
        return self._find(_encode_call(tool, args, result, is_failure=is_failure), 0) >= 0

    def is_last(self, tool: str, args: str, result: str | None) -> bool:
        """Return whether the newest call was this one, with this result, and no failure."""
        return bool(self._pairs) and self._pairs[-_SIZE:] == _encode_call(
            tool, args, result, is_failure=False
        )

    def record_change(self) -> None:
        """Record that the newest call changed something, so that a later identical call is not a repeat."""
        self._since_change = 0

    def record_possible_change(self) -> None:
        """
        Record that the newest call may have changed something, so that a later identical read is not a
        repeat.
        """
        self._since_perhaps = 0

    def end_repeats(self) -> None:
        """End the current repeats but keep their counts, which a later repeat continues."""
        self._live = 0
        self._repeats = None

    def clear(self) -> None:
        """Remove all calls."""
        self.__init__(self._window)  # type: ignore[misc]  # empties the same object

    def repeats(self) -> list[Repeat]:
        """Return the repeats among the newest calls, one for each distinct call, newest first."""
        if self._repeats is None:
            self._repeats = self._find_repeats()
        return self._repeats

    def _find_repeats(self) -> list[Repeat]:
        pairs = memoryview(self._pairs).cast("Q").tolist()
        repeats: dict[int, Repeat] = {}
        size = len(pairs)
        for index in range(size - 1, size - 1 - self._live, -1):
            if self._alike[index] > 1 and pairs[index] not in repeats:
                repeats[pairs[index]] = self._make_repeat(pairs, index)
        return list(repeats.values())

    def _make_repeat(self, pairs: list[int], index: int) -> Repeat:
        pair, run = pairs[index], self._runs[index]
        first = pairs.index(pair, max(0, index + 1 - self._window))
        period, cycles = (1, run) if run > 1 else _find_cycle(pairs, index)
        kind = bytes(self._pairs[index * _SIZE : index * _SIZE + 1])
        return Repeat(
            tool=self._tools[index - len(self)],
            times=self._chains[index],
            run=run,
            in_window=self._chains[index] - self._chains[first] + 1,
            across_changes=self._alike[index] - self._alike[first] + 1,
            unchanged=self._unchanged[index] - self._unchanged[first] + 1,
            period=period,
            cycles=cycles,
            since=self._first[index],
            is_blind=kind == _BLIND,
            is_edit=kind in (_EDIT, _FAILED_EDIT),
            is_failure=kind in (_FAILURE, _FAILED_EDIT),
        )

    def _find(self, pair: bytes, start: int) -> int:
        """Return the index of the newest call at or after ``start`` that equals ``pair``, or -1."""
        index = self._pairs.rfind(pair, start * _SIZE)
        while index >= 0 and index % _SIZE:
            index = self._pairs.rfind(pair, start * _SIZE, index + _SIZE - 1)
        return index // _SIZE if index >= 0 else -1


def _find_cycle(pairs: list[int], index: int) -> tuple[int, int]:
    """Return the period and the number of the cycles that end at ``index``, or ``(1, 1)`` without a cycle."""
    for period in range(2, MAX_CYCLE_LENGTH + 1):
        length = 0
        while length <= index - period and pairs[index - length] == pairs[index - length - period]:
            length += 1
        cycles = 1 + length // period
        if cycles > 1:
            return period, cycles
    return 1, 1
