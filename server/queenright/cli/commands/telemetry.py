"""Telemetry: who sends it, and what is missing of it."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from queenright.api import Telemetry, TelemetrySource
from queenright.cli.service import LOCAL, Json, TokenFile, Url, connect, on_one_line, tell


def telemetry(as_json: Json = False, url: Url = LOCAL, token_file: TokenFile = None) -> None:
    """
    Show who sends telemetry, what of it is not used, and what to set.

    Since the service started. Exit code 1: nothing has arrived, or a sender is not understood.
    """
    with connect(url, token_file) as service:
        found = service.service.telemetry()
    tell(found, "\n".join(_lines(found)), as_json=as_json)
    is_understood = found.sources and all(one.used for one in found.sources)
    raise typer.Exit(0 if is_understood else 1)


def _lines(found: Telemetry) -> Iterator[str]:
    if not found.sources:
        yield "Nothing has arrived. Agents send to the service's otlp.port; docs/otlp.md says how."
    for source in found.sources:
        yield from _of_source(source)
    for one in found.refused:
        yield on_one_line(
            f"refused: {one.count} requests to {one.path}, {one.status}, {one.when}: {one.reason}"
        )
    for row in found.unused:
        what = "rejected" if row.rejected else "not used"
        yield on_one_line(f"{what}: {row.count} records of {row.dialect}: {row.words} ({row.reason})")


def _of_source(source: TelemetrySource) -> Iterator[str]:
    shows = ", ".join(source.shows).replace("_", " ") or "no agent's work"
    yield on_one_line(
        f"{source.service} ({source.dialect}): {source.used} of {source.records} records used, "
        f"{source.when}; shows {shows}"
    )
    if source.agents:
        yield on_one_line(f"  agents: {', '.join(source.agents)}")
        yield on_one_line(
            f"  last session {source.session}: {source.steps} steps, {source.tool_calls} tool calls, "
            f"{source.tokens} tokens"
        )
    for one in source.missing:
        yield on_one_line(f"  missing: {one.missing}; {one.remedy}")
