"""Client of Alertmanager's v2 API: one peer a call, credentials in no error, no log and no repr."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from queenright.alerting.peer import PeerAddress
from queenright.alerting.silences import InvalidAnswerError, NewSilence, PeerSilences, read_answers
from queenright.instrumentation.certificates import certificates
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.names import SOURCE_QUEEN
from queenright.instrumentation.redaction import redact

if TYPE_CHECKING:
    import httpx

MOST_BYTES: Final = 4 << 20
"""A list of silences or alerts that is longer is not read to its end."""
_MOST_SAID: Final = 64 << 10
"""So is any other answer."""
_REFUSALS: Final = frozenset({400, 413, 422})
"""Answers that blame what was sent. Every other failure is the peer's or the way's, and passes."""


class AlertmanagerError(QueenrightError):
    """Base of what may go wrong with a peer; ``peer`` is its address without credentials."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"Alertmanager {peer}: {reason}")
        self.peer = peer
        self.reason = reason


class PeerUnavailableError(AlertmanagerError):
    """
    Raised when a peer could not be reached or could not take it now: try again later.

    ``reached`` is False if there was nobody to ask, so that nothing was put on anyone by asking.
    """

    def __init__(self, peer: str, reason: str, *, reached: bool = True) -> None:
        super().__init__(peer, reason)
        self.reached = reached


class AlertsRejectedError(AlertmanagerError):
    """Raised when a peer says that what was sent is wrong: sending it again would change nothing."""


class SilenceNotFoundError(AlertmanagerError):
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
            AlertsRejectedError: at least one of them is wrong, in the peer's eyes; it kept the others.
            PeerUnavailableError: the peer may or may not have them.
        """
        await self._request("POST", peer, "/api/v2/alerts", [alert.to_dict() for alert in alerts])

    async def alerts(self, peer: PeerAddress, **labels: str) -> list[dict[str, Any]]:
        """
        Return the active alerts that a peer knows, those with all these label values.

        Raises:
            AlertmanagerError: it did not answer, or refused.
        """
        body = await self._request("GET", peer, "/api/v2/alerts", most=MOST_BYTES)
        found = await asyncio.to_thread(_read, body)
        try:
            return [alert for alert in found if labels.items() <= alert["labels"].items()]
        except (TypeError, LookupError, AttributeError):
            raise _no(peer, "list of alerts") from None

    async def silences(self, peer: PeerAddress) -> PeerSilences:
        """
        Return the silences of a peer, and which alerts of tickets they are about.

        Raises:
            AlertmanagerError: it did not answer, refused, or answered something else.
        """
        silences = await self._request("GET", peer, "/api/v2/silences", most=MOST_BYTES)
        ours = quote(f'source="{SOURCE_QUEEN}"', safe="")
        # Those that people are told of need not come along.
        path = f"/api/v2/alerts?active=false&unprocessed=false&filter={ours}"
        alerts = await self._request("GET", peer, path, most=MOST_BYTES)
        try:
            return await asyncio.to_thread(read_answers, silences, alerts)
        except InvalidAnswerError as refused:
            raise _no(peer, f"list of silences and alerts ({refused})") from None

    async def silence(self, peer: PeerAddress, silence: NewSilence) -> str:
        """
        Make a silence, and return its id; other peers of its cluster hear of it from this one.

        Raises:
            AlertmanagerError: it did not answer, or refused.
        """
        found = _read(await self._request("POST", peer, "/api/v2/silences", silence.to_dict()))
        made = found.get("silenceID") if isinstance(found, dict) else None
        if not (isinstance(made, str) and made):
            raise _no(peer, "silence's id: whether there is a silence now is not known")
        return made

    async def expire(self, peer: PeerAddress, silence_id: str) -> None:
        """
        Let a silence end now.

        Raises:
            SilenceNotFoundError: it knows none with this id.
            AlertmanagerError: it did not answer, or refused.
        """
        await self._request("DELETE", peer, f"/api/v2/silence/{quote(silence_id, safe='')}")

    async def status(self, peer: PeerAddress) -> dict[str, Any]:
        """
        Return a peer's version, uptime, cluster and configuration.

        Raises:
            AlertmanagerError: it did not answer, or refused.
        """
        body = await self._request("GET", peer, "/api/v2/status", most=MOST_BYTES)
        answer = await asyncio.to_thread(_read, body)
        if not isinstance(answer, dict):
            raise _no(peer, "status")
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
        self, method: str, peer: PeerAddress, path: str, body: object = None, *, most: int = _MOST_SAID
    ) -> bytes:
        """
        Return what a peer answers, if it took it; ``most`` bytes of it at most.

        Raises:
            AlertmanagerError: it did not answer, refused, or answered more, or a web page.
        """
        import httpx

        try:
            status, kind, said = await self._exchange(method, peer, path, body, most)
        except TimeoutError:
            raise PeerUnavailableError(peer.name, f"did not answer in {self._timeout:g} s") from None
        except httpx.HTTPError as error:
            # `from None`: the chained exception carries the request, and with it the login.
            reached = not isinstance(error, httpx.ConnectError)
            raise PeerUnavailableError(peer.name, _reason(error), reached=reached) from None
        if status // 100 != 2:
            raise _refused(method, peer, status, said)
        if len(said) > most:
            raise PeerUnavailableError(
                peer.name, f"answers with more than {most >> 10} KiB; is it an Alertmanager?"
            )
        if kind == "text/html":
            # A login before it, say: whatever was posted has not arrived.
            raise PeerUnavailableError(peer.name, "answers with a web page; is it an Alertmanager?")
        return said

    async def _exchange(
        self, method: str, peer: PeerAddress, path: str, body: object, most: int
    ) -> tuple[int, str, bytes]:
        """Return the answer's status, its type, and its body, cut soon after ``most`` bytes."""
        import httpx

        secure = peer.name.startswith("https:")
        if secure not in self._clients:
            # Peers are addressed directly: a proxy from the environment would take loopback away.
            self._clients[secure] = httpx.AsyncClient(
                trust_env=False, follow_redirects=False, verify=certificates(peer.name)
            )
        asked = self._clients[secure].stream(
            method,
            f"{peer.name}{path}",
            json=body,
            auth=peer.auth,
            timeout=self._timeout,
            # Packed, a little may be very much: it comes as it is, and is read as it comes.
            headers={"Accept-Encoding": "identity"},
        )
        said = bytearray()
        async with asked as response:
            async with asyncio.timeout(self._timeout):
                async for part in response.aiter_raw():
                    said += part
                    if len(said) > most:
                        break
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return response.status_code, kind, bytes(said)


def _refused(method: str, peer: PeerAddress, status: int, said: bytes) -> AlertmanagerError:
    text = said[:_MOST_SAID].decode("utf-8", "replace")
    reason = f"{status} {redact(text, 300).strip()}".strip()
    # Alertmanager 0.25 says 500 of what it does not know, and 422 of an id that is no UUID.
    if method == "DELETE" and (status in (404, 422) or "not found" in text):
        return SilenceNotFoundError(peer.name, reason)
    return (AlertsRejectedError if status in _REFUSALS else PeerUnavailableError)(peer.name, reason)


def _read(body: bytes) -> Any:
    """Return what a peer answers; None if it is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _no(peer: PeerAddress, what: str) -> PeerUnavailableError:
    return PeerUnavailableError(peer.name, f"answers something that is no {what}")


def _reason(error: Exception) -> str:
    words = {"ConnectError": "cannot be reached", "ConnectTimeout": "cannot be reached in time"}
    name = type(error).__name__
    return words.get(name) or f"did not answer ({name})"


def _rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
