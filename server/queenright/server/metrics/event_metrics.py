"""Metrics of the event bus: events, findings, state changes and dropped events."""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Finding, FindingKind, Severity, WorkerKey
from queenright.instrumentation import names
from queenright.instrumentation.families import counter, histogram
from queenright.runtime.events import AgentEvent, EventType

_log = logging.getLogger(__name__)

_DELAY_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class EventMetrics:
    """
    Metrics of events. They depend on no other part of the service, so the bus and the monitor can use them.

    Args:
        registry: The registry.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = counter(names.EVENTS, registry)
        self._event_children = {kind: self._events.labels(kind.value) for kind in EventType}
        # Initialized at 0: a counter that first appears at 1 shows no increase.
        self._findings = counter(names.FINDINGS, registry)
        self._shadow_findings = counter(names.SHADOW_FINDINGS, registry)
        for kind in FindingKind:
            for severity in Severity:
                self._findings.labels(kind.value, severity.value)
                self._shadow_findings.labels(kind.value, severity.value)
        self._transitions = counter(names.STATE_TRANSITIONS, registry)
        for old_state in HealthState:
            for new_state in HealthState:
                self._transitions.labels(old_state.value, new_state.value)
        self._dropped_events = counter(names.EVENT_BUS_DROPPED, registry)
        self._delay = histogram(names.DETECTION_DELAY, registry, buckets=_DELAY_BUCKETS)
        for kind in FindingKind:
            self._delay.labels(kind.value)

    def count_events(self, events: Sequence[AgentEvent]) -> None:
        """Count events on the bus, and the findings and transitions in them."""
        for kind, count in Tally(event.type for event in events).items():
            self._event_children[kind].inc(count)
        for event in events:
            if event.type is EventType.FINDING_OPENED:
                self._findings.labels(event.data["kind"], event.data["severity"]).inc()
            elif event.type is EventType.HEALTH_STATE_CHANGED:
                self._transitions.labels(event.data["from"], event.data["to"]).inc()

    def add_subscribers(self, subscriber_names: Iterable[str]) -> None:
        """Initialize the dropped-event counters of subscribers at 0."""
        for name in subscriber_names:
            self._dropped_events.labels(name)

    def count_dropped(self, subscriber: str, count: int) -> None:
        """Count events that a slow subscriber missed."""
        self._dropped_events.labels(subscriber).inc(count)

    def observe_detection(self, kind: FindingKind, delay: float) -> None:
        """Observe the seconds between crossing a threshold and the state change."""
        self._delay.labels(kind.value).observe(max(delay, 0.0))

    def record_shadow_finding(self, worker: WorkerKey, finding: Finding) -> None:
        """Count and log a finding of a shadow detector, which publishes no event."""
        self._shadow_findings.labels(finding.kind.value, finding.severity.value).inc()
        _log.info(
            "shadow detector, no action: %s (%s) on %r, session %r",
            finding.kind.value,
            finding.severity.value,
            *worker,
        )
