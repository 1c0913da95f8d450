"""Which records tell of one and the same call: by its id, or by when it was."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from queenright.server.telemetry.kind import Kind
from queenright.server.telemetry.observation import Observation

MAX_CALLS: Final = 256


@dataclass(slots=True, eq=False)
class Call:
    """A call of a model or a tool that at least one source has told of."""

    kind: Kind
    id: str
    start: int
    end: int = 0
    sources: set[str] = field(default_factory=set)


class Calls:
    """
    The calls of one session seen last.

    Sources that know a call's id name it by that. Where they do not (a log record and a span of one model
    call), two calls are one if they come from different sources and at least half of the shorter lies within
    the other: a session waits for one answer of its model before it asks again.
    """

    def __init__(self) -> None:
        self._calls: deque[Call] = deque(maxlen=MAX_CALLS)

    def note(self, one: Observation) -> tuple[Call, bool]:
        """Return the call that an observation is of, and whether it is new."""
        call = self._find(one)
        is_new = call is None
        if call is None:
            call = Call(one.kind or Kind.TOOL, one.call, one.start)
            self._calls.append(call)
        call.sources.add(one.source)
        return call, is_new

    def is_open(self, kind: Kind) -> bool:
        """Return whether a call of this kind has begun and not ended."""
        return any(call.kind is kind and not call.end for call in self._calls)

    def _find(self, one: Observation) -> Call | None:
        alike = [call for call in reversed(self._calls) if call.kind is one.kind]
        if one.call:
            return next((call for call in alike if call.id == one.call), None)
        others = (call for call in alike if one.source not in call.sources and call.end and one.end)
        return max(
            (call for call in others if _is_same_time(call, one)),
            key=lambda call: _shared(call, one),
            default=None,
        )


def _shared(call: Call, one: Observation) -> int:
    return min(call.end, one.end) - max(call.start, one.start)


def _is_same_time(call: Call, one: Observation) -> bool:
    return 2 * _shared(call, one) >= max(1, min(call.end - call.start, one.end - one.start))
