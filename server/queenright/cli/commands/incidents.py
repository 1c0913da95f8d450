"""Incidents and model providers: problems that several agents share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli.options import Json
from queenright.cli.output.printing import print_list
from queenright.cli.output.text import fit
from queenright.cli.service import example, with_service
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.durations import format_duration

if TYPE_CHECKING:
    from queenright.api import Incident, Provider
    from queenright.client.synchronous import Queenright


@example("incidents --all")
@with_service
def incidents(
    service: Queenright,
    all_: Annotated[bool, typer.Option("--all", help="Include those closed in the last 7 days.")] = False,
    as_json: Json = False,
) -> None:
    """
    List incidents: tickets of several agents with the same cause.

    An incident sends one notification. It stays open for up to 10 minutes after its last ticket closes,
    in case the cause returns.
    """
    rows = [incident for incident in service.tickets.incidents() if all_ or incident.closed_at is None]
    empty = "No incidents in the last seven days." if all_ else "No open incidents."
    print_list(rows, map(_format_incident, rows), empty, as_json=as_json)


@example("providers --json")
@with_service
def providers(service: Queenright, as_json: Json = False) -> None:
    """
    List model providers and their status, from the fleet's calls of the last ten minutes.

    One line per model: status, failed calls, median and 95th percentile latency of successful calls.
    """
    rows = service.service.providers()
    print_list(rows, map(_format_provider, rows), "No model calls in the last hour.", as_json=as_json)


def _format_incident(incident: Incident) -> str:
    duration = format_duration((incident.closed_at or time.time()) - incident.opened_at)
    state = "open for" if incident.closed_at is None else "closed after"
    tickets = f"{incident.open_tickets:,} of {format_count(len(incident.ticket_ids), 'ticket')} open"
    sessions = format_count(incident.workers, "session")
    return f"{incident.severity:<8}  {fit(incident.cause, 30)}  {sessions}, {tickets}, {state} {duration}"


def _format_provider(provider: Provider) -> str:
    name = "/".join(part for part in (provider.provider, provider.model) if part)
    latency = (
        ""
        if provider.seconds_p50 is None or provider.seconds_p95 is None
        else f"  p50 {provider.seconds_p50:.1f} s, p95 {provider.seconds_p95:.1f} s"
    )
    errors = ", ".join(f"{error.error_type} {error.count}x" for error in provider.errors)
    if provider.limited_until is not None:
        time_left = format_duration(max(0.0, provider.limited_until - time.time()))
        errors = f"rate limit ends in {time_left}{'; ' if errors else ''}{errors}"
    failure_text = f"{provider.failed:,} of {format_count(provider.calls, 'call')} failed"
    return f"{provider.status:<8}  {fit(name, 40)}  {failure_text}{latency}  {errors}"
