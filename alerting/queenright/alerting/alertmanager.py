"""Client for Alertmanager's v2 API. Credentials never appear in errors, logs or reprs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from queenright.alerting.peer import PeerAddress
from queenright.alerting.peer_silences import (
    InvalidAnswerError,
    NewSilence,
    PeerSilences,
    read_answers,
    rfc3339,
)
from queenright.instrumentation.certificates import certificates
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.names import SOURCE_QUEEN
from queenright.instrumentation.redaction import redact

if TYPE_CHECKING:
    import httpx

PEER_TIMEOUT_SECONDS: Final = 10.0
"""Timeout of a request. Alertmanager answers within milliseconds; Prometheus also uses ten seconds."""
MAX_LIST_BYTES: Final = 4 << 20
"""Maximum size in bytes of a list of silences or alerts, or of a status."""
_MAX_RESPONSE_BYTES: Final = 64 << 10
"""Maximum size in bytes of any other response."""
_REJECTION_STATUSES: Final = frozenset({400, 413, 422})
"""Status codes of an invalid request. All other failures are temporary."""


class AlertmanagerError(QueenrightError):
    """Base class of the errors of requests to a peer. ``peer`` is its address without credentials."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"Alertmanager {peer}: {reason}")
        self.peer = peer
        self.reason = reason


class PeerUnavailableError(AlertmanagerError):
    """
    Raised when a peer is unreachable or temporarily cannot handle a request; retry later.

    ``was_reached`` is False if no connection was established.
    """

    def __init__(self, peer: str, reason: str, *, was_reached: bool = True) -> None:
        super().__init__(peer, reason)
        self.was_reached = was_reached


class AlertsRejectedError(AlertmanagerError):
    """Raised when a peer rejects a request as invalid. Retrying it does not help."""


class SilenceNotFoundError(AlertmanagerError):
    """Raised when a peer has no silence with the given id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedAlert:
    """An alert for Alertmanager. It fires until ``ends_at``. Times are in seconds since the epoch."""

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: float
    ends_at: float

    def to_dict(self) -> dict[str, Any]:
        """Return the alert in the format of the v2 API."""
        return {
            "labels": self.labels,
            "annotations": self.annotations,
            "startsAt": rfc3339(self.starts_at),
            "endsAt": rfc3339(self.ends_at),
        }


class AlertmanagerClient:
    """Sends requests to any number of peers over shared connection pools."""

    def __init__(self) -> None:
        self._clients: dict[bool, httpx.AsyncClient] = {}
        """HTTP clients: one with TLS (key True) and one without."""

    async def post_alerts(self, peer: PeerAddress, alerts: Sequence[PostedAlert]) -> None:
        """
        Post alerts to a peer. Returns once the peer has accepted them.

        Raises:
            AlertsRejectedError: The peer rejected at least one alert and accepted the others.
            PeerUnavailableError: The request failed. The peer may still have accepted the alerts.
        """
        await self._request("POST", peer, "/api/v2/alerts", [alert.to_dict() for alert in alerts])

    async def alerts(self, peer: PeerAddress, **labels: str) -> list[dict[str, Any]]:
        """
        Return a peer's active alerts that have all the given labels.

        Raises:
            AlertmanagerError: The request failed.
        """
        body = await self._request("GET", peer, "/api/v2/alerts", limit=MAX_LIST_BYTES)
        rows = await asyncio.to_thread(_decode_json, body)
        try:
            return [alert for alert in rows if labels.items() <= alert["labels"].items()]
        except (TypeError, LookupError, AttributeError):
            raise _unexpected_response(peer, "a list of alerts") from None

    async def silences(self, peer: PeerAddress) -> PeerSilences:
        """
        Return a peer's silences, and which ticket alerts they match.

        Raises:
            AlertmanagerError: The request failed, or the response is invalid.
        """
        silences = await self._request("GET", peer, "/api/v2/silences", limit=MAX_LIST_BYTES)
        matcher = quote(f'source="{SOURCE_QUEEN}"', safe="")
        # Without active and unprocessed alerts, only suppressed ones remain, including the silenced ones.
        path = f"/api/v2/alerts?active=false&unprocessed=false&filter={matcher}"
        alerts = await self._request("GET", peer, path, limit=MAX_LIST_BYTES)
        try:
            return await asyncio.to_thread(read_answers, silences, alerts)
        except InvalidAnswerError as error:
            raise _unexpected_response(peer, f"lists of silences and alerts ({error})") from None

    async def silence(self, peer: PeerAddress, silence: NewSilence) -> str:
        """
        Create a silence and return its id. The peer replicates the silence to its cluster.

        Raises:
            AlertmanagerError: The request failed.
        """
        answer = _decode_json(await self._request("POST", peer, "/api/v2/silences", silence.to_dict()))
        silence_id = answer.get("silenceID") if isinstance(answer, dict) else None
        if not (isinstance(silence_id, str) and silence_id):
            raise _unexpected_response(peer, "a silence id; check whether the silence was created")
        return silence_id

    async def expire(self, peer: PeerAddress, silence_id: str) -> None:
        """
        Expire a silence now.

        Raises:
            SilenceNotFoundError: The peer has no silence with this id.
            AlertmanagerError: The request failed.
        """
        await self._request("DELETE", peer, f"/api/v2/silence/{quote(silence_id, safe='')}")

    async def status(self, peer: PeerAddress) -> dict[str, Any]:
        """
        Return a peer's version, uptime, cluster and configuration.

        Raises:
            AlertmanagerError: The request failed.
        """
        body = await self._request("GET", peer, "/api/v2/status", limit=MAX_LIST_BYTES)
        answer = await asyncio.to_thread(_decode_json, body)
        if not isinstance(answer, dict):
            raise _unexpected_response(peer, "a status")
        return answer

    async def aclose(self) -> None:
        """Close the connections. A later request opens new ones."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()

    async def _request(
        self,
        method: str,
        peer: PeerAddress,
        path: str,
        body: object = None,
        *,
        limit: int = _MAX_RESPONSE_BYTES,
    ) -> bytes:
        """
        Return the body of a peer's successful response.

        Raises:
            AlertmanagerError: The request failed, or the response is a web page or too large.
        """
        import httpx

        try:
            status, media_type, content = await self._exchange(method, peer, path, body, limit)
        except TimeoutError:
            raise PeerUnavailableError(peer.name, f"did not answer in {PEER_TIMEOUT_SECONDS:g} s") from None
        except httpx.HTTPError as error:
            # `from None`: the chained exception holds the request with the credentials.
            has_connected = not isinstance(error, httpx.ConnectError)
            raise PeerUnavailableError(
                peer.name, _describe_http_error(error), was_reached=has_connected
            ) from None
        if status // 100 != 2:
            raise _make_status_error(method, peer, status, content)
        if len(content) > limit:
            raise PeerUnavailableError(
                peer.name, f"answered with more than {limit >> 10} KiB; is it an Alertmanager?"
            )
        if media_type == "text/html":
            # Probably the login page of a proxy, so the request did not reach Alertmanager.
            raise PeerUnavailableError(peer.name, "answered with a web page; is it an Alertmanager?")
        return content

    async def _exchange(
        self, method: str, peer: PeerAddress, path: str, body: object, limit: int
    ) -> tuple[int, str, bytes]:
        """
        Return the status, media type and body of a response. Reading stops once the body exceeds ``limit``
        bytes.
        """
        import httpx

        secure = peer.name.startswith("https:")
        if secure not in self._clients:
            # Peers are contacted directly: a proxy from the environment would break loopback addresses.
            self._clients[secure] = httpx.AsyncClient(
                trust_env=False, follow_redirects=False, verify=certificates(peer.name)
            )
        request = self._clients[secure].stream(
            method,
            f"{peer.name}{path}",
            json=body,
            auth=peer.auth,
            timeout=PEER_TIMEOUT_SECONDS,
            # No compression: a small compressed body could expand to a huge one.
            headers={"Accept-Encoding": "identity"},
        )
        content = bytearray()
        async with request as response:
            async with asyncio.timeout(PEER_TIMEOUT_SECONDS):
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > limit:
                        break
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return response.status_code, media_type, bytes(content)


def _make_status_error(method: str, peer: PeerAddress, status: int, content: bytes) -> AlertmanagerError:
    text = content[:_MAX_RESPONSE_BYTES].decode("utf-8", "replace")
    reason = f"{status} {redact(text, 300).strip()}".strip()
    # Alertmanager 0.25 answers 500 for an unknown silence and 422 for an id that is not a UUID.
    if method == "DELETE" and (status in (404, 422) or "not found" in text):
        return SilenceNotFoundError(peer.name, reason)
    return (AlertsRejectedError if status in _REJECTION_STATUSES else PeerUnavailableError)(peer.name, reason)


def _decode_json(body: bytes) -> Any:
    """Decode a JSON response. Return None if it is not JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _unexpected_response(peer: PeerAddress, expectation: str) -> PeerUnavailableError:
    return PeerUnavailableError(peer.name, f"answered something other than {expectation}")


def _describe_http_error(error: Exception) -> str:
    reasons = {"ConnectError": "cannot be reached", "ConnectTimeout": "cannot be reached in time"}
    name = type(error).__name__
    return reasons.get(name) or f"did not answer ({name})"
