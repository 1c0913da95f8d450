"""Silences at Alertmanager."""

from __future__ import annotations

from collections.abc import Iterator

from queenright import api
from queenright.client.address import build_path
from queenright.client.responses import json_body
from queenright.client.synchronous.resource import Resource


class Silences(Resource):
    """The silences of a service's Alertmanagers."""

    def list(self) -> Iterator[api.Silence]:
        """Yield active and pending silences, ordered by end."""
        return self._transport.list_models(api.Silence, "/api/silences", "silences")

    def snapshot(self) -> api.Silences:
        """Return the silences, and which Alertmanagers did not answer."""
        return self._transport.get_model(api.Silences, "/api/silences")

    def add(
        self, ticket_id: str, *, seconds: float, comment: str, by: str | None = None
    ) -> api.SilenceResult:
        """Silence a ticket, and further tickets of its agent with the same cause."""
        body = json_body(ticket_id=ticket_id, seconds=seconds, comment=comment, by=by)
        return self._transport.send_for_model(api.SilenceResult, "/api/silences", body)

    def remove(self, silence_id: str) -> None:
        """End a silence now."""
        self._transport.send(build_path("api", "silences", silence_id), method="DELETE")
