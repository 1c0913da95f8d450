"""
Ids on the command line.

The service completes the beginning of an id. The end of a session's id, as lists show it, is completed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import typer

from queenright.cli.service import require_text
from queenright.instrumentation.errors import QueenrightError

if TYPE_CHECKING:
    from queenright.client.synchronous import Queenright

_SHOWN: Final = 5
_ID: Final = re.compile(r"[^/\s]+")


class UnresolvedIdError(QueenrightError):
    """Raised for an abbreviated id that matches several rows."""


def require_id(text: str) -> str:
    """Return an id, or its beginning; reject a text that cannot be one, such as a path."""
    text = require_text(text.strip(), "id")
    if not _ID.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is not an id; ids have no slash and no space")
    return text


def resolve_session(service: Queenright, agent_id: str, ending: str | None) -> str | None:
    """
    Return the session of a worker whose id is ``ending``, or ends with it as `queenright list` shows it.

    Raises:
        UnresolvedIdError: Several sessions end with ``ending``.
    """
    if ending is None:
        return None
    sessions = [row.session_id for row in service.agents.list(agent_id=agent_id)]
    return _by_end(sessions, ending)


def resolve_task(service: Queenright, ending: str) -> str:
    """Return a task id; ``…end``, as `queenright list` shows it, is a session's id or a task's."""
    ending = require_text(ending, "task")
    if not ending.startswith("…"):
        return ending
    rows = list(service.agents.list())
    return _by_end([*(row.task_id for row in rows), *(row.session_id for row in rows)], ending)


def _by_end(ids: Iterable[str], ending: str) -> str:
    end = ending.removeprefix("…")
    matches = list(dict.fromkeys(id_ for id_ in ids if id_.endswith(end))) if end.strip() else []
    return ending if ending in matches or not matches else _require_single(matches, ending)


def _require_single(matches: list[str], ending: str) -> str:
    if len(matches) > 1:
        raise UnresolvedIdError(
            f"{len(matches)} sessions end with {ending!r}: {_some(matches)}; give more of the id"
        )
    return matches[0]


def _some(matches: list[str]) -> str:
    more = f" and {len(matches) - _SHOWN} more" if len(matches) > _SHOWN else ""
    return f"{', '.join(matches[:_SHOWN])}{more}"


def find_ticket_id(service: Queenright, prefix: str) -> str:
    """
    Return the whole id of a ticket.

    Raises:
        RequestRejectedError: No ticket's id begins so, or several do; the message names the first matches.
    """
    return service.tickets.get(prefix).ticket_id
