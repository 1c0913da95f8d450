"""Client of Alertmanager's v2 API: one peer a call, credentials in no error, no log and no repr."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from queenright.alerting.peer import PeerAddress
from queenright.alerting.silences import AnswerRefused, NewSilence, PeerSilences, read_answers
from queenright.instrumentation.certificates import certificates
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.names import SOURCE_QUEEN
from queenright.instrumentation.redaction import redact

if TYPE_CHECKING:
    import httpx

_REFUSALS: Final = frozenset({400, 413, 422})
"""Answers that blame what was sent. Every other failure is the peer's or the way's, and passes."""


class AlertmanagerError(QueenrightError):
    """Base of what may go wrong with a peer; ``peer`` is its address without credentials."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"Alertmanager {peer}: {reason}")
        self.peer = peer
        self.reason = reason


class PeerUnavailable(AlertmanagerError):
    """
    Raised when a peer could not be reached or could not take it now: try again later.

    ``reached`` is False if there was nobody to ask, so that nothing was put on anyone by asking.
    """

    def __init__(self, peer: str, reason: str, *, reached: bool = True) -> None:
        super().__init__(peer, reason)
        self.reached = reached


class AlertsRefused(AlertmanagerError):
    """Raised when a peer says that what was sent is wrong: sending it again would change nothing."""


class SilenceUnknown(AlertmanagerError):
    """Raised when a peer knows no silence with an id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedAlert:
    """One alert as Alertmanager takes it. Firing until ``ends_at``; times in seconds since the epoch."""

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: float
    ends_at: float

    def to_dict(self) -> dict[str, Any]:
        """Return the alert as the v2 API wants it."""
        return {
            "labels": self.labels,
            "annotations": self.annotations,
            "startsAt": _rfc3339(self.starts_at),
            "endsAt": _rfc3339(self.ends_at),
        }


class AlertmanagerClient:
    """
    Speaks to any number of peers over one pool of connections.

    Args:
        timeout: Seconds that a peer may take for one answer.
    """

    def __init__(self, *, timeout: float = 10.0) -> None:
        self._timeout = timeout
        self._clients: dict[bool, httpx.AsyncClient] = {}
        """By whether they are for https peers."""

    async def post_alerts(self, peer: PeerAddress, alerts: Sequence[PostedAlert]) -> None:
        """
        Hand alerts to a peer; it has them when this returns.

        Raises:
            AlertsRefused: at least one of them is wrong, in the peer's eyes; it kept the others.
            PeerUnavailable: the peer may or may not have them.
        """
        await self._request("POST", peer, "/api/v2/alerts", [alert.to_dict() for alert in alerts])

    async def alerts(self, peer: PeerAddress, **labels: str) -> list[dict[str, Any]]:
        """
        Return the active alerts that a peer knows, those with all these label values.

        Raises:
            AlertmanagerError: it did not answer, or refused.
        """
        response = await self._request("GET", peer, "/api/v2/alerts")
        found: list[dict[str, Any]] = response.json()
        return [alert for alert in found if labels.items() <= alert["labels"].items()]

    async def silences(self, peer: PeerAddress) -> PeerSilences:
        """
        Return the silences of a peer, and which alerts of tickets they are about.

        Raises:
            AlertmanagerError: it did not answer, refused, or answered something else.
        """
        silences = await self._request("GET", peer, "/api/v2/silences")
        ours = quote(f'source="{SOURCE_QUEEN}"', safe="")
        alerts = await self._request("GET", peer, f"/api/v2/alerts?filter={ours}")
        try:
            return await asyncio.to_thread(read_answers, silences.content, alerts.content)
        except AnswerRefused as refused:
            reason = f"answers something that is no list of silences and alerts ({refused})"
            raise PeerUnavailable(peer.name, reason) from None

    async def silence(self, peer: PeerAddress, silence: NewSilence) -> str:
        """
        Make a silence, and return its id; other peers of its cluster hear of it from this one.

        Raises:
            AlertmanagerError: it did not answer, or refused.
        """
        response = await self._request("POST", peer, "/api/v2/silences", silence.to_dict())
        return str(response.json()["silenceID"])

    async def expire(self, peer: PeerAddress, silence_id: str) -> None:
        """
        Let a silence end now.

        Raises:
            SilenceUnknown: it knows none with this id.
            AlertmanagerError: it did not answer, or refused.
        """
        await self._request("DELETE", peer, f"/api/v2/silence/{quote(silence_id, safe='')}")

    async def status(self, peer: PeerAddress) -> dict[str, Any]:
        """
        Return a peer's version, uptime, cluster and configuration.

        Raises:
            AlertmanagerError: it did not answer, or refused.
        """
        answer: dict[str, Any] = (await self._request("GET", peer, "/api/v2/status")).json()
        return answer

    async def ready(self, peer: PeerAddress) -> bool:
        """Return whether a peer says that it is ready."""
        try:
            await self._request("GET", peer, "/-/ready")
        except AlertmanagerError:
            return False
        return True

    async def aclose(self) -> None:
        """Close the connections. The client may be used again, with new ones."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()

    async def _request(
        self, method: str, peer: PeerAddress, path: str, body: object = None
    ) -> httpx.Response:
        import httpx

        secure = peer.name.startswith("https:")
        if secure not in self._clients:
            # Peers are addressed directly: a proxy from the environment would take loopback away.
            self._clients[secure] = httpx.AsyncClient(
                trust_env=False, follow_redirects=False, verify=certificates(peer.name)
            )
        try:
            response = await self._clients[secure].request(
                method,
                f"{peer.name}{path}",
                json=body,
                auth=peer.auth,
                timeout=self._timeout,
            )
        except httpx.HTTPError as error:
            # `from None`: the chained exception carries the request, and with it the login.
            reached = not isinstance(error, httpx.ConnectError)
            raise PeerUnavailable(peer.name, _reason(error), reached=reached) from None
        if response.status_code // 100 == 2:
            return response
        reason = f"{response.status_code} {redact(response.text, 300).strip()}".strip()
        # Alertmanager 0.25 says 500 of what it does not know.
        if method == "DELETE" and (response.status_code == 404 or "not found" in response.text):
            raise SilenceUnknown(peer.name, reason)
        kind = AlertsRefused if response.status_code in _REFUSALS else PeerUnavailable
        raise kind(peer.name, reason)


def _reason(error: Exception) -> str:
    words = {"ConnectError": "cannot be reached", "ConnectTimeout": "cannot be reached in time"}
    name = type(error).__name__
    return words.get(name) or f"did not answer ({name})"


def _rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
