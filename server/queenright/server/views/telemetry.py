"""Build the telemetry view of the API and the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queenright import api
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.server.telemetry.advice import list_advice
from queenright.server.telemetry.intake import Intake
from queenright.server.telemetry.sources import Source, SourceData
from queenright.server.telemetry.unusable import RecordFault, UnusedReason

_REASON_TEXTS: Final[Mapping[str, str]] = {
    RecordFault.INVALID_ID: "no valid trace id or span id",
    RecordFault.INVALID_SPAN: "a record about an open span without the span",
    RecordFault.NO_NAME: "a record that needs an agent's name and has none",
    RecordFault.NO_SESSION: "a record that needs a session and has none",
    RecordFault.TOO_LARGE: "too many attributes, too long a text, or too large a request",
    RecordFault.UNREADABLE: "a request whose body does not match its headers",
    RecordFault.UNSUPPORTED: "a request to another path, or with another method, content type or encoding",
    RecordFault.TIMEOUT: "a request whose body did not arrive in time",
    RecordFault.UNAUTHORIZED: "a request without a valid token, or from a web page",
    UnusedReason.NO_AGENT_WORK: "not about an agent's work",
    UnusedReason.METRICS: "metrics are forwarded, not read",
    UnusedReason.REPEATED: "received before",
    UnusedReason.SAME_WORK: "another record reports the same work",
}


def build_telemetry_view(intake: Intake, monitor: HealthMonitor) -> api.Telemetry:
    """Return the senders of telemetry, the unused records with the reasons, and the refused requests."""
    return api.Telemetry(
        sources=[
            _make_source_row(sender, monitor)
            for sender in sorted(intake.sources, key=lambda source: source.last_seen, reverse=True)
        ],
        unused=[
            api.UnusedRecords(
                dialect=dialect, reason=reason, count=count, rejected=is_rejected, words=_REASON_TEXTS[reason]
            )
            for is_rejected, counter in ((True, intake.rejected), (False, intake.unused))
            for (dialect, reason), count in counter.most_common()
        ],
        refused=[api.RefusedRequests.of(refusal) for refusal in intake.list_refusals()],
    )


def _make_source_row(source: Source, monitor: HealthMonitor) -> api.TelemetrySource:
    agent_id, session_id = source.session
    worker = monitor.get(agent_id, session_id) if agent_id else None
    vitals = None if worker is None else worker.vitals
    return api.TelemetrySource.of(
        source,
        libraries=list(source.libraries),
        used=max(0, source.used_records),
        rejected=source.rejected.total(),
        agents=list(reversed(source.agents)),
        session=session_id,
        steps=0 if vitals is None else vitals.steps_total,
        tool_calls=0 if vitals is None else vitals.tool_calls_total,
        tokens=0 if vitals is None else vitals.tokens,
        shows=[part.value for part in SourceData if part in source.parts],
        missing=[api.MissingPart.of(advice) for advice in list_advice(source)],
    )
