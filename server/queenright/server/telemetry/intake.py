"""Statistics of the telemetry received since the start, with the reasons why records were not used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final

from prometheus_client import CollectorRegistry

from queenright.instrumentation import names
from queenright.instrumentation.families import counter
from queenright.instrumentation.redaction import redact
from queenright.server.telemetry.dialects import CLIENTS
from queenright.server.telemetry.sources import DIALECTS, OTHER_DIALECT, Source, Sources
from queenright.server.telemetry.unusable import RecordFault, UnusedReason

MAX_SOURCES: Final = 100
"""Maximum number of sources; the most recent ones are kept."""
MAX_REFUSALS: Final = 50
OTHER_PATH: Final = "another path"
GRPC_PATH: Final = "gRPC"
"""The path under which connections of gRPC clients are counted."""
_DIALECT_BY_PATH: Final[Mapping[str, str]] = dict.fromkeys(
    ("/v1/traces", "/v1/logs", "/v1/metrics", GRPC_PATH), OTHER_DIALECT
) | {f"/hooks/{client.name}": client.name for client in CLIENTS}
"""Known paths, and the dialect that an unreadable request counts for."""
_FAULT_BY_STATUS: Final[Mapping[int, RecordFault]] = {
    400: RecordFault.UNREADABLE,
    401: RecordFault.UNAUTHORIZED,
    403: RecordFault.UNAUTHORIZED,
    404: RecordFault.UNSUPPORTED,
    405: RecordFault.UNSUPPORTED,
    408: RecordFault.TIMEOUT,
    413: RecordFault.TOO_LARGE,
    415: RecordFault.UNSUPPORTED,
    505: RecordFault.UNSUPPORTED,
}
"""The fault of a refused request, by status. Clients retry after other statuses, so nothing is lost."""
NOTICE_INTERVAL_SECONDS: Final = 3_600.0
"""Seconds before the same notice about a sender is repeated."""


@dataclass(slots=True)
class RefusalCount:
    """The number of requests to a path that were refused with the same HTTP status."""

    path: str
    status: int
    count: int = 0
    reason: str = ""
    """The reason of the last refusal."""
    last_seen: float = 0.0


class Intake:
    """
    Statistics of the telemetry port. Not thread-safe.

    Args:
        registry: The registry for the counters of rejected and unused records.
        unused_registry: Another registry for the counter of unused records.
    """

    def __init__(
        self, registry: CollectorRegistry, *, unused_registry: CollectorRegistry | None = None
    ) -> None:
        self.sources = Sources(MAX_SOURCES)
        self.rejected: Counter[tuple[str, RecordFault]] = Counter()
        """Rejected records by dialect and reason."""
        self.unused: Counter[tuple[str, UnusedReason]] = Counter()
        self._refusals: dict[tuple[str, int], RefusalCount] = {}
        self._rejected_total = counter(names.TELEMETRY_REJECTED, registry)
        self._unused_total = counter(names.TELEMETRY_UNUSED, unused_registry or registry)
        for dialect, fault in product(DIALECTS, RecordFault):
            self._rejected_total.labels(dialect, fault)

    def add(self, sources: Sources, now: float) -> list[str]:
        """Add the sources of a request. Return notices about senders that need a change."""
        notices = []
        for new_source in sources:
            if not new_source.records and not new_source.parts:
                continue
            for fault, count in new_source.rejected.items():
                self.rejected[new_source.dialect, fault] += count
                self._rejected_total.labels(new_source.dialect, fault).inc(count)
            for reason, count in new_source.unused.items():
                self.unused[new_source.dialect, reason] += count
                self._unused_total.labels(new_source.dialect, reason).inc(count)
            source = self.sources.merge_into_known(new_source)
            source.add(new_source)
            source.first_seen = source.first_seen or now
            source.last_seen = now
            is_notified = source.last_notified and now - source.last_notified < NOTICE_INTERVAL_SECONDS
            if not source.used_records and source.unused[UnusedReason.NO_AGENT_WORK] and not is_notified:
                source.last_notified = now
                notices.append(_format_unused_notice(source))
            is_known = (
                source.wrong_times_notified and now - source.wrong_times_notified < NOTICE_INTERVAL_SECONDS
            )
            if new_source.wrong_times and not is_known:
                source.wrong_times_notified = now
                notices.append(_format_wrong_time_notice(source))
        return notices

    def add_refusal(
        self, path: str, status: int, reason: str, now: float, *, fault: RecordFault | None = None
    ) -> None:
        """
        Count a refused request as one rejected record.

        Args:
            path: The request's path.
            status: The HTTP status of the response.
            reason: The reason in the response.
            now: Seconds since the epoch.
            fault: The fault, if it is more specific than the status.
        """
        fault = fault or _FAULT_BY_STATUS.get(status)
        if fault is not None:
            dialect = _DIALECT_BY_PATH.get(path, OTHER_DIALECT)
            self.rejected[dialect, fault] += 1
            self._rejected_total.labels(dialect, fault).inc()
        key = path if path in _DIALECT_BY_PATH else OTHER_PATH, status
        while key not in self._refusals and len(self._refusals) >= MAX_REFUSALS:
            del self._refusals[next(iter(self._refusals))]
        refusal = self._refusals.pop(key, None) or RefusalCount(*key)
        refusal.count += 1
        refusal.reason, refusal.last_seen = redact(reason, 300), now
        self._refusals[key] = refusal

    def list_refusals(self) -> list[RefusalCount]:
        """Return the refused requests by path and status, newest first."""
        return list(reversed(self._refusals.values()))


def _format_unused_notice(source: Source) -> str:
    return (
        f"telemetry of {source.service!r} ({', '.join(source.libraries) or 'no scope'}) is not used, because "
        "no record is about an agent, a model call or a tool call; "
        "run `queenright telemetry` or open /telemetry for the settings to change"
    )


def _format_wrong_time_notice(source: Source) -> str:
    return (
        f"telemetry of {source.service!r} has impossible times, which are replaced by arrival times: "
        f"{source.wrong_time}; set the clock of the sender's host"
    )
