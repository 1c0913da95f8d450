"""What was given up, by signal: counted once per process, shown in every registry that asks."""

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
"""Spans and log records not delivered, open spans not reported, lines of the step log not written."""


class Dropped(Collector):
    """The counter ``queenright_telemetry_dropped_total``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Signal, int] = dict.fromkeys(SIGNALS, 0)
        after_fork_in_child(self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()

    def count(self, signal: Signal, number: int = 1) -> None:
        """Add ``number`` to what was given up of ``signal``."""
        with self._lock:
            self._counts[signal] += number

    def of(self, signal: Signal) -> int:
        """Return how much of ``signal`` was given up so far."""
        return self._counts[signal]

    def collect(self) -> Iterable[Metric]:
        """Return the counter, one sample a signal."""
        name = names.TELEMETRY_DROPPED
        family = CounterMetricFamily(name.name, name.help, labels=name.labels)
        for signal in SIGNALS:
            family.add_metric([signal], self._counts[signal])
        yield family


DROPPED: Final = Dropped()
