"""Match records of the same call, by its id or by its content and time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.observation import Observation

MAX_CALLS: Final = 64
_RESTORED_SOURCE: Final = "before"
"""The source of calls that were restored after a restart."""
_TIME_TOLERANCE_NS: Final = 2_000_000
"""Tolerance in nanoseconds, because clients round times to milliseconds."""


@dataclass(slots=True, eq=False)
class Call:
    """A model or tool call that at least one source has reported."""

    kind: ObservationKind
    id: str
    start: int
    end: int = 0
    clock_shift: int | None = None
    """The clock shift of the record that opened the call; later records may have a larger one."""
    has_failed: bool = False
    """Whether a source reported its end as a failure."""
    subagent: str = ""
    """The id of the sub-agent that made the call, if a source reported one."""
    has_cost: bool = False
    """Whether a source reported its cost."""
    unpriced_tokens: int = 0
    """The tokens of a model call that was reported without a cost."""
    tool: str = ""
    arguments: str | None = None
    """The hash of a tool's arguments, if a source reported them."""
    effect: str | None = None
    """The effect of the call, if its arguments show it."""
    sources: set[tuple[str, bool]] = field(default_factory=set)
    """The sources that reported the call, each with whether it reported the end."""


class Calls:
    """
    The most recent calls of one session.

    Records with a call id match by id. Without ids, as in a log record and a span of the same model call, two
    records are the same call if they come from different sources and at least half of the shorter one
    overlaps the other, because a session makes one model call at a time. Tool calls must also have the same
    tool and arguments. A source that reports starts also reports ends; among identical calls, the oldest open
    one ends.
    """

    def __init__(self) -> None:
        self._calls: dict[ObservationKind, dict[str, Call]] = {
            ObservationKind.LLM: {},
            ObservationKind.TOOL: {},
        }
        """The calls by kind and id, oldest first."""
        self._open_counts: dict[ObservationKind, int] = {ObservationKind.LLM: 0, ObservationKind.TOOL: 0}
        """The number of open calls, by kind."""
        self._sources: set[str] = set()
        self._call_count = 0

    def record(self, observation: Observation, kind: ObservationKind) -> tuple[Call, bool]:
        """Return the call that an observation reports, and whether the call is new."""
        self._sources.add(observation.source)
        call = self._find(observation, kind)
        is_new = call is None
        if call is None:
            tool = str(observation.data.get("tool", ""))
            self._call_count += 1
            name = observation.call or f"{tool}-{observation.start}-{self._call_count}"
            call = Call(kind, name, observation.start, tool=tool, clock_shift=observation.clock_shift)
            self._add(call)
        call.arguments = call.arguments or observation.data.get("args_hash")
        call.effect = call.effect or observation.data.get("effect")
        call.subagent = call.subagent or observation.subagent
        call.sources.add((observation.source, observation.end > 0))
        return call, is_new

    def restore(self, kind: ObservationKind, id_: str, tool: str, start: int, end: int) -> Call:
        """Restore a call from before a restart, and its end unless ``end`` is 0."""
        id_ = id_ or f"{tool}-{end}"
        call = self._calls[kind].get(id_)
        if call is None:
            call = Call(kind, id_, start, tool=tool)
            self._add(call)
            self._sources.add(_RESTORED_SOURCE)
        call.sources.add((_RESTORED_SOURCE, end > 0))
        if end:
            self.end(call, end)
        return call

    def end(self, call: Call, at: int) -> None:
        """Set the end of a call."""
        if not call.end:
            self._open_counts[call.kind] -= 1
        call.end = at

    def is_open(self, kind: ObservationKind) -> bool:
        """Return whether a call of this kind is open."""
        return self._open_counts[kind] > 0

    def find_open(self, tool: str, arguments: str | None, excluded_ids: Collection[str]) -> Call | None:
        """Return the newest open call of a tool with these arguments, except ``excluded_ids``."""
        for call in reversed(self._calls[ObservationKind.TOOL].values()):
            if (
                call.tool == tool
                and call.arguments == arguments
                and not call.end
                and call.id not in excluded_ids
            ):
                return call
        return None

    def find_newest_open(self) -> Call | None:
        """Return the newest open tool call."""
        return next(
            (call for call in reversed(self._calls[ObservationKind.TOOL].values()) if not call.end), None
        )

    def _add(self, call: Call) -> None:
        calls = self._calls[call.kind]
        if len(calls) >= MAX_CALLS:
            oldest = calls.pop(next(iter(calls)))
            self._open_counts[call.kind] -= not oldest.end
        calls[call.id] = call
        self._open_counts[call.kind] += 1

    def _find(self, observation: Observation, kind: ObservationKind) -> Call | None:
        if observation.call:
            return self._calls[kind].get(observation.call)
        if len(self._sources) == 1 and not self._open_counts[kind]:
            return None  # the only source has reported the ends of all calls
        similar_calls = reversed(self._calls[kind].values())
        end_report = (observation.source, True)
        if kind is ObservationKind.TOOL:
            same_calls = [call for call in similar_calls if _is_same_work(call, observation)]
            started_calls = [call for call in same_calls if (observation.source, False) in call.sources]
            if observation.end and started_calls:
                return next((call for call in reversed(started_calls) if not call.end), started_calls[-1])
            similar_calls = iter([call for call in same_calls if call not in started_calls])
        return max(
            (
                call
                for call in similar_calls
                if end_report not in call.sources and _is_overlapping(call, observation)
            ),
            key=lambda call: _compute_overlap(call, observation),
            default=None,
        )


def _is_same_work(call: Call, observation: Observation) -> bool:
    """Return whether a call has the same tool and arguments, and this source has not reported it yet."""
    arguments = observation.data.get("args_hash")
    return (
        call.tool == observation.data.get("tool")
        and (call.arguments is None or arguments is None or call.arguments == arguments)
        and (observation.source, observation.end > 0) not in call.sources
    )


def _align_times(call: Call, observation: Observation) -> tuple[int, int, int, int]:
    """Return the start and end of a call and an observation on one clock. An open call ends with it."""
    clock_shift = (
        0
        if observation.clock_shift is None or call.clock_shift is None
        else observation.clock_shift - call.clock_shift
    )
    start, end = observation.start + clock_shift, (observation.end or observation.start) + clock_shift
    return call.start, call.end or max(call.start, end), start, end


def _compute_overlap(call: Call, observation: Observation) -> int:
    call_start, call_end, start, end = _align_times(call, observation)
    return min(call_end, end) - max(call_start, start)


def _is_overlapping(call: Call, observation: Observation) -> bool:
    call_start, call_end, start, end = _align_times(call, observation)
    overlap, shorter = _compute_overlap(call, observation), min(call_end - call_start, end - start)
    return 2 * overlap >= shorter if shorter else overlap >= -_TIME_TOLERANCE_NS
