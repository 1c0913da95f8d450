"""`queenright incidents` and `queenright providers`: what several agents have in common."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from queenright.api import Incident, Provider
from queenright.cli.service import LOCAL, Json, TokenFile, Url, connect, cut, tell_all
from queenright.instrumentation.durations import format_duration

All = Annotated[bool, typer.Option("--all", help="Closed ones of the last seven days too.")]


def incidents(
    all_: All = False, as_json: Json = False, url: Url = LOCAL, token_file: TokenFile = None
) -> None:
    """
    List incidents: tickets of several agents that share a cause.

    People get one message an incident. It closes with its last ticket.
    """
    with connect(url, token_file) as service:
        found = [one for one in service.tickets.incidents() if all_ or one.closed_at is None]
    none = "No incidents in the last seven days." if all_ else "No open incidents."
    tell_all(found, map(_incident, found), none, as_json=as_json)


def providers(as_json: Json = False, url: Url = LOCAL, token_file: TokenFile = None) -> None:
    """
    List model providers: how they do, by the fleet's own calls of the last ten minutes.

    A line a model: status, failed calls, latency of half and of 95 % of the calls that succeeded.
    """
    with connect(url, token_file) as service:
        found = service.service.providers()
    tell_all(found, map(_provider, found), "No calls of models in the last hour.", as_json=as_json)


def _incident(one: Incident) -> str:
    lasted = format_duration((one.closed_at or time.time()) - one.opened_at)
    state = "open for" if one.closed_at is None else "closed after"
    tickets = f"{one.open_tickets} of {len(one.ticket_ids)} tickets open"
    return f"{one.severity:<8}  {cut(one.cause, 30)}  {one.workers} sessions, {tickets}, {state} {lasted}"


def _provider(one: Provider) -> str:
    name = "/".join(part for part in (one.provider, one.model) if part)
    took = (
        ""
        if one.seconds_p50 is None or one.seconds_p95 is None
        else f"  {one.seconds_p50:.1f} s, {one.seconds_p95:.1f} s"
    )
    why = ", ".join(f"{error.error_type} {error.count}x" for error in one.errors)
    if one.limited_until is not None:
        left = format_duration(max(0.0, one.limited_until - time.time()))
        why = f"rate limit ends in {left}{'; ' if why else ''}{why}"
    return f"{one.status:<8}  {cut(name, 40)}  {one.failed}/{one.calls} failed{took}  {why}"
