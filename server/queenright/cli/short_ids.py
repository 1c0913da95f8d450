"""
Ids on the command line.

The service completes the beginning of an id. The end of a session's id, as lists show it, is completed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import typer

from queenright.cli.service import require_text
from queenright.instrumentation.errors import QueenrightError

if TYPE_CHECKING:
    from queenright.client.synchronous import Queenright

_MAX_LISTED: Final = 5
_ID: Final = re.compile(r"[^/\s]+")


class UnresolvedIdError(QueenrightError):
    """Raised for an abbreviated id that matches several rows."""


def require_id(text: str) -> str:
    """Return an id, or its beginning; reject a text that cannot be one, such as a path."""
    text = require_text(text.strip(), "id")
    if not _ID.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is not an id; ids have no slash and no space")
    return text


def make_id_argument(command: str, **options: Any) -> Any:
    """Return the argument for an id that a command lists."""
    text = f"Id, or its beginning, as `queenright {command}` shows it."
    return typer.Argument(callback=require_id, help=text, **options)


def resolve_session(service: Queenright, agent_id: str, ending: str | None) -> str | None:
    """
    Return the session of a worker whose id is ``ending``, or ends with it as `queenright list` shows it.

    Raises:
        UnresolvedIdError: Several sessions end with ``ending``.
    """
    if ending is None:
        return None
    sessions = [row.session_id for row in service.agents.list(agent_id=agent_id)]
    return _match_end(sessions, ending)


def resolve_task(service: Queenright, ending: str) -> str:
    """Return a task id. A text such as ``…end``, as `queenright list` shows it, matches tasks or sessions."""
    ending = require_text(ending, "task")
    if not ending.startswith("…"):
        return ending
    rows = list(service.agents.list())
    return _match_end([*(row.task_id for row in rows), *(row.session_id for row in rows)], ending)


def _match_end(ids: Iterable[str], ending: str) -> str:
    suffix = ending.removeprefix("…")
    matches = list(dict.fromkeys(id_ for id_ in ids if id_.endswith(suffix))) if suffix.strip() else []
    if ending in matches or not matches:
        return ending
    if len(matches) > 1:
        omission = f" and {len(matches) - _MAX_LISTED} more" if len(matches) > _MAX_LISTED else ""
        raise UnresolvedIdError(
            f"{len(matches)} sessions end with {ending!r}: {', '.join(matches[:_MAX_LISTED])}{omission}; "
            "give more characters of the id"
        )
    return matches[0]


def find_ticket_id(service: Queenright, prefix: str) -> str:
    """
    Return the whole id of a ticket.

    Raises:
        RequestRejectedError: No ticket id starts with ``prefix``, or several do; the message lists
            the first matches.
    """
    return service.tickets.get(prefix).ticket_id
