"""Silences at Alertmanager: of which tickets nobody hears."""

from __future__ import annotations

from collections.abc import Iterator

from queenright import api
from queenright.client.address import path
from queenright.client.answers import body
from queenright.client.synchronous.group import Group


class Silences(Group):
    """The silences of a service's Alertmanagers."""

    def list(self) -> Iterator[api.Silence]:
        """Yield silences that hold or will, the first to end first."""
        return self._ask.every(api.Silence, "/api/silences", "silences")

    def known(self) -> api.Silences:
        """Return the silences, and which Alertmanager could not be asked for its own."""
        return self._ask.one(api.Silences, "/api/silences")

    def add(self, ticket_id: str, *, seconds: float, comment: str, by: str | None = None) -> api.SilenceMade:
        """Let nobody hear of a ticket for a while, nor of its agent for the same cause."""
        sent = body(ticket_id=ticket_id, seconds=seconds, comment=comment, by=by)
        return self._ask.acted(api.SilenceMade, "/api/silences", sent)

    def remove(self, silence_id: str) -> None:
        """Let one end now."""
        self._ask.act(path("api", "silences", silence_id), method="DELETE")
