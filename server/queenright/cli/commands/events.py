"""`queenright events`: follow the event stream in the terminal."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenright.cli.errors import UsageError
from queenright.cli.options import AgentFilter, Json
from queenright.cli.output.printing import to_json_values
from queenright.cli.output.text import fit, to_single_line
from queenright.cli.service import example, require_text, with_service

if TYPE_CHECKING:
    from queenright.api.events import Event
    from queenright.client.notices import Notice
    from queenright.client.synchronous import Queenright

_LONG_KEYS = frozenset({"ticket", "snapshot"})
"""Data keys that are too long for a line."""
_WIDTH = 110


@example("events --agent researcher --types all")
@with_service
def events(
    service: Queenright,
    types: Annotated[
        str | None, typer.Option(metavar="TYPES", help="Event types, comma-separated; `all` for every type.")
    ] = None,
    agent: AgentFilter = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="Start after this event. Default: now.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many events.")] = None,
    as_json: Json = False,
) -> None:
    """
    Follow events, one per line, until Ctrl-C.

    The stream reconnects after a break and continues without a gap for events that are in the log.
    """
    from queenright.client.errors import RequestRejectedError

    if agent is not None:
        require_text(agent, "worker's name")
    remaining = limit
    with service.events.stream(
        types=types, agent_id=agent, last_event_id=after, on_notice=_print_notice
    ) as stream:
        try:
            for event in stream:
                typer.echo(json.dumps(to_json_values(event)) if as_json else _format_event(event))
                remaining = None if remaining is None else remaining - 1
                if remaining == 0:
                    return
        except KeyboardInterrupt:
            return
        except RequestRejectedError as error:
            if error.status != 400:
                raise
            # The service knows the event types and suggests similar ones.
            raise UsageError(str(error)) from error


def _print_notice(notice: Notice) -> None:
    if notice.kind == "lost":
        typer.echo(f"queenright: {notice.error} Reconnecting.", err=True)
    elif notice.kind == "dropped":
        typer.echo(f"queenright: {notice.data.get('count', 'some')} deltas were dropped.", err=True)
    elif notice.kind == "reset":
        typer.echo(f"queenright: {to_single_line(str(notice.data.get('reason', '')))}", err=True)


def _format_event(event: Event) -> str:
    """Return an event as a line: time, worker, type, and as much data as fits."""
    time_text = time.strftime("%H:%M:%S", time.localtime(event.time))
    data = ", ".join(
        f"{key}={_format_value(value)}" for key, value in event.data.items() if key not in _LONG_KEYS
    )
    head = f"{time_text}  {fit(event.agent_id, 20)} {fit(event.type, 28)}"
    return to_single_line(f"{head} {fit(data, _WIDTH - len(head))}")


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
