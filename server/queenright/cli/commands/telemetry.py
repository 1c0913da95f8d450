"""Telemetry: which sources send it, and what is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from queenright.cli.options import Json
from queenright.cli.output.printing import print_result
from queenright.cli.output.text import to_single_line
from queenright.cli.service import example, with_service
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.durations import format_duration

if TYPE_CHECKING:
    from queenright.api import Telemetry, TelemetrySource
    from queenright.client.synchronous import Queenright


@example("telemetry --json")
@with_service
def telemetry(service: Queenright, as_json: Json = False) -> None:
    """
    Show the telemetry sources, which of their records are unused, and what to configure.

    Counts begin at the start of the service. Exit code 1: nothing has arrived, or no record of a source is
    usable.
    """
    report = service.service.telemetry()
    print_result(report, "\n".join(_format_report(report)), as_json=as_json)
    is_usable = report.sources and all(source.used for source in report.sources)
    raise typer.Exit(0 if is_usable else 1)


def _format_report(report: Telemetry) -> Iterator[str]:
    if not report.sources:
        yield "Nothing has arrived. Send telemetry to the service's otlp.port; see docs/otlp.md."
    for source in report.sources:
        yield from _format_source(source)
    for refusal in report.refused:
        yield to_single_line(
            f"refused: {format_count(refusal.count, 'request')} to {refusal.path}, {refusal.status}, "
            f"{_format_age(refusal.last_seen)}: {refusal.reason}"
        )
    for row in report.unused:
        verdict = "rejected" if row.rejected else "not used"
        yield to_single_line(
            f"{verdict}: {format_count(row.count, 'record')} of {row.dialect}: {row.words} ({row.reason})"
        )


def _format_source(source: TelemetrySource) -> Iterator[str]:
    activity_text = ", ".join(source.shows).replace("_", " ") or "no agent activity"
    yield to_single_line(
        f"{source.service} ({source.dialect}): {source.used:,} of "
        f"{format_count(source.records, 'record')} used, "
        f"{_format_age(source.last_seen)}; shows {activity_text}"
    )
    if source.agents:
        yield to_single_line(f"  agents: {', '.join(source.agents)}")
        yield to_single_line(
            f"  last session {source.session}: {format_count(source.steps, 'step')}, "
            f"{format_count(source.tool_calls, 'tool call')}, {format_count(source.tokens, 'token')}"
        )
    for gap in source.missing:
        yield to_single_line(f"  missing: {gap.missing}; {gap.remedy}")


def _format_age(at: float) -> str:
    return f"{format_duration(time.time() - at)} ago"
