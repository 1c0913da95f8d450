"""
Snapshots of the monitor, so that a restart reads minutes of the event log instead of a day.

A snapshot is written in parts, and the event loop runs in between. All parts show the same moment, because a
worker that is about to change is recorded first. A part is a series of pickles. The reader accepts only the
classes of the state, so that a manipulated snapshot cannot run code. Settings and callbacks are not part of a
snapshot.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from enum import Enum
from hashlib import blake2b
from heapq import heapify
from io import BytesIO
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from queenright.health.detection.deadlines import ProcessSign
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Finding, FindingKind, Severity, WorkerKey
from queenright.health.monitoring.monitor import FailedRuns, HealthMonitor, WorkerHealth
from queenright.health.vitals.calls import RecentCalls, Repeat
from queenright.health.vitals.learned_clocks import LearnedClocks
from queenright.health.vitals.resource_limits import CutAnswers, Resource
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.source_clock import SourceClock
from queenright.health.vitals.tool_counts import ToolCounts
from queenright.health.vitals.vital_facts import (
    HeartbeatFields,
    McpLoss,
    McpServerState,
    OpenBreakers,
    OpenTool,
    Output,
    Refusal,
    SpentToday,
)
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.health.vitals.vital_state import VitalState
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.names import WaitingReason
from queenright.runtime.events import AgentEvent

_VERSION: Final = 1
"""Increase this when a value changes its meaning or type but its field keeps its name."""

_PART_WORKERS: Final = 250
"""The number of workers in a part. Recording them takes about 5 ms."""
_BATCH_ITEMS: Final = 250
_PART_BATCHES: Final = 20

_VITALS: Final = tuple(name for name in VitalState.__slots__ if name not in ("settings", "clocks"))
_HEALTH: Final = tuple(field.name for field in fields(WorkerHealth) if field.name not in ("vitals", "key"))
_get_vitals: Final = attrgetter(*_VITALS)
_get_health: Final = attrgetter(*_HEALTH)

VALUES: Final = ("listening_since", "_now")
"""Attributes of the monitor that are numbers."""
MAPPINGS: Final = ("_breakers", "_failed_runs", "_new_keys", "_signs", "_terminated_runs")
"""Attributes of the monitor that are mappings to immutable values."""

_CLASSES: Final[tuple[type, ...]] = (
    CutAnswers,
    FailedRuns,
    Finding,
    FindingKind,
    HealthState,
    HeartbeatFields,
    LearnedClocks,
    McpLoss,
    McpServerState,
    OpenBreakers,
    OpenTool,
    Output,
    ProcessSign,
    RecentCalls,
    Refusal,
    Repeat,
    Resource,
    Severity,
    SourceClock,
    SpentToday,
    ToolCounts,
    WaitingReason,
    WorkerStatus,
    array,
)
"""The classes that a snapshot may contain. Values of built-in types need none."""


def _describe_class(cls: type) -> str:
    names: Any = getattr(cls, "__slots__", ()) or list(cls.__annotations__)
    if issubclass(cls, Enum):
        names = [member.value for member in cls]
    return f"{cls.__module__}.{cls.__qualname__} {names}"


SNAPSHOT_FORMAT: Final = blake2b(
    "\n".join(
        map(
            str,
            (
                _VERSION,
                sys.byteorder,
                _VITALS,
                _HEALTH,
                VALUES,
                MAPPINGS,
                *map(_describe_class, _CLASSES[:-1]),
            ),
        )
    ).encode(),
    digest_size=16,
).hexdigest()
"""Identifies the snapshot format. Versions with different fields cannot read each other's snapshots."""


class SnapshotError(QueenrightError):
    """Raised when a snapshot cannot be read."""


class SnapshotDiscardedError(QueenrightError):
    """Raised when all workers changed during a snapshot, for example after a clock jump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHead:
    """The part of the event log that a snapshot contains."""

    time: float
    """
    When the snapshot was taken, in seconds since the epoch; during an outage of telemetry, when that began.
    """
    seq: int
    """The sequence number of the last event in the log that the snapshot contains."""
    unobserved: tuple[int, ...] = ()
    """
    The sequence numbers of earlier events that it does not contain: they were stored, but not observed yet.
    """
    unlogged: tuple[AgentEvent, ...] = ()
    """Events about findings and states in the snapshot that the log did not have yet."""


class MonitorSnapshot:
    """
    A snapshot of the monitor that is being taken. It belongs to the monitor's event loop.

    Call ``close`` at the end.
    """

    def __init__(self, monitor: HealthMonitor) -> None:
        self._monitor = monitor
        self._no_record = dict(zip(monitor._workers, range(len(monitor._workers)), strict=True))
        self._clocks = dict(monitor._clocks)
        self._is_discarded = False
        self._open_part()
        self._batches = _copy_batches(monitor)
        monitor.snapshot = self

    def record(self, worker: WorkerHealth) -> None:
        """
        Implement ``WorkerRecorder``. Record the learned clocks of the worker's agent, which are also about to
        change.
        """
        number = self._no_record.pop(worker.key, None)
        if number is not None:
            self._record_worker(number, worker)
        agent_id = worker.vitals.agent_id
        if (clocks := self._clocks.pop(agent_id, None)) is not None:
            self._dump(("_clocks", [(agent_id, clocks)]))

    def _record_worker(self, number: int, worker: WorkerHealth) -> None:
        self._dump(("", number, _get_health(worker), _get_vitals(worker.vitals)))

    def discard(self) -> None:
        """Implement ``WorkerRecorder``."""
        self._is_discarded = True
        self.close()

    def next_part(self) -> memoryview | None:
        """
        Return the next part, or None at the end.

        Raises:
            SnapshotDiscardedError: All workers have changed. Begin another snapshot.
        """
        if self._is_discarded:
            raise SnapshotDiscardedError("all workers changed while a snapshot of them was taken")
        for _ in range(_PART_WORKERS):
            if not self._no_record:
                break
            key, number = self._no_record.popitem()
            self._record_worker(number, self._monitor._workers[key])
        else:
            return self._close_part()
        for _ in range(_PART_BATCHES):
            if self._clocks:
                items = [self._clocks.popitem() for _ in range(min(_BATCH_ITEMS, len(self._clocks)))]
                self._dump(("_clocks", items))
            elif (batch := next(self._batches, None)) is not None:
                self._dump(batch)
        return self._close_part() if self._file.tell() else None

    def close(self) -> None:
        """Stop recording workers."""
        if self._monitor.snapshot is self:
            self._monitor.snapshot = None

    def _open_part(self) -> None:
        self._file = BytesIO()
        pickler = pickle.Pickler(self._file, 5)
        # By default, the pickle of an array refers to a function, which the reader does not accept.
        pickler.dispatch_table = {array: lambda value: (array, (value.typecode, value.tobytes()))}
        self._dump: Callable[[Any], None] = pickler.dump

    def _close_part(self) -> memoryview:
        part = self._file.getbuffer()
        self._open_part()
        return part


def _copy_batches(monitor: HealthMonitor) -> Iterator[tuple[str, Any]]:
    """
    Copy all state except workers and clocks. Return it in batches: an attribute's name, and some of its
    items.
    """
    today = monitor.today
    # Copying mappings is faster than listing their items, and blocks the event loop for less time.
    copies: dict[str, Any] = {name: dict(getattr(monitor, name)) for name in MAPPINGS}
    copies["traces"] = {trace: dict(workers) for trace, workers in monitor._children._traces.items()}
    copies["spending"] = dict(today._agents)
    copies["values"] = {name: getattr(monitor, name) for name in VALUES}
    copies["_ends"] = list(monitor._ends)
    copies["spending_sums"] = [(today._day, today._fleet)]
    return _split_batches(copies)


def _split_batches(copies: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, copy in copies.items():
        items = iter(copy.items() if isinstance(copy, dict) else copy)
        while batch := list(islice(items, _BATCH_ITEMS)):
            yield name, batch


class _Unpickler(pickle.Unpickler):
    """An unpickler that accepts only the classes of the state."""

    _classes: Final = {(cls.__module__, cls.__qualname__): cls for cls in _CLASSES}

    def find_class(self, module: str, name: str) -> type:
        try:
            return self._classes[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"a snapshot has no {module}.{name}") from None


def compress_part(part: memoryview) -> bytes:
    """Compress a part to about a third. Compression releases the GIL."""
    return zlib.compress(part, 1)


def restore_snapshot(monitor: HealthMonitor, parts: Iterable[bytes]) -> None:
    """
    Restore the state in a new monitor. The monitor's settings apply from the next sweep.

    Args:
        monitor: A new monitor. An error leaves it unchanged.
        parts: All parts of a snapshot with this version's ``SNAPSHOT_FORMAT``, compressed, in any order.

    Raises:
        SnapshotError: The parts cannot be read.
    """
    items: dict[str, list[Any]] = {}
    workers: dict[int, WorkerHealth] = {}
    for part in parts:
        with _raise_snapshot_error():
            for name, *fields in _read_records(zlib.decompress(part)):
                if name:
                    items.setdefault(name, []).extend(fields[0])
                else:
                    number, *fields_by_owner = fields
                    workers[number] = _make_worker(monitor, *fields_by_owner)
    with _raise_snapshot_error():
        _restore(monitor, items, [worker for _, worker in sorted(workers.items())])


@contextlib.contextmanager
def _raise_snapshot_error() -> Iterator[None]:
    try:
        yield
    # A damaged pickle can raise any exception.
    except Exception as error:
        raise SnapshotError(f"it is damaged: {error!r}") from error


def _read_records(part: bytes) -> Iterator[Any]:
    file = BytesIO(part)
    unpickler = _Unpickler(file)
    while file.tell() < len(part):
        yield unpickler.load()


def _make_worker(monitor: HealthMonitor, health: tuple[Any, ...], vitals: tuple[Any, ...]) -> WorkerHealth:
    v = VitalSigns.__new__(VitalSigns)
    for name, value in zip(_VITALS, vitals, strict=True):
        setattr(v, name, value)
    v.settings = monitor.settings
    return WorkerHealth(v, **dict(zip(_HEALTH, health, strict=True)))


def _restore(monitor: HealthMonitor, items: dict[str, list[Any]], workers: list[WorkerHealth]) -> None:
    sessions: dict[str, list[str]] = {}
    for worker in workers:
        sessions.setdefault(worker.key[0], []).append(worker.key[1])
    values, [(day, fleet)] = dict(items["values"]), items["spending_sums"]
    state: dict[str, Any] = {name: values[name] for name in VALUES}
    state |= {name: dict(items.get(name, ())) for name in (*MAPPINGS, "_clocks")}
    state["_workers"] = {worker.key: worker for worker in workers}
    state["_sessions"] = sessions
    state["_ends"] = deque[tuple[float, float, WorkerKey]](items.get("_ends", ()))
    state["_heap"] = [(worker.deadline, worker.key) for worker in workers if worker.deadline is not None]
    heapify(state["_heap"])
    traces, spending = dict(items.get("traces", ())), dict(items.get("spending", ()))

    # Nothing below fails.
    vars(monitor).update(state)
    monitor._children._traces = traces
    monitor.today.restore(day, fleet, spending)
    for worker in workers:
        worker.vitals.clocks = monitor._get_learned_clocks(worker.vitals.agent_id)
