"""The counter of dropped telemetry: one per process, registered in every worker registry."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final, Literal

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from queenright.instrumentation import names
from queenright.instrumentation.forks import after_fork_in_child

Signal = Literal["spans", "logs", "steps"]
SIGNALS: Final[tuple[Signal, ...]] = ("spans", "logs", "steps")
"""Undelivered spans; undelivered log records and unreported open spans; unwritten step log lines."""


class DroppedTelemetry(Collector):
    """The counter ``queenright_telemetry_dropped_total``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Signal, int] = dict.fromkeys(SIGNALS, 0)
        after_fork_in_child(self._reset_lock)

    def _reset_lock(self) -> None:
        self._lock = threading.Lock()

    def count(self, signal: Signal, number: int = 1) -> None:
        """Count ``number`` dropped items of ``signal``."""
        with self._lock:
            self._counts[signal] += number

    def get_count(self, signal: Signal) -> int:
        """Return the number of dropped items of ``signal``."""
        return self._counts[signal]

    def collect(self) -> Iterable[Metric]:
        """Return the counter, one sample per signal."""
        name = names.TELEMETRY_DROPPED
        family = CounterMetricFamily(name.name, name.help, labels=name.labels)
        for signal in SIGNALS:
            family.add_metric([signal], self._counts[signal])
        yield family


DROPPED: Final = DroppedTelemetry()
