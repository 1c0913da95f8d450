"""Snapshots in memory, and the state of a monitor as values that can be compared."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.monitoring.monitor_snapshot import MonitorSnapshot, compress_part, restore_snapshot
from queenright.health.settings import HealthSettings

NOT_RESTORED = frozenset(
    {
        # settings, and values derived from them
        "settings",
        "_shortest",
        "_has_shadows",
        "_no_tokens",
        "_degraded_after",
        # connections of the process
        "_is_stopping",
        "snapshot",
        "_on_delay",
        "_on_shadow",
        # used within one call, and the remaining workers of a sweep
        "_counts_runs",
        "_unswept",
        # derived from the deadlines of workers
        "_heap",
    }
)
"""Attributes of a monitor that a snapshot does not restore."""


def collect_state(monitor: HealthMonitor) -> dict[str, Any]:
    """Return the state of a monitor that a snapshot restores, as comparable values."""
    state = {
        name: make_comparable(value) for name, value in vars(monitor).items() if name not in NOT_RESTORED
    }
    # The order of the other mappings matters.
    return state | {name: sorted(state[name]) for name in ("_clocks", "_sessions")}


def make_comparable(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, (int, float, str, bytes, Enum)) or value is None:
        return value
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Mapping):
        return [(make_comparable(key), make_comparable(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, deque, array)):
        return [type(value).__name__, *map(make_comparable, value)]
    if isinstance(value, frozenset):
        return sorted(value)
    names = list(vars(value)) if hasattr(value, "__dict__") else []
    for cls in type(value).__mro__:
        names += getattr(cls, "__slots__", ())
    return {name: make_comparable(getattr(value, name)) for name in names if name != "settings"}


def finish_snapshot(snapshot: MonitorSnapshot) -> list[bytes]:
    """Return the remaining parts of a snapshot, and close it."""
    parts = []
    while (part := snapshot.next_part()) is not None:
        parts.append(compress_part(part))
    snapshot.close()
    return parts


def restore_monitor(parts: list[bytes], settings: HealthSettings) -> HealthMonitor:
    monitor = HealthMonitor(settings)
    restore_snapshot(monitor, parts)
    return monitor
