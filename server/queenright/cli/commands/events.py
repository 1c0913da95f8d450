"""`queenright events`: what happens, in the terminal, as it happens."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenright.cli.service import (
    LOCAL,
    Json,
    TokenFile,
    Url,
    connect,
    cut,
    named,
    on_one_line,
    values,
)
from queenright.cli.errors import UsageError

if TYPE_CHECKING:
    from queenright.api.events import Event
    from queenright.client.notices import Notice

_QUIET = frozenset({"ticket", "snapshot"})
"""What events have at length, and no line has room for."""
_WIDEST = 110


def events(
    types: Annotated[
        str | None,
        typer.Option(metavar="TYPES", help="Of these types, with commas between; `all` for every type."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Of this worker only.")] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="Begin behind this event, not with the next.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="So many, and no more.")] = None,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """
    Follow what happens, a line an event; Ctrl-C ends it.

    When the connection breaks it is made again, and nothing that is in the event log is missing.
    """
    if agent is not None:
        named(agent, "worker's name")
    left = limit
    from queenright.client.errors import RequestRefusedError

    with (
        connect(url, token_file) as service,
        service.events.stream(types=types, agent=agent, last_event_id=after, told=_say) as stream,
    ):
        try:
            for event in stream:
                typer.echo(json.dumps(values(event)) if as_json else _line(event))
                left = None if left is None else left - 1
                if left == 0:
                    return
        except KeyboardInterrupt:
            return
        except RequestRefusedError as error:
            if error.status != 400:
                raise
            # The service knows the types, and says what is near.
            raise UsageError(str(error)) from error


def _say(notice: Notice) -> None:
    """Say on stderr what the stream tells of itself."""
    if notice.kind == "lost":
        typer.echo(f"queenright: {notice.error} Trying again.", err=True)
    elif notice.kind == "dropped":
        typer.echo(f"queenright: {notice.data.get('count', 'some')} deltas are left out.", err=True)
    elif notice.kind == "reset":
        typer.echo(f"queenright: {on_one_line(str(notice.data.get('reason', '')))}", err=True)


def _line(event: Event) -> str:
    """Return an event as a line: when, who, what, and its data as far as there is room."""
    at = time.strftime("%H:%M:%S", time.localtime(datetime.fromisoformat(event.time).timestamp()))
    data = ", ".join(f"{name}={_word(value)}" for name, value in event.data.items() if name not in _QUIET)
    head = f"{at}  {cut(event.agent_id, 20)} {cut(event.type, 28)}"
    return on_one_line(f"{head} {cut(data, _WIDEST - len(head))}")


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
