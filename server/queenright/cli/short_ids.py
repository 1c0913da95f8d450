"""Abbreviated ids on the command line: the beginning of an id, or the end of a session's id."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from queenright.cli.service import require_text
from queenright.instrumentation.errors import QueenrightError

if TYPE_CHECKING:
    from queenright.api.tickets import Ticket
    from queenright.client.synchronous import Queenright

NEWEST: Final = 1000
"""How many of the newest rows an abbreviated id is looked up in."""

_SHOWN: Final = 5
_WHOLE: Final = 26
"""Characters of the shortest ids that the service makes."""


class UnresolvedIdError(QueenrightError):
    """Raised for an abbreviated id that matches several rows."""


def resolve_id(prefix: str, what: str, ids: Callable[[], Iterable[str]]) -> str:
    """
    Return the only id that begins with ``prefix``; without a match, ``prefix`` itself.

    Args:
        prefix: The id, or its beginning.
        what: What the id identifies, in the plural, for error messages.
        ids: Returns the ids that the service knows; called only for an abbreviated id.

    Raises:
        UnresolvedIdError: Several ids begin with ``prefix``.
    """
    prefix = require_text(prefix.strip(), "id")
    if len(prefix) >= _WHOLE:
        return prefix
    matches = [id_ for id_ in ids() if id_.startswith(prefix)]
    if prefix in matches or not matches:
        return prefix  # the service says whether there is such an id
    return _require_single(matches, prefix, what, "begin")


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
    return ending if ending in matches or not matches else _require_single(matches, ending, "sessions", "end")


def _require_single(matches: list[str], part: str, what: str, how: str) -> str:
    if len(matches) > 1:
        raise UnresolvedIdError(
            f"{len(matches)} {what} {how} with {part!r}: {_some(matches)}; give more of the id"
        )
    return matches[0]


def _some(matches: list[str]) -> str:
    more = f" and {len(matches) - _SHOWN} more" if len(matches) > _SHOWN else ""
    return f"{', '.join(matches[:_SHOWN])}{more}"


def find_ticket(service: Queenright, prefix: str) -> Ticket:
    """
    Return the ticket with this id, or the only one whose id begins with it.

    Raises:
        BadParameter: ``prefix`` is empty.
        RequestRejectedError: No ticket matches, or several do; the message names the first matches.
    """
    return service.tickets.get(require_text(prefix.strip(), "ticket's id"))


def find_ticket_id(service: Queenright, prefix: str) -> str:
    """Return the whole id of a ticket; see ``find_ticket``."""
    return find_ticket(service, prefix).ticket_id
